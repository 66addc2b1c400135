"""A stream of an HTTP/2 connection as a Trio stream, and the outlet to which the streams of one write in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

import trio
from hyperframe.frame import DataFrame
from trio.lowlevel import ParkingLot, checkpoint

from rsocket_trio.transports.byte_stream import has_unread
from rsocket_trio.transports.socket_stream import BytesLike, PromptStream, SocketStream

if TYPE_CHECKING:
    from h2.connection import H2Connection

    from rsocket_trio.transports.http2.multiplexed import Multiplexed


HEADER: Final = Struct(">HBBBI")
"""The header of a frame: the length in two parts, the type, the flags and the stream."""
CONTENT_TYPE = "application/rsocket"
"""The media type of requests and answers."""
STREAM_WINDOW: Final = 1024 * 1024
"""Bytes that a peer may send on a stream ahead of its reader."""
JOINED: Final = 16384
"""Bytes up to which pieces are joined: a peer chooses how small they are, and each costs 40 bytes."""


class Http2Stream(PromptStream):
    """One HTTP/2 stream. The connection that carries it reads and writes.

    Cancelling ``receive_some`` loses nothing. Cancelling ``send_all`` may leave a part of the bytes sent: close the
    stream afterwards. The connection and its other streams go on.
    """

    __slots__ = (
        *("_pieces", "answer", "connection", "counted", "failure", "has_data", "has_ended", "has_length"),
        *("is_closed", "is_refused", "reader", "receive_window", "said_the_end", "stream_id", "unopened"),
        *("waiting", "writer"),
    )

    def __init__(self, connection: Multiplexed, stream_id: int, *, has_length: bool = False) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.counted = connection.h2.streams[stream_id]
        """The stream of h2, which knows how many bytes may be sent, as far as this stream goes."""
        self.receive_window = STREAM_WINDOW
        self.unopened = 0
        """Bytes that were taken, and for which the window was not opened again."""
        self.waiting = 0
        """Bytes that came and were not taken."""
        self.has_length = has_length
        """True if the peer announced the length of what it sends: h2 counts it then, and keeps the windows."""
        self.answer: tuple[tuple[str, str], ...] | None = None
        """The headers of the answer that grants a request of this side."""
        self.is_refused = False
        self.has_data = False
        self.has_ended = False
        self.said_the_end = False
        self.is_closed = False
        self.failure = ""
        """The reason why no more bytes move, if it is the peer or the loss of the connection; else empty."""
        self.reader = ParkingLot()
        self.writer = ParkingLot()
        self._pieces: deque[bytes | bytearray] = deque()
        self.writes = 0

    # What the connection calls

    def deliver(self, piece: bytes) -> None:
        """Keep bytes for the reader, and wake it."""
        if self.is_closed:
            self.connection.open_windows(self, len(piece))
            return
        if not self.has_data:
            self.has_data = True
            self.connection.empty_frames.refund()
        self.waiting += len(piece)
        last = self._pieces[-1] if self._pieces else b""
        if len(piece) >= JOINED:
            self._pieces.append(piece)
        elif isinstance(last, bytearray) and len(last) < JOINED:
            last += piece
        else:
            self._pieces.append(bytearray(piece))
        self.reader.unpark_all()

    def take(self) -> bytes:
        """Return the next bytes that wait, and open the windows for as many; none if none wait."""
        piece = bytes(self._pieces.popleft()) if self._pieces else b""
        self.waiting -= len(piece)
        self.connection.open_windows(self, len(piece))
        return piece

    def drop(self) -> None:
        """Drop all bytes that wait, and open the windows for as many."""
        size, self.waiting = self.waiting, 0
        self._pieces.clear()
        self.connection.open_windows(self, size)

    def fail(self, text: str) -> None:
        """Note that nothing moves any more, and wake both tasks."""
        self.failure = self.failure or text
        self.wake()

    def wake(self) -> None:
        """Wake the tasks that wait for anything."""
        self.reader.unpark_all()
        self.writer.unpark_all()

    # A Trio stream

    async def send_all(self, data: BytesLike) -> None:
        outlet = self.connection.outlet
        await self.take_turn()
        sent = self.write(data)
        if sent == len(data):
            return
        with memoryview(data) as whole:
            while sent < len(whole):
                try:
                    await outlet.wait_room(self)
                    with whole[sent:] as rest:
                        sent += outlet.send(self, rest)
                finally:
                    outlet.make_room()  # what is left of it is for the next stream that waits

    def write(self, data: BytesLike) -> int:
        """Return how many bytes were taken, from the front: none while other streams wait for their turn."""
        outlet = self.connection.outlet
        return outlet.send(self, data) if not outlet.blocked else 0

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until it is this stream's turn to write."""
        await self.connection.outlet.wait_room(self)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self.waiting:
            await checkpoint()
        while not self.waiting:
            if self.is_closed:
                raise trio.ClosedResourceError("the HTTP/2 stream was closed")
            if self.has_ended:
                return b""
            if self.failure:
                raise trio.BrokenResourceError(self.failure)
            await self.reader.park()
        return self.take()

    @property
    def has_unread(self) -> bool:
        return self.waiting > 0 or has_unread(self.connection.stream)

    async def send_eof(self) -> None:
        self.connection.end(self)
        await checkpoint()

    def close(self) -> None:
        # A stream that its peer has ended is ended, not reset: proxies log each reset as an error.
        if self.has_ended:
            self.connection.end(self)
        self.connection.close(self)

    async def aclose(self) -> None:
        self.close()
        await checkpoint()


TURN: Final = 131072
"""Bytes that one stream writes in a turn: more than the outbox of a connection gives at once."""
FULL: Final = 65536
"""Bytes that wait to be written, while which no stream adds to them."""
MAX_UNWRITTEN: Final = 262144
"""Bytes that wait to be written at most. More are answers to a peer that asks and does not read."""


class Outlet:
    """Writes frames in their order: at once where the socket takes them, else by the task that runs ``write``.

    Streams write their data in turn, as far as the windows that ``h2`` keeps allow. ``on_flood(size)`` is called when
    more bytes wait than may.
    """

    def __init__(self, stream: trio.abc.Stream, h2: H2Connection, on_flood: Callable[[int], None]) -> None:
        self._h2 = h2
        self.is_broken = False
        """True once writing failed: what is written from then on is dropped."""
        self.size = 0
        """Bytes that wait to be written, or are being written."""
        self._stream = stream
        self._socket = stream if isinstance(stream, SocketStream) else None
        self._on_flood = on_flood
        self.blocked: dict[Http2Stream, None] = {}
        """Those that wait for their turn, in this order."""
        self._frames: list[bytes] = []
        self._due = ParkingLot()
        self._written = ParkingLot()

    async def write(self) -> None:
        """Write what could not be written at once, until writing fails or this is cancelled."""
        while not self.is_broken:
            if not self._frames:
                # Woken by ``put``.
                await self._due.park()
                continue
            data = b"".join(self._frames)
            self._frames.clear()
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._break()
                return
            self.size -= len(data)
            self._written.unpark_all()
            self.make_room()

    def put(self, data: bytes) -> None:
        """Write frames."""
        if self.is_broken:
            return
        if self._socket is not None and not self.size:
            try:
                data = data[self._socket.write(data) :]
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._break()
                return
        if data:
            self._frames.append(data)
            self.size += len(data)
            self._due.unpark_all()
            if self.size > MAX_UNWRITTEN:
                self._on_flood(self.size)

    def send(self, stream: Http2Stream, data: BytesLike) -> int:
        """Write as much of a stream's data as its turn and both windows allow. Return how many bytes."""
        if stream.failure:
            raise trio.BrokenResourceError(stream.failure)
        if stream.is_closed or stream.said_the_end:
            raise trio.ClosedResourceError("nothing can be sent after the end was said")
        if self.is_broken:
            raise trio.BrokenResourceError("the HTTP/2 connection broke")
        h2 = self._h2
        size = min(len(data), stream.counted.outbound_flow_control_window, h2.outbound_flow_control_window, TURN)
        if size <= 0 or self.size >= FULL:
            return 0
        parts: list[BytesLike] = []
        view, max_frame = memoryview(data), h2.max_outbound_frame_size
        for start in range(0, size, max_frame):
            length = min(size - start, max_frame)
            parts.append(HEADER.pack(length >> 8, length & 0xFF, DataFrame.type, 0, stream.stream_id))
            parts.append(view[start : start + length])
        stream.counted.outbound_flow_control_window -= size
        h2.outbound_flow_control_window -= size
        self.put(b"".join(parts))
        return size

    @property
    def _takes_data(self) -> bool:
        return self._h2.outbound_flow_control_window > 0 and self.size < FULL

    async def wait_room(self, stream: Http2Stream) -> None:
        """Wait until ``send`` may take something of this stream, once all that wait already had their turn."""
        if stream.counted.outbound_flow_control_window > 0:
            if not self.blocked and self._takes_data:
                await checkpoint()
                return
            self.blocked[stream] = None
        try:
            # Woken by a WINDOW_UPDATE for the stream, by ``make_room``, and by whatever ends the stream.
            await stream.writer.park()
        finally:
            self.blocked.pop(stream, None)

    def make_room(self) -> None:
        """Wake the stream that waits longest, if it may write now. It does the same once it has written."""
        if self.blocked and self._takes_data:
            next(iter(self.blocked)).writer.unpark_all()

    def on_window(self, stream: Http2Stream | None) -> None:
        """Wake the task that may write, after the window of a stream, or that of the connection, has changed."""
        if stream is None:
            self.make_room()
        elif stream not in self.blocked:  # one that waits for its turn goes on waiting
            stream.writer.unpark_all()

    def forget(self, stream: Http2Stream) -> None:
        """Give a stream no more turns, and its turn to the next one."""
        self.blocked.pop(stream, None)
        self.make_room()

    async def wait_written(self) -> None:
        """Wait until nothing waits to be written, or writing failed."""
        while self.size:
            # Woken by ``write`` and by a failure.
            await self._written.park()

    def _break(self) -> None:
        """Note that writing failed. What the peer sent before is still read, and reading finds the end as well."""
        self.is_broken, self.size = True, 0
        self._frames.clear()
        self._written.unpark_all()
        self._due.unpark_all()
        blocked, self.blocked = self.blocked, {}
        for stream in blocked:
            stream.writer.unpark_all()
