"""A stream of an HTTP/2 connection as a transport: its DATA frames carry frames with a length prefix, cut anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled

from rsocket_trio.mux.framing import AT_ONCE, EncodedFrame, Framing, NoFraming
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT, LARGE, TAKES_PARTS
from rsocket_trio.transports.http2.lanes import Lane
from rsocket_trio.transports.http2.multiplexed import Multiplexed

CONTENT_TYPE = "application/rsocket"
"""The media type of requests and answers."""
IN_A_ROW = 4
"""Writes that may follow each other before other tasks run."""


class Http2Stream(Lane):
    """Frames over one HTTP/2 stream. The connection that carries it reads and writes.

    Cancelling ``receive`` loses nothing. Cancelling ``send`` may leave half a frame sent: close the stream afterwards.
    The connection and its other streams go on.
    """

    __slots__ = ("_ended", "_framing", "_peeked", "_unsent", "_writes", "handshake")

    is_message_based = False
    is_idle = False

    def __init__(
        self, connection: Multiplexed, stream_id: int, handshake: Handshake, *, has_length: bool = False
    ) -> None:
        super().__init__(connection, stream_id, has_length=has_length)
        self.connection: Multiplexed = connection
        self.handshake = handshake
        self._framing: Framing = NoFraming()
        self._peeked = b""
        self._unsent = b""
        self._ended = False
        self._writes = 0

    def use_framing(self, framing: Framing) -> None:
        """Cut received bytes into frames this way from now on; called before the first ``receive``."""
        self._framing = framing

    async def peek(self) -> tuple[bytes, bool]:
        """Return all bytes so far, at least one more than at the last call, and whether no more can come."""
        if not self._ended:
            chunk = await self._next()
            self._ended = not chunk
            self._peeked += chunk
        return self._peeked, self._ended

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Write all frames. Raise ``LocalProtocolError``, and write nothing, if one is too large."""
        outlet, largest = self.connection.outlet, self.connection.largest_frame
        self._writes += 1
        if self._writes % IN_A_ROW:
            await checkpoint_if_cancelled()
        else:
            await checkpoint()
        if TAKES_PARTS and not self._unsent and len(frames) <= LARGE and tuple in map(type, frames):
            parts = self._framing.parts(frames)
            if outlet.send_parts(self, parts, largest):
                return
            data = b"".join(parts)
        else:
            data, self._unsent = self._unsent + self._framing.join(frames), b""
        sent = outlet.send(self, data, largest) if outlet.has_room else 0
        if sent == len(data):
            return
        with memoryview(data) as whole:
            while sent < len(whole):
                try:
                    await outlet.wait_room(self)
                    with whole[sent:] as rest:
                        sent += outlet.send(self, rest, largest)
                finally:
                    outlet.make_room()  # what is left of it is for the next stream that waits

    @property
    def send_at_once(self) -> Callable[[Sequence[EncodedFrame]], bool] | None:
        """Writes all frames without waiting."""
        return self._write_at_once

    def _write_at_once(self, frames: Sequence[EncodedFrame]) -> bool:
        data = self._unsent + self._framing.join(frames)
        outlet = self.connection.outlet
        sent = outlet.send(self, data, self.connection.largest_frame) if outlet.has_room else 0
        self._unsent = data[sent:]
        return not self._unsent

    async def receive(self) -> Sequence[bytes]:
        """Return the next whole frames, at least one; an empty sequence at the end of the stream.

        Broken framing raises ``RemoteProtocolError`` once the frames before it were handed out.
        """
        framing = self._framing
        chunk, self._peeked = self._peeked, b""
        while True:
            if framing.error is not None:
                raise framing.error
            if framing.pending:
                await checkpoint()  # other tasks run first: there was much to act on
                if frames := framing.feed(b""):
                    return frames
                continue
            if chunk:
                frames = framing.feed(chunk)
                size = len(chunk)
                while self.waiting and size < AT_ONCE and takes_more(framing):
                    chunk = self.take()
                    size += len(chunk)
                    frames += framing.feed(chunk)
                if frames:
                    return frames
                chunk = b""
                continue
            if self._ended:
                return ()
            chunk = await self._next()
            self._ended = not chunk

    async def _next(self) -> bytes:
        """Return the bytes that came, none at the end."""
        if self.waiting:
            await checkpoint()
        while not self.waiting:
            if self.is_closed:
                raise trio.ClosedResourceError("the HTTP/2 stream was closed")
            if self.has_ended:
                return b""
            if self.failure:
                raise trio.BrokenResourceError(self.failure)
            await self.reader.wait()
        return self.take()

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a frame was received and its rest was not."""
        return self._framing.mid_frame

    @property
    def has_unread(self) -> bool:
        """Return whether something came that was not received, as far as that can be told."""
        return self._framing.pending or self.waiting > 0 or self.connection.has_unread

    async def finish(self, code: int = 1000) -> None:
        """Send the end of the stream, then discard what comes until the peer does the same, at most 4 MiB.

        No task may be in ``send`` or ``receive`` meanwhile. The caller bounds the time.
        """
        self.connection.end(self)
        discarded = 0
        try:
            while discarded < DISCARD_LIMIT and (chunk := await self._next()):
                discarded += len(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def send_eof(self) -> None:
        """Send the end of the stream, and go on receiving."""
        self.connection.end(self)
        await checkpoint()

    def cut(self) -> bool:
        """Close at once. Return True."""
        # A stream that its peer has ended is ended, not reset: proxies log each reset as an error.
        if self.has_ended and not self._unsent:
            self.connection.end(self)
        self.connection.close(self)
        return True

    async def aclose(self) -> None:
        """Close at once; never raises for a transport that is broken already."""
        self.cut()
        await checkpoint()


def takes_more(framing: Framing) -> bool:
    """Return whether the next chunk can be cut at once: no whole frames are left over, and nothing is wrong."""
    return not framing.pending and framing.error is None
