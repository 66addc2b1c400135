"""The HTTP upgrade of a byte stream to a WebSocket: one request and one answer (RFC 6455, 4)."""

from __future__ import annotations

import binascii
import os
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress

import attrs
import h11
import trio
from wsproto.utilities import generate_accept_token

from rsocket_trio.errors import readable
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.error_text import HandshakeFailed, OriginRefused
from rsocket_trio.transports.schemes import Endpoint
from rsocket_trio.transports.websocket.origins import Origins

SUBPROTOCOL = "rsocket"
"""Echoed to a client that offers it. Our client offers none: servers that echo nothing would make others fail."""
VERSION = "13"
KEY_SIZE = 16
HEAD_LIMIT = 65536
"""Bytes after which a handshake that does not end is refused."""
INTERIM = 16
"""Answers below 200 that a server may give before the final one, as 103 Early Hints."""
READ_SIZE = 16384
BLANK_LINE = re.compile(rb"\n\r?\n")
ABSOLUTE = re.compile(r"https?://([^/?#]*)(.*)", re.IGNORECASE)
"""The request target of a request to a proxy, which a server must accept as well."""
LEFT = "the peer left during the WebSocket handshake"
NO_HANDSHAKE = "the peer did no WebSocket handshake"

Headers = Sequence[tuple[bytes, bytes]]


class BadHandshake(Exception):
    """The peer's message is no valid handshake, for this reason; a server answers with this status."""

    def __init__(self, text: str, status: int = 400, headers: Headers = ()) -> None:
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
    path, key = endpoint.path or "/", b64encode(os.urandom(KEY_SIZE))
    parser = h11.Connection(h11.CLIENT)
    try:
        said = parser.send(_request(endpoint.authority, path, key, subprotocols, extra)) or b""
        said += parser.send(h11.EndOfMessage()) or b""
    except (UnicodeError, h11.LocalProtocolError) as error:
        # A path or a header is not valid in HTTP.
        raise HandshakeFailed(f"WebSocket: {readable(str(error))}") from error
    await _say(stream, said)
    heads = _Heads(stream, parser)
    try:
        answer = await heads.next()
        skipped = 0
        while isinstance(answer, h11.InformationalResponse) and answer.status_code != 101:
            skipped += 1
            if skipped > INTERIM:
                raise BadHandshake(f"{skipped} answers below 200, and none of them 101")
            answer = await heads.next()
        if isinstance(answer, h11.Response):
            raise HandshakeFailed(f"the server answered HTTP {answer.status_code} to the WebSocket handshake")
        if not isinstance(answer, h11.InformationalResponse):
            raise HandshakeFailed(NO_HANDSHAKE)
        known = _check_answer(list(answer.headers), key, subprotocols)
    except (BadHandshake, h11.RemoteProtocolError) as error:
        raise HandshakeFailed(f"{NO_HANDSHAKE}: {readable(str(error))}") from error
    return attrs.evolve(handshake, path=path, headers=known), heads.rest


async def grant_upgrade(
    stream: trio.abc.Stream, endpoint: Endpoint, handshake: Handshake, origins: Origins
) -> tuple[Handshake, bytes]:
    """Wait for a client's request for a WebSocket. Return the handshake's facts, and the bytes behind the request.

    A path other than the endpoint's gets 404, a page that is not allowed 403. Compression is never agreed on. Raise
    ``HandshakeFailed``, for such a page ``OriginRefused``.
    """
    parser = h11.Connection(h11.SERVER)
    heads = _Heads(stream, parser)
    try:
        request = await heads.next()
        if not isinstance(request, h11.Request):
            raise BadHandshake("Bad HTTP message")
        key = _check_request(request)
    except BadHandshake as error:
        await _refuse(stream, parser, error.status, error.headers)
        raise HandshakeFailed(f"{NO_HANDSHAKE}: {readable(str(error))}") from error
    except h11.RemoteProtocolError as error:
        await _refuse(stream, parser, error.error_status_hint)
        raise HandshakeFailed(f"{NO_HANDSHAKE}: {readable(str(error))}") from error
    target, authority = _resource(request.target.decode("ascii"))
    if _path(target) != _path(endpoint.path):
        await _refuse(stream, parser, 404)
        raise HandshakeFailed(f"WebSocket path {readable(target)!r}, served is {_path(endpoint.path)!r}")
    said = _all(request.headers, b"origin")
    hosts = _all(request.headers, b"host") if authority is None else [authority]  # RFC 9112, 3.2.2
    if not origins.allow(said, hosts):
        await _refuse(stream, parser, 403)
        raise OriginRefused(
            f"origin {readable(', '.join(said))!r} is not allowed; the host here is {readable(', '.join(hosts))!r}"
        )
    headers = [
        (b"Upgrade", b"websocket"),
        (b"Connection", b"Upgrade"),
        (b"Sec-WebSocket-Accept", generate_accept_token(key)),
    ]
    if SUBPROTOCOL in _listed(request.headers, b"sec-websocket-protocol"):
        headers.append((b"Sec-WebSocket-Protocol", SUBPROTOCOL.encode()))
    answer = h11.InformationalResponse(status_code=101, headers=headers, reason=b"Switching Protocols")
    await _say(stream, parser.send(answer) or b"")
    known = _others(request.headers, b"host", b"sec-websocket-extensions", b"sec-websocket-protocol")
    return attrs.evolve(handshake, path=target, headers=known), heads.rest


class _Heads:
    """Reads the heads of a peer's HTTP messages; ``rest`` are the bytes behind the last one, which may be frames."""

    def __init__(self, stream: trio.abc.Stream, parser: h11.Connection) -> None:
        self.rest = b""
        self._stream = stream
        self._parser = parser
        self._size = 0

    async def next(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next head.

        Raise ``HandshakeFailed`` if none comes, ``h11.RemoteProtocolError`` if it is not HTTP.
        """
        last = b""  # in which a blank line may have begun
        while True:
            chunk, self.rest = self.rest, b""
            if not chunk:
                chunk = await self._read()
            blank = BLANK_LINE.search(last + chunk)
            head = len(chunk) if blank is None else blank.end() - len(last)
            last = (last + chunk)[-2:]
            self._parser.receive_data(chunk[:head])
            self.rest = chunk[head:]
            event = self._parser.next_event()
            if event is not h11.NEED_DATA:
                return event

    async def _read(self) -> bytes:
        chunk = b""
        if self._size < HEAD_LIMIT:
            with suppress(trio.BrokenResourceError):
                chunk = bytes(await self._stream.receive_some(READ_SIZE))
        if not chunk:
            raise HandshakeFailed(NO_HANDSHAKE)
        self._size += len(chunk)
        return chunk


def _request(
    authority: str, path: str, key: bytes, subprotocols: Sequence[str], extra: Iterable[tuple[str, str]]
) -> h11.Request:
    headers = [
        (b"Host", authority.encode("idna")),
        (b"Upgrade", b"websocket"),
        (b"Connection", b"Upgrade"),
        (b"Sec-WebSocket-Key", key),
        (b"Sec-WebSocket-Version", VERSION.encode()),
    ]
    if subprotocols:
        headers.append((b"Sec-WebSocket-Protocol", ", ".join(subprotocols).encode("ascii")))
    headers += [(name.encode("ascii"), text.encode("latin-1")) for name, text in extra]
    return h11.Request(method=b"GET", target=path.encode("ascii"), headers=headers)


def _check_request(request: h11.Request) -> bytes:
    """Return the key of a request for a WebSocket (RFC 6455, 4.2.1). Raise ``BadHandshake``."""
    headers = request.headers
    if request.method != b"GET":
        raise BadHandshake("Request method must be GET")
    if request.http_version < b"1.1":
        raise BadHandshake(f"HTTP {request.http_version.decode()}: at least 1.1 is needed")
    lengths = _all(headers, b"content-length")
    if _all(headers, b"transfer-encoding") or any(length.strip("0") for length in lengths):
        # The bytes of a body would be taken for frames.
        raise BadHandshake("the request has a body")
    if "upgrade" not in _listed(headers, b"connection", lower=True):
        raise BadHandshake("Missing header, 'Connection: Upgrade'")
    if "websocket" not in _listed(headers, b"upgrade", lower=True):
        raise BadHandshake("Missing header, 'Upgrade: websocket'")
    versions = _all(headers, b"sec-websocket-version")
    if versions != [VERSION]:
        said = ", ".join(versions)
        text = f"Sec-WebSocket-Version is {said}, not {VERSION}" if said else "Missing header, 'Sec-WebSocket-Version'"
        raise BadHandshake(text, 426 if said else 400, [(b"Sec-WebSocket-Version", VERSION.encode())])
    keys = _all(headers, b"sec-websocket-key")
    if len(keys) != 1:
        raise BadHandshake(f"{len(keys)} headers Sec-WebSocket-Key" if keys else "Missing header, 'Sec-WebSocket-Key'")
    key = keys[0].encode("latin-1")
    if not is_key(key):
        raise BadHandshake(f"Sec-WebSocket-Key {keys[0]!r} is not the base64 of {KEY_SIZE} bytes")
    return key


def is_key(key: bytes) -> bool:
    """Return whether this is the base64 of 16 bytes, and nothing else (RFC 6455, 4.1)."""
    try:
        return len(binascii.a2b_base64(key, strict_mode=True)) == KEY_SIZE
    except binascii.Error:
        return False


def _check_answer(headers: Headers, key: bytes, offered: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return the headers of a server that agrees, without those of the handshake. Raise ``BadHandshake``."""
    if "upgrade" not in _listed(headers, b"connection", lower=True):
        raise BadHandshake("Missing header, 'Connection: Upgrade'")
    if _listed(headers, b"upgrade", lower=True) != ["websocket"]:
        raise BadHandshake("Missing header, 'Upgrade: websocket'")
    if _all(headers, b"sec-websocket-accept") != [generate_accept_token(key).decode("ascii")]:
        raise BadHandshake("Bad accept token")
    agreed = _listed(headers, b"sec-websocket-protocol")
    if len(agreed) > 1 or not set(agreed) <= set(offered):
        raise BadHandshake(f"sub-protocol {', '.join(agreed)!r} was not offered")
    if extensions := _listed(headers, b"sec-websocket-extensions"):
        raise BadHandshake(f"extension {', '.join(extensions)!r} was not offered")
    of_the_handshake = b"connection", b"upgrade", b"sec-websocket-accept", b"sec-websocket-protocol"
    return _others(headers, *of_the_handshake, b"sec-websocket-extensions")


async def _refuse(stream: trio.abc.Stream, parser: h11.Connection, status: int, headers: Headers = ()) -> None:
    """Refuse the WebSocket over HTTP, if the peer still reads."""
    refusal = h11.Response(status_code=status, headers=[*headers, (b"Content-Length", b"0"), (b"Connection", b"close")])
    said = (parser.send(refusal) or b"") + (parser.send(h11.EndOfMessage()) or b"")
    with suppress(HandshakeFailed):
        await _say(stream, said)


async def _say(stream: trio.abc.Stream, data: bytes) -> None:
    try:
        await stream.send_all(data)
    except trio.BrokenResourceError as error:
        raise HandshakeFailed(LEFT) from error


def _resource(target: str) -> tuple[str, str | None]:
    """Return the requested resource, and the authority if the target is a whole URI (RFC 6455, 4.2.1)."""
    found = ABSOLUTE.fullmatch(target)
    if found is None:
        return target, None
    return found[2] if found[2].startswith("/") else f"/{found[2]}", found[1]


def _path(target: str) -> str:
    return target.partition("?")[0] or "/"


def _all(headers: Headers, name: bytes) -> list[str]:
    """Return the values of all headers of this name."""
    return [text.decode("latin-1") for each, text in headers if each.lower() == name]


def _listed(headers: Headers, name: bytes, *, lower: bool = False) -> list[str]:
    """Return the members of a list that may stand in several headers (RFC 9110, 5.3)."""
    joined = ",".join(_all(headers, name))
    members = [member.strip() for member in (joined.lower() if lower else joined).split(",")]
    return [member for member in members if member]


def _others(headers: Headers, *names: bytes) -> tuple[tuple[str, str], ...]:
    return as_text([(name, text) for name, text in headers if name.lower() not in names])


def as_text(headers: Iterable[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """Return headers in the form of a ``Handshake``."""
    return tuple((name.decode("latin-1").lower(), text.decode("latin-1")) for name, text in headers)
