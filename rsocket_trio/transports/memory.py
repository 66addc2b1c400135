"""The ``memory://`` transport: two tasks of one program exchange whole frames without a byte stream."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

import trio

from rsocket_trio.mux.framing import EncodedFrame, Framing, whole
from rsocket_trio.transports.backlog import QueueListener
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.byte_stream import DISCARD_LIMIT

if TYPE_CHECKING:
    from rsocket_trio.transports.schemes import Endpoint, ListenOptions

BATCHES = 4
"""Batches of frames that wait for a receiver before ``send`` waits as well."""
BACKLOG = 128
"""Connections that wait to be accepted before connecting waits as well."""


class MemoryTransport(trio.abc.AsyncResource):
    """One end of a pair: each ``send`` is one batch of whole frames, and waits while the peer is behind."""

    is_message_based = True
    send_at_once = None
    is_idle = False
    mid_frame = False

    def __init__(
        self,
        outgoing: trio.MemorySendChannel[list[bytes]],
        incoming: trio.MemoryReceiveChannel[list[bytes]],
        handshake: Handshake,
    ) -> None:
        self.handshake = handshake
        self._outgoing = outgoing
        self._incoming = incoming
        self._peeked: list[bytes] = []
        self._shown = 0
        self._ended = False

    def use_framing(self, framing: Framing) -> None:
        """Do nothing: messages are frames."""

    async def peek(self) -> tuple[bytes, bool]:
        """Return the first frame, at each further call with one more, and whether no more can come.

        ``receive`` delivers them again.
        """
        if self._shown == len(self._peeked) and not self._ended:
            self._peeked += await self._take()
        ended = self._shown == len(self._peeked)
        self._shown += not ended
        return b"".join(self._peeked[: self._shown]), ended

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Hand over all frames at once."""
        if frames:
            await self._outgoing.send([whole(frame) for frame in frames])

    async def receive(self) -> Sequence[bytes]:
        """Return all frames that are here, at least one; an empty sequence once the peer has finished."""
        frames, self._peeked = self._peeked, []
        self._shown = 0
        if not frames and not self._ended:
            frames = await self._take()
        return frames

    async def finish(self, code: int = 1000) -> None:
        """Send the end of the stream, then discard what comes until the peer does the same, at most 4 MiB."""
        await self._outgoing.aclose()
        discarded = 0
        try:
            while discarded < DISCARD_LIMIT and not self._ended:
                discarded += sum(map(len, await self._take()))
        except trio.ClosedResourceError:
            pass

    def cut(self) -> bool:
        """Close both directions at once. Return True."""
        self.close()
        return True

    async def aclose(self) -> None:
        """Close both directions at once."""
        self.close()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Close as ``aclose`` does, for callers that cannot wait."""
        self._outgoing.close()
        self._incoming.close()

    async def _take(self) -> list[bytes]:
        """Return the next batch together with those behind it."""
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
        self._arriving, self._arrived = trio.open_memory_channel[MemoryTransport](BACKLOG)

    async def connect(self) -> MemoryTransport:
        """Make a new pair: the listener accepts one end, the other is returned."""
        ours, theirs = memory_pair(self.name)
        await self._arriving.send(theirs)
        return ours

    async def accept(self) -> MemoryTransport:
        """Return the next connection."""
        return await self._arrived.receive()

    def take_or_close(self) -> MemoryTransport | None:
        """Return the connection that waits first. If none does, close this, and return ``None``."""
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
                self._arrived.receive_nowait().close()
        except (trio.WouldBlock, trio.ClosedResourceError):
            self._arrived.close()
        await trio.lowlevel.checkpoint()


_NAMES: trio.lowlevel.RunVar[dict[str, MemoryListener]] = trio.lowlevel.RunVar("memory listeners")
"""The listener of each name. One table a run: channels work in one run only, and a run that died leaves nothing."""


def _listeners() -> dict[str, MemoryListener]:
    try:
        return _NAMES.get()
    except LookupError:
        names: dict[str, MemoryListener] = {}
        _NAMES.set(names)
        return names


async def listen(endpoint: Endpoint, options: ListenOptions) -> tuple[Endpoint, Sequence[MemoryListener]]:
    """Listen on the name of a URI, for its row in the registry."""
    return endpoint, [listen_memory(endpoint.host)]


def dial(endpoint: Endpoint) -> Awaitable[MemoryTransport]:
    """Connect to the name of a URI, for its row in the registry."""
    return connect_memory(endpoint.host)


def listen_memory(name: str) -> MemoryListener:
    """Return a listener under a name. Raise ``OSError`` if the name is taken."""
    names = _listeners()
    if name in names:
        raise OSError(errno.EADDRINUSE, "the name is taken")
    names[name] = listener = MemoryListener(name)
    return listener


async def connect_memory(name: str) -> MemoryTransport:
    """Connect to a name. Raise ``ConnectionRefusedError`` if no listener has it."""
    listener = _listeners().get(name)
    if listener is None:
        raise _nobody(name)
    try:
        return await listener.connect()
    except trio.BrokenResourceError:
        raise _nobody(name) from None


def _nobody(name: str) -> OSError:
    return ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens", f"memory://{name}")
