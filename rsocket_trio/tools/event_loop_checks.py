"""Raises errors that explain how to start Trio where no Trio loop runs or asyncio's does."""

from __future__ import annotations

import sys

import trio

ANY = "rsocket_trio needs Trio, and no Trio loop runs here: start it with trio.run(main)"
RUN = (
    "rsocket_trio needs Trio, and run has a loop of its own: call it where no asyncio event loop runs, in place of "
    "asyncio.run(main), not inside of it"
)
ASYNCIO = (
    "rsocket_trio needs Trio, and this is an asyncio event loop: start the program with trio.run(main) in place of "
    "asyncio.run(main), use rsocket_trio.asyncio, or run this part of it by await asyncio.to_thread(trio.run, main)"
)


def need_trio() -> None:
    """Raise ``RuntimeError`` if no Trio loop runs."""
    if not trio.lowlevel.in_trio_run():
        raise no_trio()


def no_trio() -> RuntimeError:
    """Return an error that names the problem and the remedy."""
    return RuntimeError(ASYNCIO if in_asyncio() else ANY)


def refuse_asyncio() -> None:
    """Raise ``RuntimeError`` if an asyncio loop runs: a Trio loop inside of it would block it."""
    if in_asyncio():
        raise RuntimeError(RUN)


def in_asyncio() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None
