"""The transport interface that a connection uses: whole frames in, whole frames out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from rsocket_trio.masking import shown_headers
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.mux.framing import EncodedFrame, Framing


@value
class Handshake:
    """The facts about the peer that are known before its first frame.

    ``transport`` is the scheme of the URI (``tcp``, ``tls``, ``unix``, ``ws``, ``wss``, ``h2``, ``h2s``, ``memory``, or
    ``stream``), ``peer_address`` its address as ``host:port`` or a path, ``certificate`` the result of
    ``ssl.SSLSocket.getpeercert()``, ``path`` and ``headers`` those of the request that opened a WebSocket or a stream
    of HTTP/2 (header names in lower case).
    """

    transport: str = "stream"
    peer_address: str = ""
    certificate: Mapping[str, Any] | None = None
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=shown_headers)


class Transport(Protocol):
    """Moves whole frames. One task sends, one task receives.

    ``BrokenResourceError`` and ``ClosedResourceError`` of Trio mean a lost transport; ``RemoteProtocolError`` means
    that the peer broke the framing and can't be understood from here on.
    """

    handshake: Handshake

    @property
    def is_message_based(self) -> bool:
        """Return whether each message is one frame, so that no length prefix is needed."""
        ...

    def use_framing(self, framing: Framing) -> None:
        """Cut received bytes into frames this way from now on; called before the first ``receive``."""
        ...

    async def peek(self) -> tuple[bytes, bool]:
        """Wait for more. Return the first bytes, or messages, so far, and whether all came; ``receive`` has them."""
        ...

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Write all frames, in one write where the transport allows it."""
        ...

    @property
    def send_at_once(self) -> Callable[[Sequence[EncodedFrame]], bool] | None:
        """Write all frames without waiting, while no ``send`` is under way; ``None`` if the transport can't.

        Return False if something is left: it goes first with the next ``send``, which is due then.
        """
        return None

    async def receive(self) -> Sequence[bytes]:
        """Return the next whole frames, at least one; an empty sequence at the end of the stream."""
        ...

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a frame was received and its rest was not."""
        ...

    @property
    def is_idle(self) -> bool:
        """Return whether nothing came that was not received, so that a peer loses nothing if this is cut."""
        return False

    async def finish(self, code: int = 1000) -> None:
        """Send the end of the stream, then wait for the peer to do the same, discarding what comes.

        Ends early once 4 MiB were discarded. The caller bounds the time. ``code`` is the WebSocket close code.
        """
        ...

    def cut(self) -> bool:
        """Close at once if that needs no waiting. Return whether it closed; if not, ``aclose`` is needed."""
        ...

    async def aclose(self) -> None:
        """Close at once; never raises for a transport that is broken already."""
        ...


class MessageTransport(ABC):
    """The base of transports of whole messages: each message is a frame, and ``_take`` waits for the next ones."""

    __slots__ = ("_peeked", "_shown", "handshake")

    is_message_based = True
    is_idle = False

    def __init__(self, handshake: Handshake) -> None:
        self.handshake = handshake
        self._peeked: list[bytes] = []
        self._shown = 0

    @property
    def send_at_once(self) -> Callable[[Sequence[EncodedFrame]], bool] | None:
        """Writes all frames without waiting; ``None`` if the transport can't."""
        return None

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a message was received, as far as that can be told."""
        return False

    def use_framing(self, framing: Framing) -> None:  # noqa: B027 (nothing to do, and nothing to override)
        """Do nothing: messages are frames."""

    async def peek(self) -> tuple[bytes, bool]:
        """Return the first message, at each further call with one more, and whether no more can come."""
        if self._shown == len(self._peeked):
            self._peeked += await self._take()
        ended = self._shown == len(self._peeked)
        self._shown += not ended
        return b"".join(self._peeked[: self._shown]), ended

    async def receive(self) -> Sequence[bytes]:
        """Return the next messages, at least one; an empty sequence once the peer has finished."""
        ready, self._peeked = self._peeked, []
        self._shown = 0
        return ready or await self._take()

    @abstractmethod
    async def _take(self) -> list[bytes]:
        """Wait for the next messages; none at the end."""
