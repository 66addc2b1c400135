"""Processes that tests talk to over Aeron."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from subprocess import PIPE

import trio

PATIENCE = 30
"""Seconds after which a process hangs."""


def echo_server(uri: str) -> AbstractAsyncContextManager[tuple[trio.Process, str]]:
    """A server in a process of its own, which is killed at the end. Provide it and its URI."""
    return started("serve", uri)


@asynccontextmanager
async def started(*words: str) -> AsyncIterator[tuple[trio.Process, str]]:
    """The program of this folder, which is killed at the end. Provide it and the line that it prints."""
    path = Path(__file__).with_name("echo_server.py")
    process = await trio.lowlevel.open_process([sys.executable, str(path), *words], stdout=PIPE)
    assert process.stdout is not None
    try:
        with trio.fail_after(PATIENCE):
            line = b""
            while not line.endswith(b"\n"):
                chunk = await process.stdout.receive_some()
                assert chunk, f"{words} has ended"
                line += chunk
        yield process, line.decode().strip()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()
