"""The sessions of a server that can be resumed: by token, within the bounds of what they keep, here or away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from rsocket_trio.connection.resumption import ResumedTransport, ResumeListener
from rsocket_trio.errors import ConnectionClosed, ConnectionLost, RejectedResume
from rsocket_trio.limits import charged
from rsocket_trio.mux.retransmission import RetainingOutbox, Shared
from rsocket_trio.rsocket.resume_positions import ReplayedResume, ResumeRequest
from rsocket_trio.rsocket.session import Session
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.transports.base import Transport

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


STREAM = 4096
"""Bytes that an open stream with its handler counts."""


class Resumable:
    """A server's connection whose client may come back, with ``token`` once it has one."""

    __slots__ = ("_engine", "_road", "_session", "token")

    def __init__(self, engine: Engine, session: Session, reconnector: ResumeListener) -> None:
        self.token: bytes | None = None
        self._engine = engine
        self._session = session
        self._road = reconnector

    @property
    def is_suspended(self) -> bool:
        """Whether it waits for its client, without a transport and with none to come."""
        return self._engine.is_suspended and not self._road.is_offered and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether it is not to be resumed any more, although its handlers may still finish."""
        return self._engine.ended is not None

    @property
    def kept_bytes(self) -> int:
        """Bytes that its client costs while it is away: what is to be sent (again), what was received and is held, not
        whole or not read, each entry with what holding it costs, and its open streams."""
        session, resumption = self._session, self._session.resume_handshake.positions
        outbox = session.outbox
        sent = outbox.charge + charged(outbox.reply_size, outbox.reply_frames)
        kept = resumption.store.size if resumption is not None else 0
        streams = session.open_streams()
        unread = sum([stream.owner._unread for stream in streams if stream.owner is not None])
        pieces = sum([stream.assembly.pieces for stream in streams if stream.assembly is not None])
        unfinished = charged(session.table.reassembling, pieces)
        received = session.held_size + unfinished + charged(self._engine.receive_budget.size, unread)
        return sent + kept + received + STREAM * len(session.table)

    @property
    def live_bytes(self) -> int:
        """What is known of what it keeps to send (again), while its client is connected."""
        return self._outbox.counted

    def share(self, shared: Shared) -> None:
        """Share a limit of what is kept to send (again) with the others whose clients are connected."""
        self._outbox.share(shared, self)

    def ask(self) -> None:
        """The client should say what it has, for a sender waits until less is kept."""
        if self._outbox.ask():
            self._engine.wake()

    def on_room(self) -> None:
        """Senders may go on."""
        self._engine.request_queue.on_written()

    @property
    def _outbox(self) -> RetainingOutbox:
        outbox = self._session.outbox
        assert isinstance(outbox, RetainingOutbox)
        return outbox

    @property
    def is_let_in(self) -> bool:
        """Whether the application has taken the client."""
        return self._session.is_open

    def check(self, back: ResumeRequest) -> None:
        """Raise ``RejectedResume`` for a client that can't go on from its positions."""
        self._session.resume_handshake.check(back)

    def adopt(self, back: ResumeRequest, resumed: ResumedTransport) -> None:
        """Go on over the transport that the client came back on; one that is still here is half-open (RS02-RSM-23).

        Raises ``RejectedResume`` where whoever heard that the old one is lost ended the session.
        """
        # Offered first: the session does not wait for a client that is here.
        self._road.offer(resumed)
        self._engine.replace_link(ConnectionLost("the client came back on another transport"))
        if self.is_over:
            self._road.let_go()
            raise RejectedResume("unknown resume token")
        self._session.resume_handshake.take(back, trio.current_time())

    def watch(self, grown: Callable[[Resumable], object]) -> None:
        """Have a function called whenever something is queued while it waits for its client."""
        self._engine.on_growth = partial(grown, self)

    def lose(self, error: ConnectionLost) -> None:
        """The session ends without its client."""
        self._engine.lose(error)

    def leave(self, closed: ConnectionClosed) -> None:
        """This side ends the session, whose client can't be told."""
        self._engine.end(closed)


class Sessions:
    """The sessions that may be resumed, one for each token in use."""

    def __init__(self, options: ResumeOptions) -> None:
        self.options = options
        self._by_token: dict[bytes, Resumable] = {}
        self._waiting: dict[Resumable, int] = {}
        self._grown: set[Resumable] = set()
        self._kept_bytes = 0
        self._closed = False
        self.live = Shared(options.live_bytes, _soon)

    def __len__(self) -> int:
        return len(self._by_token)

    @property
    def waiting(self) -> int:
        """Sessions that wait for their clients."""
        return len(self._waiting)

    def claim(self, connection: Resumable, token: bytes) -> bool:
        """Take a token for a new session; not one that is in use (RS02-RSM-22)."""
        if token in self._by_token:
            return False
        self._by_token[token] = connection
        connection.token = token
        return True

    def release(self, connection: Resumable) -> None:
        """The session is over: its token means nothing any more."""
        self._forget(connection)
        token, connection.token = connection.token, None
        if token is not None:
            del self._by_token[token]

    def close(self) -> None:
        """Nobody can come back any more: what waits for its client ends, and from now on whatever loses it."""
        self._closed = True
        for waiting in list(self._waiting):
            waiting.leave(self._no_way_back())

    def on_state(self, connection: Resumable) -> None:
        """A session lost its transport, got one, or is over. Above the bounds those that wait longest end."""
        self._forget(connection)
        if connection.is_over:
            self.release(connection)
        elif connection.is_suspended and self._closed:
            connection.leave(self._no_way_back())
        elif connection.is_suspended:
            self._waiting[connection] = 0
            self._grown.add(connection)
            self._hold_bounds()

    def on_growth(self, connection: Resumable) -> None:
        """Something was queued for a client that is not here. Looked at soon: whoever queued it is in the midst."""
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
            # Whoever was never let in must not push out anybody who was.
            oldest = next((one for one in self._waiting if not one.is_let_in), next(iter(self._waiting)))
            self._forget(oldest)
            oldest.lose(ConnectionLost("too many sessions wait for their clients: this one waited longest"))

    def _measure(self, connections: Iterable[Resumable]) -> None:
        """Look anew what these sessions keep, of which the sum is known."""
        waiting = self._waiting
        for connection in connections:
            kept = connection.kept_bytes
            self._kept_bytes += kept - waiting[connection]
            waiting[connection] = kept

    def _forget(self, connection: Resumable) -> None:
        """This session does not wait."""
        self._kept_bytes -= self._waiting.pop(connection, 0)
        self._grown.discard(connection)

    @staticmethod
    def _no_way_back() -> ConnectionClosed:
        return ConnectionClosed("the server stops, and its client is away")

    def resume(self, back: ResumeRequest, transport: Transport, rest: Sequence[bytes]) -> ResumedTransport:
        """Give a session its next transport. Raises ``RejectedResume``, alike for tokens never known and forgotten.

        A session that waits is dropped when its client can't go on (RS10-RSM-19). One that has a transport is left
        alone, for who asked may be somebody else, and so is every session by a RESUME that was recorded.
        """
        connection = self._by_token.get(back.token)
        if connection is None:
            raise RejectedResume("unknown resume token")
        try:
            connection.check(back)
        except RejectedResume as refusal:
            if connection.is_suspended and not isinstance(refusal, ReplayedResume):
                connection.lose(ConnectionLost(f"the client could not resume: {refusal}"))
            raise
        resumed = ResumedTransport(transport, rest)
        self._forget(connection)
        connection.adopt(back, resumed)
        return resumed


def _soon(function: Callable[[], None]) -> None:
    """Call this when those who are at work are done, however often it was asked for meanwhile."""
    trio.lowlevel.current_trio_token().run_sync_soon(function, idempotent=True)
