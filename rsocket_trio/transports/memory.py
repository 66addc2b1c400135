"""The ``memory://`` transport: two tasks of one program exchange whole frames without a byte stream."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from rsocket_trio.mux.framing import EncodedFrame, whole
from rsocket_trio.transports.base import Handshake, MessageTransport
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT
from rsocket_trio.transports.sockets import QueueListener

if TYPE_CHECKING:
    from rsocket_trio.transports.schemes import Endpoint, ListenOptions

BATCHES = 4
"""Batches of frames that wait for a receiver before ``send`` waits as well."""
BACKLOG = 128
"""Connections that wait to be accepted before connecting waits as well."""


class MemoryTransport(MessageTransport, trio.abc.AsyncResource):
    """One end of a pair: each ``send`` is one batch of whole frames, and waits while the peer is behind."""

    def __init__(
        self,
        outgoing: trio.MemorySendChannel[list[bytes]],
        incoming: trio.MemoryReceiveChannel[list[bytes]],
        handshake: Handshake,
    ) -> None:
        super().__init__(handshake)
        self._outgoing = outgoing
        self._incoming = incoming
        self._ended = False

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        if frames:
            await self._outgoing.send([whole(frame) for frame in frames])

    async def finish(self, code: int = 1000) -> None:
        await self._outgoing.aclose()
        discarded = 0
        try:
            while discarded < DISCARD_LIMIT and not self._ended:
                discarded += sum(map(len, await self._take()))
        except trio.ClosedResourceError:
            pass

    def cut(self) -> bool:
        self._outgoing.close()
        self._incoming.close()
        return True

    async def aclose(self) -> None:
        self.cut()
        await trio.lowlevel.checkpoint()

    async def _take(self) -> list[bytes]:
        """Return the next batch together with those behind it; none once the peer has finished."""
        if self._ended:
            return []
        try:
            frames = list(await self._incoming.receive())
        except trio.EndOfChannel:
            self._ended = True
            return []
        try:
            while True:
                frames += self._incoming.receive_nowait()
        except (trio.WouldBlock, trio.EndOfChannel):
            return frames


def memory_pair(name: str = "") -> tuple[MemoryTransport, MemoryTransport]:
    """Return two ends that are connected to each other."""
    handshake = Handshake(transport="memory", peer_address=name)
    to_right, from_left = trio.open_memory_channel[list[bytes]](BATCHES)
    to_left, from_right = trio.open_memory_channel[list[bytes]](BATCHES)
    return MemoryTransport(to_right, from_right, handshake), MemoryTransport(to_left, from_left, handshake)


class MemoryListener(QueueListener[MemoryTransport]):
    """Accepts the connections to a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.arriving, self._arrived = trio.open_memory_channel[MemoryTransport](BACKLOG)

    async def accept(self) -> MemoryTransport:
        return await self._arrived.receive()

    def take_or_close(self) -> MemoryTransport | None:
        try:
            return self._arrived.receive_nowait()
        except trio.WouldBlock:
            self._arrived.close()
            return None

    async def aclose(self) -> None:
        """Free the name; connections that were not accepted are closed."""
        names = _listeners()
        if names.get(self.name) is self:
            del names[self.name]
        try:
            while True:
                self._arrived.receive_nowait().cut()
        except (trio.WouldBlock, trio.ClosedResourceError):
            self._arrived.close()
        await trio.lowlevel.checkpoint()


_NAMES: trio.lowlevel.RunVar[dict[str, MemoryListener]] = trio.lowlevel.RunVar("memory listeners")
"""The listener of each name. One table a run: channels work in one run only, and a run that died leaves nothing."""


def _listeners() -> dict[str, MemoryListener]:
    names = _NAMES.get({})
    _NAMES.set(names)
    return names


async def listen(endpoint: Endpoint, options: ListenOptions) -> tuple[Endpoint, Sequence[MemoryListener]]:
    """Listen on the name of a URI, for its row in the registry."""
    return endpoint, [listen_memory(endpoint.host)]


def listen_memory(name: str) -> MemoryListener:
    """Return a listener under a name. Raise ``OSError`` if the name is taken."""
    names = _listeners()
    if name in names:
        raise OSError(errno.EADDRINUSE, "the name is taken")
    names[name] = listener = MemoryListener(name)
    return listener


async def dial(endpoint: Endpoint) -> MemoryTransport:
    """Connect to the name of a URI. Raise ``ConnectionRefusedError`` if no listener has it."""
    listener = _listeners().get(endpoint.host)
    ours, theirs = memory_pair(endpoint.host)
    try:
        if listener is not None:
            await listener.arriving.send(theirs)
            return ours
    except trio.BrokenResourceError:
        pass
    raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens", str(endpoint))
