"""The user's view of a connection: its requests, its state, how it is drained and closed."""

from __future__ import annotations

import contextvars
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

import trio

from rsocket_trio.connection.deadlines import Deadlines
from rsocket_trio.connection.engine import Engine
from rsocket_trio.connection.fault_log import FailureLog, FaultLog
from rsocket_trio.connection.hooks import (
    PLAIN,
    CallTerms,
    RequestCalls,
    current_call_variable,
    current_connection_variable,
)
from rsocket_trio.connection.request_queue import PAYLOAD_TYPES, needs_call, routed
from rsocket_trio.connection.streams import Channel, Incoming, IncomingWithPushes, PendingResponse
from rsocket_trio.errors import ConnectionClosed, RSocketError
from rsocket_trio.forms import Handler, Kind
from rsocket_trio.limits import DRAIN_TIMEOUT, checked_grace
from rsocket_trio.mux.session import Session
from rsocket_trio.mux.stream_state import (
    FIRE_AND_FORGET,
    REQUEST_CHANNEL,
    REQUEST_RESPONSE,
    Interaction,
    checked_request_n,
)
from rsocket_trio.payload import EMPTY, BytesLike, Payload, as_bytes
from rsocket_trio.signatures import completed, shows_options
from rsocket_trio.terms import MAX_REQUESTS, MAX_SECONDS, Lease, Setup
from rsocket_trio.tools.event_loop_checks import need_trio, no_trio
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.values import UnsaidNumber

PEER_CLOSE_TIMEOUT = 1.0
"""Seconds that a peer gets to close a connection after CONNECTION_CLOSE. Its requests are refused meanwhile."""

if TYPE_CHECKING:
    from rsocket_trio.connection.hooks import Contract, Responder, ServiceT
    from rsocket_trio.connection.link import RefusedClients
    from rsocket_trio.connection.typed_streams import Stream, TypedChannel
    from rsocket_trio.metadata.authentication import Auth
    from rsocket_trio.metadata.composite import MetadataPair
    from rsocket_trio.rsocket.frames import ExtensionEntry


def current_connection() -> Connection:
    """Return the connection that the running handler serves. Raise ``LookupError`` outside of handlers."""
    try:
        connection: Connection = current_connection_variable.get()
    except LookupError:
        raise LookupError("current_connection() works in handlers only") from None
    return connection


served_call = current_call_variable.get

INITIAL_REQUEST_N = UnsaidNumber(256)
"""Initial credit of a request in items, unless its caller or ``peer=`` sets another."""
R = TypeVar("R")
StreamT = TypeVar("StreamT")
PushesT = TypeVar("PushesT")
ChannelT = TypeVar("ChannelT")


class RequestTerms(TypedDict, total=False):
    """The arguments of every request."""

    route: Annotated[str | None, None]
    extension_entries: Annotated[Iterable[object], ()]
    auth: Annotated[Auth | None, None]
    metadata: Annotated[Iterable[MetadataPair], ()]


class ItemTerms(RequestTerms, total=False):
    """The arguments of every request for a stream."""

    initial_request_n: Annotated[int, INITIAL_REQUEST_N]
    refill: Annotated[bool, True]


class Requester(ABC, Generic[StreamT, PushesT, ChannelT]):
    """The requests of a connection, or of a client that takes a connection for each of them.

    The result of a request for a stream is used under ``async with``, which gives an ``Incoming``,
    ``IncomingWithPushes`` or ``Channel``.
    """

    _engine: Engine | None = None
    """The engine of all requests; ``None`` where each one takes a connection, which it stays with."""

    @overload
    async def request_response(
        self, payload: object = b"", *, reply: None = None, **options: Unpack[RequestTerms]
    ) -> Payload: ...

    @overload
    async def request_response(
        self, payload: object = b"", *, reply: type[R], **options: Unpack[RequestTerms]
    ) -> R: ...

    @overload
    async def request_response(
        self, payload: object = b"", *, reply: object, **options: Unpack[RequestTerms]
    ) -> Any: ...

    async def request_response(
        self,
        payload: object = b"",
        *,
        route: str | None = None,
        extension_entries: Iterable[object] = (),
        reply: object = None,
        auth: Auth | None = None,
        metadata: Iterable[MetadataPair] = (),
    ) -> Any:
        """Send ``payload`` as a request, and return its one answer. A cancellation, also by a deadline, sends CANCEL.

        ``payload`` is payload-like, or an object that the connection's codec encodes. ``route`` is written into the
        metadata. ``extension_entries`` are those of the request, in the extension draft. ``reply`` is the type to
        decode the answer as; without one it is a ``Payload``. ``auth`` are credentials for this request, or a function
        that gives them. ``metadata`` are pairs of a MIME type and bytes or text, entries of composite metadata between
        the route and the payload's own.

        Raise ``ApplicationError``, ``Rejected``, ``Canceled`` or ``Invalid`` as the responder answered,
        ``ConnectionLost`` or ``ConnectionClosed`` when the connection is over, ``Unsupported`` if the dialect has no
        such interaction, ``ValueError`` with the path for an answer that does not fit ``reply``, and for ``auth``
        and ``metadata`` without composite metadata. Waits for a permit if leases were agreed.
        """
        engine = self._engine
        if engine is None:
            engine = await self._ready()
        if (
            auth is not None
            or not engine.plain_requests
            or ((serving := served_call(None)) is not None and serving._travelling)
            or (reply is not None and isinstance(payload, Payload))
            or metadata
        ):
            calls = engine.request_calls or engine.attach_request_calls()
            call = calls.one_answer_call(engine, payload, route, auth, reply, metadata)
            extensions = checked_entries(extension_entries)
            need_trio()
            return await call.request(partial(self._sent, answered, engine, extensions, call.renewed), reply)
        if reply is not None or type(payload) not in PAYLOAD_TYPES:
            calls = engine.request_calls or engine.attach_request_calls()
            request = calls.object_request(engine, payload, route, reply)
        else:
            plain: Any = payload
            if route is not None:
                request = routed(engine, plain, route)
            else:
                request = plain if type(plain) is Payload else Payload(plain)
        extensions = checked_entries(extension_entries) if extension_entries else ()
        # The same as RequestQueue.open, without a coroutine of its own for each request.
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
        except RuntimeError:
            raise no_trio() from None
        try:
            stream = engine.request_queue.at_once(REQUEST_RESPONSE, request, None, extensions)
            if stream is None:
                stream = await engine.request_queue.in_turn(REQUEST_RESPONSE, request, None, extensions)
            stream.owner = pending = PendingResponse(trio.lowlevel.current_task(), engine, stream)
            answer = await trio.lowlevel.wait_task_rescheduled(pending.abort)
        except RSocketError as refusal:
            tried = [engine]
            following = await self._next_engine(refusal, tried)
            if following is None:
                raise
            engine = following
            answer = await self._sent(answered, engine, extensions, None, request, tried)
        if reply is None:
            return answer
        return (engine.request_calls or engine.attach_request_calls()).decoder(engine, reply)(answer)

    @overload
    def request_stream(
        self, payload: object = b"", *, pushes: Literal[False] = False, items: None = None, **options: Unpack[ItemTerms]
    ) -> StreamT: ...

    @overload
    def request_stream(
        self, payload: object = b"", *, pushes: Literal[True], items: None = None, **options: Unpack[ItemTerms]
    ) -> PushesT: ...

    @overload
    def request_stream(self, payload: object = b"", *, items: type[R], **options: Unpack[ItemTerms]) -> Stream[R]: ...

    @overload
    def request_stream(self, payload: object = b"", *, items: object, **options: Unpack[ItemTerms]) -> Stream[Any]: ...

    @shows_options
    def request_stream(
        self, payload: object = b"", *, pushes: bool = False, items: object = None, **options: Unpack[ItemTerms]
    ) -> Any:
        """Return the stream of items that ``payload`` requests, for use under ``async with``.

        ``route`` is written into the metadata. ``extension_entries`` are those of the request, in the extension
        draft. ``initial_request_n`` items (256, or the number of ``peer=``) may come before the reader takes one;
        credit is topped up at half, unless ``refill`` is false. With ``pushes`` metadata that a peer of ReactiveSocket
        0.0 pushes onto the stream comes between the items, as ``MetadataPush``; without it such metadata is dropped.

        An object as ``payload`` is encoded by the connection's codec. ``items`` is the type to decode items as: then
        the stream is a ``Stream`` of that type. ``auth`` and ``metadata`` are those of ``request_response``.

        Raise ``ValueError`` for a credit outside of 1 to 2^31-1, and for ``auth`` and ``metadata`` without composite
        metadata.
        """
        kind = IncomingWithPushes if pushes else Incoming
        terms = completed(Requester.request_stream, options)
        return self._opening(kind, Interaction.REQUEST_STREAM, payload, items, terms)

    @overload
    def request_subscription(
        self, payload: object = b"", *, pushes: Literal[False] = False, **options: Unpack[ItemTerms]
    ) -> StreamT: ...

    @overload
    def request_subscription(
        self, payload: object = b"", *, pushes: Literal[True], **options: Unpack[ItemTerms]
    ) -> PushesT: ...

    @shows_options
    def request_subscription(self, payload: object = b"", *, pushes: bool = False, **options: Unpack[ItemTerms]) -> Any:
        """Return a stream that never completes, of ReactiveSocket 0.0 and 0.1, for use under ``async with``.

        ``payload``, ``route``, ``extension_entries``, ``initial_request_n``, ``refill``, ``pushes``, ``auth`` and
        ``metadata`` are those of ``request_stream``.
        """
        kind = IncomingWithPushes if pushes else Incoming
        terms = completed(Requester.request_subscription, options)
        return self._open(kind, Interaction.REQUEST_SUBSCRIPTION, payload, None, terms)

    @overload
    def request_channel(
        self, payload: object = b"", *, items: None = None, **options: Unpack[ItemTerms]
    ) -> ChannelT: ...

    @overload
    def request_channel(
        self, payload: object = b"", *, items: type[R], **options: Unpack[ItemTerms]
    ) -> TypedChannel[R, Any]: ...

    @overload
    def request_channel(
        self, payload: object = b"", *, items: object, **options: Unpack[ItemTerms]
    ) -> TypedChannel[Any, Any]: ...

    @shows_options
    def request_channel(self, payload: object = b"", *, items: object = None, **options: Unpack[ItemTerms]) -> Any:
        """Return a channel for ``async with``; ``payload`` opens it and is the handler's ``channel.request``.

        ``route``, ``extension_entries``, ``initial_request_n``, ``refill``, ``auth`` and ``metadata`` are those of
        ``request_stream``. With ``items``, the type to decode items as, the channel is a ``TypedChannel``, which sends
        objects.
        """
        terms = completed(Requester.request_channel, options)
        return self._opening(Channel, REQUEST_CHANNEL, payload, items, terms)

    def _opening(
        self, kind: type[Incoming], interaction: Interaction, payload: object, items: object, terms: ItemTerms
    ) -> Any:
        """Return a new stream or channel for use under ``async with``, of objects if ``items`` is their type."""
        stream = self._open(kind, interaction, payload, items, terms)
        if items is None:
            return stream
        # Imported here, so that programs of bytes do not load it.
        from rsocket_trio.connection.typed_streams import Stream, TypedChannel

        return (TypedChannel[Any, Any] if kind is Channel else Stream[Any])(None, items, opening=stream)

    async def fire_and_forget(
        self,
        payload: object = b"",
        *,
        route: str | None = None,
        extension_entries: Iterable[object] = (),
        auth: Auth | None = None,
        metadata: Iterable[MetadataPair] = (),
    ) -> None:
        """Send ``payload`` without an answer. An accepted request is still sent when the connection is left.

        ``payload``, ``route``, ``extension_entries``, ``auth`` and ``metadata`` are those of ``request_response``.
        """
        need_trio()
        engine = self._engine or await self._ready()
        extensions = checked_entries(extension_entries)
        if needs_call(engine, payload, None, auth, metadata):
            calls = engine.request_calls or engine.attach_request_calls()
            call = calls.ClientCall(engine, FIRE_AND_FORGET, payload, route, auth, None, metadata)
            await trio.lowlevel.checkpoint()
            await call.request(partial(self._sent, opened, engine, extensions, call.renewed))
            return
        request = routed(engine, payload, route)
        await trio.lowlevel.checkpoint()
        await self._sent(opened, engine, extensions, None, request)

    async def metadata_push(self, metadata: BytesLike, *, metadata_type: int = 0) -> None:
        """Send ``metadata`` of the connection as a whole; ``metadata_type`` is the byte of ReactiveSocket 0.0."""
        content = as_bytes(metadata)
        need_trio()
        engine = self._engine or await self._ready()
        await trio.lowlevel.checkpoint()

        async def push(engine: Engine, *request: object) -> None:
            await engine.request_queue.wait_for_room(len(content))
            engine.session.metadata_push(content, metadata_type)
            engine.wake()

        await self._sent(push, engine, (), None, EMPTY)

    async def ping(self) -> float:
        """Send a ping, and return its round trip time in seconds.

        Answers match in order; their data is not checked. Raise ``Unsupported`` if the dialect has no ping. In
        Streamux a ping takes a request id, and waits while none is free.
        """
        need_trio()
        engine = self._engine or await self._ready()
        await trio.lowlevel.checkpoint()
        answered = trio.Event()
        await engine.request_queue.ping(answered)
        started = trio.current_time()
        engine.pings[answered] = None
        try:
            await answered.wait()
        finally:
            del engine.pings[answered]
        engine.check_open()
        return trio.current_time() - started

    def remote(
        self, contract: Contract[ServiceT], *, auth: Auth | None = None, metadata: Iterable[MetadataPair] = ()
    ) -> ServiceT:
        """Return an object with the methods of ``contract``, a ``Service``; each call of one is a request.

        ``auth`` are credentials for each of its requests, or a function that gives them, and ``metadata`` entries of
        each, as those of ``request_response``. Raise ``TypeError`` for a class that is no contract.
        """
        return self._calls().remote_of(contract, self, auth, metadata)

    async def _sent(
        self,
        send: Callable[[Engine, tuple[ExtensionEntry, ...], Callable[[], Payload] | None, Payload], Awaitable[R]],
        engine: Engine,
        entries: tuple[ExtensionEntry, ...],
        renewed: Callable[[], Payload] | None,
        request: Payload,
        tried: Sequence[Engine] = (),
    ) -> R:
        """Return the result of ``send`` over ``engine``, or over the next one if this one certainly did not process it.

        ``renewed`` returns the request as it is to be sent after a wait; ``tried`` are engines that refused it before.
        """
        refused = [*tried]
        while True:
            try:
                return await send(engine, entries, renewed, request)
            except RSocketError as refusal:
                refused.append(engine)
                following = await self._next_engine(refusal, refused)
                if following is None:
                    raise
                engine, request = following, request if renewed is None else renewed()

    @abstractmethod
    def _usable(self) -> Engine | None:
        """Return the engine that a new request goes to at once, ``None`` if it has to wait for one."""

    async def _next_engine(self, refusal: RSocketError, tried: Sequence[Engine]) -> Engine | None:
        """Return the engine that a request is sent to after an error, ``None`` if it ends with that error.

        ``tried`` are the engines that it was sent to, the last one behind the others.
        """
        return None

    @abstractmethod
    def _calls(self) -> RequestCalls:
        """Return the hook for requests that need more than their bytes."""

    @abstractmethod
    async def _ready(self) -> Engine:
        """Return the engine of the connection for a new request. Nothing may wait after it was found."""

    @abstractmethod
    def _open(
        self, kind: type[Incoming], interaction: Interaction, payload: object, items: object, terms: ItemTerms
    ) -> Any:
        """Return a new stream for use under ``async with``; ``new_stream`` makes it."""


T = TypeVar("T", bound=Incoming)


def new_stream(
    engine: Engine, kind: type[T], interaction: Interaction, payload: object, items: object, terms: ItemTerms
) -> T:
    """Return a stream of a connection, which its block opens. Raise ``ValueError`` for an impossible credit."""
    credit, refill, route = terms["initial_request_n"], terms["refill"], terms["route"]
    if type(credit) is UnsaidNumber:
        credit = engine.session.dialect.initial_request_n
    else:
        credit = checked_request_n(credit)
    extensions = checked_entries(terms["extension_entries"])
    auth, metadata = terms["auth"], terms["metadata"]
    if needs_call(engine, payload, items, auth, metadata):
        calls = engine.request_calls or engine.attach_request_calls()
        life = calls.ClientCall(engine, interaction, payload, route, auth, items, metadata)
        return kind(engine, interaction, EMPTY, credit, refill=refill, entries=extensions, life=life)
    return kind(engine, interaction, routed(engine, payload, route), credit, refill=refill, entries=extensions)


async def opened(
    engine: Engine, entries: tuple[ExtensionEntry, ...], renewed: Callable[[], Payload] | None, request: Payload
) -> None:
    """Send a request without an answer that is ready, ``renewed`` if it had to wait."""
    await engine.request_queue.open(FIRE_AND_FORGET, request, None, entries, renewed)


async def answered(
    engine: Engine, entries: tuple[ExtensionEntry, ...], renewed: Callable[[], Payload] | None, request: Payload
) -> Payload:
    """Send a request that is ready, ``renewed`` if it had to wait, and return its one answer."""
    stream = await engine.request_queue.open(REQUEST_RESPONSE, request, None, entries, renewed)
    stream.owner = pending = PendingResponse(trio.lowlevel.current_task(), engine, stream)
    answer: Payload = await trio.lowlevel.wait_task_rescheduled(pending.abort)
    return answer


def checked_entries(entries: Iterable[object]) -> tuple[ExtensionEntry, ...]:
    """Return extension entries as the session takes them. Raise ``TypeError`` for what is none."""
    if entries == ():
        return ()
    # Imported here, so that programs without the extension draft do not load it.
    from rsocket_trio.rsocket.extensions.terms import as_entries

    return as_entries(entries)


class Connection(Requester[Incoming, IncomingWithPushes, Channel]):
    """One connection to a peer, whichever side opened it. Both sides can request and respond at the same time.

    ``state`` is a namespace for the application: a setup handler can keep its findings there. ``setup`` is the SETUP of
    the client, ``handshake`` holds the facts of the transport. ``granted`` are the extension entries that a server of
    the extension draft granted this client.
    """

    _engine: Engine
    user: Any = None
    """The user that ``Responder.authenticate`` found for the credentials of the SETUP, or ``None``."""

    def __init__(
        self,
        session: Session,
        responder: Responder,
        setup: Setup,
        handshake: Handshake,
        failure_log: FailureLog | None = None,
        calls: CallTerms = PLAIN,
    ) -> None:
        self._state: SimpleNamespace | None = None
        self.setup = setup
        self.handshake = handshake
        self.granted: tuple[ExtensionEntry, ...] = ()
        self._engine = Engine(self, session, responder, failure_log, calls)

    @property
    def state(self) -> SimpleNamespace:
        """Return the namespace of the application."""
        if self._state is None:
            self._state = SimpleNamespace()
        return self._state

    def __repr__(self) -> str:
        session = self._engine.session
        side = "client" if session.client else "server"
        peer = f" {self.handshake.transport} {self.handshake.peer_address}".rstrip()
        return f"<Connection {session.dialect.name} {side}{peer}, {self.status}>"

    async def send_extension(self, ext_type: int, body: BytesLike = b"", *, ignore: bool = True) -> None:
        """Send an EXT frame of type ``ext_type`` with ``body``. With ``ignore`` peers that do not know it skip it."""
        engine = await self._checked_open()
        engine.session.extension(ext_type, as_bytes(body), ignore=ignore)
        engine.wake()

    async def send_entries(self, entries: Iterable[object], *, ignore: bool = True) -> None:
        """Send extension ``entries`` that concern the connection, in the extension draft.

        A peer that cannot read them skips all, unless ``ignore`` is false. Raise ``Unsupported`` in another dialect.
        """
        content = checked_entries(entries)
        engine = await self._checked_open()
        engine.session.entries(content, ignore=ignore)
        engine.wake()

    async def _checked_open(self) -> Engine:
        need_trio()
        await trio.lowlevel.checkpoint()
        self._engine.check_open()
        return self._engine

    def _calls(self) -> RequestCalls:
        return self._engine.request_calls or self._engine.attach_request_calls()

    def _usable(self) -> Engine:
        return self._engine

    async def _ready(self) -> Engine:
        return self._engine

    def _open(self, kind: type[T], interaction: Interaction, payload: object, items: object, terms: ItemTerms) -> T:
        return new_stream(self._engine, kind, interaction, payload, items, terms)

    # The connection itself

    async def drain(self, *, grace: float = DRAIN_TIMEOUT, announce: bool = False) -> None:
        """Close in good order.

        The peer is told to send no new requests. Those that come all the same are answered with REJECTED, unless they
        expect no answer, and own ones raise ``ConnectionClosed``. Open streams get ``grace``
        seconds to finish, then they are cancelled. Then CONNECTION_CLOSE is sent. The peer closes the connection, and
        gets answers to requests that it sent before; after a second this side closes it. With ``announce``
        CONNECTION_CLOSE is sent first, for peers that honour it.
        """
        need_trio()
        checked_grace(grace)
        engine = self._engine
        await trio.lowlevel.checkpoint()
        if engine.ended is not None:
            return
        engine.drain(announce=announce)
        with trio.move_on_after(grace):
            await engine.wait_quiet()
        closed = ConnectionClosed("the connection was drained by this side")
        if engine.announce_end(closed):
            with trio.move_on_after(PEER_CLOSE_TIMEOUT):
                await engine.wait_over()
        engine.close(closed)

    async def wait_closed(self) -> RSocketError:
        """Wait for the end of the connection, and return the error that every later call raises."""
        need_trio()
        await trio.lowlevel.checkpoint()
        return await self._engine.wait_over()

    @property
    def unsent(self) -> int:
        """Return the bytes that wait to be written. At 0 a returned ``ping`` shows that the peer read all."""
        return self._engine.session.outbox.size

    @property
    def dialect(self) -> str:
        """Return the name of the dialect."""
        return self._engine.session.dialect.name

    @property
    def status(self) -> str:
        """Return ``open``, ``suspended`` while a session has no transport, ``draining`` or ``closed``.

        A connection drains from the first sign of either side on, with or without a transport.
        """
        if self._engine.ended is not None:
            return "closed"
        if self._engine.session.draining:
            return "draining"
        return "suspended" if self._engine.is_suspended else "open"

    @property
    def can_resume(self) -> bool:
        """Return whether the connection outlives the loss of its transport."""
        return self._engine.session.can_resume

    def on_state(self, function: Callable[[str], object]) -> None:
        """Call a plain ``function`` with each new ``status``.

        It is called when the transport is lost, when the session goes on over another one, when the connection drains,
        and at the end.
        """
        engine, handler = self._engine, Handler(function, Kind.INLINE, interaction="on_state")

        def tell() -> None:
            try:
                function(self.status)
            except Exception as error:
                engine.faults.handler_failed(handler, error)

        engine.on_state += (tell,)

    @property
    def lease(self) -> Lease | None:
        """Return the rest of the peer's last lease, to look at and not to act on; ``None`` without leases."""
        permits, now = self._engine.session.permits, trio.current_time()
        if permits is None:
            return None
        return Lease(min(permits.remaining(now), MAX_REQUESTS), min(permits.expires_in(now), MAX_SECONDS))

    @property
    def faults(self) -> FaultLog:
        """Return the counts of faults of the peer, failures of handlers, and dropped requests."""
        return self._engine.faults

    # What opens and serves connections

    def _run(
        self,
        transport: Transport,
        *,
        setup_deadline: float = math.inf,
        first: Sequence[bytes] = (),
        deadlines: Deadlines | None = None,
        refused_clients: RefusedClients | None = None,
    ) -> Coroutine[object, object, None]:
        """Run the connection until it ends, whatever is cancelled around it: to be awaited at once.

        ``first`` are the frames that came on this transport already. Many connections share ``deadlines`` and
        ``refused_clients``.
        """
        engine = self._engine
        engine.setup_deadline = setup_deadline
        context = contextvars.copy_context()
        context.run(current_connection_variable.set, self)
        if current_call_variable in context:
            # Opened inside of a handler: the handlers of this connection serve neither that call nor its user.
            context.run(current_call_variable.set, None)
        # Not awaited here: each coroutine on the way to a read costs every idle connection 250 bytes.
        return engine.run(transport, context, first, deadlines, refused_clients)

    def _leave(self) -> None:
        """End the connection: cancel open streams, send the queued frames, then close."""
        # A peer that may resume the session has to know that this side will not.
        session = self._engine.session
        announce = session.can_resume
        self._engine.close(ConnectionClosed("the connection was closed by this side"), announce=announce)
