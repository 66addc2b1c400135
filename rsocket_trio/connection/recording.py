"""Wraps a transport so that a connection's frames reach a recorder, batch by batch."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from rsocket_trio.errors import RemoteProtocolError, RSocketError
from rsocket_trio.mux.framing import EncodedFrame, Framing
from rsocket_trio.mux.recording import Facts, Recorder, Recording
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.connect_timeout import ConnectTimeout

if TYPE_CHECKING:
    from rsocket_trio.connection.resumption import Dial

logger = logging.getLogger("rsocket_trio")


CaptureLike: TypeAlias = Recording | str | os.PathLike[str]
"""The ``capture`` argument: a ``Capture``, or a directory for a new one."""


class RecordedTransport:
    """A transport around another one that reports frames to a recorder, once the dialect is known."""

    send_at_once = None
    is_idle = False

    def __init__(self, transport: Transport, recording: Recording, side: str) -> None:
        self.handshake = transport.handshake
        self.recorder: Recorder | None = None
        self._transport = transport
        self._recording = recording
        self._side = side
        self._is_open = True
        self._broken: str | None = None

    def begin(self, dialect: str) -> None:
        """Open a recorder for frames of this dialect."""
        handshake = self.handshake
        self.recorder = self._recording._opened(Facts(self._side, dialect, handshake.transport, handshake.peer_address))

    def end(self, reason: str) -> None:
        """Close the recorder. The first reason holds; a failed write comes before it."""
        if self._is_open and self.recorder is not None:
            self.recorder.closed(self._broken or reason)
        self._is_open = False

    def keep_lengths(self) -> None:
        """Expect a length prefix in each message from now on; the recorder gets frames without it."""
        self._transport = _lengths_on_messages(self._transport)

    def abandon(self, reason: str) -> None:
        """Close the recorder of a transport that led to no session."""
        self.end(reason)
        if self.recorder is not None:
            self.recorder.over(reason)

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
        """Return whether the transport holds bytes that ``receive`` has not returned."""
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
        """Record the frames, then write them: no answer may be recorded before its request."""
        if self.recorder is not None:
            self.recorder.sent(frames)
        try:
            await self._transport.send(frames)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            # Frames that the peer sent before are still read: this is not the end yet.
            self._broken = self._broken or _broken(error)
            raise

    async def receive(self) -> Sequence[bytes]:
        """Return the next frames, recorded before the connection acts on them."""
        try:
            frames = await self._transport.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.end(_broken(error))
            raise
        except RemoteProtocolError as error:
            self.end(f"the peer broke the framing: {error}")
            raise
        if not frames:
            self.end("the peer closed the transport")
        elif self.recorder is not None:
            self.recorder.received(frames)
        return frames

    async def finish(self, code: int = 1000) -> None:
        """Announce the end of sending, then wait for the peer to do the same."""
        self.end("closed by this side")
        await self._transport.finish(code)

    def cut(self) -> bool:
        """Close at once, if that takes no waiting. Return whether it closed."""
        self.end("closed by this side")
        return self._transport.cut()

    async def aclose(self) -> None:
        """Close at once."""
        self.end("closed by this side")
        await self._transport.aclose()


def _lengths_on_messages(transport: Transport) -> Transport:
    # Imported here, so that programs without such peers do not load it.
    from rsocket_trio.transports.websocket.length_prefix import LengthOnMessages

    return LengthOnMessages(transport)


def begin_recording(transport: Transport, dialect: str) -> None:
    """Begin the recording of a transport, if it is recorded, now that its dialect is known."""
    if isinstance(transport, RecordedTransport):
        transport.begin(dialect)


def with_lengths(transport: Transport) -> Transport:
    """Return the transport with a length prefix in each message. A recorder gets the frames without it."""
    if isinstance(transport, RecordedTransport):
        transport.keep_lengths()
        return transport
    return _lengths_on_messages(transport)


def recorder_of(transport: Transport) -> Recorder | None:
    """Return the recorder of a transport, or ``None``."""
    return transport.recorder if isinstance(transport, RecordedTransport) else None


def abandon_recording(transport: Transport, reason: str) -> None:
    """Close the recording of a transport that leads to no session, or to no more frames."""
    if isinstance(transport, RecordedTransport):
        transport.abandon(reason)


def session_over(recorder: Recorder | None, ended: RSocketError | None) -> None:
    """Tell the recorder of a connection's first transport that it is over, with the error that ended it."""
    if recorder is not None:
        recorder.over(str(ended or "it failed here"))


def wrapped_dial(dial: Dial, wrap: Callable[[Transport], Transport]) -> Dial:
    """Return the dial with each of its transports in another one."""

    @asynccontextmanager
    async def dialled(time_limit: ConnectTimeout) -> AsyncIterator[Transport]:
        async with dial(time_limit) as transport:
            yield wrap(transport)

    return dialled


def dial_with_lengths(dial: Dial) -> Dial:
    """Return the dial with length prefixes in messages. Byte streams have them anyway."""
    return wrapped_dial(dial, lambda each: _lengths_on_messages(each) if each.is_message_based else each)


def recorded_dial(dial: Dial, recording: Recording | None, dialect: str) -> Dial:
    """Return the dial with each of its transports recorded."""
    if recording is None:
        return dial
    looked_on = recording

    @asynccontextmanager
    async def dialled(time_limit: ConnectTimeout) -> AsyncIterator[Transport]:
        async with dial(time_limit) as inner:
            transport = RecordedTransport(inner, looked_on, "client")
            transport.begin(dialect)
            try:
                yield transport
            finally:
                transport.end("closed by this side")

    return dialled


@asynccontextmanager
async def recording_into(capture: CaptureLike | None) -> AsyncIterator[Any]:
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


def _broken(error: BaseException) -> str:
    cause = error.__cause__ or error
    return f"the transport broke: {str(cause) or type(cause).__name__}"
