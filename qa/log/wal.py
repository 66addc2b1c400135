"""The write-ahead log beside a writer and processes that read without a pause."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from pathlib import Path

import trio

from qa.log.child import started
from rsocket_trio.replay import Log

MAX_WAL_BYTES = 64 * 2**20
MAX_WAIT_SECONDS = 0.5
"""Seconds that an append waits for a checkpoint, at most; what a busy disk takes for its own pages comes on top."""
READERS = 4


async def make(path: Path) -> None:
    """Make the log, so that readers have one."""
    async with Log(path, 2):
        pass


def play(folder: Path, seconds: float = 60) -> list[str]:
    """Write for so long. Return what is wrong."""
    path = folder / "log"
    wal, largest = Path(f"{path}-wal"), 0
    trio.run(make, path)
    with ExitStack() as stack:
        for _ in range(READERS):
            reader = stack.enter_context(started("read_on", path))
            assert reader.stdout is not None
            reader.stdout.readline()
        writer = stack.enter_context(started("write_on", path, seconds))
        assert writer.stdout is not None
        while writer.poll() is None:
            with suppress(FileNotFoundError):  # whoever closes the log last takes it away
                largest = max(largest, wal.stat().st_size)
            time.sleep(0.005)
        wait, longest, rows = map(float, (writer.stdout.readline() or b"inf inf 0").split())
    print(
        f"WAL beside {READERS} readers for {seconds:g} s: at most {largest / 2**20:.1f} MiB, an append waits "
        f"{wait:.3f} s for a checkpoint and takes {longest:.3f} s, {rows * 2 / seconds:,.0f} rows/s",
        flush=True,
    )
    wrong = []
    if largest >= MAX_WAL_BYTES:
        wrong.append(f"the WAL took {largest / 2**20:.1f} MiB, at most {MAX_WAL_BYTES >> 20} are allowed")
    if wait > MAX_WAIT_SECONDS:
        wrong.append(f"an append waited {wait:.3f} s for a checkpoint, at most {MAX_WAIT_SECONDS} are allowed")
    return wrong
