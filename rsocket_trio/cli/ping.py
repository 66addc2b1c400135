"""The command ``ping``: measures the round trips of keepalives."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

import click
import trio

from rsocket_trio import Connection
from rsocket_trio.cli.client_command import Ask, Wish
from rsocket_trio.cli.exit_codes import CANNOT_CONNECT, FAILED, MEANINGS, REFUSED_SETUP, Failure
from rsocket_trio.cli.options import COUNT, SECONDS, ResumeCommand, connection_options, uri
from rsocket_trio.cli.output import Output

MILLISECONDS = 1000


async def measure(connection: Connection, output: Output, count: int, interval: float, seconds: float) -> None:
    """Send so many pings, ``interval`` seconds apart, and write their round trips.

    Raise ``Failure`` if one is not answered within ``seconds``, once all are sent.
    """
    times: list[float] = []
    try:
        for number in range(1, count + 1):
            next_ping = trio.current_time() + interval
            with trio.move_on_after(seconds) as scope:
                times.append(await connection.ping() * MILLISECONDS)
            shown = "lost" if scope.cancelled_caught else f"{times[-1]:.3f} ms"
            await output.write_line(f"ping {number}: {shown}".encode())
            if number < count:
                await trio.sleep_until(next_ping)
    finally:
        if times:
            await output.write_line(summary(times).encode())
    if len(times) < count:
        raise Failure(f"{count - len(times)} of {count} pings were lost", CANNOT_CONNECT)


def summary(times: list[float]) -> str:
    """Return the line about all round trips, which are in milliseconds."""
    return f"min {min(times):.3f} ms, median {median(times):.3f} ms, max {max(times):.3f} ms"


@click.command(
    "ping",
    cls=ResumeCommand,
    examples=("ping tcp://127.0.0.1:7878", "ping wss://example.org/rsocket -n 10 --interval 0.2"),
    codes={
        FAILED: "the dialect has no pings, or something else failed",
        CANNOT_CONNECT: "a ping was lost, it cannot connect, or the connection was lost",
        REFUSED_SETUP: MEANINGS[REFUSED_SETUP],
    },
)
@click.argument("uri", type=uri)
@click.option("-n", "--count", type=COUNT, metavar="COUNT", default=4, show_default=True, help="Pings to send.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="Seconds from one ping to the next.",
)
@click.option(
    "--timeout",
    type=SECONDS,
    metavar="SECONDS",
    default=5.0,
    show_default=True,
    help="Seconds after which a ping without an answer is lost.",
)
@partial(connection_options, without=("timeout",))
@click.pass_context
def command(ctx: click.Context, /, count: int, interval: float, timeout: float, **parameters: Any) -> None:
    """Measure the round trips of keepalives to the server at URI, in milliseconds.

    Shows a line for each ping, then the minimum, the median and the maximum. ReactiveSocket 0.0 has no pings.
    """

    async def show(connection: Connection, wish: Wish, output: Output) -> None:
        await measure(connection, output, count, interval, timeout)

    ctx.exit(Ask(**parameters).run(show))
