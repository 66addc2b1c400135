"""Many connections with ten streams each, ended in random ways; then nothing of them may be left."""

from __future__ import annotations

import gc
import logging
import random
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import trio
import trio.testing

from qa.attacks.harness import expect
from rsocket_trio import (
    Channel,
    Connection,
    Payload,
    Rejected,
    Responder,
    RSocketError,
    open_connection_over,
    serve_stream,
)

if TYPE_CHECKING:
    from qa.attacks.held import Load

LIBRARY_LOG = logging.getLogger("rsocket_trio")
STREAMS = 10
GROWTH = 256 * 1024
KINDS = {"Connection", "Session", "Stream", "Engine", "Job", "Inbox", "Incoming", "Outgoing", "Channel"}
ENDS = ("close", "cut", "cancel", "error", "drain")


def responder_of(rng: random.Random) -> Responder:
    responder = Responder()

    @responder.request_response
    async def answer(request: Payload) -> Payload:
        if rng.random() < 0.3:
            raise Rejected("not now")
        if rng.random() < 0.3:
            await trio.sleep_forever()
        return request

    @responder.request_stream
    async def items(request: Payload) -> AsyncIterator[bytes]:
        while rng.random() < 0.9:
            yield request.data
            await trio.lowlevel.checkpoint()

    @responder.request_channel
    async def talk(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)
            if rng.random() < 0.2:
                return

    return responder


async def one_stream(connection: Connection, rng: random.Random) -> None:
    data = rng.randbytes(rng.randrange(1, 300))
    with trio.move_on_after(rng.random() * 0.002):
        try:
            kind = rng.randrange(4)
            if kind == 0:
                await connection.request_response(data)
            elif kind == 1:
                async with connection.request_stream(data, initial_request_n=rng.randrange(1, 9)) as items:
                    async for _ in items:
                        pass
            elif kind == 2:
                async with connection.request_channel(data) as channel:
                    for _ in range(rng.randrange(4)):
                        await channel.send(data)
                        await anext(channel, None)
            else:
                await connection.fire_and_forget(data)
        except (RSocketError, trio.TooSlowError):
            return


async def one_connection(rng: random.Random) -> None:
    """Ten streams at once, ended with their connection in one of five ways."""
    ours, theirs = trio.testing.memory_stream_pair()
    end = rng.choice(ENDS)
    async with trio.open_nursery() as server:
        server.start_soon(serve_stream, responder_of(rng), theirs)
        try:
            with trio.CancelScope() as scope:
                async with open_connection_over(ours) as connection, trio.open_nursery() as nursery:
                    for _ in range(STREAMS):
                        nursery.start_soon(one_stream, connection, rng)
                    for _ in range(rng.randrange(20)):
                        await trio.lowlevel.checkpoint()
                    if end == "cut":
                        await trio.aclose_forcefully(theirs)
                    elif end == "cancel":
                        scope.cancel()
                    elif end == "error":
                        ours.receive_stream.put_data(b"\0\0\1\0")
                    elif end == "drain":
                        server.cancel_scope.cancel()
        except (RSocketError, trio.ClosedResourceError, trio.BrokenResourceError):
            pass
        await trio.aclose_forcefully(ours)
        server.cancel_scope.deadline = trio.current_time() + 5


async def run(count: int, seed: int) -> tuple[dict[str, int], int]:
    """Objects that are left, and bytes that are allocated beyond those of the first tenth."""
    rng = random.Random(seed)
    before = 0
    gc.collect()
    gc.freeze()  # what was there before is not looked at
    for number in range(count + count // 10):
        if number == count // 10:
            gc.collect()
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
        await one_connection(rng)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    found = Counter(type(one).__name__ for one in gc.get_objects() if type(one).__module__.startswith("rsocket_trio"))
    return {name: found[name] for name in KINDS if found[name]}, grown


def leftovers(size: Load) -> str:
    """Raise ``Missed`` if anything is left."""
    level = LIBRARY_LOG.level
    LIBRARY_LOG.setLevel(logging.CRITICAL)  # a line for each connection that ends in an error
    try:
        left, grown = trio.run(run, size.ended, 1)
    finally:
        LIBRARY_LOG.setLevel(level)
    expect(not left, f"left: {left}")
    expect(grown <= GROWTH, f"grew by {grown / 1024:.0f} KiB")
    return f"{size.ended} connections with {STREAMS} streams each; 0 objects left, grown by {grown / 1024:.0f} KiB"
