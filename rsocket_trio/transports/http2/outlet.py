"""The outlet of an HTTP/2 connection, which its streams write to in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import ParkingLot, checkpoint

from rsocket_trio.transports.http2.http2_frames import DATA, HEADER
from rsocket_trio.transports.socket_stream import BytesLike, SocketStream

if TYPE_CHECKING:
    from h2.connection import H2Connection

    from rsocket_trio.transports.http2.http2_stream import Http2Stream

DEFAULT_WINDOW: Final = 65535
"""Bytes of both windows before anything was said about them (RFC 9113, 6.9.2)."""
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
        self._blocked: dict[Http2Stream, None] = {}  # in the order in which they wait
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
        size = min(len(data), stream.send_window, h2.outbound_flow_control_window, TURN)
        if size <= 0 or self.size >= FULL:
            return 0
        parts: list[BytesLike] = []
        view, max_frame = memoryview(data), h2.max_outbound_frame_size
        for start in range(0, size, max_frame):
            length = min(size - start, max_frame)
            parts.append(HEADER.pack(length >> 8, length & 0xFF, DATA, 0, stream.stream_id))
            parts.append(view[start : start + length])
        stream.send_window -= size
        h2.outbound_flow_control_window -= size
        self.put(b"".join(parts))
        return size

    @property
    def has_room(self) -> bool:
        """Return whether no stream waits for its turn."""
        return not self._blocked

    @property
    def _takes_data(self) -> bool:
        return self._h2.outbound_flow_control_window > 0 and self.size < FULL

    async def wait_room(self, stream: Http2Stream) -> None:
        """Wait until ``send`` may take something of this stream, once all that wait already had their turn."""
        if stream.send_window > 0:
            if not self._blocked and self._takes_data:
                await checkpoint()
                return
            self._blocked[stream] = None
        try:
            # Woken by a WINDOW_UPDATE for the stream, by ``make_room``, and by whatever ends the stream.
            await stream.writer.park()
        finally:
            self._blocked.pop(stream, None)

    def make_room(self) -> None:
        """Wake the stream that waits longest, if it may write now. It does the same once it has written."""
        if self._blocked and self._takes_data:
            next(iter(self._blocked)).writer.unpark_all()

    def on_window(self, stream: Http2Stream | None) -> None:
        """Wake the task that may write, after the window of a stream, or that of the connection, has changed."""
        if stream is None:
            self.make_room()
        elif stream not in self._blocked:  # one that waits for its turn goes on waiting
            stream.writer.unpark_all()

    def forget(self, stream: Http2Stream) -> None:
        """Give a stream no more turns, and its turn to the next one."""
        self._blocked.pop(stream, None)
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
        blocked, self._blocked = self._blocked, {}
        for stream in blocked:
            stream.writer.unpark_all()
