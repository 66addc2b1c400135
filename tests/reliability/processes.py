"""Other processes to talk to: started by a test, ended by it, known by their own ids."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

SERVER = """
import trio
from rsocket_trio import Responder, serve

responder = Responder()

@responder.request_response
async def never(request):
    await trio.sleep_forever()

@responder.request_stream
async def bulk(request):
    for _ in range(int(request.data)):
        yield bytes(16384)

async def main():
    async with trio.open_nursery() as nursery:
        uris = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
        print(uris[0], flush=True)

trio.run(main)
"""


@asynccontextmanager
async def server_process() -> AsyncIterator[tuple[str, trio.Process]]:
    """A server of ours in a process of its own: its URI, and the process."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    try:
        line = b""
        while not line.endswith(b"\n"):
            chunk = await process.stdout.receive_some()
            assert chunk, "the server did not start"
            line += bytes(chunk)
        yield line.decode().strip(), process
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.stdout.aclose()
