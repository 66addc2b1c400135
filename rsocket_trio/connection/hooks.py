"""Holds what a connection takes from the rooms above it: two hooks, settings of requests, types for annotations.

A request of bytes, text or a payload is sent and served without either hook. One is on the responder, for calls that
it serves: it is attached with the first handler that has types or a user, the first interceptor, credential or
deadline. One is on the connection, for requests that it makes: attached with the first that has any of these. What is
attached is ``services/calls``, which is loaded then.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import attrs

if TYPE_CHECKING:
    # The only module of this room that names what stands above it, for type checkers, and passes three names on.
    from rsocket_trio.codecs import Codec
    from rsocket_trio.connection.connection import Connection
    from rsocket_trio.connection.engine import Engine
    from rsocket_trio.errors import StreamError
    from rsocket_trio.forms import CallObserver, Function, Handler
    from rsocket_trio.metadata.authentication import Auth
    from rsocket_trio.metadata.composite import MetadataPair
    from rsocket_trio.metadata.routes import RequestMetadata
    from rsocket_trio.mux.stream_state import Interaction
    from rsocket_trio.payload import Payload
    from rsocket_trio.responder import Responder as Responder  # noqa: PLC0414
    from rsocket_trio.services.calls.client import ClientCall as ClientCall  # noqa: PLC0414
    from rsocket_trio.services.calls.client import OneAnswerCall
    from rsocket_trio.services.calls.context import Call as Call  # noqa: PLC0414
    from rsocket_trio.terms import Setup

T = TypeVar("T")
ServiceT = TypeVar("ServiceT")

current_connection_variable: contextvars.ContextVar[Connection] = contextvars.ContextVar("rsocket_trio.connection")
"""The connection of the request that the running handler serves."""
current_call_variable: contextvars.ContextVar[Call | None] = contextvars.ContextVar("rsocket_trio.call")
"""The call that the running handler serves; ``None`` or absent outside of handlers, and for one of bytes alone."""


class Exactly(Generic[T]):
    """Stands for ``T`` itself, not for what ``T`` inherits from: type checkers take it as invariant."""

    exactly: T


class Contract(Protocol[T]):
    """The type of a contract that has the methods of ``T``: the class ``T``, made by ``ServiceMeta``.

    ``type[T]`` would not do. It is that of any class that ``T`` inherits from, ``object`` among them, so that every
    object would implement every contract; and mypy passes no class that it takes for abstract.
    """

    def _is_contract_of(self) -> Exactly[T]: ...


@attrs.frozen
class CallTerms:
    """The settings of a connection for its own requests.

    ``codecs`` are for objects, those of the responder if ``None``; ``around`` are interceptors, the outermost first;
    with ``deadlines`` the time left travels; ``observers`` are all of ``around`` if they only hear of calls, and there
    are no deadlines.
    """

    codecs: tuple[Codec, ...] | None = None
    around: tuple[Function | CallObserver, ...] = ()
    deadlines: bool = False
    observers: tuple[CallObserver, ...] = ()


PLAIN: Final = CallTerms()


class ServedCalls(Protocol):
    """The hook on a responder: the functions of ``services/calls/served``."""

    def served(
        self,
        port: Engine,
        handler: Handler,
        request: Payload,
        metadata: RequestMetadata,
        refusal: StreamError | None = None,
        /,
    ) -> Handler: ...

    def unmatched(self, interaction: Interaction, /) -> Handler: ...

    def answer_payload(self, handler: Handler, request: Payload, setup: Setup, answer: object, /) -> Payload: ...

    def failed_call(
        self, connection: Connection, interaction: str, route: str | None, pattern: str | None, /
    ) -> Call: ...


class RequestCalls(Protocol):
    """The hook on a requester: the functions of ``services/calls/client``."""

    @property
    def ClientCall(self) -> type[ClientCall]: ...  # noqa: N802 - it is the class

    def one_answer_call(
        self,
        port: Engine,
        payload: object,
        route: str | None,
        auth: Auth | None,
        kind: object,
        metadata: Iterable[MetadataPair],
        /,
    ) -> OneAnswerCall: ...

    def object_request(self, port: Engine, payload: object, route: str | None, kind: object, /) -> Payload: ...

    def decoder(self, port: Engine, kind: object, /) -> Callable[[Payload], Any]: ...

    def remote_of(
        self, contract: Contract[ServiceT], requester: object, auth: Auth | None, metadata: Iterable[MetadataPair], /
    ) -> ServiceT: ...
