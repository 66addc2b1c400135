"""The content of logs: elements that are to be appended, records that were, and packs of many rows; their limits, and
their forms on the wire.
"""

from __future__ import annotations

import fnmatch
import re
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated, Final, TypeAlias

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
MAX_ENTRY_BYTES = 2**24 - 4096
"""Bytes of metadata, key and headers of a record together: one entry of composite metadata, of 16 MiB, has them all."""
ARROW: Final = "arrow/1"
"""The name of the format of packs on the wire."""
PACK_BYTES, PACK_ROWS = 256 * 2**10, 8192
"""Bytes of contents after which a pack is complete, but for a single larger record; and rows of a pack, at most."""
FOREVER: Final = 2**63
"""A position beyond all others."""

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
"""The headers of a record in order: names, which may come twice, each with its content or ``None``."""
decoded_headers: Callable[[bytes], Headers] = msgspec.msgpack.Decoder(Headers).decode
"""Returns headers from MessagePack. Raises ``ValueError`` for malformed ones."""


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
    def contents(self) -> tuple[bytes | None, ...]:
        """Return data, metadata, key and headers as they are stored: headers as MessagePack, a list of pairs."""
        headers = None if self.headers is None else msgspec.msgpack.encode(self.headers)
        return self.data, self.metadata, self.key, headers

    @property
    def size(self) -> int:
        """Return the bytes of the contents."""
        return sum([len(content) for content in self.contents if content])


@value
class Record:
    """A record of a log: ``data`` and ``metadata`` of ``count`` rows, the first of them at ``position``.

    ``data``, ``key`` and ``headers`` are those of its element. ``timestamp`` says when it was appended, in microseconds
    since 1970: never less than that of the record before, ``None`` where that is not known. Records that differ only
    in it are equal. A record of 0 rows says that there is nothing before its position.
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

    ``timestamp`` is that of all rows without a time of their own, in microseconds since 1970. Without ``data`` there is
    no row at these positions, and never will be.
    """

    data: bytes
    count: int
    position: int = 0
    timestamp: int | None = None

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


def reader_name(name: object) -> str:
    """Return ``name`` if it is one of a reader. Raise ``ValueError``."""
    if not isinstance(name, str) or not re.fullmatch(r"[0-9A-Za-z._-]{1,64}", name, re.ASCII):
        shown = readable(str(name)[:100])
        raise ValueError(f"the name of a reader has 1 to 64 letters, digits, '-', '_' and '.', not {shown!r}")
    return name


def check_element(element: Element | Pack) -> None:
    """Raise ``ValueError`` for an element that is too large, or has an invalid count, time or header."""
    what, size = "a pack" if isinstance(element, Pack) else "a record", element.size
    if size > MAX_RECORD_BYTES:
        raise ValueError(f"{what} of {size} bytes: the limit is {MAX_RECORD_BYTES}")
    if type(element.count) is not int or not 1 <= element.count <= MAX_RECORD_ROWS:
        raise ValueError(f"{what} of {element.count} rows: must be between 1 and {MAX_RECORD_ROWS}")
    if element.timestamp is not None and (type(element.timestamp) is not int or not 0 <= element.timestamp < FOREVER):
        raise ValueError(f"a timestamp of {element.timestamp} microseconds: must be from 0 to 2^63 - 1")
    if isinstance(element, Element):
        if element.headers is not None:
            msgspec.convert(element.headers, Headers)
        if (rest := size - len(element.data or b"")) > MAX_ENTRY_BYTES:
            raise ValueError(f"metadata, key and headers of {rest} bytes: the limit is {MAX_ENTRY_BYTES}")


def prepared(elements: Iterable[Element | Pack]) -> list[Element | Pack]:
    """Return what is to be appended, checked; packs whose rows have places or times of their own as single elements.

    A log gives places itself, and what is stored together has one time. Raise ``ValueError`` for what can't be a
    record, ``TypeError`` for what is no element.
    """
    checked: list[Element | Pack] = []
    for element in elements:
        if not isinstance(element, Element | Pack):
            raise TypeError(f"elements are Element or Pack, not {type(element).__name__}")
        check_element(element)
        is_placed = isinstance(element, Pack) and arrow().is_placed(element)
        checked += arrow().elements_of(element) if is_placed else (element,)
    return checked


# On the wire

MAX_SINK_CHARACTERS: Final = 256
"""Characters of a sink's name, and of a query's id."""
SOURCES_ROUTE: Final = "rsocket-trio.sources"
"""The route on which a server lists its sources."""
RECORD: Final = "message/x.rsocket-trio.record.v0"
NULL: Final = "message/x.rsocket-trio.null.v0"
RECORD_METADATA: Final = "message/x.rsocket-trio.record-metadata.v0"
"""The header of Kafka that has the metadata of a record."""

Whole = Annotated[int, Meta(ge=0, le=FOREVER - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_SINK_CHARACTERS)]

_RECORD_HEAD, _NULL_ENTRY = encode_mime(RECORD), encode_composite([Entry(NULL, b"")])


class RecordEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the entry ``RECORD`` of an element: the place of ``count`` rows, and a record without its data.

    ``pack`` is the format of many rows; ``partition`` is that to which the rows of a writer go.
    """

    position: Whole | None = None
    count: Whole = 1
    timestamp: Whole | None = None
    metadata: bytes | None = None
    key: bytes | None = None
    headers: Headers | None = None
    pack: str | None = None
    partition: Whole = 0

    def encoded(self, *, is_null: bool = False) -> bytes:
        """Return the metadata of an element, whose data ``is_null``; empty if it says nothing."""
        content = msgspec.msgpack.encode(self)
        # An empty map is one byte.
        entry = _RECORD_HEAD + len(content).to_bytes(3, "big") + content if len(content) > 1 else b""
        return entry + _NULL_ENTRY if is_null else entry


def source_payload(record: Record | Pack) -> Payload:
    """Return ``record``, which may be a pack, as a source sends it."""
    if isinstance(record, Pack):
        entry = RecordEntry(record.position, record.count, record.timestamp, pack=ARROW)
    else:
        entry = RecordEntry(
            record.position, record.count, record.timestamp, record.metadata, record.key, record.headers
        )
    return Payload(record.data or b"", entry.encoded(is_null=record.data is None))


_decoded, _NOTHING = msgspec.msgpack.Decoder(RecordEntry).decode, RecordEntry()
_SHORT_HEAD = _RECORD_HEAD + bytes(2)


def read_element(payload: Payload) -> tuple[RecordEntry, bytes | None]:
    """Return what an element says of its data, and that, ``None`` for null. Raise ``RemoteProtocolError``."""
    entry, metadata = _NOTHING, payload.metadata or b""
    data: bytes | None = payload.data
    at, size = len(_SHORT_HEAD) + 1, len(metadata)
    # The usual element has this entry alone.
    is_usual = metadata.startswith(_SHORT_HEAD) and size > at and metadata[at - 1] == size - at
    for mime, start, end in ((RECORD, at, size),) if is_usual else spans(metadata):
        if mime == NULL:
            data = None
        elif mime == RECORD:
            try:
                entry = _decoded(metadata[start:end])
            except (ValueError, RecursionError) as error:
                raise RemoteProtocolError(f"the entry {mime}: {error}", offset=start) from None
    return entry, data


def read_rows(payload: Payload) -> Record | Pack:
    """Return what an element of a source holds. Raise ``RemoteProtocolError`` for a malformed one."""
    entry, data = read_element(payload)
    if entry.position is None:
        raise RemoteProtocolError("the element has no position")
    if entry.pack is None:
        return Record(entry.position, data, entry.metadata, entry.count, entry.key, entry.headers, entry.timestamp)
    if entry.pack != ARROW:
        form = readable(entry.pack[:100])
        raise RemoteProtocolError(f"the element at position {entry.position} is a pack in the format {form!r}")
    return Pack(payload.data, entry.count, entry.position, entry.timestamp)


def read_source_payload(payload: Payload) -> Record:
    """Return the record in ``payload``, as a source sent it. Raise ``RemoteProtocolError`` for anything else."""
    rows = read_rows(payload)
    if isinstance(rows, Record):
        return rows
    if rows.data:
        raise RemoteProtocolError(f"the element at position {rows.position} is a pack: {ARROW}")
    return Record(rows.end, b"", count=0)


def read_sink_payload(payload: Payload) -> tuple[int, Sequence[Element | Pack]]:
    """Return the partition and the element that a writer sends, or its packs; single rows as they came: the ledger
    checks them.

    Raise ``Invalid`` for invalid metadata, and for a pack that is torn, is in an unknown format, or has other rows than
    its metadata says.
    """
    try:
        entry, data = read_element(payload)
        if entry.pack is None:
            return entry.partition, [Element(data, entry.metadata, entry.count, entry.key, entry.headers)]
        if entry.pack != ARROW or not has_arrow():
            known = ARROW if has_arrow() else "none, without pyarrow"
            raise Invalid(f"a pack in the format {readable(entry.pack[:100])!r}: known is {known}")
        return entry.partition, arrow().checked(Pack(payload.data, entry.count, entry.position or 0))
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
    """A source of a server: the bounds of its partitions, or the ``problem`` why the log cannot be opened."""

    partitions: dict[Whole, Bounds] = {}
    problem: str | None = None

    def __post_init__(self) -> None:
        if not self.partitions and self.problem is None:
            raise ValueError("a source without partitions")


def is_like(route: str, pattern: str) -> bool:
    """Return whether a route is like a pattern, where ``*`` stands for any text and ``?`` for one character."""
    return re.fullmatch(fnmatch.translate(pattern.replace("[", "[[]")), route) is not None


def read_sources(answer: bytes, pattern: str = "*") -> dict[str, Source]:
    """Return those of the sources that a server listed whose routes are like a pattern, by route and in their order.

    Raise ``ValueError`` for a malformed answer.
    """
    try:
        members = msgspec.json.decode(answer, type=dict[str, Raw])
        sources = msgspec.json.decode(members["sources"], type=dict[str, Source])
    except (KeyError, ValueError, RecursionError):
        raise ValueError(f"not a list of sources: {readable(answer[:200])}") from None
    return {route: sources[route] for route in sorted(sources) if is_like(route, pattern)}
