"""The command ``request``: asks for one answer and shows it."""

from __future__ import annotations

import trio

from rsocket_trio import Connection, Payload
from rsocket_trio.cli.client_command import client_command
from rsocket_trio.cli.data import whole
from rsocket_trio.cli.interactions import Kind, Wish
from rsocket_trio.cli.output import Output


async def perform(connection: Connection, wish: Wish, output: Output) -> None:
    """Make the request, and write its answer."""
    payload = Payload(await whole(wish.sources), wish.metadata)
    reply = await connection.request_response(payload, route=wish.route)
    await trio.sleep(wish.delay)
    await output.write_line(reply.data)


command = client_command(Kind.REQUEST, "Ask for one answer, and show it.")
