"""Rates and costs of a log: rows in packs, in process and over TCP."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import trio

from rsocket_trio import Connection, Responder, open_connection
from rsocket_trio.replay import Element, Log, add_source
from rsocket_trio.replay.elements import arrow, read_rows
from tests.serving import running_server

ROW = b"a row of twenty-eight bytes."
ROWS = 4_000_000
PARTITIONS = 2
REPEAT = 3
MIN_RATE = 1_200_000
MAX_COST = 1.4
"""Microseconds of CPU a row, of all processes."""
MAX_RATIO = 1.2
MAX_DIFFERENCE = 0.1
"""The cost of a read over TCP in files is at most so many times that in memory, or so many microseconds above."""


class Figure(NamedTuple):
    """Rows a second, and microseconds of CPU a row."""

    rate: float
    cost: float


async def best(rows: int, play: Callable[[], Awaitable[None]]) -> Figure:
    """Return the best figures of some rounds."""
    found = []
    for _ in range(REPEAT):
        began, cpu = time.perf_counter(), time.process_time()
        await play()
        found.append(Figure(rows / (time.perf_counter() - began), (time.process_time() - cpu) / rows * 1e6))
    return Figure(max(one.rate for one in found), min(one.cost for one in found))


async def read_all(log: Log, rows: int) -> None:
    """Read the last ``rows`` rows in packs."""
    for partition in log.partitions():
        _, end = log.bounds(partition)
        start = end - rows // PARTITIONS
        while start < end:
            for pack in await log.read_packs(partition, start, end):
                start = pack.end


@asynccontextmanager
async def served(log: Log) -> AsyncIterator[Connection]:
    """Serve the log over TCP in this process, so that its CPU is that of both sides."""
    responder = Responder()
    add_source(responder, "rows", log)
    async with running_server(responder) as uri, open_connection(uri) as client:
        yield client


async def measure(path: Path | None, rows: int) -> dict[str, Figure]:
    """Return the figures of a log in a file, or in memory."""
    pack = next(arrow().packs_of([Element(ROW)] * 8000))
    limit = None if path else 16 * 2**30
    found = {}
    async with Log(path, PARTITIONS, limit_bytes=limit) as log:

        async def append() -> None:
            for _ in range(rows // PARTITIONS // pack.count // 4):
                await log.append_all({partition: [pack] * 4 for partition in range(PARTITIONS)})

        await append()
        found["append"] = await best(rows, append)
        found["read"] = await best(rows, lambda: read_all(log, rows))
        async with served(log) as client:
            found["read over TCP"] = await best(rows, lambda: read_served(client, log, rows))
    return found


async def read_served(client: Connection, log: Log, rows: int) -> None:
    """Read the last ``rows`` rows in packs over a connection."""
    for partition in log.partitions():
        _, end = log.bounds(partition)
        request = b'{"partition": %d, "from": %d, "to": %d, "pack": ["arrow/1"]}' % (
            *(partition, end - rows // PARTITIONS, end),
        )
        async with client.request_stream(request, route="rows", initial_request_n=64) as items:
            count = sum([read_rows(item).count async for item in items])
        assert count == rows // PARTITIONS, f"{count} of {rows // PARTITIONS} rows"


def play(folder: Path, rows: int = ROWS) -> list[str]:
    """Measure all. Return the bars that are missed."""
    figures = {"in a file": trio.run(measure, folder / "log", rows), "in memory": trio.run(measure, None, rows)}
    wrong = []
    for where, found in figures.items():
        for name, (rate, cost) in found.items():
            print(f"{name} in packs {where}: {rate:,.0f} rows/s, {cost:.3f} us of CPU a row", flush=True)
            if rate < MIN_RATE or cost > MAX_COST:
                wrong.append(f"{name} {where}: the bars are {MIN_RATE:,} rows/s and {MAX_COST} us of CPU a row")
    in_file, in_memory = (found["read over TCP"].cost for found in figures.values())
    if in_file > max(MAX_RATIO * in_memory, in_memory + MAX_DIFFERENCE):
        wrong.append(f"reading over TCP costs {in_file:.3f} us in a file, {in_memory:.3f} in memory")
    return wrong
