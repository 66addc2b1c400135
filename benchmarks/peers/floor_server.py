"""The server of the workloads, at the floor. Prints its port, serves until its standard input ends."""

from __future__ import annotations

import sys
from functools import partial

import trio

from benchmarks.peers.floor import CHANNEL, END, ITEM, REQUEST, Stream, Wire


async def handle(stream: Stream) -> None:
    if stream.opened == REQUEST:
        stream.wire.put(stream.number, ITEM, stream.first)
        return
    if stream.opened == CHANNEL:
        async for item in stream:
            await stream.send(item)
    else:
        count, size = map(int, stream.first.split())
        item = bytes(size)
        for _ in range(count):
            await stream.send(item)
    stream.wire.put(stream.number, END, b"")


async def session(stream: trio.SocketStream) -> None:
    await Wire(stream, handle).serve()


async def main() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, session, 0, host="127.0.0.1"))
        print(listeners[0].socket.getsockname()[1], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
