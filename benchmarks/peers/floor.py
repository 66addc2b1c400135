"""The least that multiplexed requests cost on Trio: frames, one writer, credit as an integer, and nothing else.

No errors, no limits, no cancellation on the wire. A socket is read once for each time that it is readable, frames of
one tick leave in one write, and a frame that is alone leaves without the writer's task. Payloads of many kilobytes are
copied as Trio's own streams do: for those it is no floor.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

import trio
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

HEADER = struct.Struct(">BHIH")
"""Upper and lower part of the length behind it, stream, and the kind above ten flags."""
COUNT = struct.Struct(">I")
ASKED = struct.Struct(">II")
"""The number of items, 0 for a stream that stays idle, and the bytes of each."""
REQUEST, STREAM, CHANNEL, GRANT, ITEM = (kind << 10 for kind in (4, 6, 7, 8, 10))
NEXT, COMPLETE = 0x20, 0x40
KIND, FLAGS = ~0x3FF, 0x3FF
READ = 262_144
"""Bytes that one read takes."""
LARGE = 65_536
"""A frame above this is collected in parts, and joined once."""

Frame: TypeAlias = tuple[int, int, bytes]
"""Stream, kind and flags, body."""


def frame(stream: int, kind: int, body: bytes) -> bytes:
    size = len(body) + 6
    return HEADER.pack(size >> 16, size & 0xFFFF, stream, kind) + body


class Splitter:
    """Cuts what was read into frames."""

    __slots__ = ("_have", "_need", "_parts", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._parts: list[bytes] = []
        self._have = self._need = 0

    def feed(self, data: bytes) -> Sequence[Frame]:
        if self._need:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return ()
            data = b"".join(self._parts)
            self._parts, self._need = [], 0
        elif self._rest:
            data = self._rest + data
        frames: list[Frame] = []
        unpack, header = HEADER.unpack_from, HEADER.size
        at, end = 0, len(data)
        while end - at >= header:
            high, low, stream, kind = unpack(data, at)
            after = at + 3 + (high << 16 | low)
            if after > end:
                if after - at > LARGE:
                    self._parts, self._have, self._need, self._rest = [data[at:]], end - at, after - at, b""
                    return frames
                break
            frames.append((stream, kind, data[at + header : after]))
            at = after
        self._rest = data[at:]
        return frames


class Socket:
    """A socket without the checkpoints of Trio's streams."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.socket = socket.socket(fileno=stream.socket.detach())
        self.socket.setblocking(False)
        self._number = self.socket.fileno()

    async def receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._number)
            try:
                return self.socket.recv(READ)
            except BlockingIOError:
                pass

    async def send_all(self, data: bytes) -> None:
        rest: bytes | memoryview = data
        while True:
            try:
                sent = self.socket.send(rest)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.socket)
                continue
            if sent == len(rest):
                return
            rest = memoryview(rest)[sent:]


class Writer:
    """Sends what was put since the last write, in one write."""

    def __init__(self, stream: Socket) -> None:
        self._stream = stream
        self._out: list[bytes] = []
        self._task: Task | None = None

    def put(self, data: bytes) -> None:
        self._out.append(data)
        if self._task is not None:
            task, self._task = self._task, None
            reschedule(task)

    def put_alone(self, data: bytes) -> None:
        """Send a frame at once; nothing else is in flight."""
        if self._task is None:  # it is at work, or will be
            self.put(data)
            return
        try:
            sent = self._stream.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.put(data[sent:])

    async def run(self) -> None:
        def abort(_: Any) -> Abort:
            self._task = None
            return Abort.SUCCEEDED

        while True:
            out = self._out
            if not out:
                self._task = current_task()
                await wait_task_rescheduled(abort)
                continue
            self._out = []
            await self._stream.send_all(b"".join(out))


class Credit:
    """Items that may be sent, and the task that waits for more; or for items, where none are counted."""

    __slots__ = ("_task", "left")

    def __init__(self, left: int = 0) -> None:
        self.left = left
        self._task: Task | None = None

    def add(self, count: int) -> None:
        self.left += count
        if self._task is not None:
            task, self._task = self._task, None
            reschedule(task)

    async def wait(self) -> None:
        def abort(_: Any) -> Abort:
            self._task = None
            return Abort.SUCCEEDED

        self._task = current_task()
        await wait_task_rescheduled(abort)


async def items(count: int, size: int) -> AsyncIterator[bytes]:
    """The generator that a program would write."""
    item = bytes(size)
    for _ in range(count):
        yield item
