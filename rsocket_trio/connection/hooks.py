"""Declares what a connection asks of the rooms above it: the handlers of its responder, and two hooks.

A request of bytes, text or a payload is sent and served without either hook. One is on the responder, for calls that
it serves: it is attached with the first handler that has types or a user, the first interceptor, credential or
deadline. One is on the connection, for requests that it makes: attached with the first that has any of these. What is
attached is ``services/calls``, which is loaded then.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import attrs

from rsocket_trio.connection.streams import StreamLife

if TYPE_CHECKING:
    from rsocket_trio.codecs import Codec
    from rsocket_trio.errors import StreamError
    from rsocket_trio.forms import Function, Handler
    from rsocket_trio.metadata.authentication import Auth
    from rsocket_trio.metadata.composite import MetadataPair
    from rsocket_trio.metadata.routes import RequestMetadata
    from rsocket_trio.mux.session import Session
    from rsocket_trio.mux.stream_state import Interaction
    from rsocket_trio.payload import Payload
    from rsocket_trio.rsocket.frames import ExtensionEntry
    from rsocket_trio.terms import Setup
    from rsocket_trio.transports.base import Handshake

T = TypeVar("T")
ServiceT = TypeVar("ServiceT")


class CallInContext(Protocol):
    """The call that a handler serves, as requests see it that are made inside of the handler."""

    @property
    def _travelling(self) -> Sequence[object]:
        """The entries of its trace, which such requests pass on."""
        ...


current_connection_variable: contextvars.ContextVar[Any] = contextvars.ContextVar("rsocket_trio.connection")
"""The connection of the request that the running handler serves."""
current_call_variable: contextvars.ContextVar[CallInContext | None] = contextvars.ContextVar("rsocket_trio.call")
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
    with ``deadlines`` the time left travels.
    """

    codecs: tuple[Codec, ...] | None = None
    around: tuple[Callable[[Any], AbstractAsyncContextManager[Any]], ...] = ()
    deadlines: bool = False


PLAIN: Final = CallTerms()


class View(Protocol):
    """The connection as its users see it, as far as its engine and its calls know it."""

    setup: Setup
    handshake: Handshake
    granted: tuple[ExtensionEntry, ...]
    user: Any


class CallPort(Protocol):
    """The side of a connection that calls see."""

    calls: CallTerms
    request_form: object
    """The form of requests with objects, kept here after the first of them."""
    responder: HandlerTable
    session: Session

    @property
    def connection(self) -> View:
        """The connection as its users see it."""
        ...

    @property
    def metadata_mime(self) -> str | int:
        """The MIME type of metadata that the SETUP names."""
        ...


class ServedCalls(Protocol):
    """The hook on a responder: serves calls that need more than their bytes."""

    def served(
        self,
        port: CallPort,
        handler: Handler,
        request: Payload,
        metadata: RequestMetadata,
        refusal: StreamError | None = None,
        /,
    ) -> Handler:
        """Return the handler that serves this one call. Raise ``StreamError`` if nothing does."""
        ...

    def unmatched(self, interaction: Interaction, /) -> Handler:
        """Return what stands for the handler of a request that no handler matches."""
        ...

    def answer_payload(self, handler: Handler, request: Payload, setup: Setup, answer: object, /) -> Payload:
        """Return what a handler of bytes gave, and is neither payload, bytes nor text, as a payload."""
        ...

    def failed_call(self, connection: View, interaction: str, route: str | None, pattern: str | None, /) -> object:
        """Return the argument of ``on_error`` functions for the call of a handler of bytes."""
        ...


class RequestLife(StreamLife, Protocol):
    """One request that needs more than its bytes, from its making to its end."""

    async def request(self, send: Callable[[Payload], Awaitable[Any]], kind: Any = None, /) -> Any:
        """Return the result of ``send``, an answer as ``kind``, inside of the interceptors."""
        ...


class RequestCalls(Protocol):
    """The hook on a requester: makes requests that need more than their bytes."""

    @property
    def client_call(
        self,
    ) -> Callable[[CallPort, Interaction, object, str | None, Auth | None, Any, Iterable[MetadataPair]], RequestLife]:
        """Begin a request, with its payload, route, credentials, type of answers and entries."""
        ...

    def object_request(self, port: CallPort, payload: object, route: str | None, kind: Any, /) -> Payload:
        """Return a request that needs a codec and nothing else."""
        ...

    def decoded(self, port: CallPort, payload: Payload, kind: Any, /) -> Any:
        """Return an answer as ``kind``. Raise ``ValueError`` if it does not fit."""
        ...

    def remote_of(
        self, contract: Contract[ServiceT], requester: object, auth: Auth | None, metadata: Iterable[MetadataPair], /
    ) -> ServiceT:
        """Return an object with the methods of ``contract``, each of which is a request."""
        ...


class HandlerTable(Protocol):
    """The handlers that serve a connection's requests, as the connection asks for them."""

    @property
    def _setup_handler(self) -> Handler | None:
        """The handler of a client's SETUP."""
        ...

    @property
    def _lease_handler(self) -> Handler | None:
        """The application's lease policy."""
        ...

    @property
    def _metadata_push_handler(self) -> Handler | None:
        """The handler of metadata for the connection."""
        ...

    @property
    def _extensions(self) -> Mapping[int, Handler]:
        """The handlers of extension frames, by type."""
        ...

    @property
    def _entry_hooks(self) -> Mapping[int | str, Handler]:
        """The functions that extension entries are shown to."""
        ...

    @property
    def _error_handlers(self) -> tuple[Handler, ...]:
        """The functions of ``on_error``."""
        ...

    _interceptors: tuple[Function, ...]
    """The functions round every call, outermost first."""
    _authenticator: Handler | None
    """The function that turns credentials into a user."""
    _served_calls: ServedCalls | None
    """The hook, once it was attached."""

    @property
    def codecs(self) -> tuple[Codec, ...]:
        """The codecs of typed handlers, the preferred one first."""
        ...

    def _find(self, interaction: Interaction, route: str | None) -> Handler:
        """Return the handler of a request. Raise ``StreamError`` if there is none."""
        ...

    def _has_default(self, interaction: Interaction) -> bool:
        """Return whether requests of this interaction without a route have a handler."""
        ...

    def _attach_served_calls(self) -> ServedCalls:
        """Attach the hook for calls that need more than their bytes, and return it."""
        ...

    def _request_calls(self) -> RequestCalls:
        """Return the hook for requests of the connection that need more than their bytes."""
        ...
