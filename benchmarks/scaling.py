"""The cost of an operation beside many others: with many connections, and with many streams open on one.

Both ends have Python's collector look less often, as docs/howto/many-requests.md says; once it is left as it is, for
comparison.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import trio

from benchmarks import harness
from rsocket_trio import Connection, open_connection

CONNECTIONS = (1, 10, 100, 1_000)
AT_ONCE = {64: 256_000, 1: 16_000}
"""Requests in flight on each of the connections, and how many in all: with one each nothing can share a write."""
STREAMS = (1, 10, 100, 1_000, 9_936)
"""Streams that are open and idle. With those of the requests beside the last it is 10,000, which is what a peer may
have open."""
BESIDE, REQUESTS = 64, 16_000
"""Requests in flight beside the open streams, and how many in all."""
PAYLOAD = bytes(64)
RARELY = (10_000, 10, 10)
"""The thresholds of the garbage collector at both ends, the same as those of ``rsocket-trio serve``."""
DESCRIPTORS = 2_048
"""Files and sockets that a process has to be allowed to have open."""


async def ask(
    server: harness.Server, connections: Sequence[Connection], requests: int, at_once: int
) -> tuple[float, float, int]:
    """Seconds and CPU seconds of both ends for so many requests, and how many were made.

    Each connection has so many in flight. Whoever asks has asked once before, so that what begins with the first
    request (tasks at both ends, and their memory) is not taken for throughput.
    """
    each = max(1, requests // at_once // len(connections))
    waiting = at_once * len(connections)
    all_wait, begin = trio.Event(), trio.Event()

    async def worker(connection: Connection) -> None:
        nonlocal waiting
        await connection.request_response(PAYLOAD)
        waiting -= 1
        if not waiting:
            all_wait.set()
        await begin.wait()
        for _ in range(each):
            await connection.request_response(PAYLOAD)

    async with trio.open_nursery() as nursery:
        for connection in connections:
            for _ in range(at_once):
                nursery.start_soon(worker, connection)
        await all_wait.wait()
        wall, cpu = time.perf_counter(), time.process_time() + server.cpu()
        begin.set()
    return (
        time.perf_counter() - wall,
        time.process_time() + server.cpu() - cpu,
        each * at_once * len(connections),
    )


async def beside_connections(server: harness.Server, count: int, at_once: int, requests: int) -> dict[str, float]:
    """Requests on so many connections, all at once."""
    async with AsyncExitStack() as stack:
        uri = f"tcp://127.0.0.1:{server.port}"
        connections = [await stack.enter_async_context(open_connection(uri)) for _ in range(count)]
        for connection in connections:
            await connection.request_response(PAYLOAD)
        return await measured(server, connections, requests, at_once)


async def beside_streams(server: harness.Server, count: int, requests: int) -> dict[str, float]:
    """Requests on one connection that has so many streams open, none of which has credit left."""
    async with AsyncExitStack() as stack:
        uri = f"tcp://127.0.0.1:{server.port}"
        connection = await stack.enter_async_context(open_connection(uri))
        for _ in range(count):
            items = connection.request_stream(b"1000 64", initial_request_n=1, refill=False)
            await anext(await stack.enter_async_context(items))
        return await measured(server, [connection], requests, BESIDE)


async def measured(
    server: harness.Server, connections: Sequence[Connection], requests: int, at_once: int
) -> dict[str, float]:
    """Requests a second, and microseconds of CPU of each, both ends."""
    wall, cpu, done = await ask(server, connections, requests, at_once)
    return {"rate": done / wall, "cpu": 1e6 * cpu / done}


def main(repeat: int, share: float = 1) -> dict[str, Any]:
    """Print and return medians of rates and CPU microseconds, by how many there were; or a share of the requests."""
    allow_descriptors()
    figures: dict[str, Any] = {f"connections_{at_once}": {} for at_once in AT_ONCE} | {"streams": {}, "collected": {}}
    usual = gc.get_threshold()
    for _ in range(repeat):
        gc.set_threshold(*RARELY)
        for at_once, requests in AT_ONCE.items():
            for count in CONNECTIONS:
                with harness.server("trio", "tcp", "rarely") as server:
                    row = trio.run(beside_connections, server, count, at_once, int(requests * share))
                figures[f"connections_{at_once}"].setdefault(str(count), []).append(row)
        for count in STREAMS:
            with harness.server("trio", "tcp", "rarely") as server:
                row = trio.run(beside_streams, server, count, int(REQUESTS * share))
            figures["streams"].setdefault(str(count), []).append(row)
        gc.set_threshold(*usual)
        most, requests = max(AT_ONCE), AT_ONCE[max(AT_ONCE)]
        with harness.server("trio") as server:
            row = trio.run(beside_connections, server, CONNECTIONS[-1], most, int(requests * share))
        figures["collected"].setdefault(str(CONNECTIONS[-1]), []).append(row)
    for name, of_name in figures.items():
        for count, rows in of_name.items():
            rate, cpu = (harness.middle([row[key] for row in rows]) for key in ("rate", "cpu"))
            print(f"{name:16} {count:>6}: {rate:8.0f} requests/s, {cpu:6.1f} us of CPU each", flush=True)
    return figures


def allow_descriptors() -> None:
    """Have this process, and the servers that it starts, open as many sockets as are needed here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))


if __name__ == "__main__":
    main(3)
