"""Small things beside large ones on one connection: bytes by the gigabyte both ways, and what a ping, a request and a
cancel take meanwhile."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import trio

from qa.attacks.harness import Victim, expect
from qa.processes import MIB
from rsocket_trio import Connection, open_connection

if TYPE_CHECKING:
    from qa.attacks.held import Load

ITEM = 16 * 1024
PING, REQUEST, CANCEL = 0.250, 0.025, 0.025
"""Seconds: every answer to a KEEPALIVE, 99 of 100 requests, 99 of 100 cancels until the handler has ended."""
EVERY = 0.01
"""Seconds between two small things."""
MOST_ROUNDS = 5
"""Times that all bytes are sent."""


def percentile(times: list[float]) -> float:
    """Return the bound below which 99 of 100 stay."""
    return statistics.quantiles(times, n=100)[-1]


def bulk(size: Load) -> str:
    """Raise ``Missed`` if something small had to wait."""
    count = int(size.bulk * MIB) // ITEM
    pings: list[float] = []
    requests: list[float] = []
    cancels: list[float] = []
    took = 0.0
    rounds = 0

    async def take(connection: Connection) -> None:
        left = count
        async with connection.request_stream(b"%d" % ITEM) as items:
            while left:
                await anext(items)
                left -= 1

    async def give(connection: Connection) -> None:
        item = bytes(ITEM)
        async with connection.request_channel(b"all of it", route="count") as channel:
            for _ in range(count):
                await channel.send(item)
            await channel.send_eof()
            answer = [reply.data async for reply in channel]
        expect(answer == [b"%d" % (count * ITEM)], f"the server counted {answer}")

    async def ask(connection: Connection) -> None:
        while True:
            began = time.monotonic()
            await connection.request_response(bytes(64))
            requests.append(time.monotonic() - began)
            await trio.sleep(EVERY)

    async def ping(connection: Connection) -> None:
        while True:
            pings.append(await connection.ping())
            await trio.sleep(EVERY)

    async def cancel(connection: Connection) -> None:
        while True:
            async with connection.request_stream(route="watched") as items:
                await anext(items)
                began = time.monotonic()
            cancels.append(began)
            await trio.sleep(EVERY)

    async def run(uri: str) -> None:
        nonlocal took, rounds
        async with open_connection(uri) as connection, trio.open_nursery() as nursery:
            for small in (ask, ping, cancel):
                nursery.start_soon(small, connection)
            began = time.monotonic()
            # A quick machine is done before there are many cancels.
            while rounds < MOST_ROUNDS and len(cancels) <= size.small:
                rounds += 1
                async with trio.open_nursery() as both:
                    both.start_soon(take, connection)
                    both.start_soon(give, connection)
            took = time.monotonic() - began
            nursery.cancel_scope.cancel()

    with Victim() as victim:
        trio.run(run, f"tcp://127.0.0.1:{victim.ports['tcp']}")
        ended = victim.order("work")["left"]
    # One clock for all processes of a system; the last stream may have been left with the connection.
    effective = [there - here for here, there in zip(cancels, ended, strict=False)]
    expect(len(effective) >= size.small, f"only {len(effective)} cancels")
    slowest = max(pings), percentile(requests), percentile(effective)
    middle = ", ".join(f"{statistics.median(times) * 1000:.1f}" for times in (pings, requests, effective))
    text = (
        f"{rounds * size.bulk:g} MiB each way in {took:.1f} s; "
        f"the slowest of {len(pings)} pings {slowest[0] * 1000:.1f} ms, "
        f"p99 of {len(requests)} requests {slowest[1] * 1000:.1f} ms, of {len(effective)} cancels "
        f"{slowest[2] * 1000:.1f} ms; medians {middle} ms"
    )
    held = (PING, REQUEST, CANCEL)
    expect(all(one <= size.slack * bar for one, bar in zip(slowest, held, strict=True)), text)
    return text
