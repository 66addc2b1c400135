"""The content of logs: elements that are to be appended, records that were, and their limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

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

Headers: TypeAlias = Mapping[str, bytes]
"""The headers of a record: names, each with its content."""
Clock: TypeAlias = Callable[[], int]
"""A clock: microseconds since 1970, UTC."""


def now_us() -> int:
    """Return the time in microseconds since 1970, UTC."""
    return time.time_ns() // 1000


@value
class Element:
    """The content of a record before it has a position: ``data`` that holds ``count`` rows, and its ``metadata``.

    ``key`` names what the record is about, ``headers`` are names with contents. ``timestamp`` is in microseconds since
    1970; without one the log takes the time of the append. Elements that differ only in it are equal.
    """

    data: bytes
    metadata: bytes | None = None
    count: int = 1
    key: bytes | None = None
    headers: Headers | None = None
    timestamp: int | None = attrs.field(default=None, eq=False)

    @property
    def size(self) -> int:
        """Return the bytes of data, metadata, key and headers together."""
        size = len(self.data)
        if self.metadata is not None:
            size += len(self.metadata)
        if self.key is not None:
            size += len(self.key)
        return size if self.headers is None else size + headers_size(self.headers)


@value
class Record:
    """A record of a log: ``data`` and ``metadata`` of ``count`` rows, the first of them at ``position``.

    ``key`` and ``headers`` are those of its element. ``timestamp`` says when it was appended, in microseconds since
    1970: never less than that of the record before, ``None`` in logs that are older than timestamps. Records that
    differ only in it are equal. A record of 0 rows says that there is nothing before its position: see ``has_gaps``.
    """

    position: int
    data: bytes
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
    def element(self) -> Element:
        """Return the content, as it can be appended to another log."""
        return Element(self.data, self.metadata, self.count, self.key, self.headers, self.timestamp)


def headers_size(headers: Headers) -> int:
    """Return the bytes of ``headers`` as they are encoded."""
    return sum(6 + len(name.encode()) + len(content) for name, content in headers.items())


def check_element(element: Element) -> None:
    """Raise ``ValueError`` for an element that is too large or has an invalid count."""
    if element.size > LONGEST_RECORD:
        raise ValueError(f"a record of {element.size} bytes: the limit is {LONGEST_RECORD}")
    if not 1 <= element.count <= LARGEST_COUNT:
        raise ValueError(f"a record of {element.count} rows: must be between 1 and {LARGEST_COUNT}")
    if element.key is not None and len(element.key) > LONGEST_ENTRY:
        raise ValueError(f"a key of {len(element.key)} bytes: the limit is {LONGEST_ENTRY}")
    if element.headers is not None:
        if (size := headers_size(element.headers)) > LONGEST_ENTRY:
            raise ValueError(f"headers of {size} bytes: the limit is {LONGEST_ENTRY}")
        for name in element.headers:
            if (size := len(name.encode())) > LONGEST_NAME:
                raise ValueError(f"a header's name of {size} bytes: the limit is {LONGEST_NAME}")
    if element.timestamp is not None and not 0 <= element.timestamp < 2**63:
        raise ValueError(f"a timestamp of {element.timestamp} microseconds: must be from 0 to 2^63 - 1")
