"""A stream of an HTTP/2 connection as a Trio stream: its DATA frames carry the bytes of both directions."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio
from trio.lowlevel import ParkingLot, checkpoint, checkpoint_if_cancelled

from rsocket_trio.transports.socket_stream import BytesLike, PromptStream

if TYPE_CHECKING:
    from rsocket_trio.transports.http2.multiplexed import Multiplexed

CONTENT_TYPE = "application/rsocket"
"""The media type of requests and answers."""
STREAM_WINDOW: Final = 1024 * 1024
"""Bytes that a peer may send on a stream ahead of its reader."""
JOINED: Final = 16384
"""Bytes up to which pieces are joined: a peer chooses how small they are, and each costs 40 bytes."""
IN_A_ROW = 4
"""Writes that may follow each other before other tasks run."""


class Http2Stream(PromptStream):
    """One HTTP/2 stream. The connection that carries it reads and writes.

    Cancelling ``receive_some`` loses nothing. Cancelling ``send_all`` may leave a part of the bytes sent: close the
    stream afterwards. The connection and its other streams go on.
    """

    __slots__ = (
        *("_counted", "_pieces", "_writes", "answer", "connection", "failure", "has_data", "has_ended"),
        *("has_length", "is_closed", "is_refused", "reader", "receive_window", "said_the_end", "stream_id", "unopened"),
        *("waiting", "writer"),
    )

    def __init__(self, connection: Multiplexed, stream_id: int, *, has_length: bool = False) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self._counted = connection.h2.streams[stream_id]
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
        self._writes = 0

    @property
    def send_window(self) -> int:
        """Bytes that may be sent, as far as this stream goes."""
        return self._counted.outbound_flow_control_window

    @send_window.setter
    def send_window(self, size: int) -> None:
        self._counted.outbound_flow_control_window = size

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
        """Send all bytes. Raise ``BrokenResourceError`` and ``ClosedResourceError``."""
        outlet = self.connection.outlet
        self._writes += 1
        if self._writes % IN_A_ROW:
            await checkpoint_if_cancelled()
        else:
            await checkpoint()
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
        return outlet.send(self, data) if outlet.has_room else 0

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until it is this stream's turn to write."""
        await self.connection.outlet.wait_room(self)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the bytes that came, none at the end. Raise ``BrokenResourceError`` and ``ClosedResourceError``."""
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
        """Return whether something came that was not received, as far as that can be told."""
        return self.waiting > 0 or self.connection.has_unread

    async def send_eof(self) -> None:
        """Send the end of the stream, and go on receiving."""
        self.connection.end(self)
        await checkpoint()

    def close(self) -> None:
        """Close at once."""
        # A stream that its peer has ended is ended, not reset: proxies log each reset as an error.
        if self.has_ended:
            self.connection.end(self)
        self.connection.close(self)

    async def aclose(self) -> None:
        """Close at once; never raises for a stream that is broken already."""
        self.close()
        await checkpoint()
