"""Gets the next transport of a client's resumable session: dials, and sends RESUME."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from rsocket_trio.errors import ConnectionLost, RemoteProtocolError, RSocketError
from rsocket_trio.mux.framing import Framing
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.transports.base import UNLIMITED, ConnectTimeout, Transport

if TYPE_CHECKING:
    from rsocket_trio.rsocket.resume_protocol import ResumeHandshake

Dial = Callable[[ConnectTimeout], AbstractAsyncContextManager[Transport]]
"""Opens a new transport to the same server, for as long as a block."""

FAREWELL_TIMEOUT = 1.0
"""Seconds that a last frame on a transport gets."""
MIN_TRIES = 4
"""Least number of tries within the session time, at any length of the pauses."""


ABSENCES = OSError, ConnectionLost, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError
"""Exceptions of a network or server that is not reachable at the moment; TLS raises an ``OSError``."""


def is_absence(error: BaseException) -> bool:
    """Return whether a function that opens streams could not connect; any other error is a fault of its own."""
    if isinstance(error, ABSENCES):
        return True
    # A class that was never imported is not raised; programs that use TCP need not import it.
    websocket = sys.modules.get("trio_websocket")
    return websocket is not None and isinstance(error, websocket.HandshakeError)


@attrs.frozen(eq=False)
class ResumedTransport:
    """A transport that resumes the session, and the frames it already received. ``done`` is set when it is over."""

    transport: Transport
    frames: Sequence[bytes] = attrs.field(repr=False)
    done: trio.Event = attrs.field(factory=trio.Event)


class Reconnector(Protocol):
    """The source of the next transports of a session: a client dials, a server waits for its client."""

    options: ResumeOptions

    def next(self) -> AbstractAsyncContextManager[ResumedTransport]:
        """Provide the next transport. Raise ``ResumeFailed`` if there will be none."""


class ResumeFailed(Exception):
    """Raised when a session cannot be resumed; ``error`` is the reason."""

    def __init__(self, error: RSocketError) -> None:
        super().__init__(str(error))
        self.error = error


@attrs.define(eq=False)
class ResumeDialer:
    """Dials until a server answers RESUME, with a pause before each try.

    Pauses grow from try to try. They start again after a transport that was useful: it lived for longer than the
    longest pause, or carried frames of streams.
    """

    _dial: Dial
    _resume_handshake: ResumeHandshake
    _framing: Callable[[], Framing]
    options: ResumeOptions
    _tries: int = 0
    _arrived: float = -math.inf
    _progress: int = 0

    @asynccontextmanager
    async def next(self) -> AsyncIterator[ResumedTransport]:
        """Provide the next transport on which the server resumes the session."""
        lived = trio.current_time() - self._arrived
        if lived > self.options.longest_delay or self._resume_handshake.progress != self._progress:
            self._tries = 0
        arrived = False
        while not arrived:
            await trio.sleep(self._pause())
            self._tries += 1
            with trio.CancelScope(deadline=trio.current_time() + self.options.answer_seconds) as patience:
                try:
                    async with self._dial(UNLIMITED) as transport:
                        resumed = await self._ask(transport)
                        # An answer in the same scheduler step in which the deadline passes comes too late for this try.
                        if resumed is not None and not patience.cancel_called:
                            patience.deadline = math.inf
                            arrived = True
                            yield resumed
                except (ConnectionLost, trio.BrokenResourceError, trio.ClosedResourceError):
                    if arrived:
                        raise
                    # The network is not back, or lost again: the next try may succeed.

    def _pause(self) -> float:
        """Return the seconds before the next try, at most a quarter of the session's time."""
        options = self.options
        return min(options.delay(self._tries, random.random()), options.session_seconds / MIN_TRIES)

    async def _ask(self, transport: Transport) -> ResumedTransport | None:
        """Send RESUME. Return the resumed transport; ``None`` without an answer, or if the session is not kept."""
        if not self._resume_handshake.is_kept:
            return None
        transport.use_framing(self._framing())
        # Progress that the answer reports was made by the transport before.
        self._progress = self._resume_handshake.progress
        await transport.send([self._resume_handshake.ask()])
        try:
            frames = await transport.receive()
            if not frames or not self._resume_handshake.is_kept:
                return None
            self._resume_handshake.answered(frames[0], trio.current_time())
        except RemoteProtocolError as error:
            # RS02-RSM-25: the server gets an ERROR, and there is no other try.
            with trio.move_on_after(FAREWELL_TIMEOUT):
                await transport.send([self._resume_handshake.farewell(error)])
                await transport.finish()
            lost = ConnectionLost(f"the peer broke the protocol: {error}")
            lost.__cause__ = error
            raise ResumeFailed(lost) from error
        except RSocketError as refusal:
            raise ResumeFailed(refusal) from refusal
        self._arrived = trio.current_time()
        return ResumedTransport(transport, frames[1:])
