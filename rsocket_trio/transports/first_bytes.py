"""Names the protocol of a peer by its first bytes, for connections that reach a port of another protocol."""

from __future__ import annotations

import re
from typing import Final

from rsocket_trio.errors import readable
from rsocket_trio.transports.error_text import WrongProtocol

RSOCKET: Final = "RSocket"
HTTP_1: Final = "HTTP/1.1"
HTTP_2: Final = "HTTP/2"
TLS: Final = "TLS"

SCHEMES: Final = {
    #                clear   over TLS
    RSOCKET: ("tcp", "tls"),
    HTTP_1:  ("ws",  "wss"),
    HTTP_2:  ("h2",  "h2s"),
}  # fmt: skip
"""The schemes of URIs whose servers speak a protocol."""
TRY_TLS: Final = f"try {', '.join(over_tls for _, over_tls in SCHEMES.values())}"
TLS_ALERT: Final = bytes.fromhex("15 0301 0002 02 0A")
"""The answer of a server of TLS to other bytes: a fatal alert, unexpected_message (RFC 8446, 5 and 6)."""
HTTP_2_REFUSAL: Final = bytes.fromhex("000000 04 00 00000000  000008 07 00 00000000 00000000 00000001")
"""The answer of a server of HTTP/2 to a client that did not agree on it: SETTINGS, and GOAWAY with PROTOCOL_ERROR."""
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client of HTTP/2 (RFC 9113, 3.4)."""
DECIDING: Final = 9
"""Bytes that tell the protocol of a server: the header of a frame of HTTP/2, the least frame of RSocket."""
HEAD_SIZE: Final = 1024
"""Bytes of a server that are kept to name it: those of an error page of HTTP may tell that TLS is needed."""
FIRST_TYPES: Final = frozenset({0x08, 0x0C, 0x2C})
"""The sixth byte of a LEASE, a KEEPALIVE and an ERROR of RSocket 1.0, without the flags in its lower two bits."""
METHOD: Final = re.compile(rb"(GET|HEAD|POST|PUT|DELETE|CONNECT|OPTIONS|TRACE|PATCH) ")
NEEDS_TLS: Final = re.compile(rb"HTTP/1\.[01] 400 .*(HTTPS|SSL-enabled)", re.DOTALL)
"""The page of nginx, Apache and Go for a request without TLS at a port of HTTPS."""


def server_protocol(first: bytes) -> str:
    """Return the protocol of a server that sends these first bytes; an empty text if it is none of the known ones."""
    if first[:2] == b"\x15\x03" and first[3:5] == b"\0\2":
        return TLS  # an alert: without a ClientHello a server sends nothing else
    if first.startswith(b"HTTP/"):
        return HTTP_1
    if len(first) < DECIDING or first[0]:
        return ""
    if first[3:9] == b"\4\0\0\0\0\0":
        return HTTP_2  # SETTINGS on stream 0
    if first[3:7] == bytes(4) and first[7] & 0xFC in FIRST_TYPES:
        return RSOCKET  # a frame on stream 0, behind its length
    return ""


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
    if protocol in {"", expected}:
        return None
    if protocol == TLS:
        return WrongProtocol(f"TLS answered: {TRY_TLS}")
    line = f", {_status_line(first)}" if protocol == HTTP_1 else ""
    place = "over" if over_tls else "without"
    return WrongProtocol(f"{protocol} {place} TLS answered{line}: try {SCHEMES[protocol][over_tls]}")


def _status_line(first: bytes) -> str:
    return repr(readable(first.partition(b"\r\n")[0][:80].decode("latin-1")))


class FirstBytes:
    """The first bytes that a client of RSocket receives over a stream. ``uri`` is that of the server."""

    __slots__ = ("_first", "_over_tls", "_uri")

    def __init__(self, uri: str, *, over_tls: bool) -> None:
        self._uri = uri
        self._over_tls = over_tls
        self._first = b""

    def take(self, chunk: bytes) -> bool:
        """Take the next bytes. Return whether they are enough. Raise ``WrongProtocol`` if they are not RSocket's."""
        self._first += chunk[:HEAD_SIZE]
        wrong = wrong_protocol(self._first, RSOCKET, over_tls=self._over_tls)
        if wrong is not None:
            raise WrongProtocol(f"{self._uri}: {wrong}")
        return len(self._first) >= DECIDING
