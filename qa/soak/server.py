"""The server of a soak, a process of its own: it answers with items that whoever asked can foretell.

The first line that it writes are its URIs. Then it answers each line that it reads, both being JSON: ``glance`` tells
what is alive, and what went wrong.
"""

from __future__ import annotations

import json
import logging
import os
import random
import struct
import sys
import zlib
from collections.abc import AsyncIterator
from typing import Any

import trio

from rsocket_trio import ApplicationError, Channel, Payload, Responder, ResumeOptions, serve

ASKED, ASKING = 0, 1
"""Directions: from the side that was asked, and from the side that asks."""
LARGEST = 70_000
SIZES = (0, 1, *[30] * 30, *[100] * 30, *[300] * 30, *[1_000] * 20, *[3_000] * 6, 16_384, LARGEST)
FILLING = random.Random(1).randbytes(2 * LARGEST)
LABEL = struct.Struct(">IBI")
"""Stream, direction, number of the item."""
ORDER = struct.Struct(">IHfB")
"""A request: its number, items, seconds between them, and how it ends."""
COMPLETE, FAIL, BREAK = range(3)
"""Ends: well, with an error that says so, with an exception that the handler did not mean."""
PLANNED, INTERNAL = "as planned", "internal error"
"""The error that the caller of the latter two gets."""


class Wrong(Exception):
    """An item is not the one that was due."""


def item(stream: int, direction: int, number: int) -> Payload:
    """Return this item, for its sender and for its checker."""
    label = LABEL.pack(stream, direction, number)
    chance = zlib.crc32(label)
    start = chance % LARGEST
    return Payload(FILLING[start : start + SIZES[(chance >> 8) % len(SIZES)]], label)


def check(came: Payload, stream: int, direction: int, number: int) -> None:
    """Raise ``Wrong`` unless this is that item."""
    due = item(stream, direction, number)
    if came.data == due.data and came.metadata == due.metadata:
        return
    label = came.metadata or b""
    what = LABEL.unpack(label) if len(label) == LABEL.size else label
    raise Wrong(f"item {number} of stream {stream}, direction {direction}, is {what!r} with {len(came.data)} bytes")


async def pause(seconds: float) -> None:
    """So long on average."""
    await trio.sleep(random.uniform(0, 2 * seconds))


def finish(end: int) -> None:
    """End as was asked for."""
    if end == FAIL:
        raise ApplicationError(PLANNED)
    if end == BREAK:
        raise RuntimeError("nobody outside is told this")


class Work:
    """Counts of the events in the handlers."""

    def __init__(self) -> None:
        self.received = 0
        self.wrong: list[str] = []

    def responder(self) -> Responder:
        """Requests, streams, and channels that send both ways at once."""
        responder = Responder()

        @responder.request_response
        async def answer(request: Payload) -> Payload:
            number, items, seconds, end = ORDER.unpack(request.data)
            await pause(items * seconds)
            finish(end)
            return item(number, ASKED, 0)

        @responder.request_stream
        async def stream(request: Payload) -> AsyncIterator[Payload]:
            number, items, seconds, end = ORDER.unpack(request.data)
            for one in range(items):
                await pause(seconds)
                yield item(number, ASKED, one)
            finish(end)

        @responder.request_channel(initial_request_n=8)
        async def channel(channel: Channel) -> None:
            number, items, seconds, end = ORDER.unpack(channel.request.data)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive, channel, number, items)
                for one in range(items):
                    await pause(seconds)
                    await channel.send(item(number, ASKED, one))
            finish(end)

        return responder

    async def _receive(self, channel: Channel, number: int, items: int) -> None:
        came = 0
        try:
            async for one in channel:
                check(one, number, ASKING, came)
                came += 1
                self.received += 1
            if came != items:
                raise Wrong(f"stream {number} ended after {came} items of {items}")
        except Wrong as error:
            self.wrong.append(str(error))
            raise


async def main(options: dict[str, Any]) -> None:
    """Serve, and obey the lines of the standard input until it ends."""
    work = Work()
    resume = ResumeOptions(**options["resume"])
    async with trio.open_nursery() as nursery:

        async def start(task_status: trio.TaskStatus[list[str]]) -> None:
            await serve(work.responder(), "tcp://127.0.0.1:0", resume=resume, grace=0.1, task_status=task_status)

        said = b""
        print(json.dumps(await nursery.start(start)), flush=True)
        async with trio.lowlevel.FdStream(os.dup(0)) as orders:
            async for chunk in orders:
                said += chunk
                while b"\n" in said:
                    _, _, said = said.partition(b"\n")
                    tasks = trio.lowlevel.current_statistics().tasks_living
                    print(json.dumps({"tasks": tasks, "received": work.received, "wrong": work.wrong}), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    logging.getLogger("rsocket_trio").setLevel(logging.CRITICAL)  # it is asked for thousands of broken handlers
    trio.run(main, json.loads(sys.argv[1]))
