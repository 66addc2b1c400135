"""The throughput of several processes on one address, and the connections lost when they are replaced."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import trio

from benchmarks import harness
from rsocket_trio import RSocketError, open_connection

NUMBERS = (1, 2)
"""Workers."""
REQUESTS, CONNECTIONS = 3_000, 32
"""In all, and over how many connections, each with one in flight."""
RESTARTS, SECONDS = 3, 1.0
"""The number of times that all workers are replaced, and the seconds before and after each."""
COMMAND = [sys.executable, "-c", "from rsocket_trio.cli.entry import main; main()"]


@contextmanager
def served(workers: int) -> Iterator[tuple[harness.Process, str]]:
    """A server with so many workers, and its URI."""
    arguments = ["serve", "benchmarks.peers.busy_app:responder", "tcp://127.0.0.1:0", "--workers", str(workers)]
    with harness.started([*COMMAND, *arguments]) as (process, errors):
        yield process, harness.line_of(process, errors).split()[1]


async def ask(uri: str) -> float:
    """Requests a second, over as many connections as there are."""
    missing, all_here, begun = CONNECTIONS, trio.Event(), trio.Event()

    async def client() -> None:
        nonlocal missing
        async with open_connection(uri) as connection:
            await connection.request_response(b"first")
            missing -= 1
            if not missing:
                all_here.set()
            await begun.wait()
            for _ in range(REQUESTS // CONNECTIONS):
                await connection.request_response(b"")

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(client)
        await all_here.wait()
        started = time.perf_counter()
        begun.set()
    return REQUESTS // CONNECTIONS * CONNECTIONS / (time.perf_counter() - started)


async def ask_while_they_are_replaced(process: harness.Process, uri: str) -> dict[str, float]:
    """New connections, one after the other, each with one request, while all workers are replaced."""
    waits: list[float] = []
    failed = 0
    with trio.CancelScope() as scope:

        async def replace() -> None:
            for _ in range(RESTARTS):
                await trio.sleep(SECONDS)
                process.send_signal(signal.SIGHUP)
            await trio.sleep(SECONDS)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(replace)
            while True:
                started = time.perf_counter()
                try:
                    async with open_connection(uri) as connection:
                        await connection.request_response(b"")
                except RSocketError:
                    failed += 1
                waits.append(time.perf_counter() - started)
                await trio.sleep(0.01)
    return {"restarts": RESTARTS, "connections": len(waits), "failed": failed, "longest": 1000 * max(waits)}


def main(repeat: int) -> dict[str, Any]:
    """Print and return requests a second by the number of workers, and what a restart did."""
    rates: dict[str, list[float]] = {str(number): [] for number in NUMBERS}
    for _ in range(repeat):
        for number in NUMBERS:
            with served(number) as (_, uri):
                rates[str(number)].append(trio.run(partial(ask, uri)))
    with served(NUMBERS[-1]) as (process, uri):
        restart = trio.run(partial(ask_while_they_are_replaced, process, uri))
    for name, found in rates.items():
        print(f"{name} worker(s): {harness.middle(found):,.0f} requests/s of about a millisecond each")
    print(
        f"{restart['restarts']:.0f} restarts under {restart['connections']:.0f} new connections: "
        f"{restart['failed']:.0f} failed, the longest took {restart['longest']:.0f} ms"
    )
    return {"rates": rates, "restart": restart}


if __name__ == "__main__":
    main(3)
