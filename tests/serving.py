"""Servers and other programs that run for as long as a block."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio

from rsocket_trio import Responder, serve

PATIENCE = 60
"""Seconds in which a program prints its first line, or does what is waited for."""


@asynccontextmanager
async def running_server(
    responder: Responder | str, uris: Any = "tcp://127.0.0.1:0", **options: Any
) -> AsyncIterator[str]:
    """Serve at URIs or listeners, with these options of ``serve``. Provide the first URI that was bound, if any."""
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(partial(serve, responder, uris, **options))
        yield bound[0] if bound else ""
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def running_program(*words: str, **options: Any) -> AsyncIterator[tuple[trio.Process, str]]:
    """Run a program, with these options of ``trio.run_process``. Provide it, and the first line that it prints."""
    process = await trio.lowlevel.open_process(words, stdout=subprocess.PIPE, **options)
    assert process.stdout is not None
    try:
        with trio.fail_after(PATIENCE):
            line = b""
            while b"\n" not in line:
                chunk = await process.stdout.receive_some()
                assert chunk, f"{words} has ended"
                line += chunk
        yield process, line.decode().partition("\n")[0]
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what another process or thread has to do, and that can be seen by looking only."""
    with trio.fail_after(PATIENCE):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.01)
