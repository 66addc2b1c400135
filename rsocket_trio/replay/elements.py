"""The content of logs: elements that are to be appended, records that were, packs of many rows, and their limits."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final, TypeAlias

import attrs

from rsocket_trio.values import value

MAX_RECORD_BYTES = 64 * 2**20
"""Bytes of data and metadata in a record: as many as a receiver accepts in one payload by default."""
MAX_RECORD_ROWS = 2**31 - 1
"""Rows of one record, at most."""
MAX_ENTRY_BYTES, MAX_NAME_BYTES = 2**24 - 1, 2**16 - 1
"""Bytes of a key, and of encoded headers: what an entry of composite metadata holds; and of a header's name."""
ARROW: Final = "arrow/1"
"""The name of the format of packs on the wire."""
PACK_BYTES, PACK_ROWS = 256 * 2**10, 8192
"""Bytes of contents after which a pack is complete, but for a single larger record; and rows of a pack, at most."""
FOREVER: Final = 2**63
"""A position beyond all others."""
NONE: Final = 0xFFFFFFFF
"""The length that stands for no content."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
"""The headers of a record in order: names, which may come twice, each with its content or ``None``."""
_NAME, _LENGTH = struct.Struct(">H"), struct.Struct(">I")


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
    def element(self) -> Element:
        """Return the content, as it can be appended to another log."""
        return Element(self.data, self.metadata, self.count, self.key, self.headers, self.timestamp)


@value
class Pack:
    """Rows as an Arrow IPC stream, ``data``: they span ``count`` positions from ``position`` on.

    ``timestamp`` is that of all rows without a time of their own, in microseconds since 1970. ``has_gaps`` says that
    some of the positions may have no row.
    """

    data: bytes
    count: int
    position: int = 0
    timestamp: int | None = None
    has_gaps: bool = False

    @property
    def end(self) -> int:
        """Return the position behind the pack."""
        return self.position + self.count

    @property
    def size(self) -> int:
        """Return the bytes of the stream."""
        return len(self.data)


@cache
def has_arrow() -> bool:
    """Return whether packs can be read and written here."""
    return find_spec("pyarrow") is not None


def arrow() -> ModuleType:
    """Return the module of the functions for packs. Programs without packs never load pyarrow."""
    return import_module("rsocket_trio.replay.arrow_packs")


def rows_in(stored: Record | Pack, start: int = 0, end: int = FOREVER) -> Iterable[Record]:
    """Return a record, or those of a pack that have rows from ``start`` to below ``end``."""
    return arrow().rows_of(stored, start, end) if isinstance(stored, Pack) else (stored,)


def encode_headers(headers: Headers) -> bytes:
    """Return headers as they are on the wire: for each u16 length and UTF-8 name, u32 length and content.

    The length ``NONE`` stands for null. Raise ``ValueError`` for a name that is too long.
    """
    parts: list[bytes] = []
    for name, content in headers:
        text = name.encode()
        if len(text) > MAX_NAME_BYTES:
            raise ValueError(f"a header's name of {len(text)} bytes: the limit is {MAX_NAME_BYTES}")
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


def check_element(element: Element) -> None:
    """Raise ``ValueError`` for an element that is too large or has an invalid count or time."""
    for what, size, limit in (
        ("a record", element.size, MAX_RECORD_BYTES),
        ("metadata", len(element.metadata or b""), MAX_ENTRY_BYTES),
        ("a key", len(element.key or b""), MAX_ENTRY_BYTES),
        ("headers", len(encode_headers(element.headers or ())), MAX_ENTRY_BYTES),
    ):
        if size > limit:
            raise ValueError(f"{what} of {size} bytes: the limit is {limit}")
    if type(element.count) is not int or not 1 <= element.count <= MAX_RECORD_ROWS:
        raise ValueError(f"a record of {element.count} rows: must be between 1 and {MAX_RECORD_ROWS}")
    if element.timestamp is not None and (type(element.timestamp) is not int or not 0 <= element.timestamp < FOREVER):
        raise ValueError(f"a timestamp of {element.timestamp} microseconds: must be from 0 to 2^63 - 1")


def prepared(elements: Iterable[Element | Pack]) -> list[Element | Pack]:
    """Return what is to be appended, checked; packs whose rows have places or times of their own as single elements.

    A log gives places itself, and what is stored together has one time. Raise ``ValueError`` for what can't be a
    record, ``TypeError`` for what is no element.
    """
    checked: list[Element | Pack] = []
    for element in elements:
        if isinstance(element, Pack):
            if not 1 <= element.count <= MAX_RECORD_ROWS:
                raise ValueError(f"a pack of {element.count} rows: must be between 1 and {MAX_RECORD_ROWS}")
            checked += arrow().elements_of(element) if arrow().is_placed(element) else (element,)
            continue
        if not isinstance(element, Element):
            raise TypeError(f"elements are Element or Pack, not {type(element).__name__}")
        check_element(element)
        checked.append(element)
    return checked
