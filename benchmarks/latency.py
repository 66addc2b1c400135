"""The latency of a 64 B request while 48 MiB go out on the same connection."""

from __future__ import annotations

import statistics
import time

import trio

from benchmarks import harness
from rsocket_trio import open_connection

BULK = 48 * 1024 * 1024
ROUNDS = 5
BAR = 10.0
"""Milliseconds that the 99th percentile has to stay below."""


async def measure(port: int) -> list[float]:
    """Seconds of each small request while payloads of 48 MiB go out and come back."""
    waits: list[float] = []
    async with open_connection(f"tcp://127.0.0.1:{port}") as connection, trio.open_nursery() as nursery:
        payload = bytes(BULK)
        busy = True

        async def probe() -> None:
            while busy:
                started = time.perf_counter()
                await connection.request_response(bytes(64))
                waits.append(time.perf_counter() - started)

        nursery.start_soon(probe)
        for _ in range(ROUNDS):
            await connection.request_response(payload)
        busy = False
    return waits


def main() -> dict[str, float]:
    """Print and return the percentiles, in milliseconds."""
    with harness.server("trio") as server:
        waits = [1000 * wait for wait in trio.run(measure, server.port)]
    cuts = statistics.quantiles(waits, n=100)
    figures = {"requests": len(waits), "p50": cuts[49], "p99": cuts[98], "max": max(waits)}
    print(
        f"64 B request beside {ROUNDS} x 48 MiB each way: p50 {figures['p50']:.1f} ms, p99 {figures['p99']:.1f} ms, "
        f"worst {figures['max']:.1f} ms ({len(waits)} requests; p99 must stay below {BAR:g} ms)"
    )
    return figures


if __name__ == "__main__":
    main()
