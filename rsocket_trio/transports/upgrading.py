"""How does a stream of bytes become a WebSocket? One request over HTTP, and one answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress

import attrs
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Event, RejectConnection, Request
from wsproto.utilities import RemoteProtocolError as BadRequest

from rsocket_trio.errors import readable
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.reasons import HandshakeFailed
from rsocket_trio.transports.uris import Endpoint

SUBPROTOCOL = "rsocket"
"""Echoed to a client that offers it. Our client offers none: servers that echo nothing would make others fail."""
HEAD_LIMIT = 65536
"""Bytes of a handshake that does not end."""
READ_SIZE = 16384
BLANK_LINE = re.compile(rb"\n\r?\n")
LEFT = "the peer left during the WebSocket handshake"


async def request_upgrade(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, headers: Iterable[tuple[str, str]]
) -> tuple[Handshake, bytes]:
    """Ask for a WebSocket: what is known then, and what came behind the answer. Raises ``HandshakeFailed``.

    A header ``Sec-WebSocket-Protocol`` offers sub-protocols. No extension is ever offered, and so no compression.
    """
    subprotocols: list[str] = []
    extra: list[tuple[bytes, bytes]] = []
    for name, text in headers:
        if name.lower() == "sec-websocket-protocol":
            subprotocols += [each.strip() for each in text.split(",")]
        else:
            extra.append((name.encode("ascii"), text.encode("latin-1")))
    path = endpoint.path or "/"
    protocol = WSConnection(ConnectionType.CLIENT)
    await _say(stream, protocol, Request(endpoint.authority, path, subprotocols=subprotocols, extra_headers=extra))
    answer, rest = await _hear(stream, protocol)
    if isinstance(answer, RejectConnection):
        raise HandshakeFailed(f"the server answered HTTP {answer.status_code} to the WebSocket handshake")
    assert isinstance(answer, AcceptConnection)
    return attrs.evolve(handshake, path=path, headers=as_text(answer.extra_headers)), rest


async def grant_upgrade(stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake) -> tuple[Handshake, bytes]:
    """Wait for who asks for a WebSocket: what is known then, and what came behind the request.

    A path other than the endpoint's gets 404. Compression is never agreed on. Raises ``HandshakeFailed``.
    """
    protocol = WSConnection(ConnectionType.SERVER)
    request, rest = await _hear(stream, protocol)
    assert isinstance(request, Request)
    if _path(request.target) != _path(endpoint.path):
        await _say(stream, protocol, RejectConnection(404))
        raise HandshakeFailed(f"WebSocket path {readable(request.target)!r}, served is {_path(endpoint.path)!r}")
    echo = SUBPROTOCOL if SUBPROTOCOL in request.subprotocols else None
    await _say(stream, protocol, AcceptConnection(echo))
    return attrs.evolve(handshake, path=request.target, headers=as_text(request.extra_headers)), rest


async def _say(stream: trio.abc.Stream, protocol: WSConnection, event: Event) -> None:
    try:
        data = protocol.send(event)
    except Exception as error:
        # It follows from what the peer said, or from a path or a header that can't be said.
        raise HandshakeFailed(f"WebSocket: {readable(str(error))}") from error
    try:
        await stream.send_all(data)
    except trio.BrokenResourceError as error:
        raise HandshakeFailed(LEFT) from error


async def _hear(stream: trio.abc.Stream, protocol: WSConnection) -> tuple[Event, bytes]:
    """What the peer says over HTTP, and the bytes behind it, which are frames already."""
    size = 0
    last = b""  # in which a blank line may have begun
    while size < HEAD_LIMIT:
        try:
            chunk = bytes(await stream.receive_some(READ_SIZE))
        except trio.BrokenResourceError:
            break
        if not chunk:
            break
        size += len(chunk)
        blank = BLANK_LINE.search(last + chunk)
        head = len(chunk) if blank is None else blank.end() - len(last)
        last = (last + chunk)[-2:]
        try:
            protocol.receive_data(chunk[:head])
            events = list(protocol.events())
        except Exception as error:
            # Bytes of the peer made it fail, in whichever way: that concerns this connection only.
            if isinstance(error, BadRequest) and error.event_hint is not None and not protocol.client:
                with suppress(HandshakeFailed):
                    await _say(stream, protocol, error.event_hint)
            said = readable(str(error)) or type(error).__name__
            raise HandshakeFailed(f"the peer did no WebSocket handshake: {said}") from error
        if events:
            return events[0], chunk[head:]
    raise HandshakeFailed("the peer did no WebSocket handshake")


def _path(target: str) -> str:
    return target.partition("?")[0] or "/"


def as_text(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Headers as a ``Handshake`` has them."""
    return tuple((name.decode("latin-1").lower(), text.decode("latin-1")) for name, text in headers)
