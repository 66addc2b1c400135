"""What is said to a program that runs no Trio loop: asyncio's loop can't run this library."""

from __future__ import annotations

import sys

import trio

ANY = "rsocket_trio needs Trio, and no Trio loop runs here: start it with trio.run(main)"
ASYNCIO = (
    "rsocket_trio needs Trio, and this is an asyncio event loop: start the program with trio.run(main) in place of "
    "asyncio.run(main), or run this part of it in a thread of its own, with await asyncio.to_thread(trio.run, main)"
)


def need_trio() -> None:
    """Raise ``RuntimeError`` where no Trio loop runs."""
    if not trio.lowlevel.in_trio_run():
        raise no_trio()


def no_trio() -> RuntimeError:
    """What is wrong, and what to do."""
    asyncio = sys.modules.get("asyncio")
    return RuntimeError(ASYNCIO if asyncio is not None and asyncio._get_running_loop() is not None else ANY)
