"""Other processes to talk to: started by a test, ended by it, known by their own ids."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager

import trio

from tests.blocks import ROOT
from tests.serving import running_program

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


def server_process() -> AbstractAsyncContextManager[tuple[trio.Process, str]]:
    """A server of ours in a process of its own: the process, and its URI."""
    return running_program(sys.executable, "-c", SERVER, cwd=ROOT)
