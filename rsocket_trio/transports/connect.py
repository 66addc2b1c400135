"""Opens the transport that a URI names, or raises ``ConnectionLost`` with the reason."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

from rsocket_trio.errors import ConnectionLost
from rsocket_trio.limits import Limits
from rsocket_trio.masking import shown_header
from rsocket_trio.tools.exception_groups import nursery_beside
from rsocket_trio.transports.base import CONNECT_TIMEOUT, UNLIMITED, ConnectTimeout, Handshake, Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.error_text import NoTls, reason
from rsocket_trio.transports.first_bytes import TLS, FirstBytes, wrong_protocol
from rsocket_trio.transports.schemes import (
    REGISTRY,
    Carrier,
    ConnectOptions,
    Endpoint,
    SharedConnection,
    close_at_once,
    parse_uri,
)
from rsocket_trio.transports.sockets import secure, tls_stream

if TYPE_CHECKING:
    from rsocket_trio.transports.http2.http2_handshake import SharedHttp2

HeadersLike: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""Headers for the request that opens a connection over HTTP: a mapping, or pairs, where a name may come again."""


def as_headers(headers: HeadersLike) -> tuple[tuple[str, str], ...]:
    """Return the headers as pairs, in their order. Raise ``TypeError`` if they are neither a mapping nor pairs."""
    pairs: list[tuple[str, str]] = []
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        match pair:  # a user's own
            case str(name), str(text):
                pairs.append((name, text))
            case _:
                raise TypeError(f"headers are a mapping or pairs of text, not {pair!r}")
    return tuple(pairs)


def open_transport(
    uri: str,
    time_limit: ConnectTimeout = UNLIMITED,
    *,
    ssl_context: ssl.SSLContext | None = None,
    headers: HeadersLike = (),
    limits: Limits | None = None,
    over: SharedConnection | None = None,
) -> AbstractAsyncContextManager[Transport]:
    """Connect, do the handshakes of TLS and HTTP, and close when the block ends.

    ``headers`` go into the request that opens a connection over HTTP; TLS without an ``ssl_context`` uses the system's
    trusted certificates. With ``over`` this is one of the transports of a shared connection.
    Raise ``ConnectionLost`` naming the URI and the reason, with the error of the socket, of TLS or of the handshake
    as its cause, or the step that was not done within ``time_limit``. Raise ``ValueError`` for an invalid URI.
    """
    endpoint = parse_uri(uri)
    if not headers and over is None and not endpoint.row.needs_handshake:
        return _Plain(uri, endpoint, time_limit)
    options = _checked(uri, endpoint, ssl_context, headers, limits, time_limit)
    return _after_handshake(uri, endpoint, options, over)


@asynccontextmanager
async def open_shared(
    uri: str,
    *,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits | None = None,
    connect_timeout: float = CONNECT_TIMEOUT,
) -> AsyncIterator[SharedConnection]:
    """Connect to a server for as long as the block, so that many connections share it.

    ``uri`` names the server, and ``open_connection(uri, over=shared)`` is one of them. Once the connection is lost, or
    its server goes away, the next of them connects again, within its own ``connect_timeout``. TLS without an
    ``ssl_context`` uses the system's trusted certificates; ``limits`` bound what is received; the block begins within
    ``connect_timeout`` seconds. Raise ``ConnectionLost`` if the server cannot be reached, and ``ValueError`` for an
    invalid URI or one whose scheme can't be shared.
    """
    endpoint = parse_uri(uri)
    time_limit = ConnectTimeout(connect_timeout, uri)
    options = _checked(uri, endpoint, ssl_context, (), limits, time_limit)
    if endpoint.row.share is None:
        raise ValueError(f"{uri!r}: {endpoint.scheme} carries one connection, and can't be shared")
    async with nursery_beside(lambda _: shared.leave()) as nursery:
        shared = _Shared(uri, endpoint, options, nursery)
        with as_lost(uri):
            await shared.connect(time_limit)
        yield shared


class _Shared:
    """A connection to a server that is opened again when it takes no more transports: it was lost, or is drained."""

    def __init__(self, uri: str, endpoint: Endpoint, options: ConnectOptions, nursery: trio.Nursery) -> None:
        self._uri = uri
        self._endpoint = endpoint
        self._options = options
        self._nursery = nursery
        self._connecting = trio.Lock()
        self._last: SharedHttp2 | None = None
        self._open = set[trio.CancelScope]()  # one for each connection, also for those that only finish
        self._is_over = False

    @asynccontextmanager
    async def open(self, endpoint: Endpoint, options: ConnectOptions) -> AsyncIterator[Transport]:
        shared = await self.connect(options.time_limit)
        async with shared.open(endpoint, options) as transport:
            yield transport

    async def connect(self, time_limit: ConnectTimeout) -> SharedHttp2:
        """Return the connection, a new one if the last takes no more transports. Raise ``OSError``."""
        # Of several that find the last one lost, the first connects, and the others wait for that.
        with time_limit.step("another task was connecting, and did not finish"):
            await self._connecting.acquire()
        try:
            if self._is_over:
                raise trio.BrokenResourceError("the block of open_shared has ended")
            if self._last is None or not self._last.takes_more:
                self._last = None
                self._last = await self._nursery.start(self._carry, time_limit)
            assert self._last is not None
            return self._last
        finally:
            self._connecting.release()

    def leave(self) -> None:
        """End all connections, also for transports that are still open."""
        self._is_over = True
        for scope in self._open:
            scope.cancel()

    async def _carry(self, time_limit: ConnectTimeout, task_status: trio.TaskStatus[SharedHttp2]) -> None:
        """Keep one connection open until it is over."""
        options = attrs.evolve(self._options, time_limit=time_limit)
        async with AsyncExitStack() as stack:
            shared = await _share(self._endpoint, options, stack)
            # Shielded until ``leave``: what its transports say last goes out while everything is cancelled.
            with trio.CancelScope() as scope:
                self._open.add(scope)
                try:
                    task_status.started(shared)
                    # If ``connect`` was cancelled meanwhile, this task is still its own, and nobody ends it.
                    await trio.lowlevel.checkpoint_if_cancelled()
                    scope.shield = True
                    await shared.wait_over()
                finally:
                    self._open.discard(scope)


def _checked(
    uri: str,
    endpoint: Endpoint,
    ssl_context: ssl.SSLContext | None,
    headers: HeadersLike,
    limits: Limits | None,
    time_limit: ConnectTimeout,
) -> ConnectOptions:
    """Return the options. Raise ``ValueError`` for headers that can't be sent, ``ModuleNotFoundError`` for an extra."""
    endpoint.row.check_extra()
    pairs = as_headers(headers) if headers else ()
    for name, text in pairs:
        if not name or not (name + text).isprintable():
            raise ValueError(f"header {name!r}: {shown_header(name, text)} can't be said in HTTP")
    if pairs and not endpoint.row.has_path:
        *others, last = (row.name for row in REGISTRY.values() if row.has_path)
        raise ValueError(f"{uri!r}: only {', '.join(others)} and {last} have a handshake that carries headers")
    return ConnectOptions(ssl_context, pairs, limits or Limits(), time_limit)


@attrs.define
class _Plain(AbstractAsyncContextManager[Transport, None]):
    """A connection without a handshake, and without the generator that would cost a tenth of the time of connecting."""

    _uri: str
    _endpoint: Endpoint
    _time_limit: ConnectTimeout
    _transport: Transport = attrs.field(init=False)

    async def __aenter__(self) -> Transport:
        with as_lost(self._uri):
            carrier = await _dial(self._endpoint, self._time_limit)
        first = FirstBytes(self._uri, over_tls=False)
        self._transport = self._endpoint.row.transport(self._endpoint, carrier, first)
        return self._transport

    async def __aexit__(self, *_: object) -> None:
        if not self._transport.cut():
            await close_at_once(self._transport)


@contextmanager
def as_lost(uri: str) -> Iterator[None]:
    """Raise what goes wrong as ``ConnectionLost`` with the URI and the reason."""
    try:
        yield
    except (OSError, trio.BrokenResourceError) as exc:
        raise ConnectionLost(f"{uri}: {reason(exc)}") from exc


@asynccontextmanager
async def _after_handshake(
    uri: str, endpoint: Endpoint, options: ConnectOptions, over: SharedConnection | None
) -> AsyncIterator[Transport]:
    """Open a transport that begins with a handshake of TLS, HTTP or both, or is one of a shared connection."""
    row = endpoint.row
    async with AsyncExitStack() as stack:
        with as_lost(uri):
            if over is not None:
                opening = over.open(endpoint, options)
            elif row.share is not None:
                shared = await _share(endpoint, options, stack)
                opening = shared.open(endpoint, options)
            elif row.attend is not None:
                opening = row.attend(await _dial(endpoint, options.time_limit, stack), options.limits)
            else:
                stream, handshake = await _open_stream(endpoint, options, stack)
                opening = nullcontext(ByteStreamTransport(stream, handshake, FirstBytes(uri, over_tls=row.uses_tls)))
                if row.upgrade is not None:
                    opening = row.upgrade(stream, endpoint, handshake, options)
            if row.upgrade is None:
                transport = await stack.enter_async_context(opening)
            else:
                with options.time_limit.step("the WebSocket upgrade was not answered"):
                    transport = await stack.enter_async_context(opening)
        yield transport


async def _dial(endpoint: Endpoint, time_limit: ConnectTimeout, stack: AsyncExitStack | None = None) -> Carrier:
    """Connect, without any handshake, for as long as the stack, if there is one. Raise ``OSError``."""
    with time_limit.step("not connected"):
        carrier = await endpoint.row.dial(endpoint)
    if stack is not None:
        stack.push_async_callback(close_at_once, carrier)
    return carrier


async def _share(endpoint: Endpoint, options: ConnectOptions, stack: AsyncExitStack) -> SharedHttp2:
    """Connect for as long as the stack. Return what the transports share."""
    assert endpoint.row.share is not None
    stream, handshake = await _open_stream(endpoint, options, stack)
    return await stack.enter_async_context(endpoint.row.share(stream, endpoint, handshake, options))


async def _open_stream(
    endpoint: Endpoint, options: ConnectOptions, stack: AsyncExitStack
) -> tuple[trio.abc.Stream, Handshake]:
    """Connect for as long as the stack, with TLS where the scheme has it. Return the stream and its handshake."""
    row = endpoint.row
    carrier = await _dial(endpoint, options.time_limit, stack)
    if not isinstance(carrier, trio.abc.Stream):
        raise TypeError(f"{str(endpoint)!r}: TLS and HTTP need a stream of bytes")
    handshake = row.handshake(endpoint, carrier)
    if not row.uses_tls:
        return carrier, handshake
    context = ssl.create_default_context() if options.ssl_context is None else options.ssl_context
    secured = tls_stream(context, carrier, endpoint.host, row.alpn)
    try:
        with options.time_limit.step("no TLS handshake"):
            return secured, await secure(secured, handshake, row.alpn)
    except NoTls as error:
        raise wrong_protocol(error.first, TLS, over_tls=False) or error from error.__cause__
