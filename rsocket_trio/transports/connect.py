"""Opens the transport that a URI names, or raises ``ConnectionLost`` with the reason."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import trio

from rsocket_trio.errors import ConnectionLost
from rsocket_trio.limits import Limits
from rsocket_trio.masking import shown_header
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.error_text import reason
from rsocket_trio.transports.schemes import Endpoint, close_at_once, parse_uri
from rsocket_trio.transports.sockets import secure

HeadersLike: TypeAlias = Mapping[str, str] | Iterable[tuple[str, str]]
"""Headers for a WebSocket handshake: a mapping, or pairs, where a name may stand more than once."""


def as_headers(headers: HeadersLike) -> tuple[tuple[str, str], ...]:
    """Return the headers as pairs, in their order. Raise ``TypeError`` if they are neither a mapping nor pairs."""
    pairs: list[tuple[str, str]] = []
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        said: Any = pair  # a user's own
        if isinstance(said, str) or len(said) != 2 or not all(isinstance(text, str) for text in said):
            raise TypeError(f"headers are a mapping or pairs of text, not {said!r}")
        pairs.append((said[0], said[1]))
    return tuple(pairs)


def open_transport(
    uri: str,
    *,
    ssl_context: ssl.SSLContext | None = None,
    headers: HeadersLike = (),
    limits: Limits | None = None,
) -> AbstractAsyncContextManager[Transport]:
    """Connect, do the handshakes of TLS and WebSocket, and close when the block ends.

    ``headers`` go into the WebSocket handshake; TLS without an ``ssl_context`` uses the system's trusted certificates.
    Raise ``ConnectionLost`` naming the URI and the reason, with the error of the socket, of TLS or of the handshake
    as its cause, and ``ValueError`` for an invalid URI. The caller bounds the time.
    """
    endpoint = parse_uri(uri)
    headers = as_headers(headers) if headers else ()
    for name, text in headers:
        if not name or not (name + text).isprintable():
            raise ValueError(f"header {name!r}: {shown_header(name, text)} can't be said in HTTP")
    if headers and not endpoint.is_websocket:
        raise ValueError(f"{uri!r}: only ws and wss have a handshake that carries headers")
    if endpoint.row.needs_handshake:
        return _after_handshake(uri, endpoint, ssl_context, headers, limits or Limits())
    return _Plain(uri, endpoint)


class _Plain(AbstractAsyncContextManager[Transport, None]):
    """A connection without a handshake, and without the generator that would cost a tenth of the time of connecting."""

    def __init__(self, uri: str, endpoint: Endpoint) -> None:
        self._uri = uri
        self._endpoint = endpoint
        self._transport: Transport | None = None

    async def __aenter__(self) -> Transport:
        endpoint = self._endpoint
        scheme = endpoint.row
        try:
            carrier = await scheme.dial(endpoint)
        except (OSError, trio.BrokenResourceError) as exc:
            raise ConnectionLost(f"{self._uri}: {reason(exc)}") from exc
        self._transport = transport = scheme.transport(endpoint, carrier)
        return transport

    async def __aexit__(self, *_: object) -> None:
        transport = self._transport
        if transport is not None and not transport.cut():
            await close_at_once(transport)


@asynccontextmanager
async def _after_handshake(
    uri: str,
    endpoint: Endpoint,
    ssl_context: ssl.SSLContext | None,
    headers: tuple[tuple[str, str], ...],
    limits: Limits,
) -> AsyncIterator[Transport]:
    """Open a transport that begins with a handshake of TLS, WebSocket or both."""
    async with AsyncExitStack() as stack:
        try:
            carrier = await endpoint.row.dial(endpoint)
            stack.push_async_callback(close_at_once, carrier)
            if not isinstance(carrier, trio.abc.Stream):
                raise TypeError(f"{uri!r}: TLS and WebSocket need a stream of bytes")
            stream: trio.abc.Stream = carrier
            handshake = endpoint.row.handshake(endpoint, carrier)
            if endpoint.uses_tls:
                context = ssl.create_default_context() if ssl_context is None else ssl_context
                secured = trio.SSLStream(carrier, context, server_hostname=endpoint.host, https_compatible=True)
                stream, handshake = secured, await secure(secured, handshake)
            if endpoint.is_websocket:
                # Imported only here: programs that use TCP start without it.
                from rsocket_trio.transports.websocket.transport import open_websocket

                opening = open_websocket(stream, endpoint, handshake, headers=headers, limits=limits)
                transport: Transport = await stack.enter_async_context(opening)
            else:
                transport = ByteStreamTransport(stream, handshake)
        except (OSError, trio.BrokenResourceError) as exc:
            raise ConnectionLost(f"{uri}: {reason(exc)}") from exc
        yield transport
