"""Serves calls that need more than their bytes: types, parameters of routes, interceptors, users, deadlines."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

import attrs
import trio

from rsocket_trio.connection.hooks import current_call_variable
from rsocket_trio.connection.sender import TOO_LATE
from rsocket_trio.errors import Canceled, Invalid, RemoteProtocolError, StreamError
from rsocket_trio.forms import CallObserver, Function, Handler, Kind
from rsocket_trio.metadata.mime import AUTHENTICATION, DEADLINE, NO_MIME, TRACE_MIMES, mime_name
from rsocket_trio.metadata.routes import RequestMetadata, decode_deadline, without_entries
from rsocket_trio.mux.stream_state import FIRE_AND_FORGET, REQUEST_CHANNEL, Interaction
from rsocket_trio.payload import PAYLOAD_LIKE, Payload, PayloadLike, as_payload, with_metadata
from rsocket_trio.services.calls.access import authenticate_call, authorise
from rsocket_trio.services.calls.context import Call, Interception, only_observe
from rsocket_trio.services.codec_choice import answer_payload

if TYPE_CHECKING:
    from rsocket_trio.connection.connection import Connection
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.connection.streams import Channel, Outgoing

__all__ = ["answer_payload", "failed_call", "served", "unmatched"]  # the hook of a responder: ``ServedCalls``

T = TypeVar("T")


def served(
    port: Engine, handler: Handler, request: Payload, metadata: RequestMetadata, refusal: StreamError | None = None
) -> Handler:
    """Return the handler that serves this one call: ``handler`` inside of what the responder and the request ask for.

    ``request`` opened the call, and ``metadata`` is what it says of it. The handler itself is returned if nothing is to
    be added. A request that can't be served is refused inside of its interceptors, by ``refusal`` if that is given.
    Raise ``StreamError`` for one that has nothing round it.
    """
    responder = port.responder
    interceptors = (*responder._interceptors, *handler.around) if handler.around else responder._interceptors
    deadline, has_credentials, travelling = math.inf, False, metadata.travelling
    if travelling:
        for entry in travelling:
            if entry.mime == DEADLINE:
                try:
                    deadline = min(deadline, trio.current_time() + decode_deadline(entry.content))
                except RemoteProtocolError as error:
                    refusal = refusal or Invalid(f"metadata: {error}")
            elif entry.mime == AUTHENTICATION:
                has_credentials = responder._authenticator is not None
        travelling = tuple(entry for entry in travelling if entry.mime in TRACE_MIMES)
    needs_life = handler.requires is not None or has_credentials or deadline < math.inf
    observers: tuple[CallObserver, ...] = ()
    if interceptors and not needs_life:
        if refusal is None and only_observe(interceptors):
            observers = interceptors  # told by who runs the handler, with nothing round it
        else:
            needs_life = True
    if refusal is not None and not needs_life:
        raise refusal
    is_plain = handler.typed is None and handler.pattern is None and not travelling
    if not needs_life and is_plain and not observers:
        return handler
    connection, route, interaction = port.connection, metadata.route, handler.interaction
    mime = connection.setup.metadata_mime
    if request.metadata_mime not in NO_MIME:
        mime = mime_name(request.metadata_mime)
    call = Call(route, interaction, "server", connection)
    call._request, call._mime, call._travelling, call.deadline = request, mime, travelling, deadline
    call.pattern, call.user = handler.pattern_text, connection.user
    if handler.pattern is not None and route is not None:
        call.parameters = handler.pattern.match(route) or {}
    function, kind = handler.function, handler.kind
    if handler.typed is not None and refusal is None:
        try:
            function = handler.typed(call, kind, request, metadata)
        except Invalid as error:
            if not needs_life:
                raise
            refusal = error
    if refusal is not None:
        # For those who may make the call to hear, and for its interceptors.
        function = _raising(refusal.with_traceback(None))
    elif handler.typed is None and not needs_life and not is_plain:
        function = _with_call(call, function)
    call.items_received, call.bytes_received = 1, request.size
    counts = bool(interceptors) or deadline < math.inf
    if needs_life:
        life = ServedCall(call, function, kind, handler, interceptors, responder._authenticator, metadata, mime)
        body, kind = FORMS.get(interaction, (ServedCall._respond, Kind.ASYNC))
        function = partial(life._run, body)
    elif observers:
        call.began_at = port.read_at
    credit, refill, origin, codecs = handler.credit, handler.refill, handler.origin or handler.function, handler.codecs
    # By position: names would cost as much again, and evolving six times as much.
    return Handler(function, kind, credit, refill, interaction, handler.route, origin, call, counts, observers, codecs)


def unmatched(interaction: Interaction) -> Handler:
    """Return what stands for the handler of a request that no handler matches. A channel gets the least credit."""
    return Handler(no_handler, Kind.INLINE, credit=1, interaction=interaction.value)


def failed_call(connection: Connection, interaction: str, route: str | None, pattern: str | None) -> Call:
    """Return the argument of ``on_error`` functions for the call of a handler of bytes."""
    call = Call(route, interaction, "server", connection)
    call.pattern = pattern
    return call


def no_handler(request: object) -> None:
    """Stand in the log for the function that a request lacks, where its interceptors fail."""


def _raising(error: Exception) -> Function:
    def refuse(*args: object) -> NoReturn:
        raise error

    return refuse


def _with_call(call: Call, function: Function) -> Function:
    def serve(*args: object) -> object:
        current_call_variable.set(call)  # every request runs in a context of its own
        return function(*args)

    return serve


@attrs.define(eq=False)
class ServedCall:
    """The life of one call on the side that serves it: its deadline, its user, its interceptors, then its handler.

    The user is found first, so that interceptors know it; a refusal is raised inside of them. A handler whose deadline
    passes is cancelled, and its answers are not sent.
    """

    _call: Call
    _function: Function
    _kind: Kind
    _handler: Handler
    _interceptors: tuple[Function | CallObserver, ...]
    _authenticator: Handler | None
    _metadata: RequestMetadata
    _mime: str | int

    async def _respond(self, request: Payload) -> PayloadLike | None:
        answer = self._function(self._shown(request))
        if inspect.isawaitable(answer):
            answer = await answer
        if self._handler.interaction == FIRE_AND_FORGET:
            return None
        if isinstance(answer, PAYLOAD_LIKE):
            reply = as_payload(answer)
        else:
            reply = answer_payload(self._handler, request, self._call.connection.setup, answer)
        self._call._count_sent(1, reply.size)
        return reply

    async def _push(self, request: Payload, out: Outgoing) -> None:
        if self._kind is Kind.GENERATOR:
            await out._sending().serve(self._function(self._shown(request)), ends=False)
        else:
            await self._function(self._shown(request), out)

    async def _converse(self, channel: Channel) -> None:
        channel.request = self._shown(channel.request)
        await self._function(channel)

    def _shown(self, request: Payload) -> Payload:
        """Return the request as the handler gets it: without the credentials that ``authenticate`` takes."""
        stays = self._authenticator is None or self._handler.credentials or request.metadata is None
        if stays or not any(entry.mime == AUTHENTICATION for entry in self._metadata.travelling):
            return request
        return with_metadata(request, without_entries(AUTHENTICATION, request.metadata or b"", self._mime))

    async def _run(self, body: Callable[..., Awaitable[T]], *args: object) -> T:
        deadline = self._call.deadline
        token = current_call_variable.set(self._call)
        try:
            if deadline == math.inf:
                return await self._guarded(body, *args)
            return await within(deadline, partial(self._guarded, body, *args))
        finally:
            # Reset, as a worker goes on with the next call if its context is as it was.
            current_call_variable.reset(token)

    async def _guarded(self, body: Callable[..., Awaitable[T]], *args: object) -> T:
        refusal: StreamError | None = None
        if self._authenticator is not None:
            try:
                await authenticate_call(self._call, self._authenticator, self._metadata.travelling)
            except StreamError as error:
                refusal = error
        # Without interceptors the call notes no error: that would refer to this frame, and to the call.
        async with Interception(self._call, self._interceptors) if self._interceptors else nullcontext():
            if refusal is not None:
                raised, refusal = refusal, None
                try:
                    raise raised
                finally:
                    del raised  # its traceback refers to this frame
            if self._handler.requires is not None:
                await authorise(self._call, self._handler.requires)
            return await body(self, *args)


FORMS: Final[dict[str, tuple[Callable[..., Awaitable[object]], Kind]]] = {
    REQUEST_CHANNEL: (ServedCall._converse, Kind.ASYNC),
    Interaction.REQUEST_STREAM: (ServedCall._push, Kind.PUSH),
    Interaction.REQUEST_SUBSCRIPTION: (ServedCall._push, Kind.PUSH),
}
"""The functions that serve a call inside of its interceptors, by interaction; all others have one answer or none."""


async def within(deadline: float, serve: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``serve``. Raise ``Canceled`` if there is none in time: the caller has gone on then."""
    if trio.current_time() >= deadline:
        raise Canceled(TOO_LATE)
    with trio.CancelScope(deadline=deadline):
        result = await serve()
        if trio.current_time() < deadline:
            return result
    raise Canceled(TOO_LATE)
