"""Space on disk: what is trimmed is given back, and a full disk takes a trim."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import trio

from rsocket_trio.replay import Element, Log, Retention
from rsocket_trio.replay.sqlite_log import RESERVE_BYTES

MIB = 2**20
BODY_BYTES = 256 * 2**10
DISK_MIB = 128


async def append(log: Log, mebibytes: int) -> None:
    """Append bodies of so many bytes together."""
    for _ in range(mebibytes * MIB // BODY_BYTES // 4):
        await log.append_all({0: [Element(os.urandom(BODY_BYTES), timestamp=number % 2) for number in range(4)]})


def free_share(path: Path) -> float:
    """Return the free part of a file."""
    connection = apsw.Connection(str(path))
    share = connection.pragma("freelist_count") / connection.pragma("page_count")
    connection.close()
    return float(share)


async def give_back(path: Path, mebibytes: int) -> list[str]:
    """Trim, and apply a retention. Return what is wrong."""
    wrong = []

    def check(what: str, most: float) -> None:
        size, free = path.stat().st_size / MIB, free_share(path)
        print(f"{what}: the file takes {size:.1f} MiB, {free:.0%} of it are free", flush=True)
        if size > most or free > 0.255:
            wrong.append(f"{what}: the file takes {size:.1f} MiB, at most {most:.1f} are allowed")

    async with Log(path) as log:
        await append(log, mebibytes)
        await log.trim(0, log.bounds(0)[1] * 9 // 10)
        check("nine tenths are trimmed", mebibytes / 10 * 1.5 + 1)
        if os.stat(f"{path}-reserve").st_size != RESERVE_BYTES:
            wrong.append("there is no reserve")
        log.set_retention(Retention(bytes=mebibytes * MIB // 4))
        for _ in range(3):
            await append(log, mebibytes)
            await log.retain()
            check("a quarter is kept", mebibytes * (1 / 4 + 1 / 16) * 1.5 + 1)
    return wrong


def full_disk(folder: Path) -> list[str]:
    """Run ``child.fill_disk`` on a small disk of its own. Return what is wrong."""
    folder.mkdir()
    script = f'mount -t tmpfs -o size={DISK_MIB}m none "$1" && shift && echo mounted && exec "$@"'
    words = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", str(folder)]
    program = [sys.executable, "-m", "qa.log.child", "fill_disk", str(folder / "log")]
    done = subprocess.run([*words, *program], stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.startswith("mounted"):
        print("full disk: left out, for no disk can be mounted here", flush=True)
        return []
    _, *lines = done.stdout.splitlines()
    print(f"full disk of {DISK_MIB} MiB, filled and trimmed: {', '.join(lines)}", flush=True)
    return [] if lines == ["done"] else [f"full disk: {line}" for line in (*lines, f"it ended with {done.returncode}")]


def play(folder: Path, mebibytes: int = 400) -> list[str]:
    """Play both. Return what is wrong."""
    return trio.run(give_back, folder / "log", mebibytes) + full_disk(folder / "disk")
