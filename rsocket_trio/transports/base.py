"""The transport interface that a connection uses: whole frames in, whole frames out."""

from __future__ import annotations

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
        """Wait for at least one more byte. Return the first bytes received so far, and whether no more can come.

        For message transports the first message, whole, with one more at each further call. ``receive`` delivers the
        peeked bytes again.
        """
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
        """Return whether nothing came that was not received, and closing needs no farewell.

        Then a peer that has read everything loses nothing if this is cut.
        """
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
