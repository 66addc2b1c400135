"""Transport over a WebSocket: one binary message is one frame."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio
from trio.lowlevel import ParkingLot, checkpoint, checkpoint_if_cancelled

from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.transports.base import Handshake, MessageTransport
from rsocket_trio.transports.byte_stream import (
    DISCARD_LIMIT,
    FIRST_READ_SIZE,
    MAX_READ_BYTES,
    cut_prompt,
    has_unread,
    next_read_size,
    say_the_end,
    size_of_read,
    takes_parts,
)
from rsocket_trio.transports.schemes import AcceptOptions, ConnectOptions, Endpoint
from rsocket_trio.transports.socket_stream import SocketStream
from rsocket_trio.transports.websocket.upgrade import grant_upgrade, request_upgrade
from rsocket_trio.transports.websocket.websocket_frames import (
    ENDINGS,
    JUDGED,
    KEY,
    MessageReader,
    close_text,
    join,
    parts,
)

PONG = 0x8A
"""The first byte of an answer to a ping."""
TORN = "a write was cancelled before it was done"
ANSWERING = 1.0
"""Seconds within which a small write ends once the system takes bytes."""


class WebSocketTransport(MessageTransport):
    """Frames as binary messages. Made by ``open_websocket`` and ``accept_websocket``, which close the stream.

    It reads when it is asked to receive, and has no task of its own. One write per ``send``. Cancelling ``send`` may
    leave half a frame on the wire: nothing more is written then. Cancelling ``receive`` loses nothing.
    """

    __slots__ = (
        "_answering",
        "_read_size",
        "_reader",
        "_ready",
        "_socket",
        "_stream",
        "_torn",
        "_unsent",
        "_waiting",
        "_writing",
    )

    def __init__(self, stream: trio.abc.Stream, reader: MessageReader, handshake: Handshake, received: bytes) -> None:
        super().__init__(handshake)
        self._stream = stream
        self._socket = stream if isinstance(stream, SocketStream) else None
        self._reader = reader
        self._ready = reader.feed(received)
        self._read_size = FIRST_READ_SIZE
        # The receiving task answers pings while the sending task may be in the middle of a message: the one that comes
        # second waits here, unless the first one writes for it.
        self._writing = False
        self._waiting = ParkingLot()
        self._torn = False
        self._unsent = b""
        self._answering = False

    def allow(self, more: int) -> None:
        self._reader.allow(more)

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        keys = self._keys(frames)
        if self._socket is not None and takes_parts(frames):
            await self._write(parts(frames, keys))
        else:
            await self._write([join(frames, keys)] if frames else [])

    @property
    def send_at_once(self) -> Callable[[Sequence[EncodedFrame]], bool] | None:
        return None if self._socket is None else self._write_at_once

    def _write_at_once(self, frames: Sequence[EncodedFrame]) -> bool:
        assert self._socket is not None
        replies, keys = self._reader.replies, self._keys(frames)
        if self._torn:
            raise trio.BrokenResourceError(TORN)
        data = join(frames, keys)
        if self._unsent or self._writing:
            # The receiving task may be about to answer a ping: it writes this, too, or the next ``send`` does.
            self._unsent += data
            return False
        if replies:
            data = b"".join([*replies, data])
            replies.clear()
        self._unsent = data[self._socket.write(data) :]
        return not self._unsent

    def _keys(self, frames: Sequence[EncodedFrame]) -> bytes:
        """Return a client's masks for these messages. Raise ``BrokenResourceError`` once the WebSocket is closed."""
        if self._reader.closed is not None:
            raise trio.BrokenResourceError(close_text(self._reader.closed.code, self._reader.closed.reason))
        return os.urandom(KEY * len(frames)) if self._reader.client else b""

    async def _take(self) -> list[bytes]:
        """Return the next messages; none once the peer has closed. Its fault is raised behind them."""
        reader = self._reader
        while not self._ready:
            if reader.replies:
                await self._answer()
            if reader.pending:
                await checkpoint()  # other tasks run first: there was much to act on
                self._ready += reader.feed(b"")
                continue
            if reader.fault is not None:
                raise reader.fault
            if reader.closed is not None:
                if reader.closed.code in ENDINGS:
                    return []
                raise trio.BrokenResourceError(close_text(reader.closed.code, reader.closed.reason))
            try:
                chunk = bytes(await self._stream.receive_some(size_of_read(self._read_size, reader.missing)))
            except trio.BrokenResourceError:
                chunk = b""
            if chunk:
                self._ready += self._feed(chunk)
            else:
                reader.end()
        ready, self._ready = self._ready, []
        return ready

    @property
    def mid_frame(self) -> bool:
        """Return whether a message was received in part, or reading waits for an answer to leave."""
        return self._reader.mid_frame or self._answering

    @property
    def has_unread(self) -> bool:
        return bool(self._peeked or self._ready) or self._reader.pending or has_unread(self._stream)

    async def finish(self, code: int = 1000) -> None:
        """Send a close frame, then discard what comes until the peer does the same, at most 4 MiB."""
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
        return cut_prompt(self._stream)

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    def _feed(self, chunk: bytes) -> list[bytes]:
        reader = self._reader
        ready = reader.feed(chunk)
        judged = len(ready) + JUDGED * reader.judged
        self._read_size = next_read_size(self._read_size, len(chunk), judged, MAX_READ_BYTES)
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

    async def _write(self, pieces: list[bytes | memoryview]) -> None:
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

    async def _send_all(self, pieces: list[bytes | memoryview]) -> None:
        """Write as ``_write`` does, while no other task may, and include answers that come to wait meanwhile."""
        replies, socket = self._reader.replies, self._socket
        if self._torn:
            raise trio.BrokenResourceError(TORN)
        while pieces or replies or self._unsent:
            if replies or self._unsent:
                pieces = [b"".join([self._unsent, *replies, *pieces])]
                self._unsent = b""
                replies.clear()
            self._torn = True
            try:
                if socket is None:
                    await self._stream.send_all(b"".join(pieces))
                elif len(pieces) > 1:
                    await socket.put_parts(pieces)
                else:
                    await socket.put_all(pieces[0])
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._torn = False  # it tells more than that the write was not done
                raise
            self._torn = False
            pieces = []


@asynccontextmanager
async def open_websocket(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, options: ConnectOptions | AcceptOptions
) -> AsyncIterator[WebSocketTransport]:
    """Do the handshake of a client, or of a server, and close the stream when the block ends.

    Raise as ``request_upgrade`` and ``grant_upgrade`` do.
    """
    client, limits = isinstance(options, ConnectOptions), options.limits
    try:
        if isinstance(options, ConnectOptions):
            handshake, rest = await request_upgrade(stream, endpoint, handshake, options.headers)
        else:
            handshake, rest = await grant_upgrade(stream, endpoint, handshake, options.origins)
        reader = MessageReader(client=client, max_message=limits.frame_size, max_tiny=limits.tiny_fragments)
        yield WebSocketTransport(stream, reader, handshake, rest)
    finally:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)
