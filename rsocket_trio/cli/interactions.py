"""The commands ``request``, ``stream``, ``channel``, ``fnf`` and ``push``: a table of them, and what each does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final

import click
import trio

from rsocket_trio import (
    Canceled,
    Channel,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Incoming,
    Payload,
    Unsupported,
)
from rsocket_trio.cli.client_command import Ask, Performer, Wish
from rsocket_trio.cli.data import each, whole
from rsocket_trio.cli.exit_codes import MEANINGS
from rsocket_trio.cli.options import ResumeCommand, our_options, uri
from rsocket_trio.cli.output import Output
from rsocket_trio.metadata import with_route

ANSWER_TIMEOUT = 1.0
"""Seconds that a peer gets to answer a keepalive."""


async def request(connection: Connection, wish: Wish, output: Output) -> None:
    """Ask for one answer, and show it."""
    payload = Payload(await whole(wish.data), wish.metadata)
    await _write_item(connection, await connection.request_response(payload, route=wish.route), wish, output)


async def stream(connection: Connection, wish: Wish, output: Output) -> None:
    """Ask for a stream, and show its items, one a line."""
    payload = Payload(await whole(wish.data), wish.metadata)
    async with connection.request_stream(
        payload, route=wish.route, initial_request_n=wish.credit, refill=wish.refill
    ) as items:
        await _show(connection, items, wish, output)


async def channel(connection: Connection, wish: Wish, output: Output) -> None:
    """Send items and show those that come back, one a line."""
    async with aclosing(each(wish.data)) as payloads:
        opening = await anext(payloads, b"") if wish.first_opens else b""
        async with (
            connection.request_channel(
                Payload(opening, wish.metadata), route=wish.route, initial_request_n=wish.credit, refill=wish.refill
            ) as channel,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_send_all, channel, payloads)
            if await _show(connection, channel, wish, output):
                nursery.cancel_scope.cancel()


async def fnf(connection: Connection, wish: Wish, output: Output) -> None:
    """Send a request that is never answered."""
    await connection.fire_and_forget(Payload(await whole(wish.data), wish.metadata), route=wish.route)
    await _hear_of_refusal(connection)


async def push(connection: Connection, wish: Wish, output: Output) -> None:
    """Send metadata that concerns the connection as a whole."""
    metadata = wish.metadata
    if wish.data:
        if metadata is not None or wish.route is not None:
            raise ValueError("a push is metadata and nothing else: data cannot go with it")
        metadata = await whole(wish.data)
    if wish.route is not None:
        metadata = with_route(wish.route, metadata, connection.setup.metadata_mime)
    if metadata is None:
        raise ValueError("a push needs metadata")
    await connection.metadata_push(metadata)
    await _hear_of_refusal(connection)


async def _send_all(channel: Channel, payloads: AsyncGenerator[bytes, None]) -> None:
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def stop_when_nobody_listens() -> None:
            # The next line may never come.
            await channel.wait_send_closed()
            nursery.cancel_scope.cancel()

        try:
            async for payload in payloads:
                await channel.send(payload)
            await channel.send_eof()
        except Canceled:
            # The peer cancelled our half; its own half goes on.
            return


async def _hear_of_refusal(connection: Connection) -> None:
    """Wait for keepalive answers, so that a refused SETUP is noticed where the peer answers nothing else."""
    # Keepalives overtake queued frames: the send task takes those first, in between.
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    with trio.move_on_after(ANSWER_TIMEOUT):
        try:
            # A server whose application still considers the SETUP answers the first ping; by the second the application
            # has decided, unless it is slow.
            await connection.ping()
            await connection.ping()
        except (ConnectionLost, ConnectionClosed, Unsupported):
            # The interaction is done: the way in which the connection ends does not matter.
            return


async def _write_item(connection: Connection, item: Payload, wish: Wish, output: Output) -> None:
    if wish.as_json:
        from rsocket_trio.cli.item_json import item_json

        await output.write_line(item_json(item, connection.setup))
    else:
        await output.write_line(item.data)


async def _show(connection: Connection, items: Incoming, wish: Wish, output: Output) -> bool:
    """Write items as they come. Return whether it stopped because enough items came."""
    left = wish.take
    async for item in items:
        await _write_item(connection, item, wish, output)
        if left is not None:
            left -= 1
            if not left:
                return True
    return False


Decorator = Callable[[Callable[..., None]], Callable[..., None]]

AS_JSON: Final[Decorator] = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Show each item as a JSON object: data, encoding (text, json or base64) and metadata; of credentials, **.",
)
OPENING: Final[Decorator] = click.option(
    "--first-opens/--empty-opening",
    "first_opens",
    help="Whether the first payload travels in the frame that opens the channel; by default that one is empty.",
)


def _command(perform: Performer, options: Sequence[Decorator], examples: Sequence[str]) -> click.Command:
    """Return the command that has the name and the help of a function, and the options of all such commands."""
    name = perform.__name__

    @click.pass_context
    def run(ctx: click.Context, /, **parameters: Any) -> None:
        ctx.exit(Ask(**parameters).run(perform, is_push=perform is push))

    decorators: list[Decorator] = [our_options, *options, click.argument("uri", type=uri)]
    for decorate in decorators:
        run = decorate(run)
    examples = [f"{name} tcp://127.0.0.1:7878 {words}" for words in examples]
    return click.command(name, cls=ResumeCommand, help=perform.__doc__, examples=examples, codes=MEANINGS)(run)


COMMANDS: Final = {
    "request": _command(request, (AS_JSON,), ("--route greet --data Ada", "--route whoami --auth-bearer TOKEN --json")),
    "stream": _command(
        stream, (AS_JSON,), ("--route prices --data ACME --take 10", "--route prices --json --limit-rate 16")
    ),
    "channel": _command(
        channel, (OPENING, AS_JSON), ("--route chat --data hello --data bye", "--route chat --data - < lines.txt")
    ),
    "fnf": _command(fnf, (), ("--route log --data 'it works'",)),
    "push": _command(push, (), ("--metadata reload",)),
}
"""The commands by their names."""
