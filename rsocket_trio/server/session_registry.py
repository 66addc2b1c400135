"""Resumable sessions of a server by token; ends the oldest above the bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio

from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.resumption import ResumedTransport
from rsocket_trio.errors import ConnectionClosed, ConnectionLost, RejectedResume
from rsocket_trio.limits import charged
from rsocket_trio.mux.retransmission import RetainingOutbox, Shared
from rsocket_trio.mux.session import State
from rsocket_trio.rsocket.resume_protocol import ReplayedResume, ResumeRequest
from rsocket_trio.rsocket.session import Session
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.tools.parking_lot import ParkingLot
from rsocket_trio.transports.base import Transport

STOPPED = "the server stops, and its client is away"
STREAM_BYTES = 4096
"""Bytes that an open stream with its handler counts."""


class ResumableConnection:
    """A server's connection whose client may come back, with ``token`` once it has one."""

    __slots__ = ("_arrivals", "_resumed", "_session", "engine", "options", "token")

    def __init__(self, engine: Engine, session: Session, registry: SessionRegistry) -> None:
        self.token: bytes | None = None
        self.engine = engine
        self.options = registry.options
        self._session = session
        self._resumed: ResumedTransport | None = None
        """A transport on which the client came back, and which the engine has not taken yet."""
        self._arrivals = ParkingLot()
        engine.reconnector = self
        session.resume_handshake.claim = partial(registry.claim, self)
        engine.on_growth = partial(registry.on_growth, self)
        engine.on_state += (partial(registry.on_state, self),)
        assert isinstance(session.outbox, RetainingOutbox)
        session.outbox.share(registry.live, engine.wake, engine.request_queue.on_written)

    @property
    def is_suspended(self) -> bool:
        """Return whether it waits for its client, without a transport and with none to come."""
        return self.engine.is_suspended and self._resumed is None and not self.is_over

    @property
    def is_over(self) -> bool:
        """Return whether it is not to be resumed any more, although its handlers may still finish."""
        return self.engine.ended is not None

    @property
    def kept_bytes(self) -> int:
        """Bytes that the session keeps while its client is away: the SETUP with the token, frames to be sent (again),
        received data that is held, not whole or not read, the cost of each entry, and the open streams."""
        session, handshake = self._session, self._session.resume_handshake
        outbox = session.outbox
        sent = outbox.charge + charged(outbox.reply_size, outbox.reply_frames)
        kept = handshake.store.size if handshake.is_kept else 0
        streams = session.open_streams()
        unread = sum([stream.owner._unread for stream in streams if stream.owner is not None])
        pieces = sum([stream.assembly.pieces for stream in streams if stream.assembly is not None])
        unfinished = charged(session.table.reassembling, pieces)
        received = session.held_size + unfinished + charged(self.engine.receive_budget.size, unread)
        return handshake.setup_size + sent + kept + received + STREAM_BYTES * len(session.table)

    @property
    def is_accepted(self) -> bool:
        """Return whether the application has taken the client."""
        return self._session.state is State.OPEN

    def check(self, back: ResumeRequest) -> None:
        """Raise ``RejectedResume`` for a client that can't go on from its positions."""
        self._session.resume_handshake.check(back)

    @asynccontextmanager
    async def next(self) -> AsyncIterator[ResumedTransport]:
        """Provide the next transport on which the client resumes."""
        while self._resumed is None:
            await self._arrivals.park()
        resumed, self._resumed = self._resumed, None
        try:
            yield resumed
        finally:
            resumed.done.set()

    def adopt(self, back: ResumeRequest, resumed: ResumedTransport) -> None:
        """Go on over the transport that the client came back on; one that is still here is half-open (RS02-RSM-23).

        Raise ``RejectedResume`` if an ``on_state`` function that heard of the loss ended the session.
        """
        # Offered first: the session does not wait for a client that is here.
        self.let_go()
        self._resumed = resumed
        self._arrivals.wake_all()
        self.engine.replace_link(ConnectionLost("the client came back on another transport"))
        if self.is_over:
            self.let_go()
            raise RejectedResume("unknown resume token")
        self._session.resume_handshake.take(back, trio.current_time())

    def let_go(self) -> None:
        """Release a transport that the client came back on too late, so that the task that offered it may close it."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.done.set()


class SessionRegistry:
    """The sessions that may be resumed, one for each token in use."""

    def __init__(self, options: ResumeOptions) -> None:
        self.options = options
        self._by_token: dict[bytes, ResumableConnection] = {}
        self._waiting: dict[ResumableConnection, int] = {}
        self._grown: set[ResumableConnection] = set()
        self._kept_bytes = 0
        self._closed = False
        self.live = Shared(options.live_bytes, _soon)

    def __len__(self) -> int:
        return len(self._by_token)

    @property
    def waiting(self) -> int:
        """Sessions that wait for their clients."""
        return len(self._waiting)

    def claim(self, connection: ResumableConnection, token: bytes) -> bool:
        """Reserve a token for a new session. Return false if it is in use (RS02-RSM-22)."""
        if token in self._by_token:
            return False
        self._by_token[token] = connection
        connection.token = token
        return True

    def release(self, connection: ResumableConnection) -> None:
        """Forget a session that is over, and its token."""
        self._forget(connection)
        token, connection.token = connection.token, None
        if token is not None:
            del self._by_token[token]

    def close(self) -> None:
        """End the sessions that wait for their clients, and from now on each one that loses its client."""
        self._closed = True
        for waiting in list(self._waiting):
            waiting.engine.end(ConnectionClosed(STOPPED))

    def on_state(self, connection: ResumableConnection) -> None:
        """Act on a session that lost or got its transport, or is over. Above the bounds end those that wait longest."""
        self._forget(connection)
        if connection.is_over:
            self.release(connection)
        elif connection.is_suspended and self._closed:
            connection.engine.end(ConnectionClosed(STOPPED))
        elif connection.is_suspended:
            self._waiting[connection] = 0
            self._grown.add(connection)
            self._hold_bounds()

    def on_growth(self, connection: ResumableConnection) -> None:
        """Note that something was queued for an absent client. Checked soon, when the running task is done."""
        if connection in self._waiting:
            self._grown.add(connection)
            _soon(self._hold_bounds)

    def _hold_bounds(self) -> None:
        self._measure(self._grown)
        self._grown.clear()
        if self._kept_bytes > self.options.sessions_bytes:
            # What shrank says nothing of it, and must not cost anybody the session.
            self._measure(self._waiting)
        while len(self._waiting) > self.options.sessions or self._kept_bytes > self.options.sessions_bytes:
            # A client that was never let in must not push out one that was.
            oldest = next((waiting for waiting in self._waiting if not waiting.is_accepted), next(iter(self._waiting)))
            self._forget(oldest)
            oldest.engine.lose(ConnectionLost("too many sessions wait for their clients: this one waited longest"))

    def _measure(self, connections: Iterable[ResumableConnection]) -> None:
        """Look anew what these sessions keep, of which the sum is known."""
        waiting = self._waiting
        for connection in connections:
            kept = connection.kept_bytes
            self._kept_bytes += kept - waiting[connection]
            waiting[connection] = kept

    def _forget(self, connection: ResumableConnection) -> None:
        self._kept_bytes -= self._waiting.pop(connection, 0)
        self._grown.discard(connection)

    def resume(self, back: ResumeRequest, transport: Transport, rest: Sequence[bytes]) -> ResumedTransport:
        """Give a session its next transport. Raise ``RejectedResume``, alike for tokens never known and forgotten.

        A session that waits is dropped when its client can't go on (RS10-RSM-19). One that has a transport is left
        alone, because the RESUME may come from another client, and so is every session by a RESUME that was recorded.
        """
        connection = self._by_token.get(back.token)
        if connection is None:
            raise RejectedResume("unknown resume token")
        try:
            connection.check(back)
        except RejectedResume as refusal:
            if connection.is_suspended and not isinstance(refusal, ReplayedResume):
                connection.engine.lose(ConnectionLost(f"the client could not resume: {refusal}"))
            raise
        resumed = ResumedTransport(transport, rest)
        self._forget(connection)
        connection.adopt(back, resumed)
        return resumed


def _soon(function: Callable[[], None]) -> None:
    """Call the function once when the running task is done, however often this was called meanwhile."""
    trio.lowlevel.current_trio_token().run_sync_soon(function, idempotent=True)
