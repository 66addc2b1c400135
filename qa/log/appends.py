"""The cost of single appends: 50 tasks append a row at a time to a file, beside the former log of files of its own.

That one's source is taken from the repository. Each measurement is a process.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORMER = "c14d5c0"
"""The last commit whose log kept files of its own."""
ROUNDS = 5
PROGRAM = """
import sys, time, trio
from rsocket_trio.replay import CLASS

TASKS, ROWS = 50, 400

async def append(log, rows):
    for _ in range(rows):
        await log.append(b"a row of twenty-eight bytes.")

async def append_in_tasks(log, rows):
    async with trio.open_nursery() as nursery:
        for _ in range(TASKS):
            nursery.start_soon(append, log, rows)

async def main():
    async with CLASS(sys.argv[1]) as log:
        await append_in_tasks(log, 2)  # what is loaded at the first append is no cost of each
        began = time.process_time()
        await append_in_tasks(log, ROWS)
        print((time.process_time() - began) / (TASKS * ROWS) * 1e6)

trio.run(main)
"""


def cost(source: Path, kind: str, log: Path) -> float:
    """Return the microseconds of CPU of an append to a new log, a class of the package in ``source``."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("CLASS", kind), str(log)],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def play(folder: Path) -> list[str]:
    """Measure both in turns. Return the bar if it is missed, or why it can't be judged."""
    archive = subprocess.run(["git", "archive", FORMER, "rsocket_trio"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        return [f"the former log is not there to compare with: {archive.stderr.decode().strip()}"]
    former = folder / "former"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(former, filter="data")
    costs = [
        (cost(ROOT, "Log", folder / f"log-{number}"), cost(former, "FileLog", folder / f"files-{number}"))
        for number in range(ROUNDS)
    ]
    ours, its = (statistics.median(column) for column in zip(*costs, strict=True))
    line = f"appends of 50 tasks in a file: {ours:.1f} us of CPU each, {its:.1f} in the former log"
    print(line, flush=True)
    return [line] if ours > its else []
