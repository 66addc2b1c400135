"""The HTTP upgrade of a byte stream to a WebSocket: one request and one answer (RFC 6455, 4).

``websockets`` reads, writes and checks the messages of HTTP; the path, the host and the origin are checked here.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Final, TypeVar

import attrs
import trio
from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, SecurityError
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.streams import StreamReader
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from rsocket_trio.errors import readable
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.byte_stream import turn_away
from rsocket_trio.transports.error_text import HandshakeFailed, OriginRefused, PeerLeft
from rsocket_trio.transports.first_bytes import HEAD_SIZE, HTTP_1, wrong_protocol
from rsocket_trio.transports.schemes import Endpoint, path_of
from rsocket_trio.transports.websocket.origins import Origins

SUBPROTOCOL: Final = Subprotocol("rsocket")
"""Echoed to a client that offers it. Our client offers none: servers that echo nothing would make others fail."""
VERSION: Final = "13"
MAX_HEAD: Final = 65536
"""Bytes after which a handshake that does not end is refused."""
READ_SIZE: Final = 16384
TOKEN: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
"""The name of a header (RFC 9110, 5.6.2)."""
ABSOLUTE: Final = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE)
"""The request target of a request to a proxy, which a server must accept as well."""
LEFT: Final = "the peer left during the WebSocket handshake"
NO_HANDSHAKE: Final = "the peer did no WebSocket handshake"
OF_THE_HANDSHAKE: Final = frozenset(f"sec-websocket-{name}" for name in ("accept", "extensions", "protocol"))
"""Headers that the handshake uses up, on both sides."""

Message = TypeVar("Message", Request, Response)


class BadHandshake(Exception):
    """The peer's message is no valid handshake, for this reason; a server answers with this status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


async def request_upgrade(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, headers: Iterable[tuple[str, str]]
) -> tuple[Handshake, bytes]:
    """Ask for a WebSocket. Return the handshake's facts, and the bytes behind the answer.

    A header ``Sec-WebSocket-Protocol`` offers sub-protocols. No extension is ever offered, and so no compression.
    Raise ``HandshakeFailed``.
    """
    path = endpoint.path or "/"
    try:
        protocol, request = _request(endpoint, path, headers)
        data = request.serialize()
    except (UnicodeError, InvalidHandshake) as error:
        # A path or a header is not valid in HTTP.
        raise HandshakeFailed(f"WebSocket: {readable(str(error))}") from error
    await _send(stream, data)
    heads = _Heads(stream)
    try:
        reader = heads.reader
        parsing = Response.parse(reader.read_line, reader.read_exact, reader.read_to_eof, proxy=True)  # no body
        answer = await heads.next(parsing)
        if answer.status_code != 101:
            raise wrong_protocol(heads.first, HTTP_1, over_tls=endpoint.uses_tls) or HandshakeFailed(
                f"the server answered HTTP {answer.status_code} to the WebSocket handshake"
            )
        protocol.process_response(answer)
    except (BadHandshake, InvalidHandshake) as error:
        wrong = wrong_protocol(heads.first, HTTP_1, over_tls=endpoint.uses_tls)
        raise wrong or HandshakeFailed(f"{NO_HANDSHAKE}: {readable(str(error))}") from error
    known = _others(answer.headers, "connection", "upgrade")
    return attrs.evolve(handshake, path=path, headers=known), heads.rest


async def grant_upgrade(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, origins: Origins
) -> tuple[Handshake, bytes]:
    """Wait for a client's request for a WebSocket. Return the handshake's facts, and the bytes behind the request.

    A path other than the endpoint's gets 404, a page that is not allowed 403. Compression is never agreed on. Raise
    ``HandshakeFailed``, for such a page ``OriginRefused``.
    """
    heads = _Heads(stream)
    protocol = ServerProtocol(select_subprotocol=lambda _, offered: SUBPROTOCOL if SUBPROTOCOL in offered else None)
    try:
        request = await heads.next(Request.parse(heads.reader.read_line))
        hosts = request.headers.get_all("Host")
        if len(hosts) != 1:
            raise BadHandshake(f"{len(hosts)} headers 'Host', not one")  # RFC 9112, 3.2
    except BadHandshake as error:
        await turn_away(stream, _refusal(error.status))  # which may have more to send
        raise HandshakeFailed(f"{NO_HANDSHAKE}: {readable(str(error))}") from error
    answer = protocol.accept(request)
    if answer.status_code != 101:
        answer.headers["Sec-WebSocket-Version"] = VERSION  # RFC 6455, 4.4
        await turn_away(stream, answer.serialize())
        raise HandshakeFailed(f"{NO_HANDSHAKE}: {readable(str(protocol.handshake_exc))}")
    target, authority = _resource(request.path)
    if path_of(target) != path_of(endpoint.path):
        await turn_away(stream, _refusal(404))
        raise HandshakeFailed(f"WebSocket path {readable(target)!r}, served is {path_of(endpoint.path)!r}")
    pages = request.headers.get_all("Origin")
    if authority is not None:
        hosts = [authority]  # RFC 9112, 3.2.2
    if not origins.allow(pages, hosts):
        await turn_away(stream, _refusal(403))
        raise OriginRefused(
            f"origin {readable(', '.join(pages))!r} is not allowed; the host here is {readable(', '.join(hosts))!r}"
        )
    await _send(stream, answer.serialize())
    return attrs.evolve(handshake, path=target, headers=_others(request.headers, "host")), heads.rest


class _Heads:
    """Reads the heads of a peer's HTTP messages, and no byte behind them: that may be a frame."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.reader = StreamReader()
        self._size = 0
        self.first = b""

    @property
    def rest(self) -> bytes:
        """Return the bytes behind the last head."""
        return bytes(self.reader.buffer)

    async def next(self, parsing: Generator[None, None, Message]) -> Message:
        """Return what is parsed. Raise ``HandshakeFailed`` if none comes, ``BadHandshake`` if it is not HTTP."""
        reader = self.reader
        if not reader.buffer:
            await self._read()
        if reader.buffer[0] <= 0x20:
            raise BadHandshake("Bad HTTP message")  # known before there is a line, which may never come
        try:
            while True:
                next(parsing)
                await self._read()
        except StopIteration as parsed:
            message: Message = parsed.value
            return message
        except (EOFError, LookupError, ValueError, NotImplementedError, InvalidHandshake) as error:
            raise BadHandshake(str(error), 431 if isinstance(error, SecurityError) else 400) from error

    async def _read(self) -> None:
        chunk = b""
        if self._size < MAX_HEAD:
            with suppress(trio.BrokenResourceError):
                chunk = bytes(await self._stream.receive_some(READ_SIZE))
        if not chunk:
            raise PeerLeft(NO_HANDSHAKE) if self._size < MAX_HEAD else HandshakeFailed(NO_HANDSHAKE)
        self._size += len(chunk)
        self.first = self.first or chunk[:HEAD_SIZE]
        self.reader.feed_data(chunk)


def _request(endpoint: Endpoint, path: str, headers: Iterable[tuple[str, str]]) -> tuple[ClientProtocol, Request]:
    """Return a request for a WebSocket, and the judge of its answer. Raise ``UnicodeError``, ``InvalidHandshake``."""
    subprotocols: list[Subprotocol] = []
    others: list[tuple[str, str]] = []
    for name, text in headers:
        if name.lower() == "sec-websocket-protocol":
            subprotocols += [Subprotocol(word.strip()) for word in text.split(",")]
        elif TOKEN.fullmatch(name):
            others.append((name, text))
        else:
            raise InvalidHandshake(f"header name {name!r} is not valid in HTTP")
    host = endpoint.host.encode("idna").decode("ascii")
    uri = WebSocketURI(endpoint.uses_tls, host, endpoint.port, "", "")
    protocol = ClientProtocol(uri, subprotocols=subprotocols or None)
    request = protocol.connect()
    request.path = path
    for name, text in others:
        request.headers[name] = text
    return protocol, request


def _refusal(status: int) -> bytes:
    headers = Headers([("Content-Length", "0"), ("Connection", "close")])
    return Response(status, HTTPStatus(status).phrase, headers).serialize()


async def _send(stream: trio.abc.Stream, data: bytes) -> None:
    try:
        await stream.send_all(data)
    except trio.BrokenResourceError as error:
        raise PeerLeft(LEFT) from error


def _resource(target: str) -> tuple[str, str | None]:
    """Return the requested resource, and the authority if the target is a whole URI (RFC 6455, 4.2.1)."""
    whole = ABSOLUTE.fullmatch(target)
    if whole is None:
        return target, None
    return whole[2] if whole[2].startswith("/") else f"/{whole[2]}", whole[1]


def _others(headers: Headers, *names: str) -> tuple[tuple[str, str], ...]:
    pairs = ((name.lower(), text) for name, text in headers.raw_items())
    return tuple(pair for pair in pairs if pair[0] not in OF_THE_HANDSHAKE.union(names))
