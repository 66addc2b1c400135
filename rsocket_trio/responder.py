"""The functions that serve requests: the decorators that register handlers, and the choice by route."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, TypeVar, overload

import attrs
import trio

from rsocket_trio.errors import Rejected, readable
from rsocket_trio.forms import Function, Handler, checked, name_of_function
from rsocket_trio.mux.flow_control import checked_request_n
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.frames import KEEPALIVE, LEASE, RESERVED, RESUME, name_of
from rsocket_trio.terms import Lease, Setup

if TYPE_CHECKING:
    from rsocket_trio.connection import handler_types

SESSIONS_OWN = (KEEPALIVE, RESUME, LEASE)
"""Extensions that no application takes."""

F = TypeVar("F", bound=Function)
# By their names the type checker says what a handler is not.
RequestResponseHandler = TypeVar("RequestResponseHandler", bound="handler_types.RequestResponse")
RequestStreamHandler = TypeVar("RequestStreamHandler", bound="handler_types.RequestStream")
RequestChannelHandler = TypeVar("RequestChannelHandler", bound="handler_types.Conversation")
FireAndForgetHandler = TypeVar("FireAndForgetHandler", bound="handler_types.FireAndForget")
MetadataPushHandler = TypeVar("MetadataPushHandler", bound="handler_types.MetadataPush")
SetupHandler = TypeVar("SetupHandler", bound="handler_types.SetupHandler")
LeasePolicy = TypeVar("LeasePolicy", bound="handler_types.LeasePolicy")
ExtensionHandler = TypeVar("ExtensionHandler", bound="handler_types.ExtensionTaker")
ExtensionEntryHandler = TypeVar("ExtensionEntryHandler", bound="handler_types.EntryTaker")
OnErrorHandler = TypeVar("OnErrorHandler", bound="handler_types.OnError")

LONGEST_ROUTE = 255
"""Bytes of UTF-8 that a routing tag can hold."""


class Responder:
    """The handlers that serve the requests of a peer, by interaction and route.

    One responder can serve any number of connections. Registering raises ``TypeError`` for a function of the wrong
    kind, and ``ValueError`` for a route that is taken or above 255 bytes of UTF-8; both are named.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[Interaction, str | None], Handler] = {}
        self._specials: dict[str, Handler] = {}
        self._extensions: dict[int, Handler] = {}
        self._entry_hooks: dict[int | str, Handler] = {}
        self._error_handlers: tuple[Handler, ...] = ()

    # The decorators: bare, or called with or without a route.

    @overload
    def request_response(self, route: RequestResponseHandler, /) -> RequestResponseHandler: ...
    @overload
    def request_response(
        self, route: str | None = None
    ) -> Callable[[RequestResponseHandler], RequestResponseHandler]: ...
    def request_response(
        self, route: RequestResponseHandler | str | None = None
    ) -> RequestResponseHandler | Callable[[RequestResponseHandler], RequestResponseHandler]:
        """Serve request/response on ``route``: an async function of the request, or a plain function, which runs
        inline.

        The handler returns the answer, payload-like. Without a route it serves the requests that carry none.
        """
        return self._decorator(Interaction.REQUEST_RESPONSE, route)

    @overload
    def request_stream(self, route: RequestStreamHandler, /) -> RequestStreamHandler: ...
    @overload
    def request_stream(self, route: str | None = None) -> Callable[[RequestStreamHandler], RequestStreamHandler]: ...
    def request_stream(
        self, route: RequestStreamHandler | str | None = None
    ) -> RequestStreamHandler | Callable[[RequestStreamHandler], RequestStreamHandler]:
        """Serve streams on ``route``: an async generator of the request, or an async function of it and an
        ``Outgoing``.

        Each ``yield`` waits for the credit of the requester; returning completes the stream.
        """
        return self._decorator(Interaction.REQUEST_STREAM, route)

    @overload
    def request_subscription(self, route: RequestStreamHandler, /) -> RequestStreamHandler: ...
    @overload
    def request_subscription(
        self, route: str | None = None
    ) -> Callable[[RequestStreamHandler], RequestStreamHandler]: ...
    def request_subscription(
        self, route: RequestStreamHandler | str | None = None
    ) -> RequestStreamHandler | Callable[[RequestStreamHandler], RequestStreamHandler]:
        """Serve subscriptions of ReactiveSocket 0.0 and 0.1 on ``route``, in the forms of ``request_stream``.

        A subscription has no completion: it ends by a CANCEL or an error.
        """
        return self._decorator(Interaction.REQUEST_SUBSCRIPTION, route)

    @overload
    def request_channel(self, route: RequestChannelHandler, /) -> RequestChannelHandler: ...
    @overload
    def request_channel(
        self, route: str | None = None, *, initial_request_n: int = 256, refill: bool = True
    ) -> Callable[[RequestChannelHandler], RequestChannelHandler]: ...
    def request_channel(
        self, route: RequestChannelHandler | str | None = None, *, initial_request_n: int = 256, refill: bool = True
    ) -> RequestChannelHandler | Callable[[RequestChannelHandler], RequestChannelHandler]:
        """Serve channels on ``route``: an async function of a ``Channel``.

        ``initial_request_n`` is the credit that the requester gets, in items; it is topped up at half unless ``refill``
        is false. Raise ``ValueError`` for a credit outside of 1 to 2^31-1.
        """
        checked_request_n(initial_request_n)
        return self._decorator(Interaction.REQUEST_CHANNEL, route, credit=initial_request_n, refill=refill)

    @overload
    def fire_and_forget(self, route: FireAndForgetHandler, /) -> FireAndForgetHandler: ...
    @overload
    def fire_and_forget(self, route: str | None = None) -> Callable[[FireAndForgetHandler], FireAndForgetHandler]: ...
    def fire_and_forget(
        self, route: FireAndForgetHandler | str | None = None
    ) -> FireAndForgetHandler | Callable[[FireAndForgetHandler], FireAndForgetHandler]:
        """Serve fire-and-forget on ``route``: an async or plain function of the request. No answer is sent."""
        return self._decorator(Interaction.FIRE_AND_FORGET, route)

    @overload
    def metadata_push(self, function: MetadataPushHandler, /) -> MetadataPushHandler: ...
    @overload
    def metadata_push(self) -> Callable[[MetadataPushHandler], MetadataPushHandler]: ...
    def metadata_push(
        self, function: MetadataPushHandler | None = None
    ) -> MetadataPushHandler | Callable[[MetadataPushHandler], MetadataPushHandler]:
        """Serve metadata that concerns the connection: ``function`` is an async or plain function of the ``bytes``."""
        return self._special("metadata_push", function)

    @overload
    def setup(self, function: SetupHandler, /) -> SetupHandler: ...
    @overload
    def setup(self) -> Callable[[SetupHandler], SetupHandler]: ...
    def setup(self, function: SetupHandler | None = None) -> SetupHandler | Callable[[SetupHandler], SetupHandler]:
        """Admit or refuse connections: ``function`` is an async or plain function of ``(Setup, Connection)``.

        No request of the connection runs before it returns. Raising ``RejectedSetup`` refuses the connection.
        """
        return self._special("setup", function)

    @overload
    def lease(self, function: LeasePolicy, /) -> LeasePolicy: ...
    @overload
    def lease(self) -> Callable[[LeasePolicy], LeasePolicy]: ...
    def lease(self, function: LeasePolicy | None = None) -> LeasePolicy | Callable[[LeasePolicy], LeasePolicy]:
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

    @overload
    def on_error(self, function: OnErrorHandler, /) -> OnErrorHandler: ...
    @overload
    def on_error(self) -> Callable[[OnErrorHandler], OnErrorHandler]: ...
    def on_error(
        self, function: OnErrorHandler | None = None
    ) -> OnErrorHandler | Callable[[OnErrorHandler], OnErrorHandler]:
        """Report every failure of a handler to ``function``, a plain or async function of ``(error, call)``.

        ``call`` is a ``Call``: the request, and its connection. Functions are called in the order in which they were
        registered; a plain one runs at once and inline, an async one in a task. An exception that one raises is logged.
        An error that a handler raises to inform its peer is no failure.
        """

        def register(function: OnErrorHandler) -> OnErrorHandler:
            self._error_handlers += (checked("on_error", function),)
            return function

        return register if function is None else register(function)

    def extension(self, ext_type: int) -> Callable[[ExtensionHandler], ExtensionHandler]:
        """Serve EXT frames of type ``ext_type``, from 1 to 2^31-1: a plain function of ``(stream_id, body)``, run
        inline.

        Raise ``ValueError`` for a type out of range or with a handler.
        """
        if not 0 < ext_type < 2**31:
            raise ValueError(f"extended type {ext_type}: must be between 1 and {2**31 - 1}")

        def register(function: ExtensionHandler) -> ExtensionHandler:
            handler = checked("extension", function)
            if ext_type in self._extensions:
                raise ValueError(
                    f"extension 0x{ext_type:X} has a handler already: {name_of_function(self._extensions[ext_type])}"
                )
            self._extensions[ext_type] = handler
            return function

        return register

    def extension_entry(self, extension: int | str) -> Callable[[ExtensionEntryHandler], ExtensionEntryHandler]:
        """Serve the entries of ``extension``: the name of an application's own, or a well-known one such as the
        broker's.

        The handler is a plain function of ``(point, content)``, run inline. ``point`` is ``"SETUP"``, ``"REQUEST"`` or
        ``"EXT"``; ``content`` is the decoded entry of the broker, or else the ``Entry``. In a SETUP the handler may
        raise ``RejectedSetup``, or return bytes to grant an entry that asks for an answer; on a request it may raise
        ``Rejected``, ``Invalid`` or ``ApplicationError``. Raise ``ValueError`` for an extension of the protocol itself
        or with a handler.
        """
        if extension in SESSIONS_OWN or extension in RESERVED:
            raise ValueError(f"extension {extension!r} is not an application's")

        def register(function: ExtensionEntryHandler) -> ExtensionEntryHandler:
            handler = checked("extension_entry", function)
            taken = self._entry_hooks.get(extension)
            if taken is not None:
                raise ValueError(f"extension {name_of(extension)} has a handler already: {name_of_function(taken)}")
            self._entry_hooks[extension] = handler
            return function

        return register

    # What a connection asks

    def find(self, interaction: Interaction, route: str | None) -> Handler:
        """Return the handler of a request by ``interaction`` and ``route``. Raise ``Rejected``, naming the route, if
        there is none.
        """
        handler = self._handlers.get((interaction, route))
        if handler is None:
            if route is None:
                raise Rejected(f"no default handler for {interaction.value}")
            raise Rejected(f"no {interaction.value} handler for route '{readable(route)}'")
        return handler

    def has_default(self, interaction: Interaction) -> bool:
        """Return whether requests of this ``interaction`` without a route have a handler."""
        return (interaction, None) in self._handlers

    @property
    def setup_handler(self) -> Handler | None:
        """Return the handler that admits connections, or ``None``."""
        return self._specials.get("setup")

    @property
    def lease_policy(self) -> Function | None:
        """Return the function that grants leases, or ``None``."""
        handler = self._specials.get("lease")
        return None if handler is None else handler.function

    @property
    def lease_handler(self) -> Handler | None:
        """Return the lease policy with its name and kind, or ``None``."""
        return self._specials.get("lease")

    @property
    def error_handlers(self) -> tuple[Handler, ...]:
        """Return the functions to which failures are reported, in order."""
        return self._error_handlers

    @property
    def metadata_push_handler(self) -> Handler | None:
        """Return the handler of pushed metadata, or ``None``."""
        return self._specials.get("metadata_push")

    @property
    def extensions(self) -> dict[int, Handler]:
        """Return the handlers of EXT frames, by extended type."""
        return self._extensions

    @property
    def entry_hooks(self) -> dict[int | str, Handler]:
        """Return the handlers of extension entries, by extension."""
        return self._entry_hooks

    # Registration

    def _decorator(
        self, interaction: Interaction, route: F | str | None, *, credit: int = 256, refill: bool = True
    ) -> F | Callable[[F], F]:
        if callable(route):
            return self._register(interaction, None, route, credit, refill)
        return functools.partial(self._register, interaction, _checked_route(route), credit=credit, refill=refill)

    def _register(self, interaction: Interaction, route: str | None, function: F, credit: int, refill: bool) -> F:
        handler = checked(interaction.value, function)
        taken = self._handlers.get((interaction, route))
        if taken is not None:
            what = "a default handler" if route is None else f"a handler for route '{route}'"
            raise ValueError(f"{interaction.value} has {what} already: {name_of_function(taken)}")
        self._handlers[interaction, route] = attrs.evolve(
            handler, credit=credit, refill=refill, interaction=interaction, route=route
        )
        return function

    def _special(self, name: str, function: F | None) -> F | Callable[[F], F]:
        def register(function: F) -> F:
            handler = checked(name, function)
            if name in self._specials:
                raise ValueError(f"{name} has a handler already: {name_of_function(self._specials[name])}")
            self._specials[name] = handler
            return function

        return register if function is None else register(function)


def _checked_route(route: object) -> str | None:
    if route is None:
        return None
    if not isinstance(route, str):
        raise TypeError(f"a route is a str, not {type(route).__name__}")
    size = len(route.encode())
    if size > LONGEST_ROUTE:
        raise ValueError(f"route of {size} bytes, limit {LONGEST_ROUTE}")
    return route
