"""Text of peers, metadata and HTTP headers as people are shown them: short, escaped, and without credentials.

Metadata is shown if it is text, or composite metadata without an authentication entry. Anything else may be credentials
and is shown by its size, as is metadata of one frame, which may be a fragment of either.
"""

from __future__ import annotations

import re
from typing import Final

AUTHENTICATION: Final = "message/x.rsocket.authentication.v0"
AUTHENTICATION_ID: Final = 0x7C
MASK: Final = "***"
MAX_TEXT: Final = 1024
"""Characters of a peer's text that an exception's message or a log line may show."""
SHOWN: Final = 40
"""Bytes that a text shows of data or metadata."""

_NAME: Final = AUTHENTICATION.encode()
_WELL_KNOWN_BIT: Final = 0x80
_NUMBERED_SCHEMES: Final = (0x80, 0x81)
"""The first byte of a user name with its password, and of a token, where they are all the metadata."""
_SCHEME: Final = re.compile(rb"[!-~]+")
_SECRET_HEADERS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "x-auth-token"}
)


def readable(data: bytes | str, limit: int = MAX_TEXT) -> str:
    """Return text of a peer in a form that fits a message: decoded with replacement, escaped, ``limit`` characters."""
    if isinstance(data, bytes):
        data = data[: 4 * limit].decode("utf-8", "replace")
    text = data[:limit]
    if not text.isprintable():
        text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    # Three dots more than the limit would break the promise, so they take the place of text.
    return text[: limit - 3] + "..." if len(text) > limit or len(data) > limit else text


def may_hold_credentials(metadata: bytes, mime: str | int | None = None) -> bool:
    """Return whether the whole ``metadata`` of a payload may hold credentials.

    ``mime`` is its MIME type, as far as it is known. Without it metadata that reads as credentials counts as well.
    """
    if mime in (AUTHENTICATION, AUTHENTICATION_ID) or names_credentials(metadata):
        return True
    if not metadata:
        return False
    if _is_composite(metadata):
        return metadata[0] in _NUMBERED_SCHEMES
    try:
        metadata.decode()
    except UnicodeDecodeError:
        return True
    # A scheme that is spelt out, behind its length less one; text for people has spaces, or ends earlier.
    end = metadata[0] + 2
    return len(metadata) > end and _SCHEME.fullmatch(metadata, 1, end) is not None


def names_credentials(data: bytes) -> bool:
    """Return whether the type of an authentication entry may be in ``data``: by its number, or by its text."""
    return _WELL_KNOWN_BIT | AUTHENTICATION_ID in data or _NAME in data


def shown_bytes(data: bytes) -> str:
    """Return ``data`` as a literal, cut at 40 bytes."""
    return repr(data) if len(data) <= SHOWN else f"{data[:SHOWN]!r}... {len(data)} bytes"


def shown_metadata(metadata: bytes, mime: str | int | None = None) -> str:
    """Return the whole ``metadata`` of a payload as a literal, cut at 40 bytes, or its size if it may be secret."""
    return shown_size(metadata) if may_hold_credentials(metadata, mime) else shown_bytes(metadata)


def shown_size(data: bytes | None) -> str:
    """Return the size of ``data`` that is not shown."""
    return "None" if data is None else f"<{len(data)} bytes>"


def shown_header(name: str, text: str) -> str:
    """Return the ``text`` of the HTTP header called ``name`` as a literal; of credentials and cookies only a mask."""
    return MASK if name.lower() in _SECRET_HEADERS else repr(text)


def shown_headers(headers: tuple[tuple[str, str], ...]) -> str:
    """Return pairs of ``headers``, those with credentials and cookies masked."""
    pairs = [f"({name!r}, {shown_header(name, text)})" for name, text in headers]
    return f"({', '.join(pairs)}{',' * (len(pairs) == 1)})"


def _is_composite(metadata: bytes) -> bool:
    """Return whether ``metadata`` consists of whole entries: a type, a length of 24 bits, and so many bytes."""
    size = len(metadata)
    offset = 0
    while offset < size:
        head = metadata[offset]
        start = offset + 1 + (0 if head & _WELL_KNOWN_BIT else head + 1) + 3
        if start > size:
            return False
        offset = start + int.from_bytes(metadata[start - 3 : start], "big")
    return offset == size
