"""Connection: how a user sees the link to a peer, and when it ends."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import trio

from rsocket_trio.connection.deadlines import Deadlines
from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.fault_log import FailureLog, FaultLog
from rsocket_trio.connection.loops import need_trio
from rsocket_trio.connection.requester import Requester
from rsocket_trio.connection.resumption import Reconnector, ResumableConnection, ResumeListener
from rsocket_trio.errors import ConnectionClosed, RSocketError
from rsocket_trio.mux.session import Session
from rsocket_trio.responder import Responder
from rsocket_trio.rsocket.extensions.blocks import Entry
from rsocket_trio.rsocket.session import Session as RSocketSession
from rsocket_trio.terms import MAX_REQUESTS, MAX_SECONDS, Lease, Setup
from rsocket_trio.transports.base import Handshake, Transport

DRAIN_TIMEOUT = 10.0
"""Seconds that open streams get to finish when a connection drains."""

PEER_CLOSE_TIMEOUT = 1.0
"""Seconds that a peer gets to close a connection after CONNECTION_CLOSE. What it asks meanwhile is refused."""

_current: contextvars.ContextVar[Connection] = contextvars.ContextVar("rsocket_trio.connection")


def current_connection() -> Connection:
    """The connection that the running handler's request came on. Raises ``LookupError`` outside of a handler."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("current_connection() works in handlers only") from None


@attrs.frozen(kw_only=True)
class Call:
    """What a handler was called for: ``route`` of ``interaction`` on ``connection``.

    ``interaction`` is the name of the decorator, as in ``"request_response"``; ``route`` is ``None`` for the handler
    without a route, and for what has no routes, as ``"setup"``.
    """

    route: str | None
    interaction: str
    connection: Connection


class Connection(Requester):
    """One connection to a peer, whichever side opened it. Both sides can request and respond at the same time.

    ``state`` is the application's own, for what a setup handler learns and handlers want to know. ``setup`` is what
    the client said, ``handshake`` what the transport knows of the peer. ``granted`` are the extension entries that a
    server of the extension draft granted this client.
    """

    def __init__(
        self,
        session: Session,
        responder: Responder | None,
        setup: Setup,
        handshake: Handshake,
        reconnector: Reconnector | None = None,
        failure_log: FailureLog | None = None,
    ) -> None:
        self._state: SimpleNamespace | None = None
        self.setup = setup
        self.handshake = handshake
        self.granted: tuple[Entry, ...] = ()
        self._engine = Engine(
            self, session, responder if responder is not None else Responder(), reconnector, failure_log
        )

    @property
    def state(self) -> SimpleNamespace:
        """The application's own."""
        if self._state is None:
            self._state = SimpleNamespace()
        return self._state

    def __repr__(self) -> str:
        session = self._engine.session
        side = "client" if session.client else "server"
        peer = f" {self.handshake.transport} {self.handshake.peer}".rstrip()
        return f"<Connection {session.dialect.name} {side}{peer}, {self.status}>"

    # The connection itself

    async def drain(self, *, grace: float = DRAIN_TIMEOUT, announce: bool = False) -> None:
        """Close in good order.

        New requests are answered with REJECTED, and own ones raise ``ConnectionClosed``; open streams get ``grace``
        seconds to finish, then they are cancelled; then CONNECTION_CLOSE is sent and the connection closed: by the
        peer, which may have asked for something before it heard of that and is still answered, or after a second. With
        ``announce`` it is sent first, for peers that honour it.
        """
        need_trio()
        engine = self._engine
        await trio.lowlevel.checkpoint()
        if engine.ended is not None:
            return
        engine.drain(announce=announce)
        with trio.move_on_after(grace):
            while not engine.session.is_quiet and engine.ended is None:
                await engine.changes.park()
        closed = ConnectionClosed("the connection was drained by this side")
        if engine.announce_end(closed):
            with trio.move_on_after(PEER_CLOSE_TIMEOUT):
                await engine.wait_over()
        engine.close(closed)

    async def wait_closed(self) -> RSocketError:
        """Wait until the connection is over, and return why: the error that every later call raises."""
        need_trio()
        await trio.lowlevel.checkpoint()
        return await self._engine.wait_over()

    @property
    def unsent(self) -> int:
        """Bytes of requests and items that wait to be written. At 0 a ``ping`` is answered behind all that was sent."""
        return self._engine.session.outbox.size

    @property
    def dialect(self) -> str:
        """The name of the dialect that this connection speaks."""
        return self._engine.session.dialect.name

    @property
    def status(self) -> str:
        """``open``, ``suspended`` while a session has no transport, ``draining`` or ``closed``."""
        if self._engine.ended is not None:
            return "closed"
        if self._engine.is_suspended:
            return "suspended"
        return "draining" if self._engine.session.draining else "open"

    @property
    def can_resume(self) -> bool:
        """Whether the loss of the transport is not the end: resumption was agreed, and is still promised."""
        resumable = self._engine.session.resumable
        return resumable is not None and resumable.can_resume

    def on_state(self, function: Callable[[str], object]) -> None:
        """Have a plain function called with each new ``status``: when the transport is lost, when the session goes on
        over another one, when the connection drains, when it is over."""
        engine = self._engine

        def tell() -> None:
            try:
                function(self.status)
            except Exception as error:
                engine.faults.state_function_failed(function, error)

        engine.on_state += (tell,)

    @property
    def lease(self) -> Lease | None:
        """What the peer's last lease still allows, to look at and not to act on; ``None`` without leases."""
        leasing, now = self._engine.session.leasing, trio.current_time()
        permits = leasing.permits if leasing is not None else None
        if permits is None:
            return None
        return Lease(min(permits.remaining(now), MAX_REQUESTS), min(permits.expires_in(now), MAX_SECONDS))

    @property
    def faults(self) -> FaultLog:
        """How often the peer or a handler failed, and what was dropped."""
        return self._engine.faults

    def failed_call(self, interaction: str, route: str | None) -> Call:
        """Return what the functions of ``on_error`` are told of a call on this connection."""
        return Call(route=route, interaction=interaction, connection=self)

    # What opens and serves connections

    def run(
        self,
        transport: Transport,
        *,
        setup_deadline: float = math.inf,
        first: Sequence[bytes] = (),
        deadlines: Deadlines | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Run the connection until it ends, whatever is cancelled around it: to be awaited at once.

        ``first`` are the frames that came on this transport already, ``deadlines`` those that many connections share.
        """
        engine = self._engine
        engine.setup_deadline = setup_deadline
        context = contextvars.copy_context()
        context.run(_current.set, self)
        # Not awaited here: each coroutine on the way to a read costs every idle connection 250 bytes.
        return engine.run(transport, context, first, deadlines)

    def resumable(self, session: RSocketSession, reconnector: ResumeListener) -> ResumableConnection:
        """What a server asks of this connection when its client comes back."""
        return ResumableConnection(self._engine, session, reconnector)

    async def wait_for_answer(self) -> None:
        """Wait until the server has answered a SETUP that asked for an answer; raises its refusal."""
        if self._engine.session.awaits_answer:
            await self._engine.wait_for_answer()

    def leave(self) -> None:
        """End the connection: what is open is cancelled, what is queued still goes out."""
        # Who may resume has to be told that nobody will.
        resumable = self._engine.session.resumable
        announce = resumable is not None and (resumable.can_resume or resumable.gave_up_resuming)
        self._engine.close(ConnectionClosed("the connection was closed by this side"), announce=announce)
