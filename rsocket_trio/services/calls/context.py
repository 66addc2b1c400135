"""The call that a handler serves or a requester makes, as handlers see it, and the interceptors round its life."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar, overload

import attrs
import trio

from rsocket_trio.connection.hooks import current_call_variable, current_connection_variable
from rsocket_trio.forms import CallObserver, Function, Kind, checked, function_name
from rsocket_trio.metadata.composite import Entry, decode_composite
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, TRACEPARENT, TRACESTATE
from rsocket_trio.metadata.tracing import Trace, decode_trace, sound_entries
from rsocket_trio.payload import Payload

UserT = TypeVar("UserT")

Outcome = Literal["running", "completed", "failed", "cancelled"]


class Call:
    """One request and its answers, on the side that serves it or on the side that makes it.

    ``route`` is the route on the wire, ``None`` without one, and ``pattern`` the one that an application wrote: of the
    handler, as it was registered (``orders.{number}``, ``**``), ``""`` for the handler of requests without a route, and
    ``None`` where no handler matches; at the requester that of the contract, ``None`` without one. ``parameters`` are
    those of the route, as text.

    ``interaction`` is the name of the decorator, such as ``"request_response"``; ``side`` is ``"server"`` for the
    responder and ``"client"`` for the requester, whichever of them opened the connection; ``connection`` carries the
    call.

    ``entries`` are the entries of the request's composite metadata. On the requester's side the list can be changed
    until the request is sent; the route is not in it.

    ``bytes_received`` and ``bytes_sent`` count data and metadata of this call's payloads, ``items_received`` and
    ``items_sent`` the payloads. ``outcome`` is ``"running"``, ``"completed"``, ``"failed"`` or ``"cancelled"``, and
    ``error`` the exception that the call failed with. Where there are no interceptors nothing is counted, and nobody
    learns how a call ended.

    ``deadline`` is when the caller of a served call stops waiting, as ``trio.current_time`` counts; infinity if it did
    not say. ``began_at`` is when it began, ``first_item_at`` when the first item or answer went, or came, to the
    requester, infinity before; and ``credit_seconds`` the time for which items waited for the peer's credit. ``user``
    is what ``Responder.authenticate`` made of the credentials, ``None`` without any.
    """

    pattern: str | None = None
    user: Any = None
    deadline: float = math.inf
    parameters: Mapping[str, str]
    outcome: Outcome = "running"
    error: BaseException | None = None
    items_received: int = 0
    bytes_received: int = 0
    items_sent: int = 0
    bytes_sent: int = 0
    began_at: float = math.inf
    first_item_at: float = math.inf
    credit_seconds: float = 0.0
    _request: Payload | None = None
    _mime: str | int = ""
    _travelling: tuple[Entry, ...] = ()
    """The entries of the trace; calls inside of the handler pass them on."""
    _entries: list[Entry] | None = None
    _trace: Trace | None = None

    def __init__(self, route: str | None, interaction: str, side: Literal["client", "server"], connection: Any) -> None:
        # What a call usually has stands in the class: this is made for every request.
        self.route = route
        self.interaction = interaction
        self.side = side
        self.connection = connection  # a ``Connection``, which stands above this module
        self.parameters = {}

    def __repr__(self) -> str:
        return f"<Call {self.interaction} {self.route!r} of the {self.side}, {self.outcome}>"

    @property
    def entries(self) -> list[Entry]:
        """Return the entries of the request's composite metadata. Raise ``RemoteProtocolError`` if it is malformed."""
        if self._entries is None:
            metadata = self._request.metadata if self._request is not None else None
            is_composite = metadata is not None and self._mime == COMPOSITE_METADATA
            # The number of entries was held to the connection's limit before there was a call.
            self._entries = decode_composite(metadata, limit=len(metadata)) if metadata and is_composite else []
        return self._entries

    @property
    def trace(self) -> Trace | None:
        """Return the trace context of the call, ``None`` if it carries none."""
        if self._request is None:
            return decode_trace(self.entries)  # which may change until the request is sent
        if self._trace is None and self._travelling:
            self._trace = decode_trace(self._travelling)
        return self._trace

    def _drop_entries(self) -> None:
        """Hold no entries: those of the request are malformed or too many."""
        self._entries = []

    def _passed_on(self, types: Iterable[str | int]) -> list[Entry]:
        """Return the entries of the trace that a call inside of the handler carries, beside those of ``types``.

        What is malformed is not passed on, and no ``tracestate`` to a ``traceparent`` of the caller's own.
        """
        own = {*types}
        if TRACEPARENT in own:
            own.add(TRACESTATE)
        return [entry for entry in sound_entries(self._travelling) if entry.mime not in own]

    def _count_received(self, items: int, size: int) -> None:
        if self.first_item_at == math.inf and self.side == "client":
            self.first_item_at = trio.current_time()
        self.items_received += items
        self.bytes_received += size

    def _count_sent(self, items: int, size: int) -> None:
        if self.first_item_at == math.inf and self.side == "server":
            self.first_item_at = trio.current_time()
        self.items_sent += items
        self.bytes_sent += size

    def _end(self, error: BaseException | None, *, cancelled: bool = False) -> None:
        """Note how the call ended: with ``error``, or if ``cancelled`` without an answer."""
        if error is not None and _is_cancellation(error):
            self.outcome = "cancelled"
            return
        if error is not None:
            self.error = error
        if self.error is not None:
            self.outcome = "failed"  # also where the reader of a stream handled the error
        else:
            self.outcome = "cancelled" if cancelled else "completed"


def current_call() -> Call:
    """Return the call that the running handler serves. Raise ``LookupError`` outside of a handler.

    It is there for typed handlers, and for all handlers where the responder has interceptors that not only hear of
    calls, or authenticates, or where the request carries a deadline or a trace.
    """
    call = current_call_variable.get(None)
    if isinstance(call, Call):
        return call
    raise LookupError(
        "current_call() works in handlers only: annotate a parameter of one of bytes, or give it an interceptor"
    )


@overload
def current_user(kind: type[UserT]) -> UserT: ...


@overload
def current_user(kind: object = None) -> Any: ...


def current_user(kind: Any = None) -> Any:
    """Return the user of the running handler: what ``Responder.authenticate`` made of the credentials of the request,
    or else of those of the SETUP; ``None`` if there were none.

    With ``kind``, a class or a union of classes, the user is one of that type: for the type checker, and at run time.
    Raise ``TypeError`` for a user of another type, and ``LookupError`` if there is none, and outside of a handler.
    """
    call = current_call_variable.get(None)
    if isinstance(call, Call):
        user = call.user
    else:
        connection = current_connection_variable.get(None)
        if connection is None:
            raise LookupError("current_user() works in handlers only")
        user = connection.user
    if kind is None or isinstance(user, kind):
        return user
    name = kind.__name__ if isinstance(kind, type) else str(kind)
    if user is None:
        raise LookupError(f"no user: current_user({name}) is for calls with credentials")
    raise TypeError(f"the user is of type {type(user).__name__}, not {name}")


ContextOf: TypeAlias = Callable[[Call], AbstractAsyncContextManager[object]]
"""A function that makes the async context manager round a call."""
Interceptor: TypeAlias = ContextOf | Callable[[Call], AsyncIterable[None]] | CallObserver
"""An interceptor of an application: such a function, an async generator function that yields once, or an observer."""


def as_interceptor(decorator: str, function: Function | CallObserver) -> ContextOf | CallObserver:
    """Return ``function`` as a function that makes an async context manager of a call, or an observer as it is.

    It is an async generator function that yields once, or makes one already. Raise ``TypeError``, naming ``decorator``,
    for another kind of function, also as the method of an observer.
    """
    if hasattr(function, "call_ended"):
        checked("call_ended", function.call_ended)
        return function
    handler = checked(decorator, function)
    if handler.kind is Kind.GENERATOR:
        return asynccontextmanager(handler.function)
    return function


def only_observe(interceptors: Iterable[object]) -> TypeGuard[tuple[CallObserver, ...]]:
    """Return whether all of the interceptors only hear of calls."""
    for interceptor in interceptors:  # noqa: SIM110 - a generator would cost every request three times as much
        if not hasattr(interceptor, "call_ended"):
            return False
    return True


@attrs.define(eq=False)
class Interception:
    """The interceptors round one call, as an async context manager: it enters and leaves them, the outermost first.

    ``call`` is noted to have ended when the block ends, before its interceptors go on behind their ``yield``. Where one
    of them raises, those outside of it see the call end with that.
    """

    call: Call
    _interceptors: Sequence[ContextOf | CallObserver]
    _entered: list[AbstractAsyncContextManager[object] | CallObserver] = attrs.field(factory=list, init=False)

    async def __aenter__(self) -> None:
        self.call.began_at = trio.current_time()
        try:
            for interceptor in self._interceptors:
                if hasattr(interceptor, "call_ended"):
                    self._entered.append(interceptor)
                    continue
                context = interceptor(self.call)
                # As ``isinstance`` of an abstract class finds out in four times as long.
                if not hasattr(context, "__aexit__"):
                    name, kind = function_name(interceptor), type(context).__name__
                    raise TypeError(f"interceptor {name} returned {kind}, not an async context manager")
                await context.__aenter__()
                self._entered.append(context)
        except BaseException as error:
            await self.leave(error)
            raise

    def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> Coroutine[object, None, None]:
        return self.leave(error)

    async def leave(self, error: BaseException | None, *, cancelled: bool = False) -> None:
        """Leave those that were entered with ``error``, or ``None`` if the call was completed or ``cancelled``.

        Raise what they raise in its place. Without an answer there is nothing to go on with: an error that an
        interceptor swallows is for the caller to raise.
        """
        raised = error
        self.call._end(raised, cancelled=cancelled)
        while self._entered:
            context = self._entered.pop()
            try:
                if hasattr(context, "call_ended"):
                    self.call.connection._engine.tell_ended(self.call, (context,))
                elif raised is None:
                    await context.__aexit__(None, None, None)
                else:
                    await context.__aexit__(type(raised), raised, raised.__traceback__)
            except BaseException as another:
                raised = another
                self.call._end(raised, cancelled=cancelled)
        try:
            if raised is not None and raised is not error:
                raise raised
        finally:
            del raised, error  # their tracebacks refer to this frame


def _is_cancellation(error: BaseException) -> bool:
    """Return whether an exception says only that the call was cancelled, maybe in several tasks of a nursery."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(trio.Cancelled)[1] is None
    return isinstance(error, trio.Cancelled | GeneratorExit)
