"""The functions that serve requests: the decorators that register handlers, and the choice by route."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, contextmanager
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args, get_origin, overload

import attrs
import trio

from rsocket_trio.connection.streams import Channel, Outgoing
from rsocket_trio.errors import Rejected, readable
from rsocket_trio.forms import CallObserver, Function, Handler, Requirement, checked, function_text, takes
from rsocket_trio.mux.stream_state import Interaction, checked_request_n
from rsocket_trio.payload import PAYLOAD_LIKE, BytesLike, Payload
from rsocket_trio.rsocket.frames import KEEPALIVE, LEASE, RESERVED, RESUME, name_of
from rsocket_trio.terms import Lease, Setup

if TYPE_CHECKING:
    from rsocket_trio.codecs import Codec
    from rsocket_trio.connection.connection import Connection
    from rsocket_trio.connection.hooks import Call, Contract, RequestCalls, ServedCalls, ServiceT
    from rsocket_trio.metadata.composite import Entry
    from rsocket_trio.metadata.route_patterns import PatternTable, RoutePattern
    from rsocket_trio.services.codec_choice import CodecChoices
    from rsocket_trio.services.description import Route

F = TypeVar("F", bound=Function)
T = TypeVar("T")
Items: TypeAlias = AsyncIterable[object] | Awaitable[None]
# By their names the type checker says what a handler is not. Handlers of requests may have any types: what does not fit
# is refused when it is decorated.
RequestResponseHandler = TypeVar("RequestResponseHandler", bound=Callable[..., object])
RequestStreamHandler = TypeVar("RequestStreamHandler", bound=Callable[..., Items])
RequestChannelHandler = TypeVar("RequestChannelHandler", bound=Callable[..., Items])
FireAndForgetHandler = TypeVar("FireAndForgetHandler", bound=Callable[..., object])
MetadataPushHandler = TypeVar("MetadataPushHandler", bound=Callable[[bytes], Awaitable[None] | None])
SetupHandler = TypeVar("SetupHandler", bound="Callable[[Setup, Connection], Awaitable[None] | None]")
LeasePolicy = TypeVar("LeasePolicy", bound=Callable[[Setup], AsyncIterable[Lease]])
ExtensionHandler = TypeVar("ExtensionHandler", bound=Callable[[int, bytes], None])
ExtensionEntryHandler = TypeVar("ExtensionEntryHandler", bound=Callable[[str, Any], BytesLike | None])
Interceptor = TypeVar(
    "Interceptor", bound="Callable[[Call], AsyncIterable[None] | AbstractAsyncContextManager[object]] | CallObserver"
)
Authenticator = TypeVar("Authenticator", bound=Callable[..., object])
OnErrorHandler = TypeVar("OnErrorHandler", bound="Callable[[Exception, Call], object]")
Requires: TypeAlias = Requirement | None

MAX_ROUTE_BYTES = 255
"""Bytes of UTF-8 that a routing tag can hold."""
PATTERN_MARKS = ("{", "}", "**")
"""The text that only a route with parameters, doubled braces or a catch-all has."""


class Responder:
    """The handlers that serve the requests of a peer, by interaction and route.

    One responder can serve any number of connections. Registering raises ``TypeError`` for a function of the wrong
    kind, and ``ValueError`` for a route that is taken or above 255 bytes of UTF-8; both are named.

    A handler whose parameters are annotated with other types than ``Payload`` and ``bytes`` is a typed one: what it
    takes is decoded, and what it gives encoded, by one of ``codecs``, the preferred one first. With ``auth_required``
    a SETUP without credentials is refused. With ``describe`` the route ``$routes`` answers with a description of all
    routes as JSON.
    """

    def __init__(
        self, *, codecs: Iterable[Codec] | None = None, auth_required: bool = False, describe: bool = False
    ) -> None:
        self._served_calls: ServedCalls | None = None
        if codecs is not None:
            from rsocket_trio.codecs import checked_codecs

            self.codecs = checked_codecs(codecs)
        self.auth_required = auth_required
        self._interceptors: tuple[Function | CallObserver, ...] = ()
        self._authenticator: Handler | None = None
        self._handlers: dict[tuple[Interaction, str | None], Handler] = {}
        self._specials: dict[str, Handler] = {}
        self._patterns: dict[Interaction, PatternTable[Handler]] = {}
        self._extensions: dict[int, Handler] = {}
        self._entry_hooks: dict[int | str, Handler] = {}
        self._error_handlers: tuple[Handler, ...] = ()
        self._description: Handler | None = None
        # Of what is forwarded: what looks at a SETUP before its own handler, and takes metadata that nobody else takes.
        self._setup_checks: tuple[Callable[[Setup, Connection], None], ...] = ()
        self._last_pushes: tuple[Handler, ...] = ()
        self._described: bytes | None = None
        if describe:
            from rsocket_trio.services.description import DESCRIPTION_ROUTE, description

            def described(request: Payload) -> bytes:
                if self._described is None:
                    self._described = json.dumps(description(self.routes, self.codecs)).encode()
                return self._described

            self.request_response(DESCRIPTION_ROUTE)(described)
            self._description = self._handlers[Interaction.REQUEST_RESPONSE, DESCRIPTION_ROUTE]

    @functools.cached_property
    def codecs(self) -> tuple[Codec, ...]:
        """The codecs of objects, the preferred one first."""
        # Imported here, like all that a program of bytes has no use for.
        from rsocket_trio.codecs import DEFAULT_CODECS

        return DEFAULT_CODECS

    # The decorators of requests: bare, or called with or without a route.

    @overload
    def request_response(self, route: RequestResponseHandler, /) -> RequestResponseHandler: ...
    @overload
    def request_response(
        self, route: str | None = None, *, requires: Requires = None
    ) -> Callable[[RequestResponseHandler], RequestResponseHandler]: ...
    def request_response(self, route: object = None, *, requires: Requires = None) -> object:
        """Serve request/response on ``route``: an async function of the request, or a plain function, which runs
        inline.

        The handler returns the answer, payload-like, or an object if it is a typed one. Without a route it serves the
        requests that carry none. The route ``**`` serves those that no other handler of the interaction matches.
        ``requires`` is a function of the user and the ``Call``: unless it is true the call is REJECTED.
        """
        return self._decorator(Interaction.REQUEST_RESPONSE, route, requires)

    @overload
    def request_stream(self, route: RequestStreamHandler, /) -> RequestStreamHandler: ...
    @overload
    def request_stream(
        self, route: str | None = None, *, requires: Requires = None
    ) -> Callable[[RequestStreamHandler], RequestStreamHandler]: ...
    def request_stream(self, route: object = None, *, requires: Requires = None) -> object:
        """Serve streams on ``route``: an async generator of the request, or an async function of it and an
        ``Outgoing``.

        Each ``yield`` waits for the credit of the requester; returning completes the stream. ``requires`` says which
        users may call it.
        """
        return self._decorator(Interaction.REQUEST_STREAM, route, requires)

    @overload
    def request_subscription(self, route: RequestStreamHandler, /) -> RequestStreamHandler: ...
    @overload
    def request_subscription(
        self, route: str | None = None, *, requires: Requires = None
    ) -> Callable[[RequestStreamHandler], RequestStreamHandler]: ...
    def request_subscription(self, route: object = None, *, requires: Requires = None) -> object:
        """Serve subscriptions of ReactiveSocket 0.0 and 0.1 on ``route``, in the forms of ``request_stream``.

        A subscription has no completion: it ends by a CANCEL or an error. ``requires`` says which users may call it.
        """
        return self._decorator(Interaction.REQUEST_SUBSCRIPTION, route, requires)

    @overload
    def request_channel(self, route: RequestChannelHandler, /) -> RequestChannelHandler: ...
    @overload
    def request_channel(
        self, route: str | None = None, *, initial_request_n: int = 256, refill: bool = True, requires: Requires = None
    ) -> Callable[[RequestChannelHandler], RequestChannelHandler]: ...
    def request_channel(
        self, route: object = None, *, initial_request_n: int = 256, refill: bool = True, requires: Requires = None
    ) -> object:
        """Serve channels on ``route``: an async function of a ``Channel``.

        ``initial_request_n`` is the credit that the requester gets, in items; it is topped up at half unless ``refill``
        is false. ``requires`` says which users may call it. Raise ``ValueError`` for a credit outside of 1 to 2^31-1.
        """
        checked_request_n(initial_request_n)
        return self._decorator(Interaction.REQUEST_CHANNEL, route, requires, credit=initial_request_n, refill=refill)

    @overload
    def fire_and_forget(self, route: FireAndForgetHandler, /) -> FireAndForgetHandler: ...
    @overload
    def fire_and_forget(
        self, route: str | None = None, *, requires: Requires = None
    ) -> Callable[[FireAndForgetHandler], FireAndForgetHandler]: ...
    def fire_and_forget(self, route: object = None, *, requires: Requires = None) -> object:
        """Serve fire-and-forget on ``route``: an async or plain function of the request. No answer is sent.

        ``requires`` says which users may call it.
        """
        return self._decorator(Interaction.FIRE_AND_FORGET, route, requires)

    # The decorators of what concerns connections, or all requests.

    def metadata_push(self, function: MetadataPushHandler) -> MetadataPushHandler:
        """Serve metadata that concerns the connection: ``function`` is an async or plain function of the ``bytes``."""
        return self._special("metadata_push", function)

    def setup(self, function: SetupHandler) -> SetupHandler:
        """Admit or refuse connections: ``function`` is an async or plain function of ``(Setup, Connection)``.

        No request of the connection runs before it returns. Raising ``RejectedSetup`` refuses the connection.
        """
        return self._special("setup", function)

    def lease(self, function: LeasePolicy) -> LeasePolicy:
        """Grant leases: ``function`` is an async generator function of the ``Setup`` that yields ``Lease``.

        It runs once for each connection that agreed on leases.
        """
        return self._special("lease", function)

    def lease_at_rate(self, number_of_requests: int, seconds: float) -> None:
        """Grant every connection ``number_of_requests`` for each period of ``seconds``.

        Raise ``ValueError`` for numbers that a lease cannot hold, or if there is a lease policy already.
        """
        # Twice the period to live: a renewal that is a moment late leaves no gap; the last lease replaces the former.
        lease = Lease(number_of_requests, 2 * seconds)
        if seconds <= 0:
            raise ValueError(f"a period of {seconds} seconds: must be above 0")

        async def fixed_rate(setup: Setup) -> AsyncIterator[Lease]:
            while True:
                yield lease
                await trio.sleep(seconds)

        self.lease(fixed_rate)

    def on_error(self, function: OnErrorHandler) -> OnErrorHandler:
        """Report every failure of a handler to ``function``, a plain function of ``(error, call)``.

        ``call`` is a ``Call``: the request, and its connection. Functions are called in the order in which they were
        registered, inline: they must not take long. An exception that one raises is logged.
        An error that a handler raises to inform its peer is no failure.
        """
        self._error_handlers += (checked("on_error", function),)
        return function

    def around(self, function: Interceptor) -> Interceptor:
        """Run ``function`` round the life of every call that is served: an async generator function of the ``Call``
        that yields once, a function of it that returns an async context manager, or an object that only hears of
        calls, by a method ``call_ended(call)``.

        The first one registered is the outermost. What a handler raises is raised at the ``yield`` and passes through;
        another exception that is raised there replaces it. For a stream the block lasts as long as the stream.
        """
        from rsocket_trio.services.calls.context import as_interceptor

        self._interceptors += (as_interceptor("around", function),)
        self._attach_served_calls()
        return function

    def authenticate(self, function: Authenticator) -> Authenticator:
        """Turn credentials into a user: ``function`` is an async or plain function of ``(credentials, where)``.

        ``credentials`` is a ``Simple``, a ``Bearer`` or an ``OtherAuthentication``; ``where`` is the ``Setup``, or the
        ``Call`` that carries credentials of its own. It returns the user, any object, or raises: then the SETUP is
        refused, or the call REJECTED "not allowed"; a ``RejectedSetup`` or ``Rejected`` says so in its own words.
        ``None`` is no user, and refuses the credentials as well. Handlers find the user by ``current_user()``.
        """
        handler = checked("authenticate", function)
        if self._authenticator is not None:
            raise ValueError(f"authenticate has a handler already: {self._authenticator.name}")
        self._authenticator = handler
        self._attach_served_calls()
        return function

    def serve_as(self, contract: Contract[ServiceT], implementation: ServiceT, *, requires: Requires = None) -> None:
        """Serve ``contract``, a ``Service``, by the methods of ``implementation``; its annotations decide the types.

        ``requires`` says which user may call which method, as for a single route. Raise ``TypeError`` for methods that
        are missing or do not fit, and ``ValueError`` for a route that is taken or too long; then nothing is served.
        """
        from rsocket_trio.services.contracts import implemented

        _check_requires(requires)
        with self._all_or_nothing():
            for method, handler in implemented(contract, implementation, self._choices):
                text = _checked_route(method.pattern.text)
                served = attrs.evolve(handler, requires=requires, codecs=self._codecs_of)
                self._add(served, Interaction(method.plan.interaction), text, method.pattern)

    def extension(self, ext_type: int) -> Callable[[ExtensionHandler], ExtensionHandler]:
        """Serve EXT frames of type ``ext_type``, from 1 to 2^31-1: a plain function of ``(stream_id, body)``, run
        inline.

        Raise ``ValueError`` for a type out of range or with a handler.
        """
        if not 0 < ext_type < 2**31:
            raise ValueError(f"extended type {ext_type}: must be between 1 and {2**31 - 1}")
        return _registering("extension", self._extensions, ext_type, f"extension 0x{ext_type:X}")

    def extension_entry(self, extension: int | str) -> Callable[[ExtensionEntryHandler], ExtensionEntryHandler]:
        """Serve the entries of ``extension``: the name of an application's own, or a well-known one such as the
        broker's.

        The handler is a plain function of ``(point, content)``, run inline. ``point`` is ``"SETUP"``, ``"REQUEST"`` or
        ``"EXT"``; ``content`` is the decoded entry of the broker, or else the ``ExtensionEntry``. In a SETUP the
        handler may raise ``RejectedSetup``, or return bytes to grant an entry that asks for an answer; on a request it
        may raise ``Rejected``, ``Invalid`` or ``ApplicationError``. Raise ``ValueError`` for an extension of the
        protocol itself or with a handler.
        """
        if extension in (KEEPALIVE, RESUME, LEASE) or extension in RESERVED:
            raise ValueError(f"extension {extension!r} is not an application's")
        return _registering("extension_entry", self._entry_hooks, extension, f"extension {name_of(extension)}")

    # Routes

    def include(self, other: Responder, prefix: str = "") -> None:
        """Serve the handlers of ``other`` as well, each on its route behind ``prefix``, as in ``"shop."``.

        A catch-all, ``**``, becomes ``shop.**``, for routes that begin with ``shop.``; the longest such prefix counts.
        What is registered there later is not served here. The interceptors that it has surround its handlers, inside of
        those of this responder, and its handlers keep their codecs.

        Raise ``ValueError``, and include nothing, for a route that is taken, ambiguous or too long, for a prefix with
        parameters (braces are doubled, as in a route) or, before a catch-all, without a dot at its end, for a handler
        without a route behind a prefix, for handlers of connections, such as ``setup`` and ``authenticate``, and for
        this responder itself.
        """
        if not isinstance(other, Responder):
            raise TypeError(f"include takes a Responder, not {type(other).__name__}")
        if other is self:
            raise ValueError("a responder can't include itself")
        pattern = _pattern_of(prefix)
        if pattern is not None and pattern.parameters:
            raise ValueError(f"prefix '{prefix}' has a parameter, '{pattern.parameters[0]}': a literal brace is '{{{{'")
        others = {
            "authenticate": other._authenticator is not None or other.auth_required,
            "on_error": other._error_handlers,
            "extension": other._extensions,
            "extension_entry": other._entry_hooks,
        }
        for name in (*other._specials, *filter(others.get, others)):
            raise ValueError(
                f"the included responder has a handler of connections, {name}: register it with the outer one"
            )
        with self._all_or_nothing():
            for interaction, handler in other._requests():
                if prefix and handler.route is None and handler.relay is not None:
                    continue  # what is forwarded behind a prefix has a route
                if handler.route is None and prefix:
                    raise ValueError(
                        f"{interaction.value} has a handler without a route, {handler.name}: it takes no prefix"
                    )
                text = None if handler.route is None else _checked_route(prefix + (handler.pattern_text or ""))
                around = (*other._interceptors, *handler.around)
                self._add(attrs.evolve(handler, around=around), interaction, text, _pattern_of(text, handler))
        self._setup_checks += other._setup_checks
        self._last_pushes += () if prefix else other._last_pushes

    @property
    def routes(self) -> tuple[Route, ...]:
        """Return a record of each handler of requests, sorted by route; the route of the description is not in it."""
        from rsocket_trio.services.description import route_record

        routes = [route_record(handler) for _, handler in self._requests()]
        return tuple(sorted(routes, key=lambda route: (route.route or "", route.interaction)))

    def _requests(self) -> Iterator[tuple[Interaction, Handler]]:
        """Return every handler of requests but the own description."""
        for (interaction, _), handler in self._handlers.items():
            if handler is not self._description:
                yield interaction, handler
        for interaction, table in self._patterns.items():
            for _, handler in table:
                yield interaction, handler

    # What a connection asks

    def _find(self, interaction: Interaction, route: str | None) -> Handler:
        """Return the handler of a request by ``interaction`` and ``route``. Raise ``Rejected``, naming the route, if
        there is none.
        """
        handler = self._handlers.get((interaction, route)) or self._known(interaction, route)
        if handler is not None:
            return handler
        if route is None:
            raise Rejected(f"no default handler for {interaction.value}")
        others = " and ".join(other.value for other in Interaction if self._known(other, route) is not None)
        hint = f": it is {others}" if others else ""
        raise Rejected(f"no {interaction.value} handler for route '{readable(route)}'{hint}")

    def _known(self, interaction: Interaction, route: str | None) -> Handler | None:
        handler = self._handlers.get((interaction, route))
        if handler is None and route is not None and interaction in self._patterns:
            match = self._patterns[interaction].find(route)
            return None if match is None else match[0]
        return handler

    def _has_default(self, interaction: Interaction) -> bool:
        return (interaction, None) in self._handlers

    @property
    def _setup_handler(self) -> Handler | None:
        own = self._specials.get("setup")
        if self._authenticator is None and not self.auth_required and not self._setup_checks:
            return own
        from rsocket_trio.services.calls.access import admission

        return admission(own, self._authenticator, self._setup_checks, required=self.auth_required)

    @property
    def _lease_handler(self) -> Handler | None:
        return self._specials.get("lease")

    @property
    def _metadata_push_handler(self) -> Handler | None:
        return self._specials.get("metadata_push", self._last_pushes[0] if self._last_pushes else None)

    # The two hooks: calls that need more than their bytes, and requests of the connection that do.

    def _attach_served_calls(self) -> ServedCalls:
        from rsocket_trio.services.calls import served

        self._served_calls = served
        return served

    def _request_calls(self) -> RequestCalls:
        from rsocket_trio.services.calls import client

        return client

    # Registration

    @functools.cached_property
    def _choices(self) -> CodecChoices:
        """The choice among the codecs, made with the first call that needs one."""
        from rsocket_trio.services.codec_choice import CodecChoices

        return CodecChoices(self.codecs)

    def _codecs_of(self, request: Payload, entries: Sequence[Entry], setup: Setup) -> tuple[Codec, Codec]:
        return self._choices.of_call(request, entries, setup)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Register nothing of the block if it raises."""
        handlers, patterns = self._handlers, self._patterns
        self._handlers = dict(handlers)
        self._patterns = {interaction: table.copy() for interaction, table in patterns.items()}
        try:
            yield
        except BaseException:
            self._handlers, self._patterns = handlers, patterns
            raise

    def _decorator(
        self,
        interaction: Interaction,
        route: object,
        requires: Requires = None,
        *,
        credit: int = 256,
        refill: bool = True,
        relay: Callable[..., bool] | None = None,
        credentials: bool = False,
    ) -> Any:
        _check_requires(requires)

        def register(function: F) -> F:
            pattern = _pattern_of(text)
            parameters = () if pattern is None else pattern.parameters
            handler = None
            taken: object = function
            if callable(taken) and (parameters or not takes_bytes(taken)):
                from rsocket_trio.services.typed_handlers import plan_of_handler, typed_handler

                plan = plan_of_handler(interaction.value, taken, parameters)
                handler = None if plan is None else typed_handler(plan, taken, self._choices)
            handler = handler or checked(interaction.value, function)
            handler = attrs.evolve(
                handler,
                credit=credit,
                refill=refill,
                requires=requires,
                relay=relay,
                credentials=credentials,
                codecs=self._codecs_of,
            )
            self._add(handler, interaction, text, pattern)
            return function

        if callable(route):
            text = None
            return register(route)
        text = None if route is None else _checked_route(route)
        return register

    def _add(self, handler: Handler, interaction: Interaction, text: str | None, pattern: RoutePattern | None) -> None:
        """Add a handler for the route of this text, and of this pattern if it is no plain one.

        Raise ``ValueError`` if it is taken.
        """
        self._described = None
        route = text if pattern is None else pattern.literal
        if pattern is None or route is not None:
            handler = attrs.evolve(handler, pattern_text=text or "", route=route)
        else:
            handler = attrs.evolve(handler, pattern_text=text, route=pattern.text, pattern=pattern)
        looks = handler.pattern is not None and handler.relay is None
        if handler.typed is not None or handler.requires is not None or handler.around or looks:
            handler = attrs.evolve(handler, plain=False)
            self._attach_served_calls()
        if handler.pattern is None or pattern is None:
            what = "a default handler" if route is None else f"a handler for route '{route}'"
            _put(self._handlers, (interaction, route), handler, f"{interaction.value} has {what}")
            return
        from rsocket_trio.metadata.route_patterns import PatternTable

        self._patterns.setdefault(interaction, PatternTable()).add(pattern, handler)

    def _special(self, name: str, function: F) -> F:
        return _registering(name, self._specials, name, name)(function)


def _registering(decorator: str, handlers: dict[T, Handler], key: T, title: str) -> Callable[[F], F]:
    def register(function: F) -> F:
        _put(handlers, key, checked(decorator, function), f"{title} has a handler")
        return function

    return register


def _put(handlers: dict[T, Handler], key: T, handler: Handler, title: str) -> None:
    """Add a handler. Raise ``ValueError`` if there is one already, which it names behind ``title``."""
    taken = handlers.get(key)
    if taken is not None:
        raise ValueError(f"{title} already: {taken.name}")
    handlers[key] = handler


def check_users(responder: Responder) -> None:
    """Raise ``ValueError`` if a handler of a responder that is served requires a user, and nothing can find one.

    Raise ``TypeError`` for what is no responder.
    """
    if not isinstance(responder, Responder):
        raise TypeError(f"a Responder serves, not {type(responder).__name__}")
    if responder._authenticator is not None or "setup" in responder._specials:
        return
    for interaction, handler in responder._requests():
        if handler.requires is not None:
            where = "" if handler.route is None else f" of route '{handler.route}'"
            raise ValueError(
                f"{interaction.value} handler {handler.name}{where} has requires=, and the responder has "
                "neither an @authenticate nor a @setup function: no call would have a user"
            )


def _check_requires(requires: object) -> None:
    if requires is not None and not callable(requires):
        raise TypeError(f"requires is a function of the user and the call, not {type(requires).__name__}")
    if callable(requires) and not takes(requires, 2):
        raise TypeError(f"requires is a function of the user and the call, (user, call), not {function_text(requires)}")


RAW_ARGUMENTS = (Payload, Channel, Outgoing, inspect.Parameter.empty)
"""The types of parameters that take a payload, a channel or a sending side as it is."""
RAW_RESULTS = (*PAYLOAD_LIKE, None, inspect.Parameter.empty)
"""The types of answers and items that are sent as they are."""
AROUND_RESULTS = (AsyncIterator, AsyncGenerator, AsyncIterable, Awaitable)


def takes_bytes(function: object) -> bool:
    """Return whether the annotations of a function show at a glance that it is a handler of bytes.

    Of any other function ``services/typed_handlers`` finds out, which programs of bytes do not load.
    """
    own = getattr(function, "__func__", function)
    if not inspect.isfunction(own) or hasattr(own, "__wrapped__"):
        return False
    try:
        signature = inspect.signature(own, eval_str=True)
    except Exception:
        return False  # a name of another place, which is looked for there
    reply = signature.return_annotation
    if get_origin(reply) in AROUND_RESULTS:
        reply = get_args(reply)[0]
    replies = get_args(reply) if isinstance(reply, UnionType) else (reply,)
    if not signature.parameters or not all(kind in RAW_RESULTS for kind in replies):
        return False
    return all(
        part.kind is part.POSITIONAL_OR_KEYWORD and part.default is part.empty and part.annotation in RAW_ARGUMENTS
        for part in signature.parameters.values()
    )


def _pattern_of(route: str | None, included: Handler | None = None) -> RoutePattern | None:
    """Return the pattern of a route, ``None`` for one that is plain text; behind a prefix that of one ``included``.

    Raise ``ValueError`` for a malformed one.
    """
    if route is None or not any(mark in route for mark in PATTERN_MARKS):
        return None
    from rsocket_trio.metadata.route_patterns import CATCH_ALL, catch_all, parse

    if included is not None and included.pattern is not None and included.pattern.catches_all:
        return catch_all(route.removesuffix(CATCH_ALL))
    return parse(route)


def _checked_route(route: object) -> str:
    if not isinstance(route, str):
        raise TypeError(f"a route is a str, not {type(route).__name__}")
    size = len(route.encode())
    if size > MAX_ROUTE_BYTES:
        raise ValueError(f"route of {size} bytes, limit {MAX_ROUTE_BYTES}")
    return route
