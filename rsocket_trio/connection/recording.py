"""Wraps a transport so that a connection's frames reach a recorder, batch by batch."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import trio

from rsocket_trio.connection.link import reason
from rsocket_trio.errors import RemoteProtocolError, RSocketError
from rsocket_trio.mux.framing import EncodedFrame, Facts, Recording
from rsocket_trio.transports.base import ConnectTimeout, Transport, WrappedTransport

if TYPE_CHECKING:
    from rsocket_trio.connection.resumption import Dial

logger = logging.getLogger("rsocket_trio")


CaptureLike: TypeAlias = Recording | str | os.PathLike[str]
"""The ``capture`` argument: a ``Capture``, or a directory for a new one."""


class RecordedTransport(WrappedTransport):
    """A transport around another one that reports frames of its dialect to a recorder. ``side`` is ours."""

    def __init__(self, transport: Transport, recording: Recording, side: str, dialect: str) -> None:
        super().__init__(transport)
        handshake = transport.handshake
        self.recorder = recording._opened(Facts(side, dialect, handshake.transport, handshake.peer_address))
        self._is_open = True
        self._broken: str | None = None

    def end(self, reason: str = "closed by this side", *, is_over: bool = False) -> None:
        """Close the recorder. The first reason holds; a failed write comes before it.

        With ``is_over`` the transport led to no session, or carries no more frames of one.
        """
        if self._is_open:
            self.recorder.closed(self._broken or reason)
        self._is_open = False
        if is_over:
            self.recorder.over(reason)

    async def send(self, frames: Sequence[EncodedFrame]) -> None:
        """Record the frames, then write them: no answer may be recorded before its request."""
        self.recorder.sent(frames)
        try:
            await self._transport.send(frames)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            # Frames that the peer sent before are still read: this is not the end yet.
            self._broken = self._broken or f"the transport broke: {reason(error)}"
            raise

    async def receive(self) -> Sequence[bytes]:
        """Return the next frames, recorded before the connection acts on them."""
        try:
            frames = await self._transport.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.end(f"the transport broke: {reason(error)}")
            raise
        except RemoteProtocolError as error:
            self.end(f"the peer broke the framing: {error}")
            raise
        if not frames:
            self.end("the peer closed the transport")
        else:
            self.recorder.received(frames)
        return frames

    def session_over(self, error: RSocketError | None) -> None:
        """Tell the recorder that the session that began on this transport is over, with the error that ended it."""
        self.recorder.over(str(error or "it failed here"))

    async def finish(self, code: int = 1000) -> None:
        self.end()
        await super().finish(code)

    def cut(self) -> bool:
        self.end()
        return super().cut()

    async def aclose(self) -> None:
        self.end()
        await super().aclose()


def with_lengths(transport: Transport) -> Transport:
    """Return the transport with a length prefix in each message."""
    # Imported here, so that programs without such peers do not load it.
    from rsocket_trio.transports.websocket.length_prefix import LengthOnMessages

    return LengthOnMessages(transport)


def wrapped_dial(dial: Dial, wrap: Callable[[Transport], Transport]) -> Dial:
    """Return the dial with each of its transports in another one, whose recorder ends with it at the latest."""

    @asynccontextmanager
    async def dialled(time_limit: ConnectTimeout) -> AsyncIterator[Transport]:
        async with dial(time_limit) as inner:
            transport = wrap(inner)
            try:
                yield transport
            finally:
                if isinstance(transport, RecordedTransport):
                    transport.end()

    return dialled


@asynccontextmanager
async def recording_into(capture: CaptureLike | None) -> AsyncIterator[Recording | None]:
    """Provide the recording; a directory gets a new capture, which is written and closed at the end of the block.

    Raise the exceptions of ``Capture``.
    """
    if not isinstance(capture, str | os.PathLike):
        if capture is not None and not hasattr(capture, "_opened"):
            raise TypeError(f"capture is a Capture or a directory, not {type(capture).__name__}")
        yield capture
        return
    # Imported here, so that programs that record nothing do not load it.
    from rsocket_trio.capture import Capture

    owned = await trio.to_thread.run_sync(Capture, capture)
    try:
        yield owned
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(owned.close)
        if owned.dropped:
            # No user code holds this capture to read its count.
            logger.warning("the capture in %s lacks %d frames", owned.directory, owned.dropped)
