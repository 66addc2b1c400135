"""The HTTP upgrade of a byte stream to a WebSocket: one request and one answer (RFC 6455, 4).

``websockets`` reads and writes the messages of HTTP. What has to stand in them is checked here: its own checks skip no
answer below 200, know one protocol in ``Upgrade`` and one header of each name, and name no version to other clients.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import re
from base64 import b64encode
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TypeVar

import attrs
import trio
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, SecurityError
from websockets.http11 import Request, Response
from websockets.streams import StreamReader

from rsocket_trio.errors import readable
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.byte_stream import turn_away
from rsocket_trio.transports.error_text import HandshakeFailed, OriginRefused, PeerLeft, UpgradeRefused
from rsocket_trio.transports.first_bytes import HEAD_SIZE, HTTP_1, wrong_protocol
from rsocket_trio.transports.schemes import Endpoint
from rsocket_trio.transports.websocket.origins import Origins

SUBPROTOCOL = "rsocket"
"""Echoed to a client that offers it. Our client offers none: servers that echo nothing would make others fail."""
VERSION = "13"
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""The constant that is appended to a client's key: the answer is the hash of both (RFC 6455, 1.3)."""
KEY_SIZE = 16
HEAD_LIMIT = 65536
"""Bytes after which a handshake that does not end is refused."""
INTERIM = 16
"""Answers below 200 that a server may give before the final one, as 103 Early Hints."""
READ_SIZE = 16384
TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
"""The name of a header (RFC 9110, 5.6.2)."""
ABSOLUTE = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE)
"""The request target of a request to a proxy, which a server must accept as well."""
LEFT = "the peer left during the WebSocket handshake"
NO_HANDSHAKE = "the peer did no WebSocket handshake"

Pairs = Sequence[tuple[str, str]]
Message = TypeVar("Message", Request, Response)


class BadHandshake(Exception):
    """The peer's message is no valid handshake, for this reason; a server answers with this status."""

    def __init__(self, text: str, status: int = 400, headers: Pairs = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


async def request_upgrade(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, headers: Iterable[tuple[str, str]]
) -> tuple[Handshake, bytes]:
    """Ask for a WebSocket. Return the handshake's facts, and the bytes behind the answer.

    A header ``Sec-WebSocket-Protocol`` offers sub-protocols. No extension is ever offered, and so no compression.
    Answers below 200 that come before the final one are skipped. Raise ``HandshakeFailed``.
    """
    subprotocols: list[str] = []
    extra: list[tuple[str, str]] = []
    for name, text in headers:
        if name.lower() == "sec-websocket-protocol":
            subprotocols += [each.strip() for each in text.split(",")]
        else:
            extra.append((name, text))
    path, key = endpoint.path or "/", b64encode(os.urandom(KEY_SIZE)).decode("ascii")
    try:
        said = _request(endpoint.authority, path, key, subprotocols, extra).serialize()
    except (UnicodeError, InvalidHandshake) as error:
        # A path or a header is not valid in HTTP.
        raise HandshakeFailed(f"WebSocket: {readable(str(error))}") from error
    await _say(stream, said)
    heads = _Heads(stream)
    try:
        answer = await heads.response()
        skipped = 0
        while answer.status_code < 200 and answer.status_code != 101:
            skipped += 1
            if skipped > INTERIM:
                raise BadHandshake(f"{skipped} answers below 200, and none of them 101")
            answer = await heads.response()
        if answer.status_code != 101:
            raise heads.wrong_protocol(over_tls=endpoint.uses_tls) or UpgradeRefused(
                f"the server answered HTTP {answer.status_code} to the WebSocket handshake"
            )
        known = _check_answer(answer.headers, key, subprotocols)
    except BadHandshake as error:
        wrong = heads.wrong_protocol(over_tls=endpoint.uses_tls)
        raise wrong or HandshakeFailed(f"{NO_HANDSHAKE}: {readable(str(error))}") from error
    return attrs.evolve(handshake, path=path, headers=known), heads.rest


async def grant_upgrade(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, origins: Origins
) -> tuple[Handshake, bytes]:
    """Wait for a client's request for a WebSocket. Return the handshake's facts, and the bytes behind the request.

    A path other than the endpoint's gets 404, a page that is not allowed 403. Compression is never agreed on. Raise
    ``HandshakeFailed``, for such a page ``OriginRefused``.
    """
    heads = _Heads(stream)
    try:
        request = await heads.request()
        key = _check_request(request)
    except BadHandshake as error:
        await turn_away(stream, _refusal(error.status, error.headers))  # which may have more to send
        raise HandshakeFailed(f"{NO_HANDSHAKE}: {readable(str(error))}") from error
    target, authority = _resource(request.path)
    if _path(target) != _path(endpoint.path):
        await _refuse(stream, 404)
        raise HandshakeFailed(f"WebSocket path {readable(target)!r}, served is {_path(endpoint.path)!r}")
    said = request.headers.get_all("Origin")
    hosts = request.headers.get_all("Host") if authority is None else [authority]  # RFC 9112, 3.2.2
    if not origins.allow(said, hosts):
        await _refuse(stream, 403)
        raise OriginRefused(
            f"origin {readable(', '.join(said))!r} is not allowed; the host here is {readable(', '.join(hosts))!r}"
        )
    headers = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accepting(key))]
    if SUBPROTOCOL in _listed(request.headers, "Sec-WebSocket-Protocol"):
        headers.append(("Sec-WebSocket-Protocol", SUBPROTOCOL))
    await _say(stream, _response(101, headers))
    known = _others(request.headers, "host", "sec-websocket-extensions", "sec-websocket-protocol")
    return attrs.evolve(handshake, path=target, headers=known), heads.rest


class _Heads:
    """Reads the heads of a peer's HTTP messages, and no byte behind them: that may be a frame."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._reader = StreamReader()
        self._size = 0
        self._first = b""

    def wrong_protocol(self, *, over_tls: bool) -> HandshakeFailed | None:
        """Return the error for a server of another protocol, from its first bytes; ``None`` if none is due."""
        return wrong_protocol(self._first, HTTP_1, over_tls=over_tls)

    @property
    def rest(self) -> bytes:
        """Return the bytes behind the last head."""
        return bytes(self._reader.buffer)

    async def request(self) -> Request:
        """Return the head of a request. Raise ``HandshakeFailed`` if none comes, ``BadHandshake`` if it is not HTTP."""
        return await self._next(Request.parse(self._reader.read_line))

    async def response(self) -> Response:
        """Return the head of a response, raising as ``request`` does. The bytes of a body are left."""
        reader = self._reader
        return await self._next(Response.parse(reader.read_line, reader.read_exact, reader.read_to_eof, proxy=True))

    async def _next(self, parsing: Generator[None, None, Message]) -> Message:
        reader = self._reader
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
        if self._size < HEAD_LIMIT:
            with suppress(trio.BrokenResourceError):
                chunk = bytes(await self._stream.receive_some(READ_SIZE))
        if not chunk:
            raise PeerLeft(NO_HANDSHAKE) if self._size < HEAD_LIMIT else HandshakeFailed(NO_HANDSHAKE)
        self._size += len(chunk)
        self._first = self._first or chunk[:HEAD_SIZE]
        self._reader.feed_data(chunk)


def _request(
    authority: str, path: str, key: str, subprotocols: Sequence[str], extra: Iterable[tuple[str, str]]
) -> Request:
    """Return a request for a WebSocket. Raise ``UnicodeError`` and ``InvalidHandshake``."""
    headers = Headers()
    headers["Host"] = authority.encode("idna").decode("ascii")
    headers["Upgrade"] = "websocket"
    headers["Connection"] = "Upgrade"
    headers["Sec-WebSocket-Key"] = key
    headers["Sec-WebSocket-Version"] = VERSION
    if subprotocols:
        headers["Sec-WebSocket-Protocol"] = ", ".join(subprotocols)
    for name, text in extra:
        if not TOKEN.fullmatch(name):
            raise InvalidHandshake(f"header name {name!r} is not valid in HTTP")
        headers[name] = text
    return Request(path, headers)


def _check_request(request: Request) -> str:
    """Return the key of a request for a WebSocket (RFC 6455, 4.2.1). Raise ``BadHandshake``."""
    headers = request.headers
    if request.method != "GET":
        raise BadHandshake("Request method must be GET")
    if request.protocol != "HTTP/1.1":
        raise BadHandshake(f"{request.protocol}: at least HTTP/1.1 is needed")
    if len(headers.get_all("Host")) != 1:
        raise BadHandshake(f"{len(headers.get_all('Host'))} headers 'Host', not one")  # RFC 9112, 3.2
    if "upgrade" not in _listed(headers, "Connection", lower=True):
        raise BadHandshake("Missing header, 'Connection: Upgrade'")
    if "websocket" not in _listed(headers, "Upgrade", lower=True):
        raise BadHandshake("Missing header, 'Upgrade: websocket'")
    versions = headers.get_all("Sec-WebSocket-Version")
    if versions != [VERSION]:
        said = ", ".join(versions)
        text = f"Sec-WebSocket-Version is {said}, not {VERSION}" if said else "Missing header, 'Sec-WebSocket-Version'"
        raise BadHandshake(text, 426 if said else 400, [("Sec-WebSocket-Version", VERSION)])
    keys = headers.get_all("Sec-WebSocket-Key")
    if len(keys) != 1:
        raise BadHandshake(f"{len(keys)} headers Sec-WebSocket-Key" if keys else "Missing header, 'Sec-WebSocket-Key'")
    if not is_key(keys[0].encode("latin-1")):
        raise BadHandshake(f"Sec-WebSocket-Key {keys[0]!r} is not the base64 of {KEY_SIZE} bytes")
    return keys[0]


def is_key(key: bytes) -> bool:
    """Return whether this is the base64 of 16 bytes, and nothing else (RFC 6455, 4.1)."""
    try:
        return len(binascii.a2b_base64(key, strict_mode=True)) == KEY_SIZE
    except binascii.Error:
        return False


def accepting(key: str) -> str:
    """Return the value of ``Sec-WebSocket-Accept`` that answers a key (RFC 6455, 4.2.2)."""
    return b64encode(hashlib.sha1(key.encode("ascii") + GUID, usedforsecurity=False).digest()).decode("ascii")


def _check_answer(headers: Headers, key: str, offered: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the headers of a server that agrees, without those of the handshake. Raise ``BadHandshake``."""
    if "upgrade" not in _listed(headers, "Connection", lower=True):
        raise BadHandshake("Missing header, 'Connection: Upgrade'")
    if _listed(headers, "Upgrade", lower=True) != ["websocket"]:
        raise BadHandshake("Missing header, 'Upgrade: websocket'")
    if headers.get_all("Sec-WebSocket-Accept") != [accepting(key)]:
        raise BadHandshake("Bad accept token")
    agreed = _listed(headers, "Sec-WebSocket-Protocol")
    if len(agreed) > 1 or not set(agreed) <= set(offered):
        raise BadHandshake(f"sub-protocol {', '.join(agreed)!r} was not offered")
    if extensions := _listed(headers, "Sec-WebSocket-Extensions"):
        raise BadHandshake(f"extension {', '.join(extensions)!r} was not offered")
    of_the_handshake = "connection", "upgrade", "sec-websocket-accept", "sec-websocket-protocol"
    return _others(headers, *of_the_handshake, "sec-websocket-extensions")


async def _refuse(stream: trio.abc.Stream, status: int) -> None:
    """Refuse the WebSocket over HTTP, if the peer still reads."""
    with suppress(HandshakeFailed):
        await _say(stream, _refusal(status))


def _refusal(status: int, headers: Pairs = ()) -> bytes:
    return _response(status, [*headers, ("Content-Length", "0"), ("Connection", "close")])


def _response(status: int, headers: Pairs) -> bytes:
    return Response(status, HTTPStatus(status).phrase, Headers(headers)).serialize()


async def _say(stream: trio.abc.Stream, data: bytes) -> None:
    try:
        await stream.send_all(data)
    except trio.BrokenResourceError as error:
        raise PeerLeft(LEFT) from error


def _resource(target: str) -> tuple[str, str | None]:
    """Return the requested resource, and the authority if the target is a whole URI (RFC 6455, 4.2.1)."""
    found = ABSOLUTE.fullmatch(target)
    if found is None:
        return target, None
    return found[2] if found[2].startswith("/") else f"/{found[2]}", found[1]


def _path(target: str) -> str:
    return target.partition("?")[0] or "/"


def _listed(headers: Headers, name: str, *, lower: bool = False) -> list[str]:
    """Return the members of a list that may stand in several headers (RFC 9110, 5.3)."""
    joined = ",".join(headers.get_all(name))
    members = [member.strip() for member in (joined.lower() if lower else joined).split(",")]
    return [member for member in members if member]


def _others(headers: Headers, *names: str) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in as_known(headers.raw_items()) if pair[0] not in names)


def as_known(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return headers in the form of a ``Handshake``: names in lower case."""
    return tuple((name.lower(), text) for name, text in headers)
