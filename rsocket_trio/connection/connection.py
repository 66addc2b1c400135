"""Connection: everything that a user asks of a peer."""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, Literal, overload

import trio

from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.faults import Faults
from rsocket_trio.connection.replies import Reply
from rsocket_trio.connection.resuming import Road, ServerRoad
from rsocket_trio.connection.sessions import Resumable
from rsocket_trio.connection.streams import Channel, Incoming, IncomingWithPushes
from rsocket_trio.connection.timers import Timers
from rsocket_trio.errors import ConnectionClosed, RSocketError
from rsocket_trio.metadata.mime import NO_MIME, mime_name
from rsocket_trio.metadata.routes import with_route
from rsocket_trio.mux.credit import checked_request_n
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.mux.session import Session
from rsocket_trio.payload import BytesLike, Payload, PayloadLike, as_bytes, as_payload
from rsocket_trio.responder import Responder
from rsocket_trio.rsocket.extension_terms import as_entries
from rsocket_trio.rsocket.extensions import Entry
from rsocket_trio.rsocket.session import Session as RSocketSession
from rsocket_trio.terms import MAX_REQUESTS, MAX_SECONDS, Lease, Setup
from rsocket_trio.transports.base import Handshake, Transport

GRACE = 10.0
"""Seconds that open streams get to finish when a connection drains."""

_current: contextvars.ContextVar[Connection] = contextvars.ContextVar("rsocket_trio.connection")


def current_connection() -> Connection:
    """The connection that the running handler's request came on. Raises ``LookupError`` outside of a handler."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("current_connection() works in handlers only") from None


class Connection:
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
        road: Road | None = None,
    ) -> None:
        self._state: SimpleNamespace | None = None
        self.setup = setup
        self.handshake = handshake
        self.granted: tuple[Entry, ...] = ()
        self._engine = Engine(self, session, responder if responder is not None else Responder(), road)

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
        return f"<Connection {session.name} {side}{peer}, {self.status}>"

    # Requests

    async def request_response(
        self, payload: PayloadLike = b"", *, route: str | None = None, entries: Iterable[object] = ()
    ) -> Payload:
        """Ask, and wait for the one answer. Being cancelled, by a deadline too, sends CANCEL.

        ``entries`` are extension entries of the request, in the extension draft.

        Raises ``ApplicationError``, ``Rejected``, ``Canceled`` or ``Invalid`` as the responder answered,
        ``ConnectionLost`` or ``ConnectionClosed`` when the connection is gone, ``Unsupported`` where the dialect has no
        such interaction. Waits for a permit where leases were agreed.
        """
        engine = self._engine
        request = as_payload(payload) if route is None else self._request(payload, route)
        extensions = as_entries(entries) if entries else ()
        # What Opening.open does, without a coroutine of its own for each request.
        await trio.lowlevel.checkpoint_if_cancelled()
        stream = engine.opening.at_once(Interaction.REQUEST_RESPONSE, request, None, extensions)
        if stream is None:
            stream = await engine.opening.in_turn(Interaction.REQUEST_RESPONSE, request, None, extensions)
        stream.owner = reply = Reply(trio.lowlevel.current_task(), engine, stream)
        answer: Payload = await trio.lowlevel.wait_task_rescheduled(reply.abort)
        return answer

    @overload
    def request_stream(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = 256,
        refill: bool = True,
        pushes: Literal[False] = False,
    ) -> Incoming: ...

    @overload
    def request_stream(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = 256,
        refill: bool = True,
        pushes: Literal[True],
    ) -> IncomingWithPushes: ...

    def request_stream(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = 256,
        refill: bool = True,
        pushes: bool = False,
    ) -> Incoming:
        """A stream of items, to be used under ``async with``.

        ``initial_request_n`` items may come before the reader takes one; credit is topped up at half, unless
        ``refill`` is false. Raises ``ValueError`` for a credit outside of 1 to 2^31-1. With ``pushes`` metadata that
        a peer of ReactiveSocket 0.0 pushes onto the stream comes between the items, as ``MetadataPush``; without it
        such metadata is dropped.
        """
        return self._incoming(Interaction.REQUEST_STREAM, payload, route, entries, initial_request_n, refill, pushes)

    @overload
    def request_subscription(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = 256,
        refill: bool = True,
        pushes: Literal[False] = False,
    ) -> Incoming: ...

    @overload
    def request_subscription(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = 256,
        refill: bool = True,
        pushes: Literal[True],
    ) -> IncomingWithPushes: ...

    def request_subscription(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = 256,
        refill: bool = True,
        pushes: bool = False,
    ) -> Incoming:
        """A stream that never completes (drafts 0.0 and 0.1), to be used as that of ``request_stream``."""
        kind = Interaction.REQUEST_SUBSCRIPTION
        return self._incoming(kind, payload, route, entries, initial_request_n, refill, pushes)

    def request_channel(
        self,
        payload: PayloadLike = b"",
        *,
        route: str | None = None,
        entries: Iterable[object] = (),
        initial_request_n: int = 256,
        refill: bool = True,
    ) -> Channel:
        """A channel, to be used under ``async with``; the payload opens it and is the handler's ``channel.request``."""
        checked_request_n(initial_request_n)
        request = self._request(payload, route)
        return Channel(
            *(self._engine, Interaction.REQUEST_CHANNEL, request, initial_request_n),
            refill=refill,
            entries=as_entries(entries),
        )

    async def fire_and_forget(
        self, payload: PayloadLike = b"", *, route: str | None = None, entries: Iterable[object] = ()
    ) -> None:
        """Send a request that is never answered. What was accepted is not lost by leaving the connection."""
        request = self._request(payload, route)
        extensions = as_entries(entries)
        await trio.lowlevel.checkpoint()
        await self._engine.opening.open(Interaction.FIRE_AND_FORGET, request, None, extensions)

    async def metadata_push(self, metadata: BytesLike, *, metadata_type: int = 0) -> None:
        """Send metadata that concerns the connection as a whole; its type is that of ReactiveSocket 0.0."""
        engine = self._engine
        content = as_bytes(metadata)
        await trio.lowlevel.checkpoint()
        await engine.opening.wait_for_room(len(content))
        engine.session.metadata_push(content, metadata_type)
        engine.wake()

    async def ping(self) -> float:
        """Seconds that a sign of life takes there and back.

        Answers match in order; their data is not checked. Raises ``Unsupported`` where the dialect has none. In
        Streamux a ping takes a request id, and waits while none is free.
        """
        engine = self._engine
        await trio.lowlevel.checkpoint()
        answered = trio.Event()
        await engine.opening.ping(answered)
        started = trio.current_time()
        engine.pings[answered] = None
        try:
            await answered.wait()
        finally:
            del engine.pings[answered]
        engine.check_open()
        return trio.current_time() - started

    async def send_extension(self, ext_type: int, body: BytesLike = b"", *, ignore: bool = True) -> None:
        """Send an EXT frame; a peer that does not know the type skips it, unless ``ignore`` is false."""
        engine = self._engine
        await trio.lowlevel.checkpoint()
        engine.check_open()
        engine.session.extension(ext_type, as_bytes(body), ignore=ignore)
        engine.wake()

    async def send_entries(self, entries: Iterable[object], *, ignore: bool = True) -> None:
        """Send extension entries that concern the connection, in the extension draft.

        A peer that can't read them skips them all, unless ``ignore`` is false. Raises ``Unsupported`` elsewhere.
        """
        engine = self._engine
        content = as_entries(entries)
        await trio.lowlevel.checkpoint()
        engine.check_open()
        engine.session.entries(content, ignore=ignore)
        engine.wake()

    # The connection itself

    async def drain(self, *, grace: float = GRACE, announce: bool = False) -> None:
        """Close in good order.

        New requests are answered with REJECTED, and own ones raise ``ConnectionClosed``; open streams get ``grace``
        seconds to finish, then they are cancelled; then CONNECTION_CLOSE is sent and the connection closed. With
        ``announce`` it is sent first, for peers that honour it.
        """
        engine = self._engine
        await trio.lowlevel.checkpoint()
        if engine.ended is not None:
            return
        engine.drain(announce=announce)
        with trio.move_on_after(grace):
            while not engine.session.is_quiet and engine.ended is None:
                await engine.changes.park()
        engine.leave(ConnectionClosed("the connection was drained by this side"), announce=not announce)

    async def wait_closed(self) -> RSocketError:
        """Wait until the connection is over, and return why: the error that every later call raises."""
        await trio.lowlevel.checkpoint()
        return await self._engine.wait_over()

    @property
    def unsent(self) -> int:
        """Bytes of requests and items that wait to be written. At 0 a ``ping`` is answered behind all that was sent."""
        return self._engine.session.outbox.size

    @property
    def dialect(self) -> str:
        """The name of the dialect that this connection speaks."""
        return self._engine.session.name

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
        return self._engine.session.can_resume

    def on_state(self, function: Callable[[str], object]) -> None:
        """Have a plain function called with each new ``status``: when the transport is lost, when the session goes on
        over another one, when the connection drains, when it is over."""
        engine = self._engine

        def tell() -> None:
            try:
                function(self.status)
            except Exception as error:
                engine.faults.of_handler(function, error)

        engine.on_state += (tell,)

    @property
    def lease(self) -> Lease | None:
        """What the peer's last lease still allows, to look at and not to act on; ``None`` without leases."""
        permits, now = self._engine.session.permits, trio.current_time()
        if permits is None:
            return None
        return Lease(min(permits.remaining(now), MAX_REQUESTS), min(permits.expires_in(now), MAX_SECONDS))

    @property
    def faults(self) -> Faults:
        """How often the peer or a handler failed, and what was dropped."""
        return self._engine.faults

    # What opens and serves connections

    def run(
        self,
        transport: Transport,
        *,
        setup_deadline: float = math.inf,
        first: Sequence[bytes] = (),
        timers: Timers | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Run the connection until it ends, whatever is cancelled around it: to be awaited at once.

        ``first`` are the frames that came on this transport already, ``timers`` those that many connections share.
        """
        engine = self._engine
        engine.clock.setup_deadline = setup_deadline
        context = contextvars.copy_context()
        context.run(_current.set, self)
        # Not awaited here: each coroutine on the way to a read costs every idle connection 250 bytes.
        return engine.run(transport, context, first, timers)

    def resumable(self, session: RSocketSession, road: ServerRoad) -> Resumable:
        """What a server asks of this connection when its client comes back."""
        return Resumable(self._engine, session, road)

    async def wait_for_answer(self) -> None:
        """Wait until the server has answered a SETUP that asked for an answer; raises its refusal."""
        if self._engine.session.awaits_answer:
            await self._engine.wait_for_answer()

    def leave(self) -> None:
        """End the connection: what is open is cancelled, what is queued still goes out."""
        # Who may resume has to be told that nobody will.
        session = self._engine.session
        announce = session.can_resume or session.gave_up_resuming
        self._engine.leave(ConnectionClosed("the connection was closed by this side"), announce=announce)

    def _incoming(
        self,
        interaction: Interaction,
        payload: PayloadLike,
        route: str | None,
        entries: Iterable[object],
        credit: int,
        refill: bool,
        pushes: bool,
    ) -> Incoming:
        checked_request_n(credit)
        kind = IncomingWithPushes if pushes else Incoming
        request = self._request(payload, route)
        return kind(self._engine, interaction, request, credit, refill=refill, entries=as_entries(entries))

    def _request(self, payload: PayloadLike, route: str | None) -> Payload:
        request = payload if type(payload) is Payload else as_payload(payload)
        if route is None:
            return request
        if not isinstance(route, str):
            raise TypeError(f"a route is a str, not {type(route).__name__}")
        self._engine.session.check_route()
        mime = self.setup.metadata_mime
        if request.metadata_mime not in NO_MIME and self._engine.session.has_mime_fields:
            mime = mime_name(request.metadata_mime)
        return Payload(
            request.data,
            with_route(route, request.metadata, mime),
            data_mime=request.data_mime,
            metadata_mime=request.metadata_mime,
        )
