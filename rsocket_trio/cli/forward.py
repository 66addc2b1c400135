"""The command ``forward``: serves what other servers answer, over other transports and dialects."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import click
import trio

from rsocket_trio import Responder, forwarding, open_pool, serve
from rsocket_trio.cli.client_command import Ask
from rsocket_trio.cli.connections import LISTENING, listening
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.options import MANY, OF_ONE_RUN, Row, add_rows, connection_options, dialect, rows_of, uri
from rsocket_trio.cli.serve import ORIGINS, serve_until_stopped
from rsocket_trio.client.options import DIALECT

# fmt: off
ROWS: Final = (
    Row("to",         "--to", "A server that is asked; several are equal servers.",
                      {**MANY, "required": True, "type": uri, "metavar": "URI"}),
    Row("dialect",    "--dialect-to", "The dialect of these servers.",
                      {"type": dialect, "metavar": "NAME", "default": DIALECT, "show_default": True}),
    Row("route_to",   "--route-to", "The route of requests that have none.", {"metavar": "ROUTE"}),
    *rows_of("data_mime"),
    ORIGINS,
)
# fmt: on


@click.command("forward", cls=Command, examples=("forward --listen ws://0.0.0.0:8080 --to tcp://10.0.0.1:7000",))
@partial(add_rows, rows=(*LISTENING, *ROWS))
@partial(connection_options, without=(*OF_ONE_RUN, "dialect"))
@click.pass_context
def command(ctx: click.Context, /, to: tuple[str, ...], route_to: str | None, origins: Any, **parameters: Any) -> None:
    """Ask the servers at --to whatever is asked at --listen: all interactions, with the clients' own demand."""
    addresses, ssl_context = listening(ctx, parameters)
    options, _ = Ask(uri=to[0], log=None, **parameters).planned()

    async def forward(task_status: trio.TaskStatus[list[str]]) -> None:
        async with open_pool(to, wait=False, **options) as pool:
            responder.include(forwarding(pool, route=route_to))
            await pool.connected()
            await serve(responder, addresses, ssl_context=ssl_context, origins=origins, task_status=task_status)

    responder = Responder()
    serve_until_stopped(forward, lambda: len(responder.routes))
