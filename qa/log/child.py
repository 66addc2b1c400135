"""The processes of the gate that are killed: ``python -m qa.log.child NAME PATH [ARGUMENT ...]`` runs one of them.

Each prints a line for what was acknowledged, as soon as it was.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from rsocket_trio.replay import Ledger, Log, sqlite_log
from rsocket_trio.replay.elements import Element, arrow

ROWS = 20
"""Rows of a partition in an append or a batch."""
TASKS = 4
LARGE_BYTES = 256 * 2**10
READS = 50


@contextmanager
def started(name: str, path: Path, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a function of this module in a process of its own, which is killed at the end of the block."""
    words = [sys.executable, "-m", "qa.log.child", name, str(path), *map(str, arguments)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def say(*words: object) -> None:
    """Write a line at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def content(*words: object) -> list[Element]:
    """Return the rows of an append or a batch in one partition."""
    return [Element((" ".join(map(str, (*words, row)))).encode()) for row in range(ROWS)]


async def append(path: Path, name: str) -> None:
    """Append to two partitions from several tasks until killed; now and then drop what is old."""
    sqlite_log.CHECKPOINT_BYTES, sqlite_log.WAL_BYTES = 2**17, 2**19  # so that it happens often

    async def run(log: Log, task: int) -> None:
        number = 0
        while True:
            rows = content(name, task, number)
            if number % 3 == 2:
                await log.append_all({0: [next(arrow().packs_of(rows))], 1: rows})
            else:
                await log.append_all({0: rows, 1: rows})
            say(task, number)
            number += 1
            if task == 0 and number % 40 == 0:
                await log.trim(1, log.bounds(1)[1] - 1000)

    async with Log(path, 2) as log, trio.open_nursery() as nursery:
        for task in range(TASKS):
            nursery.start_soon(run, log, task)


async def commit(path: Path, name: str, first: str) -> None:
    """Commit batches of two attempts from ``first`` on, which may have been committed, until killed."""
    sqlite_log.CHECKPOINT_BYTES, sqlite_log.WAL_BYTES = 2**17, 2**19
    batch = int(first)
    async with Log(path, 2) as log, Ledger(log) as ledger:
        while True:
            epoch = await ledger.epoch("sink")
            attempts = {f"{name}-{batch}-{partition}": ROWS for partition in range(2)}
            for partition, attempt in enumerate(attempts):
                stage = await ledger.begin("sink", attempt, partition, batch=batch, epoch=epoch)
                rows = content(batch)
                for one in rows if partition else [next(arrow().packs_of(rows))]:
                    await stage.add(one)
                await stage.seal()
            await ledger.commit("sink", batch, attempts, query="q", epoch=epoch)
            say(batch)
            batch += 1


async def in_steps(path: Path) -> None:
    """Append, and commit batches; print after each what the log has, then "done", and wait."""
    async with Log(path, 2) as log, Ledger(log) as ledger:
        for step in range(60):
            say(*(log.bounds(partition)[1] for partition in range(2)), -1 if (n := ledger.last("sink")) is None else n)
            if step % 3:
                await log.append_all({step % 2: content(step)})
            else:
                attempts = {f"{step}-{partition}": ROWS for partition in range(2)}
                for partition, attempt in enumerate(attempts):
                    stage = await ledger.begin("sink", attempt, partition)
                    for element in content("batch", step):
                        await stage.add(element)
                    await stage.seal()
                await ledger.commit("sink", step, attempts)
        say(*(log.bounds(partition)[1] for partition in range(2)), ledger.last("sink"))
        say("done")
        await trio.sleep_forever()


async def write_on(path: Path, seconds: str) -> None:
    """Append packs without a pause; print seconds of the longest wait for a checkpoint and append, and the rows."""
    pack = next(arrow().packs_of([Element(bytes(28))] * 8000))
    reset, waits = Log._reset_wal, [0.0]

    def timed(log: Log, **terms: bool) -> None:
        began = time.monotonic()
        reset(log, **terms)
        waits.append(time.monotonic() - began)

    setattr(Log, "_reset_wal", timed)  # noqa: B010  # mypy takes no other way
    longest, deadline = 0.0, trio.current_time() + float(seconds)
    async with Log(path, 2) as log:
        while (began := trio.current_time()) < deadline:
            await log.append_all({0: [pack], 1: [pack]})
            longest = max(longest, trio.current_time() - began)
        say(max(waits), longest, log.bounds(0)[1])


async def read_on(path: Path) -> None:
    """Read all rows again and again without a pause."""
    async with Log(path, 2) as log:
        say("reading")
        while True:
            for partition in range(2):
                start, (_, end) = 0, log.bounds(partition)
                while start < end:
                    start = [pack.end for pack in await log.read_packs(partition, start, end)][-1]


async def measure_large(path: Path) -> None:
    """Print seconds of the opening, of reads in the middle and at the end, and bytes beyond those of the start."""
    start = resident()
    began = time.perf_counter()
    async with Log(path) as log:
        opened = time.perf_counter() - began
        _, end = log.bounds(0)
        took: dict[int, list[float]] = {end // 2: [], end - 2 * READS: []}
        for _ in range(2):  # from the disk, and then from memory
            for place, seconds in took.items():
                seconds.clear()
                for number in range(READS):
                    began = time.perf_counter()
                    await log.read_packs(0, place + number)
                    seconds.append(time.perf_counter() - began)
        for part in range(10):
            begin = end * part // 10
            for number in range(READS):
                await log.read_packs(0, begin + number)
        for _ in range(READS):
            await log.append(bytes(LARGE_BYTES))
        say(opened, *(statistics.median(seconds) for seconds in took.values()), resident("VmHWM") - start)


def resident(name: str = "VmRSS") -> int:
    """Return the bytes of memory that the process has now, or had at most."""
    text = Path("/proc/self/status").read_text("utf-8")
    return int(text.partition(f"{name}:")[2].split()[0]) * 1024


FUNCTIONS: dict[str, Callable[..., Awaitable[None]]] = {
    function.__name__: function for function in (append, commit, in_steps, write_on, read_on, measure_large)
}

if __name__ == "__main__":
    trio.run(FUNCTIONS[sys.argv[1]], Path(sys.argv[2]), *sys.argv[3:])
