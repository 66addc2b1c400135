"""The server of the workloads, at the floor. Prints its port, serves until its standard input ends.

Requests run in pooled tasks, each below a cancel scope that lasts.
"""

from __future__ import annotations

import sys
from collections import deque
from contextvars import copy_context
from functools import partial
from typing import Any

import trio
from outcome import Value
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from benchmarks.peers.floor import (
    ASKED,
    CHANNEL,
    COMPLETE,
    COUNT,
    FLAGS,
    GRANT,
    ITEM,
    KIND,
    NEXT,
    REQUEST,
    STREAM,
    Credit,
    Socket,
    Splitter,
    Writer,
    frame,
    items,
)
from benchmarks.workloads import CREDIT, REFILL


async def echo(request: bytes) -> bytes:
    """The handler that a program would write."""
    return request


class Channel:
    """Items of one channel that came, and the credit for those that go back."""

    __slots__ = ("came", "credit")

    def __init__(self, credit: int) -> None:
        self.credit = Credit(credit)
        self.came: deque[tuple[int, bytes]] = deque()


class Served:
    """One connection."""

    def __init__(self, stream: Socket, nursery: trio.Nursery) -> None:
        self._stream = stream
        self._nursery = nursery
        self._writer = Writer(stream)
        self._requests: dict[int, trio.CancelScope | None] = {}
        self._credits: dict[int, Credit] = {}
        self._channels: dict[int, Channel] = {}
        self._idle: list[Task] = []

    async def run(self) -> None:
        feed, receive, start = Splitter().feed, self._stream.receive, self._nursery.start_soon
        idle, requests, credits, channels = self._idle, self._requests, self._credits, self._channels
        start(self._writer.run)
        while data := await receive():
            for stream, word, body in feed(data):
                kind = word & KIND
                if kind == REQUEST:
                    if idle:
                        requests[stream] = None
                        reschedule(idle.pop(), Value((stream, body)))
                    else:
                        start(self._work, stream, body)
                elif kind == STREAM:
                    start(self._stream_items, stream, body)
                elif kind == GRANT:
                    if (credit := credits.get(stream)) is not None:
                        credit.add(COUNT.unpack(body)[0])
                elif kind == CHANNEL:
                    channel = channels[stream] = Channel(COUNT.unpack_from(body)[0])
                    credits[stream] = channel.credit
                    start(self._echo_all, stream, channel)
                elif kind == ITEM:
                    channel = channels[stream]
                    channel.came.append((word & FLAGS, body))
                    channel.credit.add(0)

    async def _work(self, stream: int, body: bytes) -> None:
        task, idle, requests = current_task(), self._idle, self._requests
        base, put, put_alone = copy_context(), self._writer.put, self._writer.put_alone

        def abort(_: Any) -> Abort:
            idle.remove(task)
            return Abort.SUCCEEDED

        with trio.CancelScope() as scope:
            while True:
                requests[stream] = scope
                try:
                    answer = await echo(body)
                finally:
                    del requests[stream]
                (put if requests else put_alone)(frame(stream, ITEM | NEXT | COMPLETE, answer))
                task.context = base.copy()  # the next request starts without what this one has set
                idle.append(task)
                stream, body = await wait_task_rescheduled(abort)

    async def _stream_items(self, stream: int, body: bytes) -> None:
        count, size = ASKED.unpack_from(body, COUNT.size)
        with trio.CancelScope():
            if not count:
                await trio.sleep_forever()
            credit = self._credits[stream] = Credit(COUNT.unpack_from(body)[0])
            put = self._writer.put
            async for item in items(count, size):
                if credit.left == 0:
                    await credit.wait()
                credit.left -= 1
                put(frame(stream, ITEM | NEXT, item))
            put(frame(stream, ITEM | COMPLETE, b""))
            del self._credits[stream]

    async def _echo_all(self, stream: int, channel: Channel) -> None:
        with trio.CancelScope():
            credit, came, put = channel.credit, channel.came, self._writer.put
            taken = 0
            put(frame(stream, GRANT, COUNT.pack(CREDIT)))
            while True:
                while came:
                    flags, item = came.popleft()
                    if flags & COMPLETE:
                        put(frame(stream, ITEM | COMPLETE, b""))
                        del self._credits[stream], self._channels[stream]
                        return
                    taken += 1
                    if taken == REFILL:
                        taken = 0
                        put(frame(stream, GRANT, COUNT.pack(REFILL)))
                    while credit.left == 0:
                        await credit.wait()
                    credit.left -= 1
                    put(frame(stream, ITEM | NEXT, item))
                await credit.wait()


async def serve(accepted: trio.SocketStream) -> None:
    stream = Socket(accepted)
    try:
        async with trio.open_nursery() as nursery:
            await Served(stream, nursery).run()
            nursery.cancel_scope.cancel()
    except* (trio.BrokenResourceError, OSError):
        pass  # a client went away with answers unread
    finally:
        stream.socket.close()


async def main() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        print(listeners[0].socket.getsockname()[1], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
