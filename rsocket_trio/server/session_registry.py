"""Resumable sessions of a server by token; ends the oldest above the bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import trio

from rsocket_trio.connection.resumption import ResumableConnection, ResumedTransport
from rsocket_trio.errors import ConnectionClosed, ConnectionLost, RejectedResume
from rsocket_trio.mux.retransmission import Shared
from rsocket_trio.rsocket.resume_positions import ReplayedResume, ResumeRequest
from rsocket_trio.terms import ResumeOptions
from rsocket_trio.transports.base import Transport


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
            waiting.leave(self._stopped())

    def on_state(self, connection: ResumableConnection) -> None:
        """Act on a session that lost or got its transport, or is over. Above the bounds end those that wait longest."""
        self._forget(connection)
        if connection.is_over:
            self.release(connection)
        elif connection.is_suspended and self._closed:
            connection.leave(self._stopped())
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
            oldest = next((one for one in self._waiting if not one.is_accepted), next(iter(self._waiting)))
            self._forget(oldest)
            oldest.lose(ConnectionLost("too many sessions wait for their clients: this one waited longest"))

    def _measure(self, connections: Iterable[ResumableConnection]) -> None:
        """Look anew what these sessions keep, of which the sum is known."""
        waiting = self._waiting
        for connection in connections:
            kept = connection.kept_bytes
            self._kept_bytes += kept - waiting[connection]
            waiting[connection] = kept

    def _forget(self, connection: ResumableConnection) -> None:
        """Remove a session from those that wait."""
        self._kept_bytes -= self._waiting.pop(connection, 0)
        self._grown.discard(connection)

    @staticmethod
    def _stopped() -> ConnectionClosed:
        return ConnectionClosed("the server stops, and its client is away")

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
                connection.lose(ConnectionLost(f"the client could not resume: {refusal}"))
            raise
        resumed = ResumedTransport(transport, rest)
        self._forget(connection)
        connection.adopt(back, resumed)
        return resumed


def _soon(function: Callable[[], None]) -> None:
    """Call the function once when the running task is done, however often this was called meanwhile."""
    trio.lowlevel.current_trio_token().run_sync_soon(function, idempotent=True)
