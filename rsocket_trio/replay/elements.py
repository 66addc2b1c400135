"""The content of logs: elements that are to be appended, records that were, and their limits."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs

from rsocket_trio.values import value

LONGEST_RECORD = 64 * 2**20
"""Bytes of data and metadata in a record: as many as a receiver accepts in one payload by default."""
LARGEST_COUNT = 2**31 - 1
"""Rows of one record, at most."""
LONGEST_ENTRY = 2**24 - 1
"""Bytes of a key, and of encoded headers: what an entry of composite metadata holds."""
LONGEST_NAME = 2**16 - 1
"""Bytes of a header's name."""

NONE: Final = 0xFFFFFFFF
"""The length that stands for no content."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
"""The headers of a record in order: names, which may come twice, each with its content or ``None``."""
Clock: TypeAlias = Callable[[], int]
"""A clock: microseconds since 1970, UTC."""


_NAME = struct.Struct(">H")
_LENGTH = struct.Struct(">I")


def now_us() -> int:
    """Return the time in microseconds since 1970, UTC."""
    return time.time_ns() // 1000


@value
class Element:
    """The content of a record before it has a position: ``data`` that holds ``count`` rows, and its ``metadata``.

    ``data`` is ``None`` for null. ``key`` names what the record is about, ``headers`` are names with contents.
    ``timestamp`` is in microseconds since 1970; without one the log takes the time of the append. Elements that differ
    only in it are equal.
    """

    data: bytes | None
    metadata: bytes | None = None
    count: int = 1
    key: bytes | None = None
    headers: Headers | None = None
    timestamp: int | None = attrs.field(default=None, eq=False)

    @property
    def size(self) -> int:
        """Return the bytes of data, metadata, key and headers, these as they are encoded."""
        size = len(self.data or b"") + len(self.metadata or b"") + len(self.key or b"")
        if self.headers is None:
            return size
        return size + sum([6 + len(name.encode()) + len(content or b"") for name, content in self.headers])


@value
class Record:
    """A record of a log: ``data`` and ``metadata`` of ``count`` rows, the first of them at ``position``.

    ``data``, ``key`` and ``headers`` are those of its element. ``timestamp`` says when it was appended, in microseconds
    since 1970: never less than that of the record before, ``None`` where that is not known. Records that differ only
    in it are equal. A record of 0 rows says that there is nothing before its position: see ``has_gaps``.
    """

    position: int
    data: bytes | None
    metadata: bytes | None = None
    count: int = 1
    key: bytes | None = None
    headers: Headers | None = None
    timestamp: int | None = attrs.field(default=None, eq=False)

    @property
    def end(self) -> int:
        """Return the position of the record that follows."""
        return self.position + self.count

    @property
    def size(self) -> int:
        """Return the bytes of data, metadata, key and headers together."""
        return self.element.size

    @property
    def element(self) -> Element:
        """Return the content, as it can be appended to another log."""
        return Element(self.data, self.metadata, self.count, self.key, self.headers, self.timestamp)


def encode_headers(headers: Headers) -> bytes:
    """Return headers as they are on the wire: for each u16 length and UTF-8 name, u32 length and content.

    The length ``NONE`` stands for null. Raise ``ValueError`` for a name that is too long.
    """
    parts: list[bytes] = []
    for name, content in headers:
        text = name.encode()
        if len(text) > LONGEST_NAME:
            raise ValueError(f"a header's name of {len(text)} bytes: the limit is {LONGEST_NAME}")
        parts += (_NAME.pack(len(text)), text, _LENGTH.pack(NONE if content is None else len(content)), content or b"")
    return b"".join(parts)


def decode_headers(data: bytes) -> list[tuple[str, bytes | None]]:
    """Return the headers in order. Raise ``ValueError`` for malformed ones."""
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    try:
        while at < len(data):
            name_at = at + _NAME.size
            middle = name_at + _NAME.unpack_from(data, at)[0]
            begin = middle + _LENGTH.size
            (length,) = _LENGTH.unpack_from(data, middle)
            at = begin if length == NONE else begin + length
            headers.append((data[name_at:middle].decode(), None if length == NONE else data[begin:at]))
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"header {len(headers)} of {len(data)} bytes is malformed: {error}") from None
    if at > len(data):
        raise ValueError(f"headers of {len(data)} bytes end within the content of {headers[-1][0][:100]!r}")
    return headers


def check_element(element: Element) -> int:
    """Return the size of an element. Raise ``ValueError`` if it is too large or has an invalid count."""
    size = element.size
    if size > LONGEST_RECORD:
        raise ValueError(f"a record of {size} bytes: the limit is {LONGEST_RECORD}")
    if type(element.count) is not int or not 1 <= element.count <= LARGEST_COUNT:
        raise ValueError(f"a record of {element.count} rows: must be between 1 and {LARGEST_COUNT}")
    if element.metadata is not None and len(element.metadata) > LONGEST_ENTRY:
        raise ValueError(f"metadata of {len(element.metadata)} bytes: the limit is {LONGEST_ENTRY}")
    if element.key is not None and len(element.key) > LONGEST_ENTRY:
        raise ValueError(f"a key of {len(element.key)} bytes: the limit is {LONGEST_ENTRY}")
    if element.headers is not None and (length := len(encode_headers(element.headers))) > LONGEST_ENTRY:
        raise ValueError(f"headers of {length} bytes: the limit is {LONGEST_ENTRY}")
    if element.timestamp is not None and not 0 <= element.timestamp < 2**63:
        raise ValueError(f"a timestamp of {element.timestamp} microseconds: must be from 0 to 2^63 - 1")
    return size
