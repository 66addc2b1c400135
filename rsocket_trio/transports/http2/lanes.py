"""The streams of an HTTP/2 connection, and the outlet that they write to in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio
from trio.lowlevel import checkpoint

from rsocket_trio.transports.http2.frame_intake import DATA, HEADER, Allowance
from rsocket_trio.transports.socket_stream import SocketStream

STREAM_WINDOW: Final = 1024 * 1024
"""Bytes that a peer may send on a stream ahead of its reader."""
DEFAULT_WINDOW: Final = 65535
"""Bytes of both windows before anything was said about them (RFC 9113, 6.9.2)."""
TURN: Final = 131072
"""Bytes that one stream writes in a turn: more than the outbox of a connection gives at once."""
FULL: Final = 65536
"""Bytes that wait to be written, while which no stream adds to them."""
UNWRITTEN: Final = 262144
"""Bytes that wait to be written at most. More are answers to a peer that asks and does not read."""
LEAST_DATA: Final = 1024
"""Bytes of a DATA frame below which it frees nothing, if a window was the reason that it is short."""
FREED: Final = 2
"""Frames without content that a DATA frame frees: its receiver opens both windows again."""
PIECES: Final = 64
"""Pieces of a stream that are kept apart. A peer chooses how small they are, and each costs 40 bytes."""


class Waiter:
    """One task that waits until another wakes it."""

    __slots__ = ("_task",)

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None

    async def wait(self) -> None:
        """Wait for ``wake``. Raise ``BusyResourceError`` if another task waits."""
        if self._task is not None:
            raise trio.BusyResourceError("another task waits")
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def wake(self) -> None:
        """Wake the task that waits, if one does. It has to look for itself whether there was a reason."""
        # Forgotten at once: of several that wake it in one step, only the first reschedules it.
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class LaneOwner(Protocol):
    """The connection of a stream."""

    @property
    def initial_window(self) -> int:
        """Bytes that may be sent on a new stream."""
        ...

    def content_begins(self) -> None:
        """Note the first byte that a stream carries."""
        ...

    def open_windows(self, lane: Lane, size: int) -> None:
        """Have the peer send on, by so many bytes."""
        ...


class Lane:
    """One stream as its connection sees it: windows, bytes that wait for the reader, and which directions are over."""

    __slots__ = (
        *("_pieces", "_tail", "connection", "failure", "has_data", "has_ended", "has_length", "is_closed", "reader"),
        *("receive_window", "said_the_end", "send_window", "stream_id", "unopened", "waiting", "writer"),
    )

    def __init__(self, connection: LaneOwner, stream_id: int, *, has_length: bool = False) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.send_window = connection.initial_window
        self.receive_window = STREAM_WINDOW
        self.unopened = 0
        """Bytes that were taken, and for which the window was not opened again."""
        self.waiting = 0
        """Bytes that came and were not taken."""
        self.has_length = has_length
        """True if the peer announced the length of what it sends: h2 counts it then, and keeps the windows."""
        self.has_data = False
        self.has_ended = False
        self.said_the_end = False
        self.is_closed = False
        self.failure = ""
        """The reason why no more bytes move, if it is the peer or the loss of the connection; else empty."""
        self.reader = Waiter()
        self.writer = Waiter()
        self._pieces: deque[bytes] = deque()
        self._tail = bytearray()

    def deliver(self, piece: bytes) -> None:
        """Keep bytes for the reader, and wake it."""
        if self.is_closed:
            self.connection.open_windows(self, len(piece))
            return
        if not self.has_data:
            self.has_data = True
            self.connection.content_begins()
        self.waiting += len(piece)
        if len(self._pieces) < PIECES and not self._tail:
            self._pieces.append(piece)
        else:
            self._tail += piece
        self.reader.wake()

    def take(self) -> bytes:
        """Return the next bytes that wait, as they came, and open the windows for as many; none if none wait."""
        pieces = self._pieces
        if pieces:
            piece = pieces.popleft()
        elif self._tail:
            piece, self._tail = bytes(self._tail), bytearray()
        else:
            return b""
        self.waiting -= len(piece)
        self.connection.open_windows(self, len(piece))
        return piece

    def drop(self) -> None:
        """Drop all bytes that wait, and open the windows for as many."""
        size, self.waiting = self.waiting, 0
        self._pieces.clear()
        self._tail = bytearray()
        self.connection.open_windows(self, size)

    def fail(self, text: str) -> None:
        """Note that nothing moves any more, and wake both tasks."""
        self.failure = self.failure or text
        self.wake()

    def wake(self) -> None:
        """Wake the tasks that wait for anything."""
        self.reader.wake()
        self.writer.wake()


class Outlet:
    """Writes frames in their order: at once where the socket takes them, else by the task that runs ``write``.

    Streams write their data in turn, as far as the connection's window, ``window``, allows. DATA frames free some of
    the peer's ``allowance``. ``on_flood(size)`` is called when more bytes wait than may.
    """

    def __init__(self, stream: trio.abc.Stream, allowance: Allowance, on_flood: Callable[[int], None]) -> None:
        self.window = DEFAULT_WINDOW
        self.is_broken = False
        """True once writing failed: what is written from then on is dropped."""
        self._stream = stream
        self._socket = stream if isinstance(stream, SocketStream) else None
        self._allowance = allowance
        self._on_flood = on_flood
        self._blocked: dict[Lane, None] = {}  # in the order in which they wait
        self._frames: list[bytes] = []
        self.size = 0
        """Bytes that wait to be written, or are being written."""
        self._is_writing = False
        self._due = Waiter()
        self._written = trio.lowlevel.ParkingLot()

    async def write(self) -> None:
        """Write what could not be written at once, until writing fails or this is cancelled."""
        while not self.is_broken:
            if not self._frames:
                # Woken by ``put``.
                await self._due.wait()
                continue
            data = b"".join(self._frames)
            self._frames.clear()
            self._is_writing = True
            try:
                if self._socket is None:
                    await self._stream.send_all(data)
                else:
                    await self._socket.put_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._break()
                return
            self._is_writing = False
            self.size -= len(data)
            self._written.unpark_all()
            self.make_room()

    def put(self, data: bytes) -> None:
        """Write frames."""
        if self.is_broken:
            return
        if self._socket is not None and not self._frames and not self._is_writing:
            try:
                sent = self._socket.write(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._break()
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        """Have the task write this."""
        self._frames.append(data)
        self.size += len(data)
        self._due.wake()
        if self.size > UNWRITTEN:
            self._on_flood(self.size)

    def send(self, lane: Lane, data: bytes | memoryview, largest: int) -> int:
        """Write as much of a stream's data as both windows, and the bytes that wait already, allow.

        Return how many bytes. ``largest`` are the bytes of the largest frame. Raise ``BrokenResourceError`` and
        ``ClosedResourceError``.
        """
        if lane.failure:
            raise trio.BrokenResourceError(lane.failure)
        if lane.is_closed or lane.said_the_end:
            raise trio.ClosedResourceError("nothing can be sent after the end was said")
        if self.is_broken:
            raise trio.BrokenResourceError("the HTTP/2 connection broke")
        size = min(len(data), lane.send_window, self.window, TURN)
        if size <= 0 or self.size >= FULL:
            return 0
        stream_id = lane.stream_id
        parts: list[bytes | memoryview] = []
        for start in range(0, size, largest):
            length = min(size - start, largest)
            parts.append(HEADER.pack(length >> 8, length & 0xFF, DATA, 0, stream_id))
            parts.append(data[start : start + length])
        lane.send_window -= size
        self.window -= size
        if size >= LEAST_DATA or size == len(data):
            self._allowance.refund(FREED * (len(parts) >> 1))
        self.put(b"".join(parts))
        return size

    def send_parts(self, lane: Lane, parts: Sequence[bytes | memoryview], largest: int) -> bool:
        """Write a stream's data as one frame, without joining its pieces, if that is possible at once.

        Return whether it was. Raise as ``send`` does.
        """
        size = sum(map(len, parts))
        is_free = self._socket is not None and not (self._frames or self._is_writing or self._blocked)
        if not is_free or size > min(lane.send_window, self.window, largest, TURN) or self._is_over(lane):
            return False
        lane.send_window -= size
        self.window -= size
        self._allowance.refund(FREED)
        frame = [HEADER.pack(size >> 8, size & 0xFF, DATA, 0, lane.stream_id), *parts]
        assert self._socket is not None
        try:
            sent = self._socket.write_parts(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._break()
            raise
        if sent < size + HEADER.size:
            self._keep(b"".join(frame)[sent:])
        return True

    def _is_over(self, lane: Lane) -> bool:
        """Return whether nothing can be sent on a stream."""
        return bool(lane.failure) or lane.is_closed or lane.said_the_end or self.is_broken

    @property
    def has_room(self) -> bool:
        """Return whether no stream waits for its turn."""
        return not self._blocked

    async def wait_room(self, lane: Lane) -> None:
        """Wait until ``send`` may take something of this stream, once all that wait already had their turn."""
        if lane.send_window > 0:
            if not self._blocked and self.window > 0 and self.size < FULL:
                await checkpoint()
                return
            self._blocked[lane] = None
        try:
            # Woken by a WINDOW_UPDATE for the stream, by ``make_room``, and by whatever ends the stream.
            await lane.writer.wait()
        finally:
            self._blocked.pop(lane, None)

    def make_room(self) -> None:
        """Wake the stream that waits longest, if it may write now. It does the same once it has written."""
        if self._blocked and self.window > 0 and self.size < FULL:
            next(iter(self._blocked)).writer.wake()

    def on_window(self, lane: Lane) -> None:
        """Wake the task that writes a stream, after its window changed. One that waits for its turn goes on waiting."""
        if lane not in self._blocked:
            lane.writer.wake()

    def forget(self, lane: Lane) -> None:
        """Give a stream no more turns, and its turn to the next one."""
        self._blocked.pop(lane, None)
        self.make_room()

    async def wait_written(self) -> None:
        """Wait until nothing waits to be written, or writing failed."""
        while self._frames or self._is_writing:
            # Woken by ``write`` and by a failure.
            await self._written.park()

    def _break(self) -> None:
        """Note that writing failed. What the peer sent before is still read, and reading finds the end as well."""
        self.is_broken, self._is_writing, self.size = True, False, 0
        self._frames.clear()
        self._written.unpark_all()
        self._due.wake()
        blocked, self._blocked = self._blocked, {}
        for lane in blocked:
            lane.writer.wake()
