"""``python single_appends.py FOLDER``: microseconds of CPU a row of single appends by 50 tasks, in memory and in files.

It runs with this version of the package and with that of before, whose logs have other names.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import trio

from rsocket_trio import replay

TASKS = 50
APPENDS = 400
REPEAT = 5


async def measure(log: Any) -> float:
    """Return the least CPU of a row, in microseconds, of several rounds."""

    async def append() -> None:
        for _ in range(APPENDS):
            await log.append(b"a row of twenty-eight bytes.")

    costs = []
    async with log:
        for _ in range(REPEAT):
            began = time.process_time()
            async with trio.open_nursery() as nursery:
                for _ in range(TASKS):
                    nursery.start_soon(append)
            costs.append((time.process_time() - began) / TASKS / APPENDS * 1e6)
    return min(costs)


def main(folder: Path) -> None:
    """Print both."""
    names = ("Log", "Log") if hasattr(replay, "Log") else ("MemoryLog", "FileLog")
    in_memory, in_files = (getattr(replay, name) for name in names)
    print(trio.run(measure, in_memory()), trio.run(measure, in_files(folder / "log", 2)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
