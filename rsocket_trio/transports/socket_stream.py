"""A Trio stream over a socket that tries reads and writes at once, before it waits or lets other tasks run.

Trio's own does neither: but a task that reads in a loop knows from the last read whether anything is left.
"""

from __future__ import annotations

import math
import socket
from abc import abstractmethod
from contextlib import suppress
from typing import TypeAlias

import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled, notify_closing, wait_readable, wait_writable

BytesLike: TypeAlias = bytes | bytearray | memoryview
READ_SIZE = 65536
"""Bytes that one read brings when nothing else is asked for."""
UNSENT = 16384
"""Bytes that the system holds before it has sent them, as with Trio's streams: an urgent frame waits behind no more."""
MAPPED = "::ffff:"
"""The beginning of an address of IPv4 at a socket of IPv6 (RFC 4291, 2.5.5.2)."""
IN_A_ROW = 4
"""Writes that may follow each other before others run."""


class PromptStream(trio.abc.HalfCloseableStream):
    """A stream that is also written to and closed without waiting."""

    __slots__ = ("writes",)

    writes: int
    """The number of writes so far."""

    @abstractmethod
    def write(self, data: BytesLike) -> int:
        """Return how many bytes were taken, from the front. Raise as ``send_all`` does."""

    @abstractmethod
    def close(self) -> None:
        """Close at once. A task that waits here gets a ``ClosedResourceError``."""

    @property
    @abstractmethod
    def has_unread(self) -> bool:
        """Return whether something came that was not received, as far as that can be told."""

    async def take_turn(self) -> None:
        """Check for cancellation before a write, and at every fourth write let other tasks run."""
        self.writes += 1
        if self.writes % IN_A_ROW:
            await checkpoint_if_cancelled()
        else:
            await checkpoint()


class SocketStream(PromptStream):
    """A connected socket. One task reads, one writes. ``address`` is that of the other end, if it is known already."""

    __slots__ = ("_address", "_is_drained", "_is_full", "_said_the_end", "socket")

    def __init__(self, connected: socket.socket, address: object = None) -> None:
        connected.setblocking(False)
        self.socket = connected
        self._address = address
        self._is_drained = True  # whether the last read emptied the socket, so that the next one has to wait
        self._said_the_end = False
        self._is_full = False
        self.writes = 0
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            # If the peer is gone already, or the kernel lacks an option that it names, the stream works without.
            with suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)

    @property
    def peer_address(self) -> str:
        """``host:port`` of the other end, IPv4 as such; empty if that is gone already, or for a Unix socket."""
        address = self._address
        if address is None:
            with suppress(OSError):
                address = self.socket.getpeername()
        if not isinstance(address, tuple):
            return ""
        host, port = address[0].removeprefix(MAPPED) if "." in address[0] else address[0], address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def has_unread(self) -> bool:
        """Return whether something came that was not read, the end included: closing now resets the connection."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def write(self, data: BytesLike | list[bytes | memoryview]) -> int:
        """Return how many bytes of one piece or several the system took, from the front. Raise as ``send_all`` does."""
        if self._said_the_end:
            raise trio.ClosedResourceError("nothing can be sent after the end was said")
        try:
            return self.socket.sendmsg(data) if isinstance(data, list) else self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(error) from error

    async def put_all(self, data: BytesLike) -> None:
        """Send all bytes as ``send_all`` does, but let other tasks run only if it waits, and at every fourth write."""
        await self.take_turn()
        sent = self.write(data)
        if sent < len(data):
            await self._put_rest(data, sent)

    async def put_parts(self, parts: list[bytes | memoryview]) -> None:
        """Send pieces as ``put_all`` does; join them only if the system does not take them all."""
        await self.take_turn()
        sent = self.write(parts)
        if sent < sum(map(len, parts)):
            await self._put_rest(b"".join(parts), sent)

    async def _put_rest(self, data: BytesLike, sent: int) -> None:
        with memoryview(data) as whole:
            while sent < len(whole):
                await self.wait_send_all_might_not_block()
                with whole[sent:] as rest:
                    sent += self.write(rest)

    async def send_all(self, data: BytesLike) -> None:
        await self.put_all(data)
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the system takes bytes."""
        self._check_open()
        if self._is_full:
            raise trio.BusyResourceError("another task sends")
        self._is_full = True
        try:
            await wait_writable(self.socket)
        finally:
            self._is_full = False

    async def send_eof(self) -> None:
        await checkpoint()
        self.say_the_end()

    def say_the_end(self) -> None:
        """Shut down the sending direction as ``send_eof`` does, without letting other tasks run first."""
        self._check_open()
        if self._is_full:
            raise trio.BusyResourceError("another task sends")
        if not self._said_the_end:
            self._said_the_end = True
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError as error:
                raise self._lost(error) from error

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        size = READ_SIZE if max_bytes is None else max_bytes
        if size < 1:
            raise ValueError(f"max_bytes is {size}, the least is 1")
        while True:
            self._check_open()
            if self._is_drained:
                await wait_readable(self.socket)
            else:
                await checkpoint()
            try:
                chunk = self.socket.recv(size)
            except BlockingIOError:
                self._is_drained = True
            except OSError as error:
                raise self._lost(error) from error
            else:
                self._is_drained = len(chunk) < size
                return chunk

    def close(self) -> None:
        if self.socket.fileno() >= 0:
            notify_closing(self.socket)
            self.socket.close()

    async def aclose(self) -> None:
        self.close()
        # A cancelled task only wants to close: raising here would take time at the end of every connection.
        if trio.current_effective_deadline() > -math.inf:
            await checkpoint()

    def _check_open(self) -> None:
        if self.socket.fileno() < 0:
            raise trio.ClosedResourceError("the socket was closed")

    def _lost(self, error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if self.socket.fileno() < 0:
            return trio.ClosedResourceError("the socket was closed")
        return trio.BrokenResourceError(f"the socket broke: {error}")
