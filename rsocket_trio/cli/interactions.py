"""The commands ``request``, ``stream``, ``channel``, ``fnf``, ``push`` and ``ping``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from functools import partial
from statistics import median
from typing import Any, Final

import click
import trio

from rsocket_trio import Canceled, Channel, Connection, ConnectionClosed, ConnectionLost, Incoming, Payload, Unsupported
from rsocket_trio.cli.client_command import Ask, Performer
from rsocket_trio.cli.data import each, whole
from rsocket_trio.cli.exit_codes import CANNOT_CONNECT, FAILED, MEANINGS, REFUSED_SETUP, Failure
from rsocket_trio.cli.help_page import Command
from rsocket_trio.cli.options import COUNT, IN_SECONDS, Row, add_rows, connection_options, our_options, uri
from rsocket_trio.cli.output import Output
from rsocket_trio.metadata import with_route

ONE_WAY: Final = ("first_opens", "as_json")
"""Options that requests without an answer have not."""
ANSWER_TIMEOUT = 1.0
"""Seconds that a peer gets to answer a keepalive."""


def of_requests(*examples: str, without: Collection[str] = ("first_opens",)) -> Callable[[Performer], click.Command]:
    """Return the decorator of a function that makes the command of its name and help, with the options of requests."""

    def decorate(perform: Performer) -> click.Command:
        name = perform.__name__

        @click.command(
            name,
            cls=Command,
            help=perform.__doc__,
            examples=[f"{name} tcp://127.0.0.1:7878 {words}" for words in examples],
            codes=MEANINGS,
        )
        @click.argument("uri", type=uri)
        @partial(our_options, without=without)
        @click.pass_context
        def run(ctx: click.Context, /, **parameters: Any) -> None:
            ctx.exit(Ask(**parameters).run(perform, is_push=name == "push"))

        return run

    return decorate


@of_requests("--route greet --data Ada", "--route whoami --auth-bearer TOKEN --json")
async def request(connection: Connection, ask: Ask, output: Output) -> None:
    """Ask for one answer, and show it."""
    payload = Payload(await whole(ask.data), ask.content)
    await _write_item(connection, await connection.request_response(payload, route=ask.route), ask, output)


@of_requests("--route prices --data ACME --take 10", "--route prices --json --limit-rate 16")
async def stream(connection: Connection, ask: Ask, output: Output) -> None:
    """Ask for a stream, and show its items, one a line."""
    payload = Payload(await whole(ask.data), ask.content)
    async with connection.request_stream(
        payload, route=ask.route, initial_request_n=ask.credit, refill=ask.refill
    ) as items:
        await _show(connection, items, ask, output)


@of_requests("--route chat --data hello --data bye", "--route chat --data - < lines.txt", without=())
async def channel(connection: Connection, ask: Ask, output: Output) -> None:
    """Send items and show those that come back, one a line."""
    async with aclosing(each(ask.data)) as payloads:
        opening = await anext(payloads, b"") if ask.first_opens else b""
        async with (
            connection.request_channel(
                Payload(opening, ask.content), route=ask.route, initial_request_n=ask.credit, refill=ask.refill
            ) as channel,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_send_all, channel, payloads)
            if await _show(connection, channel, ask, output):
                nursery.cancel_scope.cancel()


@of_requests("--route log --data 'it works'", without=ONE_WAY)
async def fnf(connection: Connection, ask: Ask, output: Output) -> None:
    """Send a request that is never answered."""
    await connection.fire_and_forget(Payload(await whole(ask.data), ask.content), route=ask.route)
    await _hear_of_refusal(connection)


@of_requests("--metadata reload", without=ONE_WAY)
async def push(connection: Connection, ask: Ask, output: Output) -> None:
    """Send metadata that concerns the connection as a whole."""
    metadata = ask.content
    if ask.data:
        if metadata is not None or ask.route is not None:
            raise ValueError("a push is metadata and nothing else: data cannot go with it")
        metadata = await whole(ask.data)
    if ask.route is not None:
        metadata = with_route(ask.route, metadata, connection.setup.metadata_mime)
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


async def _write_item(connection: Connection, item: Payload, ask: Ask, output: Output) -> None:
    if ask.as_json:
        from rsocket_trio.cli.item_json import item_json

        await output.write_line(item_json(item, connection.setup))
    else:
        await output.write_line(item.data)


async def _show(connection: Connection, items: Incoming, ask: Ask, output: Output) -> bool:
    """Write items as they come. Return whether it stopped because enough items came."""
    async for item in items:
        await _write_item(connection, item, ask, output)
        if output.lines == ask.take:
            return True
    return False


# ping


async def measure(connection: Connection, output: Output, count: int, interval: float, seconds: float) -> None:
    """Send so many pings, ``interval`` seconds apart, and write their round trips.

    Raise ``Failure`` if one is not answered within ``seconds``, once all are sent.
    """
    times: list[float] = []
    try:
        for number in range(1, count + 1):
            next_ping = trio.current_time() + interval
            with trio.move_on_after(seconds) as scope:
                times.append(await connection.ping() * 1000)
            shown = "lost" if scope.cancelled_caught else f"{times[-1]:.3f} ms"
            await output.write_line(f"ping {number}: {shown}".encode())
            if number < count:
                with trio.move_on_at(next_ping):
                    raise await connection.wait_closed()
    finally:
        if times:
            line = f"min {min(times):.3f} ms, median {median(times):.3f} ms, max {max(times):.3f} ms"
            await output.write_line(line.encode())
    if len(times) < count:
        raise Failure(f"{count - len(times)} of {count} pings were lost", CANNOT_CONNECT)


# fmt: off
PING_ROWS: Final = (
    Row("count",    "-n --count", "Pings to send.", {"type": COUNT, "metavar": "COUNT", "default": 4,
                    "show_default": True}),
    Row("interval", "--interval", "Seconds from one ping to the next.", {"type": click.FloatRange(min=0),
                    "metavar": "SECONDS", "default": 1.0, "show_default": True}),
    Row("timeout",  "--timeout", "Seconds after which a ping without an answer is lost.",
                    {**IN_SECONDS, "default": 5.0, "show_default": True}),
)
# fmt: on


@click.command(
    "ping",
    cls=Command,
    examples=("ping tcp://127.0.0.1:7878", "ping wss://example.org/rsocket -n 10 --interval 0.2"),
    codes={
        FAILED: "the dialect has no pings, or something else failed",
        CANNOT_CONNECT: "a ping was lost, it cannot connect, or the connection was lost",
        REFUSED_SETUP: MEANINGS[REFUSED_SETUP],
    },
)
@click.argument("uri", type=uri)
@partial(add_rows, rows=PING_ROWS)
@partial(connection_options, without=("timeout",))
@click.pass_context
def ping(ctx: click.Context, /, count: int, interval: float, timeout: float, **parameters: Any) -> None:
    """Measure the round trips of keepalives to the server at URI, in milliseconds.

    Shows a line for each ping, then the minimum, the median and the maximum. ReactiveSocket 0.0 has no pings.
    """

    async def show(connection: Connection, ask: Ask, output: Output) -> None:
        await measure(connection, output, count, interval, timeout)

    ctx.exit(Ask(**parameters).run(show))
