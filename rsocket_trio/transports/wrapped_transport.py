"""A transport around another one, for classes that watch or change what passes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from rsocket_trio.transports.base import Handshake, Transport

if TYPE_CHECKING:
    from rsocket_trio.mux.framing import EncodedFrame, Framing
    from rsocket_trio.transports.connect_timeout import ConnectTimeout


class WrappedTransport:
    """Passes everything on to another transport, except for the short cuts of ``send_at_once`` and ``is_idle``."""

    send_at_once = None
    is_idle = False

    def __init__(self, transport: Transport) -> None:
        self.handshake: Handshake = transport.handshake
        self._transport = transport

    @property
    def is_message_based(self) -> bool:
        """Return whether each message is one frame."""
        return self._transport.is_message_based

    @property
    def mid_frame(self) -> bool:
        """Return whether a part of a frame was received and its rest was not."""
        return self._transport.mid_frame

    @property
    def has_unread(self) -> bool:
        """Return whether something came that was not received, as far as the transport can tell."""
        return getattr(self._transport, "has_unread", False)

    @property
    def granted(self) -> Callable[[ConnectTimeout], Awaitable[Handshake]] | None:
        """Waits for the server's answer that grants the transport; ``None`` if it needs none."""
        return getattr(self._transport, "granted", None)

    def use_framing(self, framing: Framing) -> None:
        """Cut received bytes into frames this way from now on."""
        self._transport.use_framing(framing)

    async def peek(self) -> tuple[bytes, bool]:
        """Return the first bytes received so far, and whether no more can come."""
        return await self._transport.peek()

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Write all frames."""
        await self._transport.send(frames)

    async def receive(self) -> Sequence[bytes]:
        """Return the next frames."""
        return await self._transport.receive()

    async def finish(self, code: int = 1000) -> None:
        """Announce the end of sending, then wait for the peer to do the same."""
        await self._transport.finish(code)

    def cut(self) -> bool:
        """Close at once, if that takes no waiting. Return whether it closed."""
        return self._transport.cut()

    async def aclose(self) -> None:
        """Close at once."""
        await self._transport.aclose()
