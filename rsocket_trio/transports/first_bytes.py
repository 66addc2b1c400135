"""Names the protocol of a peer by its first bytes, for connections that reach a port of another protocol."""

from __future__ import annotations

import re
from typing import Final

from rsocket_trio.errors import readable
from rsocket_trio.transports.error_text import WrongProtocol

RSOCKET: Final = "RSocket"
STREAMUX: Final = "Streamux"
HTTP_1: Final = "HTTP/1.1"
HTTP_2: Final = "HTTP/2"
TLS: Final = "TLS"

SCHEMES: Final = {
    #          clear  over TLS
    RSOCKET:  ("tcp", "tls"),
    STREAMUX: ("tcp", "tls"),
    HTTP_1:   ("ws",  "wss"),
    HTTP_2:   ("h2",  "h2s"),
}  # fmt: skip
"""The schemes of URIs whose servers speak a protocol."""
TRY_TLS: Final = "try tls://, wss:// or h2s://"
TLS_ALERT: Final = bytes.fromhex("15 0301 0002 02 0A")
"""The answer of a server of TLS to other bytes: a fatal alert, unexpected_message (RFC 8446, 5 and 6)."""
HTTP_2_REFUSAL: Final = bytes.fromhex("000000 04 00 00000000  000008 07 00 00000000 00000000 00000001")
"""The answer of a server of HTTP/2 to a client that did not agree on it: SETTINGS, and GOAWAY with PROTOCOL_ERROR."""
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client of HTTP/2 (RFC 9113, 3.4)."""
DECIDING: Final = 9
"""Bytes that tell whether a server speaks RSocket: as many as the header of a frame of HTTP/2 has."""
HEAD_SIZE: Final = 1024
"""Bytes of a server that are kept to name it: those of an error page of HTTP may tell that TLS is needed."""
SERVERS: Final = tuple(
    (protocol, re.compile(pattern, re.DOTALL))
    for protocol, pattern in (
        (TLS, rb"\x15\x03.\x00\x02"),  # an alert: before a ClientHello a server sends nothing else
        (HTTP_1, rb"HTTP/"),
        (HTTP_2, rb"\x00..\x04\x00\x00{4}"),  # SETTINGS on stream 0
        (RSOCKET, rb".{3}\x00{4}[\x08-\x0F\x2C-\x2F]"),  # 1.0: LEASE, KEEPALIVE or ERROR on stream 0
        (RSOCKET, rb"\x00...\x00\x0C..\x00{4}"),  # 0.1: ERROR on stream 0
        (RSOCKET, rb"\x00...\x00.\x00\x02\x00{4}"),  # 0.0: the same
        (STREAMUX, rb"\x01[\x00-\x3F].(?!\x00\x00).."),  # an initialize message
    )
)
"""The first bytes of servers, in the order in which they are tried."""
METHOD: Final = re.compile(rb"(GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH) ")
NEEDS_TLS: Final = re.compile(rb"HTTP/1\.[01] 400 .*(HTTPS|SSL-enabled)", re.DOTALL)
"""The page of nginx, Apache and Go for a request without TLS at a port of HTTPS."""


def server_protocol(first: bytes) -> str:
    """Return the protocol of a server that sends these first bytes; an empty text if it is none of the known ones."""
    return next((protocol for protocol, pattern in SERVERS if pattern.match(first)), "")


def client_protocol(first: bytes) -> str:
    """Return the protocol other than RSocket of a client that sends these first bytes; an empty text if unknown."""
    if is_tls(first) and first[5:6] == b"\1":
        return TLS  # a ClientHello
    if first.startswith(PREFACE[:8]):
        return HTTP_2
    return HTTP_1 if METHOD.match(first) else ""


def is_tls(first: bytes) -> bool:
    """Return whether a record of TLS may begin like this."""
    return b"\x14" <= first[:1] <= b"\x17" and first[1:2] in {b"", b"\3"}


def wrong_protocol(first: bytes, expected: str, *, over_tls: bool) -> WrongProtocol | None:
    """Return the error for a server that sends these first bytes to a client of ``expected``; ``None`` if none is due.

    ``over_tls`` says that they came over TLS.
    """
    if not over_tls and NEEDS_TLS.match(first):
        return WrongProtocol(f"a server of HTTP over TLS answered, {_status_line(first)}: {TRY_TLS}")
    protocol = server_protocol(first)
    if not protocol or SCHEMES.get(protocol) == SCHEMES.get(expected):
        return None
    if protocol == TLS:
        return WrongProtocol(f"TLS answered: {TRY_TLS}")
    line = f", {_status_line(first)}" if protocol == HTTP_1 else ""
    place = "over" if over_tls else "without"
    return WrongProtocol(f"{protocol} {place} TLS answered{line}: try {SCHEMES[protocol][over_tls]}://")


def _status_line(first: bytes) -> str:
    return repr(readable(first.partition(b"\r\n")[0][:80].decode("latin-1")))


class FirstBytes:
    """The first bytes that a client of RSocket receives over a stream. ``uri`` is that of the server."""

    __slots__ = ("_first", "_over_tls", "uri")

    def __init__(self, uri: str, *, over_tls: bool) -> None:
        self.uri = uri
        self._over_tls = over_tls
        self._first = b""

    def take(self, chunk: bytes) -> bool:
        """Take the next bytes. Return whether they are enough. Raise ``WrongProtocol`` if they are not RSocket's."""
        self._first += chunk[:HEAD_SIZE]
        wrong = wrong_protocol(self._first, RSOCKET, over_tls=self._over_tls)
        if wrong is not None:
            raise WrongProtocol(f"{self.uri}: {wrong}")
        return len(self._first) >= DECIDING
