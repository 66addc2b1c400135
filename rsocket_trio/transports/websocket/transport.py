"""Transport over a WebSocket: one binary message is one frame."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
from trio.lowlevel import ParkingLot, checkpoint, checkpoint_if_cancelled, wait_readable
from websockets.frames import Close, CloseCode

from rsocket_trio.errors import readable
from rsocket_trio.limits import Limits
from rsocket_trio.mux.framing import EncodedFrame, Framing
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.byte_stream import (
    DISCARD_LIMIT,
    FIRST_READ_SIZE,
    LARGE,
    LARGEST_READ,
    LEAST_READ_SIZE,
    READ_SIZE,
    TAKES_PARTS,
    cut_prompt,
    has_unread,
    next_read_size,
    say_the_end,
)
from rsocket_trio.transports.schemes import AcceptOptions, ConnectOptions, Endpoint
from rsocket_trio.transports.socket_stream import SocketStream
from rsocket_trio.transports.websocket.upgrade import grant_upgrade, request_upgrade
from rsocket_trio.transports.websocket.websocket_frames import ENDINGS, JUDGED, KEY, MessageReader, join, parts

PONG = 0x8A
"""The first byte of an answer to a ping."""
TORN = "a write was cancelled before it was done"
ANSWERING = 1.0
"""Seconds within which a small write ends once the system takes bytes."""


class WebSocketTransport:
    """Frames as binary messages. Made by ``open_websocket`` and ``accept_websocket``, which close the stream.

    It reads when it is asked to receive, and has no task of its own. One write per ``send``. Cancelling ``send`` may
    leave half a frame on the wire: nothing more is written then. Cancelling ``receive`` loses nothing.
    """

    __slots__ = (
        "_answering",
        "_read_size",
        "_reader",
        "_ready",
        "_shown",
        "_socket",
        "_stream",
        "_torn",
        "_unsent",
        "_waiting",
        "_writing",
        "handshake",
    )

    is_message_based = True
    is_idle = False

    def __init__(self, stream: trio.abc.Stream, reader: MessageReader, handshake: Handshake, received: bytes) -> None:
        self.handshake = handshake
        self._stream = stream
        self._socket = stream if isinstance(stream, SocketStream) else None
        self._reader = reader
        self._ready = reader.feed(received)
        self._shown = 0
        self._read_size = FIRST_READ_SIZE
        # The receiving task answers pings while the sending task may be in the middle of a message: the one that comes
        # second waits here, unless the first one writes for it.
        self._writing = False
        self._waiting = ParkingLot()
        self._torn = False
        self._unsent = b""
        self._answering = False

    def use_framing(self, framing: Framing) -> None:
        """Do nothing: messages are frames."""

    def allow(self, more: int) -> None:
        """Raise the size limit of messages by so many bytes."""
        self._reader.allow(more)

    async def peek(self) -> tuple[bytes, bool]:
        """Return the first message, at each further call with one more, and whether no more can come.

        ``receive`` delivers them again.
        """
        ended = False
        while self._shown == len(self._ready) and not ended:
            ended = not await self._read()
        self._shown += not ended
        return b"".join(self._ready[: self._shown]), ended

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Write all frames in one write, a message each."""
        reader, socket = self._reader, self._socket
        if reader.closed is not None:
            raise trio.BrokenResourceError(_said(reader.closed))
        keys = os.urandom(KEY * len(frames)) if reader.client else b""
        if socket is None or not frames or self._writing or self._torn or self._unsent or reader.replies:
            await self._write([join(frames, keys)] if frames else [])
            return
        # What ``_write`` does, where nothing else is to be written: each coroutine less counts.
        await checkpoint_if_cancelled()
        self._writing = self._torn = True
        try:
            if TAKES_PARTS and len(frames) <= LARGE and tuple in map(type, frames):
                await socket.put_parts(parts(frames, keys))
            else:
                await socket.put_all(join(frames, keys))
            self._torn = False
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._torn = False
            raise
        finally:
            self._let_go()
        if reader.replies or self._unsent:
            await self._write([])

    @property
    def send_at_once(self) -> Callable[[Sequence[EncodedFrame]], bool] | None:
        """Writes all frames without waiting; ``None`` unless the stream is a socket."""
        return None if self._socket is None else self._write_at_once

    def _write_at_once(self, frames: Sequence[EncodedFrame]) -> bool:
        assert self._socket is not None
        reader, replies = self._reader, self._reader.replies
        if reader.closed is not None:
            raise trio.BrokenResourceError(_said(reader.closed))
        if self._torn:
            raise trio.BrokenResourceError(TORN)
        data = join(frames, os.urandom(KEY * len(frames)) if reader.client else b"")
        if self._unsent or self._writing:
            # The receiving task may be about to answer a ping: it writes this, too, or the next ``send`` does.
            self._unsent += data
            return False
        if replies:
            data = b"".join([*replies, data])
            replies.clear()
        self._unsent = data[self._socket.write(data) :]
        return not self._unsent

    async def receive(self) -> Sequence[bytes]:
        """Return the next messages, at least one; an empty sequence once the peer has closed.

        A text message, like what breaks the framing, raises ``RemoteProtocolError`` once those before it were handed
        out. The peer is told at once.
        """
        while not self._ready:
            if not await self._read():
                return []
        ready, self._ready = self._ready, []
        self._shown = 0
        return ready

    @property
    def mid_frame(self) -> bool:
        """Return whether a message was received in part, or reading waits for an answer to leave."""
        return self._reader.mid_frame or self._answering

    @property
    def has_unread(self) -> bool:
        """Return whether something came that was not received, as far as that can be told."""
        return bool(self._ready) or self._reader.pending or has_unread(self._stream)

    async def finish(self, code: int = 1000) -> None:
        """Send a close frame, then discard what comes until the peer does the same, at most 4 MiB.

        No task may be in ``send`` or ``receive`` meanwhile. The caller bounds the time.
        """
        reader, stream = self._reader, self._stream
        discarded = 0
        try:
            goodbye = reader.goodbye(code)
            await self._write([goodbye] if goodbye else [])
            while reader.closed is None and discarded < DISCARD_LIMIT:
                chunk = bytes(await stream.receive_some(self._read_size))
                if not chunk:
                    break
                discarded += len(chunk)
                self._feed(chunk)
                while reader.pending:
                    await checkpoint()
                    reader.feed(b"")
            # RFC 6455, 7.1.1: the server closes first, once both sent a close frame, and the client waits for it.
            if reader.client or not reader.is_over:
                await say_the_end(stream, DISCARD_LIMIT - discarded)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    def cut(self) -> bool:
        """Close at once if the stream is a socket, which needs no waiting. Return whether it was one."""
        return cut_prompt(self._stream)

    async def aclose(self) -> None:
        """Close at once; never raises for a transport that is broken already."""
        await trio.aclose_forcefully(self._stream)

    async def _read(self) -> bool:
        """Read once, after writing the answers that are due. Return False at the end."""
        reader = self._reader
        if reader.replies:
            await self._answer()
        if reader.pending:
            await checkpoint()  # other tasks run first: there was much to act on
            self._ready += reader.feed(b"")
            return True
        if reader.fault is not None:
            raise reader.fault
        if reader.closed is not None:
            if reader.closed.code in ENDINGS:
                return False
            raise trio.BrokenResourceError(_said(reader.closed))
        size, missing = self._read_size, reader.missing
        if missing > LEAST_READ_SIZE:
            size = min(size + missing, LARGEST_READ)
        socket = self._socket
        try:
            if socket is None:
                chunk = bytes(await self._stream.receive_some(size))
            else:
                # Spelled out: a coroutine on the way to the read costs every idle connection 230 bytes.
                socket.check_open()
                if socket.is_drained:
                    await wait_readable(socket.socket)
                else:
                    await checkpoint()
                come = socket.read(size)
                if come is None:
                    return True
                chunk = come
        except trio.BrokenResourceError:
            chunk = b""
        if chunk:
            self._ready += self._feed(chunk)
        else:
            reader.end()
        return True

    def _feed(self, chunk: bytes) -> list[bytes]:
        reader = self._reader
        ready = reader.feed(chunk)
        if len(chunk) >= self._read_size or self._read_size > READ_SIZE:
            judged = len(ready) + JUDGED * reader.judged
            self._read_size = next_read_size(self._read_size, len(chunk), judged, LARGEST_READ)
        return ready

    async def _answer(self) -> None:
        """Answer pings and a close frame. Nothing more is read until the answers are written.

        If another task writes, that task sends them, and a later ping's answer replaces an earlier one's (RFC 6455,
        5.5.3).
        """
        replies = self._reader.replies
        if self._writing:
            pongs = [reply for reply in replies if reply[0] == PONG]
            replies[:] = [*pongs[-1:], *(reply for reply in replies if reply[0] != PONG)]
            return
        self._writing = self._answering = True
        try:
            # A cancel here means that nothing was written.
            await self._stream.wait_send_all_might_not_block()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + ANSWERING):
                await self._send_all([])
        except trio.BrokenResourceError:
            replies.clear()  # the peer gets no answer; its bytes from before are still read
        finally:
            self._answering = False
            self._let_go()

    def _let_go(self) -> None:
        """Let another task write, which wakes if it waits."""
        self._writing = False
        if self._waiting:
            self._waiting.unpark()

    async def _write(self, pieces: list[bytes]) -> None:
        """Write what waits already, then these pieces."""
        while self._writing:
            await self._waiting.park()
        # Behind this the write begins at once, so that a cancel there hits the middle of it.
        await checkpoint_if_cancelled()
        self._writing = True
        try:
            await self._send_all(pieces)
        finally:
            self._let_go()

    async def _send_all(self, pieces: list[bytes]) -> None:
        """Write as ``_write`` does, while no other task may, and include answers that come to wait meanwhile."""
        replies = self._reader.replies
        put_all = self._stream.send_all if self._socket is None else self._socket.put_all
        if self._torn:
            raise trio.BrokenResourceError(TORN)
        while pieces or replies or self._unsent:
            if replies or self._unsent:
                pieces = [self._unsent, *replies, *pieces]
                self._unsent = b""
                replies.clear()
            self._torn = True
            try:
                await put_all(b"".join(pieces))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._torn = False  # it tells more than that the write was not done
                raise
            self._torn = False
            pieces = []


@asynccontextmanager
async def open_websocket(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, options: ConnectOptions
) -> AsyncIterator[WebSocketTransport]:
    """Do the client's handshake over a stream, and close it when the block ends. Raise ``HandshakeFailed``.

    A header ``Sec-WebSocket-Protocol`` offers sub-protocols; by default none is offered.
    """
    try:
        handshake, rest = await request_upgrade(stream, endpoint, handshake, options.headers)
        yield WebSocketTransport(stream, _reader(options.limits, client=True), handshake, rest)
    finally:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)


@asynccontextmanager
async def accept_websocket(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, options: AcceptOptions
) -> AsyncIterator[WebSocketTransport]:
    """Do the server's handshake over a stream, and close it when the block ends. Raise ``HandshakeFailed``.

    A path other than the endpoint's gets 404, a page whose origin is not allowed 403. Compression is never agreed on.
    """
    try:
        handshake, rest = await grant_upgrade(stream, endpoint, handshake, options.origins)
        yield WebSocketTransport(stream, _reader(options.limits, client=False), handshake, rest)
    finally:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)


def _reader(limits: Limits, *, client: bool) -> MessageReader:
    return MessageReader(client=client, max_message=limits.frame_size, max_tiny=limits.tiny_fragments)


def _said(closed: Close) -> str:
    code = int(closed.code)
    name = CloseCode(code).name if code in set(CloseCode) else "UNKNOWN"
    return f"the WebSocket was closed with {code} {readable(closed.reason or name)}"
