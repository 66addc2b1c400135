"""Opens the transport that a URI names, or raises ``ConnectionLost`` with the reason."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import trio

from rsocket_trio.errors import ConnectionLost
from rsocket_trio.limits import Limits
from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.error_text import reason
from rsocket_trio.transports.memory import connect_memory
from rsocket_trio.transports.socket_stream import DirectStream
from rsocket_trio.transports.sockets import open_tcp, open_unix, secure
from rsocket_trio.transports.uris import Endpoint, parse_uri

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
            raise ValueError(f"header {name!r}: {text!r} can't be said in HTTP")
    if headers and not endpoint.is_websocket:
        raise ValueError(f"{uri!r}: only ws and wss have a handshake that carries headers")
    if endpoint.scheme in ("tcp", "unix"):
        return _Plain(uri, endpoint)
    return _shaken(uri, endpoint, ssl_context, headers, limits or Limits())


class _Plain(AbstractAsyncContextManager[Transport, None]):
    """A bare socket, without the generator that would cost a tenth of the time of connecting."""

    def __init__(self, uri: str, endpoint: Endpoint) -> None:
        self._uri = uri
        self._endpoint = endpoint
        self._stream: DirectStream | None = None

    async def __aenter__(self) -> Transport:
        try:
            self._stream, handshake = await _dial(self._endpoint)
        except OSError as exc:
            raise ConnectionLost(f"{self._uri}: {reason(exc)}") from exc
        return ByteStreamTransport(self._stream, handshake)

    async def __aexit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()


@asynccontextmanager
async def _shaken(
    uri: str,
    endpoint: Endpoint,
    ssl_context: ssl.SSLContext | None,
    headers: tuple[tuple[str, str], ...],
    limits: Limits,
) -> AsyncIterator[Transport]:
    """Open a transport that needs more than a bare TCP or Unix socket."""
    async with AsyncExitStack() as stack:
        try:
            if endpoint.scheme == "memory":
                transport: Transport = await connect_memory(endpoint.host)
                stack.push_async_callback(transport.aclose)
            else:
                socket, handshake = await _dial(endpoint)
                stack.callback(socket.close)
                stream: DirectStream | trio.SSLStream[DirectStream] = socket
                if endpoint.uses_tls:
                    context = ssl.create_default_context() if ssl_context is None else ssl_context
                    stream = trio.SSLStream(socket, context, server_hostname=endpoint.host, https_compatible=True)
                    handshake = await secure(stream, handshake)
                if endpoint.is_websocket:
                    # Imported only here: programs that use TCP start without it.
                    from rsocket_trio.transports.websocket.transport import open_websocket

                    opening = open_websocket(stream, endpoint, handshake, headers=headers, limits=limits)
                    transport = await stack.enter_async_context(opening)
                else:
                    transport = ByteStreamTransport(stream, handshake)
        except (OSError, trio.BrokenResourceError) as exc:
            raise ConnectionLost(f"{uri}: {reason(exc)}") from exc
        yield transport


async def _dial(endpoint: Endpoint) -> tuple[DirectStream, Handshake]:
    """Connect a socket. Return it and the peer's address. Raise ``OSError``."""
    if endpoint.scheme == "unix":
        return await open_unix(endpoint.path), Handshake(transport="unix", peer=endpoint.path)
    stream = await open_tcp(endpoint.host, endpoint.port)
    return stream, Handshake(transport=endpoint.scheme, peer=stream.peer)
