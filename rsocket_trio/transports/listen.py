"""Binds listeners for URIs, and accepts connections whose handshakes follow in tasks of their own."""

from __future__ import annotations

import errno
import logging
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs
import trio

from rsocket_trio.limits import Limits
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport, turn_away
from rsocket_trio.transports.error_text import HandshakeFailed, NoAlpn, NoTls, OriginRefused, reason
from rsocket_trio.transports.first_bytes import TLS_ALERT, client_protocol
from rsocket_trio.transports.schemes import (
    REGISTRY,
    SPELLINGS,
    AcceptOptions,
    AnyListener,
    Carrier,
    Endpoint,
    ListenOptions,
    close_at_once,
    parse_uri,
)
from rsocket_trio.transports.sockets import (
    BACKLOG,
    ONE_LOST,
    QueueListener,
    SharedListener,
    SocketListener,
    secure,
    tls_stream,
)
from rsocket_trio.transports.websocket.origins import OWN, Origins

if TYPE_CHECKING:
    from rsocket_trio.transports.http2.http2_handshake import AcceptedHttp2

FULL = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Errors of the system when this process, or all of them, may have no more sockets."""
ACCEPT_RETRY_DELAY = 0.1
"""Seconds until accepting is tried again after such an error."""
CONNECTION_TASK = "rsocket_trio connection"
"""The name of the tasks of accepted connections; Trio would make one for each, of 100 bytes."""
LOG_INTERVAL = 60.0
"""Seconds between two lines in the log about it."""
BACKLOG_TIMEOUT = 1.0
"""Seconds that taking them may last, while further ones come."""
QUIET_TIME = 0.01
"""Seconds without a connection after which none waits at a listener that can't tell."""
TAKEN_IN_A_ROW = 32
"""Connections that are taken before other tasks run."""
AcceptedT = TypeVar("AcceptedT", bound=trio.abc.AsyncResource)

OneContext: TypeAlias = ssl.SSLContext | Callable[[], ssl.SSLContext]
SSLContextLike: TypeAlias = OneContext | Mapping[str, OneContext]
"""The context of served TLS, a function that makes one, or such a value for each scheme."""

logger = logging.getLogger("rsocket_trio")


class Accepted:
    """An accepted connection that has not sent anything yet."""

    def __init__(
        self, endpoint: Endpoint, carrier: Carrier, ssl_context: ssl.SSLContext | None, origins: Origins = OWN
    ) -> None:
        self.endpoint = endpoint
        self._carrier = carrier
        self._ssl_context = ssl_context
        self._origins = origins

    def plain(self) -> Transport | None:
        """Return the connection as it is if it needs no handshake, else ``None``. The caller closes it."""
        scheme = self.endpoint.row
        return None if scheme.needs_handshake else scheme.transport(self.endpoint, self._carrier)

    @property
    def is_shared(self) -> bool:
        """Return whether it carries many transports: ``open_shared`` opens it then."""
        return self.endpoint.row.accept_shared is not None

    @asynccontextmanager
    async def open(self, limits: Limits | None = None) -> AsyncIterator[Transport]:
        """Do the handshakes of TLS and HTTP, if any, and close when the block ends.

        Of a connection that carries many transports this is the first. Raise ``HandshakeFailed``. The caller bounds the
        time: this waits for a peer that may never send anything.
        """
        carrier, row = self._carrier, self.endpoint.row
        try:
            if not isinstance(carrier, trio.abc.Stream):
                opening = nullcontext(carrier) if row.attend is None else row.attend(carrier, limits or Limits())
            elif row.accept_shared is not None:
                async with self.open_shared(limits) as shared:
                    first = await shared.accept()
                    if first is None:
                        raise HandshakeFailed("the client opened no stream")
                    yield first
                return
            else:
                options = AcceptOptions(limits or Limits(), self._origins)
                stream, handshake = await self._secured(carrier)
                opening = nullcontext(ByteStreamTransport(stream, handshake))
                if row.upgrade is not None:
                    opening = row.upgrade(stream, self.endpoint, handshake, options)
            async with opening as transport:
                yield transport
        finally:
            await close_at_once(carrier)

    @asynccontextmanager
    async def open_shared(self, limits: Limits | None = None) -> AsyncIterator[AcceptedHttp2]:
        """Do the handshakes of TLS and HTTP/2, in time that the caller bounds. Raise ``HandshakeFailed``."""
        carrier, row = self._carrier, self.endpoint.row
        assert row.accept_shared is not None
        assert isinstance(carrier, trio.abc.Stream)
        options = AcceptOptions(limits or Limits(), self._origins)
        try:
            stream, handshake = await self._secured(carrier)
            async with row.accept_shared(stream, self.endpoint, handshake, options) as shared:
                yield shared
        finally:
            await close_at_once(carrier)

    async def _secured(self, carrier: trio.abc.Stream) -> tuple[trio.abc.Stream, Handshake]:
        """Return the stream, encrypted where the scheme has TLS, and what is known of the peer."""
        row = self.endpoint.row
        handshake = row.handshake(self.endpoint, carrier)
        if not row.uses_tls:
            return carrier, handshake
        assert self._ssl_context is not None
        secured = tls_stream(self._ssl_context, carrier)
        try:
            return secured, await secure(secured, handshake, row.alpn)
        except NoTls as error:
            protocol = client_protocol(error.first) or "an unknown protocol"
            await turn_away(carrier, TLS_ALERT)
            raise HandshakeFailed(f"{protocol} without TLS") from error
        except NoAlpn:
            await turn_away(secured, row.alpn_refusal)
            raise

    async def aclose(self) -> None:
        await close_at_once(self._carrier)


class AcceptedTransport:
    """A transport that needs no handshake, of a shared connection or of the application's. Its acceptor closes it."""

    def __init__(self, endpoint: Endpoint | str, transport: Transport) -> None:
        self.endpoint = endpoint
        self._transport = transport

    def plain(self) -> Transport:
        return self._transport


@attrs.frozen
class Inherited:
    """A bound and listening endpoint with its descriptors, to be passed to another process."""

    endpoint: Endpoint
    descriptors: tuple[int, ...]

    def listener(self, contexts: Mapping[str, ssl.SSLContext], origins: Origins = OWN) -> BoundListener:
        """Return a listener in the process that was given the descriptors. It does not remove a Unix socket's path."""
        listeners = [SharedListener(descriptor) for descriptor in self.descriptors]
        return BoundListener(self.endpoint, listeners, contexts.get(self.endpoint.scheme), origins)


class BoundListener(trio.abc.AsyncResource):
    """A listener of one URI: bound already, accepting once it is served. ``uri`` has the port that was bound."""

    def __init__(
        self,
        endpoint: Endpoint,
        listeners: Sequence[AnyListener],
        ssl_context: ssl.SSLContext | None,
        origins: Origins = OWN,
    ) -> None:
        self.endpoint = endpoint
        self._listeners = list(listeners)
        self._ssl_context = ssl_context
        self._origins = origins
        self._has_refused_page = False

    @property
    def uri(self) -> str:
        """The URI at which clients find it."""
        return str(self.endpoint)

    def to_inherit(self) -> Inherited:
        """Return the endpoint for another process to accept here, too. Raise ``TypeError`` if only this one can."""
        descriptors: list[int] = []
        for listener in self._listeners:
            if not isinstance(listener, SocketListener) or isinstance(listener, SharedListener):
                raise TypeError(f"{self.uri} is within one process")
            descriptors.append(listener.socket.fileno())
        return Inherited(self.endpoint, tuple(descriptors))

    async def serve(
        self,
        handler: Callable[[Accepted], Awaitable[None]],
        *,
        handler_nursery: trio.Nursery | None = None,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept until cancelled, then close the listener. The handler opens each connection in its own task.

        Connections that wait when this is cancelled are still handled, in a ``handler_nursery`` that goes on. Once
        ``aclose`` was called, this accepts no more and returns. Accepting goes on whatever a client does. A handshake
        that failed ends that one connection only; any other exception of the handler is the caller's. If no handshake
        is needed, the handler closes the connection.
        """

        async def handle(accepted: Accepted) -> None:
            try:
                await handler(accepted)
            except HandshakeFailed as exc:
                # A page gets no reason, so the log is where its author finds it.
                is_page = isinstance(exc, OriginRefused)
                level = logging.WARNING if is_page and not self._has_refused_page else logging.DEBUG
                self._has_refused_page |= is_page
                logger.log(level, "%s: a %s was turned away: %s", self.uri, "page" if is_page else "client", exc)
            finally:
                await accepted.aclose()

        # Mostly this coroutine is left out: one more that waits costs memory for each connection.
        chosen = handle if self.endpoint.row.needs_handshake else handler

        def start(stream: Carrier, tasks: trio.Nursery) -> None:
            accepted = Accepted(self.endpoint, stream, self._ssl_context, self._origins)
            tasks.start_soon(chosen, accepted, name=CONNECTION_TASK)

        # Bound sockets queue connections already, so no client that learns the URI comes too early.
        task_status.started(self.uri)
        await accept_all(self.uri, self._listeners, start, handler_nursery)

    async def aclose(self) -> None:
        """Stop listening: the port, the path or the name is free again."""
        with trio.CancelScope(shield=True):
            for listener in self._listeners:
                await listener.aclose()


async def accept_all(
    uri: str,
    listeners: Sequence[AnyListener],
    start: Callable[[Any, trio.Nursery], object],
    handler_nursery: trio.Nursery | None,
) -> None:
    """Accept until cancelled, then close the listeners. ``start`` begins the task of each connection in a nursery.

    This is ``trio.serve_listeners`` without its second close of each stream in a scope of its own. When it is cancelled
    and there is a ``handler_nursery``, which goes on, what waits is handled as well. That connections can't be accepted
    is logged once a minute.
    """
    logged_at = -math.inf

    async def on_shortage(error: OSError) -> None:
        nonlocal logged_at
        if error.errno not in FULL:
            raise error
        if trio.current_time() - logged_at >= LOG_INTERVAL:
            logged_at = trio.current_time()
            logger.warning("%s: no connection can be accepted: %s", uri, reason(error))
        await trio.sleep(ACCEPT_RETRY_DELAY)

    async def accept(listener: AnyListener) -> None:
        async with listener:
            try:
                while True:
                    try:
                        stream = await listener.accept()
                    except OSError as error:
                        await on_shortage(error)
                    else:
                        # No checkpoint between accept and here: a cancellation can't drop an accepted connection.
                        start(stream, tasks)
                        del stream  # the next one may be long in coming
            except trio.ClosedResourceError:
                return
            except trio.Cancelled:
                if handler_nursery is not None:
                    await take_waiting(listener, lambda stream: start(stream, tasks), on_shortage)
                raise

    async with trio.open_nursery() as nursery:
        tasks = handler_nursery or nursery
        for listener in listeners:
            nursery.start_soon(accept, listener)


async def take_waiting(
    listener: trio.abc.Listener[AcceptedT],
    on_accepted: Callable[[AcceptedT], object],
    on_shortage: Callable[[OSError], Awaitable[object]],
) -> None:
    """Take what waits, at most ``BACKLOG`` connections within ``BACKLOG_TIMEOUT``, whatever is cancelled.

    ``on_shortage`` waits until accepting is worth another try, or raises the error. The caller closes the listener.
    """
    if isinstance(listener, QueueListener):
        listener.hide()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + BACKLOG_TIMEOUT):
        for number in range(1, BACKLOG + 1):
            try:
                if isinstance(listener, QueueListener):
                    accepted = listener.take_or_close()
                else:
                    accepted = None
                    with trio.move_on_after(QUIET_TIME):
                        accepted = await listener.accept()
            except OSError as error:
                if error.errno not in ONE_LOST:
                    await on_shortage(error)
                continue
            except trio.ClosedResourceError:
                return
            if accepted is None:
                return
            on_accepted(accepted)
            if number % TAKEN_IN_A_ROW == 0:
                await trio.lowlevel.checkpoint()


class ListenerAdapter(trio.abc.AsyncResource):
    """A listener of the application's own, for any kind of Trio stream."""

    uri = "stream"

    def __init__(self, listener: trio.abc.Listener[trio.abc.Stream]) -> None:
        self._listener = listener

    async def serve(
        self,
        handler: Callable[[AcceptedTransport], Awaitable[None]],
        *,
        handler_nursery: trio.Nursery | None = None,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept as ``BoundListener.serve`` does."""

        async def handle(stream: trio.abc.Stream) -> None:
            try:
                await handler(AcceptedTransport(self.uri, ByteStreamTransport(stream)))
            finally:
                await trio.aclose_forcefully(stream)

        task_status.started(self.uri)
        await accept_all(
            self.uri, [self._listener], lambda stream, tasks: tasks.start_soon(handle, stream), handler_nursery
        )

    async def aclose(self) -> None:
        with trio.CancelScope(shield=True):
            await self._listener.aclose()


async def open_listeners(
    uris: Iterable[str],
    *,
    ssl_context: SSLContextLike | None = None,
    unix_mode: int | None = None,
    origins: Origins = OWN,
    over: object | None = None,
) -> list[BoundListener]:
    """Bind all URIs, in the order given; if one fails, none stays bound. Return the listeners.

    A host name with several addresses is bound on all of them, on one port. ``unix_mode`` are the permissions of the
    path of a Unix socket, by default those that the umask leaves; ``origins`` are those of pages that may open a
    WebSocket; ``over`` is a media driver of Aeron. ``[::]`` is bound for IPv4, too, unless another URI has the same
    port and no address of IPv6. Raise ``OSError`` naming the URI, ``ValueError`` for an invalid URI, and for an
    ``ssl_context`` that is missing or can't serve all of them, and ``ModuleNotFoundError`` if a scheme needs what is
    not installed. The caller serves or closes each.
    """
    endpoints = [parse_uri(uri) for uri in uris]
    for endpoint in endpoints:
        endpoint.row.check_extra()
    contexts = server_contexts(endpoints, ssl_context)
    bound: list[BoundListener] = []
    try:
        for endpoint in endpoints:
            # A name may have an address of IPv4 as well, and 0 is no port yet.
            has_ipv4 = endpoint.port and any(
                other.port == endpoint.port and ":" not in other.host for other in endpoints
            )
            options = ListenOptions(unix_mode, over, shares_ipv4=not has_ipv4)
            try:
                known, listeners = await endpoint.row.listen(endpoint, options)
            except OSError as exc:
                raise OSError(exc.errno, f"cannot listen on {endpoint}: {reason(exc)}") from exc
            bound.append(BoundListener(known, listeners, contexts.get(endpoint.scheme), origins))
    except BaseException:
        for listener in bound:
            await listener.aclose()
        raise
    return bound


def server_contexts(endpoints: Iterable[Endpoint], ssl_context: SSLContextLike | None) -> dict[str, ssl.SSLContext]:
    """Return the context of each scheme that uses TLS, with the protocols that it offers by ALPN set.

    A function is called once for each scheme. Raise ``ValueError`` for a scheme without a context, for a mapping with
    other keys than the schemes of TLS, and for one context of two schemes that offer different protocols; ``TypeError``
    for a value that is no context.
    """
    known = {word: name for word, name in SPELLINGS.items() if REGISTRY[name].uses_tls}
    sources: Mapping[str, object] = (
        ssl_context if isinstance(ssl_context, Mapping) else dict.fromkeys(known, ssl_context)
    )
    if unknown := sources.keys() - known:
        raise ValueError(f"ssl_context for {min(unknown)!r}: the schemes of TLS are {', '.join(known)}")
    by_scheme = {known[word]: source for word, source in sources.items()}
    contexts: dict[str, ssl.SSLContext] = {}
    for endpoint in endpoints:
        scheme = endpoint.scheme
        if not endpoint.uses_tls or scheme in contexts:
            continue
        source = by_scheme.get(scheme)
        if source is None:
            raise ValueError(f"{endpoint}: serving TLS needs an ssl_context with a certificate for {scheme!r}")
        context = source() if callable(source) else source
        if not isinstance(context, ssl.SSLContext):
            what = type(context).__name__ + (" of its function" if callable(source) else "")
            raise TypeError(f"ssl_context for {scheme!r} is an ssl.SSLContext or a function that makes one, not {what}")
        contexts[scheme] = context
    first: dict[int, str] = {}
    for scheme, context in contexts.items():
        other, alpn = first.setdefault(id(context), scheme), REGISTRY[scheme].alpn
        if REGISTRY[other].alpn != alpn:
            raise ValueError(
                f"one ssl_context for {other} and {scheme}, which offer different protocols by ALPN: give a mapping "
                f"{{{other!r}: ..., {scheme!r}: ...}} of two contexts, or a function that makes one"
            )
        if alpn:
            context.set_alpn_protocols(list(alpn))
    return contexts
