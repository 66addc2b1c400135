"""The latency of Streamux's urgent messages while one message of 256 MiB goes out on the same connection."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Awaitable, Callable

import trio

from benchmarks import harness
from benchmarks.workloads import LARGEST
from rsocket_trio import Connection, open_connection

EVERY = 0.01
"""Seconds between two pings."""
CANCELS = 50
"""The least number of cancels that a run measures."""
BAR = 25.0
"""Milliseconds."""


async def chunk_by_chunk(connection: Connection, message: bytes) -> None:
    """Send it to a handler that throws each chunk away."""
    async with connection.request_channel(b"bulk") as channel:
        await channel.send(message)
        await channel.send_eof()
        assert int((await anext(channel)).data) == len(message)


async def as_a_whole(connection: Connection, message: bytes) -> None:
    """Send it to a handler that is given all of it at once."""
    assert int((await connection.request_response(message)).data) == len(message)


WAYS = {"discarded chunk by chunk": chunk_by_chunk, "joined for its handler": as_a_whole}


class Run:
    """One connection that sends large messages, pings and cancels, until enough was seen."""

    def __init__(self, send: Callable[[Connection, bytes], Awaitable[None]]) -> None:
        self._send = send
        self._busy = True
        self._left: dict[str, float] = {}
        self.pings: list[float] = []
        self.cancels: list[float] = []
        self.rate = 0.0
        """MiB a second."""

    async def measure(self, port: int) -> None:
        """Seconds of each ping, and of each cancel from the leaving of the block to the end of its handler."""
        message = bytes(LARGEST)
        sent = 0
        async with open_connection(f"tcp://127.0.0.1:{port}", dialect="streamux/1") as connection:
            started = time.perf_counter()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ping, connection)
                nursery.start_soon(self._cancel, connection)
                while len(self._left) < CANCELS:
                    await self._send(connection, message)
                    sent += 1
                self._busy = False
            self.rate = sent * LARGEST / 2**20 / (time.perf_counter() - started)
            reached = json.loads((await connection.request_response(b"reached")).data)
        self.cancels = [reached[number] - left for number, left in self._left.items()]

    async def _ping(self, connection: Connection) -> None:
        while self._busy:
            self.pings.append(await connection.ping())
            await trio.sleep(EVERY)

    async def _cancel(self, connection: Connection) -> None:
        while self._busy:
            number = str(len(self._left))
            async with connection.request_channel(number) as channel:
                await anext(channel)  # its handler waits
                self._left[number] = time.perf_counter()
            await trio.sleep(EVERY)


def main() -> dict[str, dict[str, dict[str, float]]]:
    """Print and return the percentiles, in milliseconds."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    print(f"beside one message of {LARGEST >> 20} MiB, in ms (bar of each p99: {BAR:g})")
    print(f"{'the message is':26} {'MiB/s':>6}   {'':8} {'count':>6} {'p50':>7} {'p99':>7} {'worst':>7}")
    for name, send in WAYS.items():
        run = Run(send)
        with harness.server("oob") as server:
            trio.run(run.measure, server.port)
        figures[name] = {"bulk": {"rate": run.rate}}
        for what, seconds in (("ping", run.pings), ("cancel", run.cancels)):
            figures[name][what] = row = percentiles(seconds)
            print(
                f"{name:26} {run.rate:6.0f}   {what:8} {row['count']:6.0f} {row['p50']:7.1f} {row['p99']:7.1f} "
                f"{row['worst']:7.1f}",
                flush=True,
            )
    return figures


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Median, the 99th percentile and the worst, in milliseconds."""
    waits = [1000 * wait for wait in seconds]
    cuts = statistics.quantiles(waits, n=100, method="inclusive")
    return {"count": len(waits), "p50": cuts[49], "p99": cuts[98], "worst": max(waits)}


if __name__ == "__main__":
    main()
