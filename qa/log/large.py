"""A log of 20 GiB: the time of its opening and of reads, and the memory that its process takes."""

from __future__ import annotations

import time
from pathlib import Path

import trio

from qa.log.child import LARGE_BYTES, started
from rsocket_trio.replay import Log
from rsocket_trio.replay.elements import Element

GIB = 2**30
MAX_OPEN_SECONDS = 0.05
MAX_BYTES = 64 * 2**20
MAX_RATIO = 1.5
"""The longest read in the middle, as a multiple of one at the end; both are in memory."""
TOGETHER = 64
"""Bodies in a transaction."""


async def fill(path: Path, size: int) -> None:
    """Make a log of ``size`` bytes."""
    async with Log(path, sync="never") as log:
        for _ in range(max(size // LARGE_BYTES // TOGETHER, 1)):
            # Each is a body of its own: they differ in their times.
            await log.append_all({0: [Element(bytes(LARGE_BYTES), timestamp=1 + n % 2) for n in range(TOGETHER)]})


def play(folder: Path, size: int = 20 * GIB) -> list[str]:
    """Make such a log and measure it in a process of its own. Return what is wrong."""
    path = folder / "log"
    began = time.perf_counter()
    trio.run(fill, path, size)
    made = time.perf_counter() - began
    with started("measure_large", path) as process:
        assert process.stdout is not None
        opened, middle, end, memory = map(float, process.stdout.readline().split())
    print(
        f"log of {path.stat().st_size / GIB:.1f} GiB, made in {made:.0f} s: opened in {opened * 1000:.1f} ms, reads of "
        f"{middle * 1000:.2f} ms in the middle and {end * 1000:.2f} at the end, {memory / 2**20:.1f} MiB more memory",
        flush=True,
    )
    wrong = []
    if opened > MAX_OPEN_SECONDS:
        wrong.append(f"opening took {opened:.3f} s, at most {MAX_OPEN_SECONDS} are allowed")
    if middle > MAX_RATIO * end:
        wrong.append(f"a read in the middle took {middle / end:.1f} times one at the end")
    if memory > MAX_BYTES:
        wrong.append(f"the process took {memory / 2**20:.1f} MiB, at most {MAX_BYTES >> 20} are allowed")
    return wrong
