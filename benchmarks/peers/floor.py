"""The least that a multiplexed request costs on Trio: a pooled task and a cancel scope for each, and nothing else.

No flags, no errors, no limits, no cancellation on the wire: a length, a number and a kind lead each frame. Frames of
one tick leave in one write, and credit is an integer, as in the library that is compared with it.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import trio
from trio.lowlevel import Abort, Task, checkpoint, checkpoint_if_cancelled, current_task, reschedule

from benchmarks.workloads import CREDIT, REFILL, WRITE

HEADER = struct.Struct(">IIB")
REQUEST, STREAM, CHANNEL, ITEM, END, GRANT = range(6)


class Stream:
    """Items that came, credit to send more, and a task that waits for either."""

    def __init__(self, wire: Wire, number: int, opened: int = REQUEST, first: bytes = b"") -> None:
        self.wire = wire
        self.number = number
        self.opened = opened
        self.first = first
        self.items: list[bytes] = []
        self.credit = CREDIT
        self.is_over = False
        self.reader: Task | None = None
        self.sender: Task | None = None
        self._taken = 0
        self._sent = 0

    async def send(self, item: bytes) -> None:
        self._sent += 1
        if self._sent % REFILL:
            await checkpoint_if_cancelled()
        else:
            await checkpoint()
        while self.credit <= 0:
            self.sender = current_task()
            await park()
        self.credit -= 1
        self.wire.put(self.number, ITEM, item)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await checkpoint_if_cancelled()
            if not self.items:
                if self.is_over:
                    return
                self.reader = current_task()
                await park()
                continue
            items, self.items = self.items, []
            for item in items:
                self._taken += 1
                if self._taken % REFILL == 0:
                    self.wire.put(self.number, GRANT, b"")
                yield item


class Wire:
    """One connection: a task that reads, a task that writes, and tasks that serve what the other side asks for."""

    def __init__(self, stream: trio.SocketStream, handle: Callable[[Stream], Awaitable[None]] | None = None) -> None:
        self._stream = stream
        self._handle = handle
        self._numbers = count(1)
        self._out: list[bytes] = []
        self._writer: Task | None = None
        self._idle: list[tuple[Task, list[Stream]]] = []
        self._nursery: trio.Nursery | None = None
        self.streams: dict[int, Stream] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Wire]:
        async with self._stream, trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._write)
            self._nursery.start_soon(self._listen)
            yield self
            self._nursery.cancel_scope.cancel()

    async def serve(self) -> None:
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._write)
            await self._read()
            self._nursery.cancel_scope.cancel()

    async def request(self, data: bytes) -> bytes:
        stream = self.ask(REQUEST, data)
        stream.reader = current_task()
        await park()
        del self.streams[stream.number]
        return stream.items[0]

    def ask(self, kind: int, data: bytes) -> Stream:
        number = next(self._numbers)
        stream = self.streams[number] = Stream(self, number)
        self.put(number, kind, data)
        return stream

    def put(self, number: int, kind: int, data: bytes) -> None:
        self._out.append(HEADER.pack(len(data), number, kind))
        self._out.append(data)
        if self._writer is not None:
            reschedule(self._writer)
            self._writer = None

    async def _listen(self) -> None:
        await self._read()
        raise EOFError("the server went away")

    async def _write(self) -> None:
        while True:
            while not self._out:
                self._writer = current_task()
                await park()
            parts, self._out = self._out, []
            await self._stream.send_all(b"".join(parts))

    async def _read(self) -> None:
        parts: list[bytes] = []
        have, need = 0, HEADER.size
        while chunk := await self._stream.receive_some(max(WRITE, need - have)):
            parts.append(chunk)
            have += len(chunk)
            if have < need:
                continue
            data = b"".join(parts) if len(parts) > 1 else chunk
            at = 0
            need = HEADER.size
            while have - at >= HEADER.size:
                size, number, kind = HEADER.unpack_from(data, at)
                if have - at < HEADER.size + size:
                    need = HEADER.size + size
                    break
                body = at + HEADER.size
                at = body + size
                self._receive(number, kind, data[body:at])
            parts = [data[at:]] if at < have else []
            have -= at

    def _receive(self, number: int, kind: int, data: bytes) -> None:
        if kind <= CHANNEL:
            stream = self.streams[number] = Stream(self, number, kind, data)
            self._start(stream)
            return
        if number not in self.streams:
            return  # credit that crossed the end
        stream = self.streams[number]
        if kind == GRANT:
            stream.credit += REFILL
            task, stream.sender = stream.sender, None
        else:
            if kind == END:
                stream.is_over = True
            else:
                stream.items.append(data)
            task, stream.reader = stream.reader, None
        if task is not None:
            reschedule(task)

    def _start(self, stream: Stream) -> None:
        if self._idle:
            task, given = self._idle.pop()
            given.append(stream)
            reschedule(task)
        else:
            assert self._nursery is not None
            self._nursery.start_soon(self._work, stream)

    async def _work(self, stream: Stream) -> None:
        assert self._handle is not None
        given: list[Stream] = []
        with trio.CancelScope():
            while True:
                await self._handle(stream)
                del self.streams[stream.number]
                self._idle.append((current_task(), given))
                await park()
                stream = given.pop()


async def park() -> None:
    await trio.lowlevel.wait_task_rescheduled(lambda _: Abort.SUCCEEDED)
