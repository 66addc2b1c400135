"""How is a WebSocket library kept from reading ahead without bound, and from writing one message at a time?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from rsocket_trio.transports.bytestream import DISCARD_LIMIT, READ_SIZE

READ_AHEAD = 65536
"""Bytes that are read while nobody asks for messages: the HTTP handshake, and pings that come meanwhile."""


class PacedStream(trio.abc.Stream):
    """A stream between a library that reads and writes by itself, and a transport that knows when it should.

    Reading: the library's task turns bytes into messages as fast as they come. It gets more only while somebody waits
    for a message, or below ``READ_AHEAD``, so that messages that nobody takes are no more than one read.
    Writing: what is written while corked goes out with ``flush``, in one write.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._send_lock = trio.StrictFIFOLock()
        self._cork: list[bytes] | None = None
        self._wanted = False
        self._handshaking = True
        self._unasked = 0
        self._may_read = trio.Event()
        self._discard_left: int | None = None

    def want(self) -> None:
        """Somebody waits for a message from here on."""
        self._wanted = True
        self._may_read.set()

    def took(self) -> None:
        """Nobody waits any more, and what was read has been taken."""
        self._wanted = False
        self._unasked = 0

    def handshake_done(self) -> None:
        """The handshake is over: too many bytes pause reading from here on, rather than ending it."""
        self._handshaking = False

    def discard(self) -> None:
        """Read on, but end after 4 MiB: what comes is dropped, and only the end is waited for."""
        self._discard_left = DISCARD_LIMIT
        self.want()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What comes next, once it may come."""
        while self._unasked >= READ_AHEAD and not self._wanted:
            if self._handshaking:
                return b""  # a handshake without end
            self._may_read = trio.Event()
            await self._may_read.wait()
        if self._discard_left is not None and self._discard_left <= 0:
            await trio.lowlevel.checkpoint()
            return b""
        chunk = bytes(await self._stream.receive_some(READ_SIZE))
        self._unasked += len(chunk)
        if self._discard_left is not None:
            self._discard_left -= len(chunk)
        return chunk

    @contextmanager
    def corked(self) -> Iterator[None]:
        """Keep what is written in this block for ``flush``. What is not flushed is dropped."""
        self._cork = []
        try:
            yield
        finally:
            self._cork = None

    async def flush(self) -> None:
        """Write all that was kept, at once, and keep nothing from here on."""
        kept, self._cork = self._cork, None
        if kept:
            await self.send_all(b"".join(kept))

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Write, or keep while corked."""
        if self._cork is not None:
            self._cork.append(bytes(data))
            return
        # The library's answers to pings come from its own task, so two tasks may write.
        async with self._send_lock:
            await self._stream.send_all(data)

    async def send_eof(self) -> None:
        """Say that nothing more is written, if the stream below can say so."""
        if isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    async def wait_send_all_might_not_block(self) -> None:
        """As the stream below."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """As the stream below."""
        await self._stream.aclose()
