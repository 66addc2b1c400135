"""Transport of frames over a byte stream: TCP, TLS, Unix sockets, and any other Trio stream."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio
from trio.lowlevel import checkpoint

from rsocket_trio.mux.framing import CROWD, EncodedFrame, Framing, Framing24
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.first_bytes import FirstBytes
from rsocket_trio.transports.socket_stream import PromptStream, SocketStream

READ_SIZE = 65536
"""Bytes of one read if nothing is known of the data."""
MAX_READ_BYTES = 4 * READ_SIZE
"""Bytes of one read of large frames, and of a frame that is missing a part: they cause little work at once."""
FIRST_READ_SIZE = 16384
MIN_READ_SIZE = 4096
MAX_SPARSE_FRAMES = 64
"""Frames in one read below which the next ones may bring more."""
LARGE_FRAME = 32768
"""Bytes of a frame from which it counts as large there."""
LARGE = 10
"""Frames in one write up to which bodies that were not copied so far go to the system as they are."""
TURN_AWAY_TIMEOUT = 1.0
"""Seconds that a refused peer gets to read the answer, and to close."""
TAKES_PARTS = hasattr(socket.socket, "sendmsg")
DISCARD_LIMIT = 4 * 1024 * 1024
"""Bytes that ``finish`` reads and drops while it waits for the peer to close."""


class ByteStreamTransport(Transport):
    """Frames over a stream of bytes, cut by the framing that ``use_framing`` sets.

    One write per ``send``. Cancelling ``send`` may leave half a frame on the wire: close the transport afterwards.
    With ``first`` the bytes that come first are checked to be RSocket's.
    """

    __slots__ = ("_ended", "_first", "_framing", "_peeked", "_prompt", "_read_size", "_socket", "_stream", "_unsent")

    is_message_based = False

    def __init__(
        self, stream: trio.abc.Stream, handshake: Handshake | None = None, first: FirstBytes | None = None
    ) -> None:
        self.handshake = Handshake() if handshake is None else handshake
        self._stream = stream
        self._prompt = stream if isinstance(stream, PromptStream) else None
        self._socket = stream if isinstance(stream, SocketStream) else None
        self._first = first
        self._framing = Framing(Framing24.largest)
        self._peeked = b""
        self._read_size = FIRST_READ_SIZE
        self._unsent = b""
        self._ended = False

    def use_framing(self, framing: Framing) -> None:
        self._framing = framing

    async def peek(self) -> tuple[bytes, bool]:
        if not self._ended:
            try:
                chunk = bytes(await self._stream.receive_some(READ_SIZE))
            except trio.BrokenResourceError as exc:
                _check_end(exc)
                chunk = b""
            self._ended = not chunk
            self._peeked += chunk
        return self._peeked, self._ended

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Write all frames in one write. Raise ``LocalProtocolError``, and write nothing, if one is too large."""
        socket, framing = self._socket, self._framing
        if self._unsent or socket is None or not takes_parts(frames):
            data, self._unsent = self._unsent + framing.join(frames), b""
            await (self._stream.send_all if socket is None else socket.put_all)(data)
        else:
            await socket.put_parts(framing.parts(frames))

    @property
    def send_at_once(self) -> Callable[[Sequence[EncodedFrame]], bool] | None:
        return None if self._prompt is None else self._write

    def _write(self, frames: Sequence[EncodedFrame]) -> bool:
        assert self._prompt is not None
        data = self._unsent + self._framing.join(frames)
        self._unsent = data[self._prompt.write(data) :]
        return not self._unsent

    async def receive(self) -> Sequence[bytes]:
        # Broken framing raises ``RemoteProtocolError`` once the frames before it were handed out.
        framing = self._framing
        if self._peeked:
            chunk, self._peeked = self._peeked, b""
        else:
            chunk = b""
        while True:
            if framing.error is not None:
                raise framing.error
            if framing.pending:
                await checkpoint()  # other tasks run first: there was much to act on
                if frames := framing.feed(b""):
                    return frames
            if chunk:
                if self._first is not None and self._first.take(chunk):
                    self._first = None
                frames = framing.feed(chunk)
                largest = MAX_READ_BYTES if framing.portions else READ_SIZE
                self._read_size = next_read_size(self._read_size, len(chunk), len(frames), largest)
                if frames:
                    return frames
            elif self._ended:
                return ()
            chunk = b""  # a waiting task keeps no bytes
            if not self._ended and framing.error is None:
                try:
                    chunk = bytes(await self._stream.receive_some(size_of_read(self._read_size, framing.missing)))
                except trio.BrokenResourceError as exc:
                    _check_end(exc)
                    chunk = b""
                self._ended = not chunk

    @property
    def silent_uri(self) -> str:
        """Return the URI of a server whose first bytes have not come; an empty text for any other peer."""
        return "" if self._first is None else self._first.uri

    @property
    def mid_frame(self) -> bool:
        return self._framing.mid_frame

    @property
    def is_idle(self) -> bool:
        return self._socket is not None and not (self._ended or self.has_unread)

    @property
    def has_unread(self) -> bool:
        """Return whether something came that was not received, as far as that can be told."""
        return self._framing.pending or has_unread(self._stream)

    async def finish(self, code: int = 1000) -> None:
        try:
            await say_the_end(self._stream, DISCARD_LIMIT)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def send_eof(self) -> None:
        """Send the end of the stream, and go on receiving. TLS can't: what the peer still sends is discarded there."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()
        else:
            await self.finish()

    def cut(self) -> bool:
        return cut_prompt(self._stream)

    async def aclose(self) -> None:
        # A polite TLS close writes, and a write to a peer that does not read hangs. finish() is the polite way.
        await trio.aclose_forcefully(self._stream)


def takes_parts(frames: Sequence[EncodedFrame]) -> bool:
    """Return whether these frames go to the system as they are: few, some of them with bodies that were not copied."""
    return TAKES_PARTS and len(frames) <= LARGE and tuple in map(type, frames)


def size_of_read(size: int, missing: int) -> int:
    """Return the bytes to read where ``missing`` ones complete a frame: more than ``size`` if it is a large one."""
    return min(size + missing, MAX_READ_BYTES) if missing > MIN_READ_SIZE else size


def next_read_size(size: int, come: int, frames: int, largest: int) -> int:
    """Return the size of the read behind one of ``size`` bytes that brought ``come`` bytes and so many frames."""
    if come < size:
        return min(size, READ_SIZE)
    if frames > CROWD:
        return max(size // 2, MIN_READ_SIZE)
    if frames * LARGE_FRAME <= size:
        return min(size * 2, largest)
    if frames < MAX_SPARSE_FRAMES:
        return min(size * 2, READ_SIZE)
    return size


def cut_prompt(stream: trio.abc.Stream) -> bool:
    """Close a stream at once if that needs no waiting. Return whether it was closed."""
    if isinstance(stream, PromptStream):
        stream.close()
        return True
    if isinstance(stream, trio.SocketStream):
        stream.socket.close()
        return True
    return False


def has_unread(stream: trio.abc.Stream) -> bool:
    """Return whether a stream, or the one below its TLS, holds unread bytes, as far as that can be told."""
    while isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    return isinstance(stream, PromptStream) and stream.has_unread


async def say_the_end(stream: trio.abc.Stream, discard: int) -> None:
    """Send the end of the stream, then discard so many bytes at most, until the peer does the same."""
    if isinstance(stream, trio.SSLStream):
        below = stream.transport_stream
        # Our close_notify goes out. The peer may still send data, or end without its own, as many do.
        with suppress(trio.BrokenResourceError):
            await stream.unwrap()
        stream = below
    if isinstance(stream, SocketStream):
        stream.say_the_end()
    elif isinstance(stream, trio.abc.HalfCloseableStream):
        await stream.send_eof()
    # Closing a socket that holds unread bytes resets it, and the peer may lose the last bytes sent.
    while discard > 0 and (chunk := await stream.receive_some(READ_SIZE)):
        discard -= len(chunk)


async def turn_away(stream: trio.abc.Stream, answer: bytes) -> None:
    """Send a last answer, and the end of the stream, to a peer that may have gone already."""
    with trio.move_on_after(TURN_AWAY_TIMEOUT), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.send_all(answer)
        await say_the_end(stream, DISCARD_LIMIT)


def _check_end(error: trio.BrokenResourceError) -> None:
    """Raise the error, unless a TLS peer merely ended without close_notify: cut frames show a cut anyway."""
    cause = error.__cause__
    if not isinstance(cause, ssl.SSLEOFError) and "UNEXPECTED_EOF" not in (getattr(cause, "strerror", "") or ""):
        raise error
