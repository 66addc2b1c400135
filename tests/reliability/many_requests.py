"""A program: so many request/responses without the collector of cycles, and the bytes by which the process grew."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import trio
import trio.testing

from rsocket_trio import Payload, Responder, open_connection_over, serve_stream

responder = Responder()


@responder.request_response
async def echo(request: Payload) -> Payload:
    return request


async def main(count: int) -> None:
    """Warm up, then count."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, responder, theirs)
        async with open_connection_over(ours) as connection:

            async def ask(times: int) -> None:
                for _ in range(times):
                    await connection.request_response(b"x" * 100)

            async def ask_together(times: int) -> None:
                async with trio.open_nursery() as askers:
                    for _ in range(64):
                        askers.start_soon(ask, times // 64)

            await ask_together(count // 4)
            gc.collect()
            gc.disable()
            before = resident()
            await ask_together(count)
            print(resident() - before)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


trio.run(main, int(sys.argv[1]))
