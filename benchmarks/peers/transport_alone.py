"""Frames through a transport alone, without a protocol: ``serve URI`` sends each back, ``ask URI`` measures.

The server prints its URI, and serves until its standard input ends. The client prints ``ready`` once
it is connected, and does what each line says: ``trips COUNT SIZE`` prints the microseconds of each round trip as JSON,
``rest SECONDS`` waits so long for a frame and prints ``done``. Both ends send the first write without waiting, as a
connection does.
"""

from __future__ import annotations

import json
import os
import sys
import time

import trio

from rsocket_trio.mux.framing import Framing24
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.listen import Accepted, open_listeners

UNCOUNTED = 500
"""Round trips before those that count."""


async def send(transport: Transport, frames: list[bytes]) -> None:
    """Send frames at once, if the transport can."""
    if transport.send_at_once is None or not transport.send_at_once(frames):
        await transport.send(frames if transport.send_at_once is None else [])


async def echo(accepted: Accepted) -> None:
    """Send back all that comes."""
    async with accepted.open() as transport:
        transport.use_framing(Framing24())
        while frames := await transport.receive():
            await send(transport, list(frames))


async def serve(uri: str) -> None:
    """Serve until standard input ends."""
    (listener,) = await open_listeners([uri])
    async with trio.open_nursery() as nursery:
        print(await nursery.start(listener.serve, echo), flush=True)
        while await trio.to_thread.run_sync(sys.stdin.readline):
            pass
        nursery.cancel_scope.cancel()


async def ask(uri: str) -> None:
    """Measure what each line of standard input says."""
    async with open_transport(uri) as transport:
        transport.use_framing(Framing24())
        print("ready", flush=True)
        while words := (await trio.to_thread.run_sync(sys.stdin.readline)).split():
            if words[0] == "rest":
                with trio.move_on_after(float(words[1])):
                    await transport.receive()
                print("done", flush=True)
            else:
                print(json.dumps(await trips(transport, int(words[1]), int(words[2]))), flush=True)
        await transport.finish()


async def trips(transport: Transport, count: int, size: int) -> list[float]:
    """Return the microseconds of each round trip of one frame."""
    frame = os.urandom(size)
    took = []
    for _ in range(UNCOUNTED + count):
        begun = time.perf_counter()
        await send(transport, [frame])
        assert len((await transport.receive())[0]) == size
        took.append((time.perf_counter() - begun) * 1e6)
    return took[UNCOUNTED:]


if __name__ == "__main__":
    trio.run({"serve": serve, "ask": ask}[sys.argv[1]], sys.argv[2])
