"""Processes that qa looks at, and servers that it starts by the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import trio

MIB: Final = 2**20
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
ROOT: Final = Path(__file__).resolve().parent.parent


def resident(pid: int | str = "self") -> int:
    """Return the bytes of resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def descriptors(pid: int | str = "self") -> int:
    """Return the number of open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


async def serve_command(responder: str, uri: str, *options: str) -> tuple[trio.Process, str]:
    """Serve ``MODULE:NAME`` by the command line. Return the process, and the URI at which it listens.

    Raise ``RuntimeError`` if it ends before.
    """
    program = (sys.executable, "-c", "from rsocket_trio.cli.entry import main; main()")
    process = await trio.lowlevel.open_process(
        [*program, "serve", responder, "--listen", uri, *options], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    said = b""
    while b"\n" not in said:
        chunk = await process.stdout.receive_some()
        if not chunk:
            raise RuntimeError(f"{uri} was not served")
        said += chunk
    return process, said.decode().split()[1]


async def end_of(process: trio.Process) -> None:
    """Wait for the end of a process, and close its output."""
    await process.wait()
    if process.stdout is not None:
        await process.stdout.aclose()
