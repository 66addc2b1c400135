"""The content of logs: elements that are to be appended, records that were, and packs of many rows; their limits, and
their forms on the wire.
"""

from __future__ import annotations

import fnmatch
import re
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated, Any, Final, TypeAlias

import attrs
import msgspec
from msgspec import Meta, Raw

from rsocket_trio.errors import Invalid, RemoteProtocolError, readable
from rsocket_trio.metadata.composite import Entry, encode_composite, spans
from rsocket_trio.metadata.mime import encode_mime
from rsocket_trio.payload import Payload
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
_NAME, _NUMBER, _LONG = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")


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
        parts += (_NAME.pack(len(text)), text, _NUMBER.pack(NONE if content is None else len(content)), content or b"")
    return b"".join(parts)


def decode_headers(data: bytes) -> list[tuple[str, bytes | None]]:
    """Return the headers in order. Raise ``ValueError`` for malformed ones."""
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    try:
        while at < len(data):
            name_at = at + _NAME.size
            middle = name_at + _NAME.unpack_from(data, at)[0]
            begin = middle + _NUMBER.size
            (length,) = _NUMBER.unpack_from(data, middle)
            at = begin if length == NONE else begin + length
            headers.append((data[name_at:middle].decode(), None if length == NONE else data[begin:at]))
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"header {len(headers)} of {len(data)} bytes is malformed: {error}") from None
    if at > len(data):
        raise ValueError(f"headers of {len(data)} bytes end within the content of {headers[-1][0][:100]!r}")
    return headers


def reader_name(name: object) -> str:
    """Return ``name`` if it is one of a reader. Raise ``ValueError``."""
    if not isinstance(name, str) or not re.fullmatch(r"[0-9A-Za-z._-]{1,64}", name, re.ASCII):
        shown = readable(str(name)[:100])
        raise ValueError(f"the name of a reader has 1 to 64 letters, digits, '-', '_' and '.', not {shown!r}")
    return name


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


# On the wire

MAX_SINK_CHARACTERS: Final = 256
"""Characters of a sink's name, and of a query's id."""
SOURCES_ROUTE: Final = "rsocket-trio.sources"
"""The route on which a server lists its sources."""
POSITION: Final = "message/x.rsocket-trio.position.v0"
RECORD_METADATA: Final = "message/x.rsocket-trio.record-metadata.v0"
KEY: Final = "message/x.rsocket-trio.key.v0"
HEADERS: Final = "message/x.rsocket-trio.headers.v0"
TIMESTAMP: Final = "message/x.rsocket-trio.timestamp.v0"
GAP: Final = "message/x.rsocket-trio.gap.v0"
PACK: Final = "message/x.rsocket-trio.pack.v0"
ROWS: Final = "message/x.rsocket-trio.rows.v0"
NULL: Final = "message/x.rsocket-trio.null.v0"
WRITE: Final = "message/x.rsocket-trio.write.v0"

Whole = Annotated[int, Meta(ge=0, le=FOREVER - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_SINK_CHARACTERS)]

# The usual record has the entries of its position and its time: of each the MIME type, 8 as the length, the number.
_POSITION_HEAD = encode_mime(POSITION) + (8).to_bytes(3, "big")
_TIME_HEAD = encode_mime(TIMESTAMP) + (8).to_bytes(3, "big")
_PLACE = struct.Struct(f">{len(_POSITION_HEAD)}sQ{len(_TIME_HEAD)}sQ")


def source_payload(record: Record) -> Payload:
    """Return ``record`` as a source sends it."""
    if record.count == 1 and record.timestamp is not None:
        place = _PLACE.pack(_POSITION_HEAD, record.position, _TIME_HEAD, record.timestamp)
        if record.data is not None and record.metadata is None and record.key is None and record.headers is None:
            return Payload(record.data, place)
    else:
        place = encode_composite(_place(record))
    contents = (
        (NULL, b"" if record.data is None else None),
        (RECORD_METADATA, record.metadata),
        (KEY, record.key),
        (HEADERS, None if record.headers is None else encode_headers(record.headers)),
    )
    entries = [Entry(mime, content) for mime, content in contents if content is not None]
    return Payload(record.data or b"", place + encode_composite(entries))


def behind_gap(payload: Payload, start: int) -> Payload:
    """Return an element with the entry that says that nothing is between the position ``start`` and its own."""
    return Payload(payload.data, (payload.metadata or b"") + encode_composite([Entry(GAP, _LONG.pack(start))]))


def pack_payload(pack: Pack) -> Payload:
    """Return ``pack`` as a source sends it."""
    payload = Payload(pack.data, encode_composite([*_place(pack), Entry(PACK, ARROW.encode())]))
    return behind_gap(payload, pack.position) if pack.has_gaps else payload


def _place(rows: Record | Pack) -> list[Entry]:
    place = _LONG.pack(rows.position) + (b"" if rows.count == 1 else _NUMBER.pack(rows.count))
    time = [] if rows.timestamp is None else [Entry(TIMESTAMP, _LONG.pack(rows.timestamp))]
    return [Entry(POSITION, place), *time]


def _position(content: bytes) -> tuple[int, int]:
    return _LONG.unpack(content[:8])[0], _NUMBER.unpack(content[8:])[0] if len(content) > 8 else 1


def _number(content: bytes) -> int:
    (number,) = _LONG.unpack(content)
    if number >= FOREVER:
        raise ValueError(f"{number}, and the limit is 2^63 - 1")
    return int(number)


class WriteEntry(msgspec.Struct, frozen=True):
    """The write that an element belongs to."""

    partition: Whole = 0


DECODERS: Final[Mapping[str | int, Callable[[bytes], object]]] = {
    POSITION: _position,
    TIMESTAMP: _number,
    RECORD_METADATA: bytes,
    KEY: bytes,
    HEADERS: decode_headers,
    GAP: _number,
    PACK: lambda content: content.decode("utf-8", "backslashreplace"),
    ROWS: lambda content: int(_NUMBER.unpack(content)[0]),
    NULL: bytes,
    WRITE: lambda content: msgspec.json.decode(content, type=WriteEntry).partition,
}
"""The functions that return the content of an entry, by its MIME type, and raise ``ValueError`` or ``struct.error``."""


def read_entries(payload: Payload) -> dict[str | int, Any]:
    """Return the content of the known entries of an element. Raise ``RemoteProtocolError`` for a malformed one."""
    entries: dict[str | int, Any] = {}
    metadata = payload.metadata or b""
    for mime, start, end in spans(metadata):
        if (decode := DECODERS.get(mime)) is not None:
            try:
                entries[mime] = decode(metadata[start:end])
            except (ValueError, struct.error, RecursionError) as error:
                raise RemoteProtocolError(f"the entry {mime}: {error}", offset=start) from None
    return entries


@value
class Placed:
    """A received element of a source: the record, or the data and place of a pack in the format ``form``.

    ``gap`` is the position from which on nothing is before it, ``None`` without such an entry.
    """

    record: Record
    form: str | None = None
    gap: int | None = None


def read_source_payload(payload: Payload) -> Record:
    """Return the record in ``payload``, as a source sent it. Raise ``RemoteProtocolError`` for anything else."""
    placed = read_placed(payload)
    if placed.form is not None:
        raise RemoteProtocolError(f"the element at position {placed.record.position} is a pack: {placed.form}")
    return placed.record


def read_placed(payload: Payload) -> Placed:
    """Return what ``payload`` holds, a record or a pack. Raise ``RemoteProtocolError`` for a malformed element."""
    metadata = payload.metadata or b""
    if len(metadata) == _PLACE.size:
        position_head, position, time_head, time = _PLACE.unpack(metadata)
        if position_head == _POSITION_HEAD and time_head == _TIME_HEAD and time < FOREVER:
            return Placed(Record(position, payload.data, timestamp=time))
    entry = read_entries(payload).get
    if (place := entry(POSITION)) is None:
        raise RemoteProtocolError("the element has no position")
    data = payload.data if entry(NULL) is None else None
    record = Record(place[0], data, entry(RECORD_METADATA), place[1], entry(KEY), entry(HEADERS), entry(TIMESTAMP))
    return Placed(record, entry(PACK), entry(GAP))


def read_sink_payload(payload: Payload) -> tuple[int, Sequence[Element | Pack]]:
    """Return the partition and the element that a writer sends, or its packs; single rows as they came: the ledger
    checks them.

    Raise ``Invalid`` for invalid metadata, and for a pack that is torn, is in an unknown format, or has other rows than
    its metadata says.
    """
    try:
        entry = read_entries(payload).get
        form, rows, partition = entry(PACK), entry(ROWS), entry(WRITE, 0)
        if form is None:
            data = payload.data if entry(NULL) is None else None
            element = Element(data, entry(RECORD_METADATA), 1 if rows is None else rows, entry(KEY), entry(HEADERS))
            return partition, [element]
        if form != ARROW or not has_arrow():
            known = ARROW if has_arrow() else "none, without pyarrow"
            raise Invalid(f"a pack in the format {readable(form[:100])!r}: known is {known}")
        # Of a pack as a source sends it: the position is the log's to give, and only the count matters.
        count = entry(POSITION, (0, None))[1] if rows is None else rows
        return partition, arrow().checked(payload.data, count)
    except RemoteProtocolError as error:
        raise Invalid(f"the element's metadata can't be read: {error}") from None
    except ValueError as error:
        raise Invalid(str(error)) from None


# Sources


class Bounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bounds of a partition, and the position of the time that was asked for."""

    earliest: Whole
    latest: Whole
    at: Whole | None = None

    def __post_init__(self) -> None:
        if not self.earliest <= (self.latest if self.at is None else self.at) <= self.latest:
            at = "" if self.at is None else f" with a time at {self.at}"
            raise ValueError(f"a partition from {self.earliest} to {self.latest}{at}: not possible")


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """A source of a server: the bounds of its partitions, and its ``route``, which is the key to it in the list.

    ``problem`` says why the log behind it cannot be opened; then there are no ``partitions``.
    """

    partitions: dict[Whole, Bounds] = {}
    problem: str | None = None
    route: str = ""

    def __post_init__(self) -> None:
        if not self.partitions and self.problem is None:
            raise ValueError("a source without partitions")


def is_like(route: str, pattern: str) -> bool:
    """Return whether a route is like a pattern, where ``*`` stands for any text and ``?`` for one character."""
    return re.fullmatch(fnmatch.translate(pattern.replace("[", "[[]")), route) is not None


def read_sources(answer: bytes) -> list[Source]:
    """Return the sources that a server listed, by route. Raise ``ValueError`` for a malformed answer."""
    try:
        members = msgspec.json.decode(answer, type=dict[str, Raw])
        sources = msgspec.json.decode(members["sources"], type=dict[str, Source])
    except (KeyError, ValueError, RecursionError):
        raise ValueError(f"not a list of sources: {readable(answer[:200])}") from None
    return [
        Source(dict(sorted(source.partitions.items())), source.problem and readable(source.problem), route)
        for route, source in sorted(sources.items())
    ]
