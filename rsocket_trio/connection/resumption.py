"""Gets the next transport of a resumable session: clients dial and send RESUME, servers wait for their client."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from rsocket_trio.errors import ConnectionClosed, ConnectionLost, RejectedResume, RemoteProtocolError, RSocketError
from rsocket_trio.limits import charged
from rsocket_trio.mux.framing import Framing
from rsocket_trio.mux.retransmission import RetainingOutbox, Shared
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.tools.parking_lot import ParkingLot
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect_timeout import UNLIMITED, ConnectTimeout

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.rsocket.resume_handshake import ResumeHandshake
    from rsocket_trio.rsocket.resume_positions import ResumeRequest
    from rsocket_trio.rsocket.session import Session

Dial = Callable[[ConnectTimeout], AbstractAsyncContextManager[Transport]]
"""Opens a new transport to the same server, for as long as a block."""

FAREWELL_TIMEOUT = 1.0
"""Seconds that a last frame on a transport gets."""
SHARE = 4
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


class ResumeFailed(Exception):
    """Raised when a session cannot be resumed; ``error`` is the reason."""

    def __init__(self, error: RSocketError) -> None:
        super().__init__(str(error))
        self.error = error


class Reconnector(Protocol):
    """The source of the next transport of a session."""

    options: ResumeOptions

    def next(self) -> AbstractAsyncContextManager[ResumedTransport]:
        """Provide the next transport, open during the block. Raise ``ResumeFailed``; the caller bounds the time."""
        ...


class ResumeDialer:
    """Dials until a server answers RESUME, with a pause before each try.

    Pauses grow from try to try. They start again after a transport that was useful: it lived for longer than the
    longest pause, or carried frames of streams.
    """

    def __init__(
        self, dial: Dial, resume_handshake: ResumeHandshake, framing: Callable[[], Framing], options: ResumeOptions
    ) -> None:
        self.options = options
        self._dial = dial
        self._resume_handshake = resume_handshake
        self._framing = framing
        self._tries = 0
        self._arrived = -math.inf
        self._progress = 0

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
        return min(options.delay(self._tries, random.random()), options.session_seconds / SHARE)

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


class ResumeListener:
    """Waits for a transport that the server accepted from the returning client."""

    def __init__(self, options: ResumeOptions) -> None:
        self.options = options
        self._resumed: ResumedTransport | None = None
        self._waiting = ParkingLot()

    @property
    def is_offered(self) -> bool:
        """Return whether a transport was offered that the session has not taken yet."""
        return self._resumed is not None

    def offer(self, resumed: ResumedTransport) -> None:
        """Offer a transport on which the client resumes. An earlier one that was not taken is released."""
        self.let_go()
        self._resumed = resumed
        self._waiting.wake_all()

    def let_go(self) -> None:
        """Release an offered transport that was not taken, so that the task that offered it may close it."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.done.set()

    @asynccontextmanager
    async def next(self) -> AsyncIterator[ResumedTransport]:
        """Provide the next transport on which the client resumes."""
        while self._resumed is None:
            await self._waiting.park()
        resumed, self._resumed = self._resumed, None
        try:
            yield resumed
        finally:
            resumed.done.set()


STREAM = 4096
"""Bytes that an open stream with its handler counts."""


class ResumableConnection:
    """A server's connection whose client may come back, with ``token`` once it has one."""

    __slots__ = ("_engine", "_listener", "_session", "token")

    def __init__(self, engine: Engine, session: Session, listener: ResumeListener) -> None:
        self.token: bytes | None = None
        self._engine = engine
        self._session = session
        self._listener = listener

    @property
    def is_suspended(self) -> bool:
        """Return whether it waits for its client, without a transport and with none to come."""
        return self._engine.is_suspended and not self._listener.is_offered and not self.is_over

    @property
    def is_over(self) -> bool:
        """Return whether it is not to be resumed any more, although its handlers may still finish."""
        return self._engine.ended is not None

    @property
    def kept_bytes(self) -> int:
        """Bytes that the session keeps while its client is away: the SETUP with the token, frames to be sent (again),
        received data that is held, not whole or not read, the cost of each entry, and the open streams."""
        session, handshake = self._session, self._session.resume_handshake
        resumption, outbox = handshake.positions, session.outbox
        sent = outbox.charge + charged(outbox.reply_size, outbox.reply_frames)
        kept = resumption.store.size if resumption is not None else 0
        streams = session.open_streams()
        unread = sum([stream.owner._unread for stream in streams if stream.owner is not None])
        pieces = sum([stream.assembly.pieces for stream in streams if stream.assembly is not None])
        unfinished = charged(session.table.reassembling, pieces)
        received = session.held_size + unfinished + charged(self._engine.receive_budget.size, unread)
        return handshake.setup_size + sent + kept + received + STREAM * len(session.table)

    @property
    def live_bytes(self) -> int:
        """Bytes that it is known to keep to send (again) while its client is connected."""
        return self._outbox.counted

    def share(self, shared: Shared) -> None:
        """Share a limit of what is kept to send (again) with the others whose clients are connected."""
        self._outbox.share(shared, self)

    def ask(self) -> None:
        """Ask the client for its position: a sender waits until less is kept."""
        if self._outbox.ask():
            self._engine.wake()

    def on_room(self) -> None:
        """Wake the senders, which may go on."""
        self._engine.request_queue.on_written()

    @property
    def _outbox(self) -> RetainingOutbox:
        outbox = self._session.outbox
        assert isinstance(outbox, RetainingOutbox)
        return outbox

    @property
    def is_accepted(self) -> bool:
        """Return whether the application has taken the client."""
        return self._session.is_open

    def check(self, back: ResumeRequest) -> None:
        """Raise ``RejectedResume`` for a client that can't go on from its positions."""
        self._session.resume_handshake.check(back)

    def adopt(self, back: ResumeRequest, resumed: ResumedTransport) -> None:
        """Go on over the transport that the client came back on; one that is still here is half-open (RS02-RSM-23).

        Raise ``RejectedResume`` if an ``on_state`` function that heard of the loss ended the session.
        """
        # Offered first: the session does not wait for a client that is here.
        self._listener.offer(resumed)
        self._engine.replace_link(ConnectionLost("the client came back on another transport"))
        if self.is_over:
            self._listener.let_go()
            raise RejectedResume("unknown resume token")
        self._session.resume_handshake.take(back, trio.current_time())

    def watch(self, grown: Callable[[ResumableConnection], object]) -> None:
        """Have a function called whenever something is queued while it waits for its client."""
        self._engine.watch_growth(partial(grown, self))

    def lose(self, error: ConnectionLost) -> None:
        """End the session, whose client does not come back."""
        self._engine.lose(error)

    def leave(self, closed: ConnectionClosed) -> None:
        """End the session from this side; its client can't be told."""
        self._engine.end(closed)
