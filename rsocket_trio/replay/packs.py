"""Packs: many records in one element, in the layout ``plain/1``.

::

    4   rows, n
    1   columns that follow beside ``data``, as bits:
        1 offsets, 2 counts, 4 metadata, 8 key, 16 timestamp, 32 headers
    n x 4            offsets: each row's position less that of the pack; without the column they follow each other
    n x 4            counts: positions that each row takes, 1 without the column
    n x 4, bytes     data: the lengths, then the contents
    n x 4, bytes     metadata, key: the same, with the length 0xFFFFFFFF for none
    n x 8            timestamp: microseconds since 1970, -2^63 for none; without the column the pack's own
    n x 4, bytes     headers: as metadata; each content is as in the entry of headers
    4   CRC 32 of all before

All numbers are big-endian. A pack spans ``count`` positions; those that no row takes have none, and never will.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from typing import Final
from zlib import crc32

import attrs

from rsocket_trio.replay.elements import (
    LARGEST_COUNT,
    LONGEST_ENTRY,
    LONGEST_NAME,
    LONGEST_RECORD,
    Element,
    Headers,
    Record,
    headers_size,
)
from rsocket_trio.values import value

PLAIN: Final = "plain/1"
"""The name of this layout on the wire."""
PACK_BYTES = 256 * 2**10
"""Bytes of contents after which a pack is complete; only a single larger record makes it longer."""
PACK_ROWS = 8192
"""Rows of a pack, at most."""
SMALL_PACK = 16 * 2**10
"""Bytes below which a pack that was stored is joined with its neighbours when it is sent."""
LONGEST_PACK = LONGEST_RECORD
"""Bytes of a pack that a peer sends, at most."""
FOREVER: Final = 2**63
"""A position beyond all others."""

OFFSETS, COUNTS, METADATA, KEY, TIMESTAMP, HEADERS = (1 << bit for bit in range(6))
NONE: Final = 0xFFFFFFFF
NO_TIME: Final = -(2**63)
PACK_HEAD = struct.Struct(">IB")
_ONE = struct.Struct(">IBI")
_CRC = struct.Struct(">I")
_NAME = struct.Struct(">H")
_LENGTH = struct.Struct(">I")
_IS_LITTLE = sys.byteorder == "little"


@value
class Pack:
    """Records in the layout ``plain/1``, ``data``: they span ``count`` positions from ``position`` on.

    ``timestamp`` is that of all rows without a time of their own, in microseconds since 1970.
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
        """Return the bytes of the layout."""
        return len(self.data)

    @property
    def rows(self) -> int:
        """Return the number of its rows."""
        return int.from_bytes(self.data[:4], "big")

    @property
    def has_gaps(self) -> bool:
        """Return whether some of its positions may have no row."""
        return bool(self.data[4] & OFFSETS)


# Columns


@attrs.define
class Column:
    """Contents of variable length: ``lengths`` of the rows, and all contents from ``start`` to ``stop`` of a pack."""

    lengths: array[int]
    start: int
    stop: int

    def contents(self, data: bytes, low: int = 0, high: int | None = None) -> Iterator[bytes | None]:
        """Yield the content of each row of the pack ``data``, ``None`` for none.

        The rows are those from ``low`` on, up to and without ``high``.
        """
        before = self.lengths[:low]
        at = self.start + sum(before) - NONE * before.count(NONE)
        for length in self.lengths[low:high]:
            if length == NONE:
                yield None
            else:
                yield data[at : at + length]
                at += length


@attrs.define
class Columns:
    """The columns of a pack, ``None`` for absent ones; ``rows`` is their number."""

    rows: int
    data: Column
    offsets: array[int] | None = None
    counts: array[int] | None = None
    metadata: Column | None = None
    key: Column | None = None
    timestamp: array[int] | None = None
    headers: Column | None = None

    @property
    def span(self) -> int:
        """Return how many positions the rows take, up to the end of the last."""
        if self.offsets is not None:
            last = 1 if self.counts is None else self.counts[-1] if self.rows else 0
            return self.offsets[-1] + last if self.rows else 0
        return self.rows if self.counts is None else sum(self.counts)

    def starts(self) -> Iterable[int]:
        """Return the offset of each row from the position of the pack."""
        if self.offsets is not None:
            return self.offsets
        return range(self.rows) if self.counts is None else accumulate(self.counts[:-1], initial=0)


def numbers(code: str, data: bytes | memoryview) -> array[int]:
    """Return big-endian numbers of the array type ``code``."""
    found = array(code)
    found.frombytes(data)
    if _IS_LITTLE:
        found.byteswap()
    return found


def number_bytes(code: str, content: Iterable[int]) -> bytes:
    """Return ``content`` as big-endian numbers of the array type ``code``."""
    made = array(code, content)
    if _IS_LITTLE:
        made.byteswap()
    return made.tobytes()


def read_columns(data: bytes, *, check: bool = True) -> Columns:
    """Return the columns of a pack; contents are not copied.

    Raise ``ValueError`` for anything but a whole pack. ``check=False`` leaves the CRC out.
    """
    size = len(data) - _CRC.size
    if size < PACK_HEAD.size:
        raise ValueError(f"a pack of {len(data)} bytes: it has at least {PACK_HEAD.size + _CRC.size}")
    with memoryview(data) as view:
        if check and crc32(view[:size]) != _CRC.unpack_from(data, size)[0]:
            raise ValueError(f"the CRC of a pack of {len(data)} bytes is wrong")
        rows, bits = PACK_HEAD.unpack_from(data)
        if bits >= 64:
            raise ValueError(f"a pack with columns {bits:#x}: known are those below 0x40")
        at = PACK_HEAD.size

        def fixed(code: str, width: int, name: str) -> array[int]:
            nonlocal at
            stop = at + rows * width
            if stop > size:
                raise ValueError(f"a pack of {len(data)} bytes and {rows} rows ends within its {name}")
            found, at = numbers(code, view[at:stop]), stop
            return found

        def variable(name: str, *, nullable: bool = True) -> Column:
            nonlocal at
            lengths = fixed("I", 4, name)
            total = sum(lengths)
            if nullable and (missing := lengths.count(NONE)):
                total -= missing * NONE
            start, at = at, at + total
            if at > size:
                raise ValueError(f"a pack of {len(data)} bytes and {rows} rows ends within its {name}")
            return Column(lengths, start, at)

        offsets = fixed("I", 4, "offsets") if bits & OFFSETS else None
        counts = fixed("I", 4, "counts") if bits & COUNTS else None
        columns = Columns(rows, variable("data", nullable=False), offsets, counts)
        columns.metadata = variable("metadata") if bits & METADATA else None
        columns.key = variable("keys") if bits & KEY else None
        columns.timestamp = fixed("q", 8, "timestamps") if bits & TIMESTAMP else None
        columns.headers = variable("headers") if bits & HEADERS else None
    if at != size:
        raise ValueError(f"a pack of {len(data)} bytes has {size - at} behind its {rows} rows")
    return columns


def check_pack(data: bytes, count: int | None) -> Columns:
    """Return the columns of a pack that a peer sent; ``count`` is how many positions it is said to span, if it is.

    Raise ``ValueError`` for a pack that is too long, torn or damaged, whose rows overlap, or whose span is another.
    """
    if len(data) > LONGEST_PACK:
        raise ValueError(f"a pack of {len(data)} bytes: the limit is {LONGEST_PACK}")
    columns = read_columns(data)
    counts = columns.counts
    if counts is not None and columns.rows and not 1 <= min(counts) <= max(counts) <= LARGEST_COUNT:
        raise ValueError(f"a pack with a row of {min(counts)} to {max(counts)} positions")
    if columns.offsets is None:
        if count is not None and columns.span != count:
            raise ValueError(f"a pack of {columns.span} rows, its metadata says {count}")
        return columns
    end = 0
    for offset, taken in zip(columns.offsets, counts or [1] * columns.rows, strict=True):
        if offset < end:
            raise ValueError(f"a pack whose rows overlap at offset {offset}")
        end = offset + taken
    if count is not None and end > count:
        raise ValueError(f"a pack whose rows end at offset {end}, its metadata says {count}")
    return columns


# Headers


def encode_headers(headers: Headers) -> bytes:
    """Return headers as they are on the wire: for each u16 length and UTF-8 name, u32 length and content.

    Raise ``ValueError`` for a name that is too long.
    """
    parts: list[bytes] = []
    for name, content in headers.items():
        said = name.encode()
        if len(said) > LONGEST_NAME:
            raise ValueError(f"a header's name of {len(said)} bytes: the limit is {LONGEST_NAME}")
        parts += (_NAME.pack(len(said)), said, _LENGTH.pack(len(content)), content)
    return b"".join(parts)


def decode_headers(data: bytes) -> dict[str, bytes]:
    """Return the headers; of a name that comes twice the last. Raise ``ValueError`` for malformed ones."""
    found: dict[str, bytes] = {}
    at, size = 0, len(data)
    while at < size:
        name_at = at + _NAME.size
        middle = name_at + (int.from_bytes(data[at:name_at], "big"))
        begin = middle + _LENGTH.size
        if begin > size:
            raise ValueError(f"headers of {size} bytes end within a name at {at}")
        try:
            name = data[name_at:middle].decode()
        except UnicodeDecodeError:
            raise ValueError(f"the name of a header at {at} is no UTF-8") from None
        at = begin + _LENGTH.unpack_from(data, middle)[0]
        if at > size:
            raise ValueError(f"headers of {size} bytes end within the content of {name[:100]!r}")
        found[name] = data[begin:at]
    return found


# Records to packs


def encode_rows(rows: Sequence[Element] | Sequence[Record], offsets: Sequence[int] | None, with_times: bool) -> bytes:
    """Return rows in the layout ``plain/1``, with ``offsets`` and their own timestamps where asked for."""
    if len(rows) == 1 and offsets is None and not with_times:
        [row] = rows
        if row.count == 1 and row.metadata is None and row.key is None and row.headers is None:
            body = _ONE.pack(1, 0, len(row.data)) + row.data
            return body + _CRC.pack(crc32(body))
    bits, parts = 0, [b""]
    if offsets is not None:
        bits |= OFFSETS
        parts.append(number_bytes("I", offsets))
    counts = [row.count for row in rows]
    if counts.count(1) < len(rows):
        bits |= COUNTS
        parts.append(number_bytes("I", counts))
    datas = [row.data for row in rows]
    parts.append(number_bytes("I", map(len, datas)))
    parts += datas
    for bit, contents in ((METADATA, [row.metadata for row in rows]), (KEY, [row.key for row in rows])):
        if contents.count(None) < len(rows):
            bits |= bit
            parts += _nullable(contents)
    if with_times:
        bits |= TIMESTAMP
        parts.append(number_bytes("q", [NO_TIME if row.timestamp is None else row.timestamp for row in rows]))
    headers = [None if row.headers is None else encode_headers(row.headers) for row in rows]
    if headers.count(None) < len(rows):
        bits |= HEADERS
        parts += _nullable(headers)
    parts[0] = PACK_HEAD.pack(len(rows), bits)
    return sealed(parts)


def sealed(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return the parts of a layout with their CRC behind them."""
    body = b"".join(parts)
    return body + _CRC.pack(crc32(body))


def _nullable(contents: Sequence[bytes | None]) -> list[bytes]:
    lengths = number_bytes("I", [NONE if content is None else len(content) for content in contents])
    return [lengths, *[content for content in contents if content is not None]]


def pack_elements(elements: Sequence[Element], timestamp: int | None = None) -> Pack:
    """Return one pack of elements in a row, with ``timestamp`` for those without one of their own."""
    count = sum([element.count for element in elements])
    own = any(element.timestamp is not None for element in elements)
    return Pack(encode_rows(elements, None, own), count, 0, timestamp)


def pack_records(records: Sequence[Record], start: int) -> Pack:
    """Return one pack of records in order that spans all positions from ``start`` to the end of the last.

    Records of 0 rows only lengthen it.
    """
    end = records[-1].end if records else start
    rows = [record for record in records if record.count]
    taken = sum([record.count for record in rows])
    offsets = None if taken == end - start else [record.position - start for record in rows]
    times = {record.timestamp for record in rows}
    timestamp = times.pop() if len(times) == 1 else None
    return Pack(encode_rows(rows, offsets, bool(times)), end - start, start, timestamp)


def split_into_packs(records: Iterable[Record], start: int) -> Iterator[Pack]:
    """Yield packs of records in order, the first from the position ``start`` on, or where the first record begins."""
    gathered: list[Record] = []
    size = 0
    for record in records:
        if record.position < start and record.count:
            start = record.position  # of several rows, and the range begins within it
        grown = size + len(record.data)
        if record.metadata is not None:
            grown += len(record.metadata)
        if record.key is not None:
            grown += len(record.key)
        if record.headers is not None:
            grown += headers_size(record.headers)
        if gathered and (grown > PACK_BYTES or len(gathered) >= PACK_ROWS or record.end - start >= NONE):
            pack = pack_records(gathered, start)
            yield pack
            grown, start, gathered = grown - size, pack.end, []
        gathered.append(record)
        size = grown
    if gathered:
        yield pack_records(gathered, start)


# Packs to records


def records_of(pack: Pack, start: int = 0, end: int = FOREVER, *, check: bool = True) -> Iterator[Record]:
    """Yield the records of a pack that have rows from ``start`` to below ``end``.

    Raise ``ValueError`` for a damaged pack; ``check=False`` trusts its CRC.
    """
    data, position, timestamp = pack.data, pack.position, pack.timestamp
    if len(data) >= _ONE.size:
        rows, bits, length = _ONE.unpack_from(data)
        if rows == 1 and bits == 0 and length == len(data) - _ONE.size - _CRC.size and not check:
            if start <= position < end:
                yield Record(position, data[_ONE.size : -_CRC.size], None, 1, None, None, timestamp)
            return
    columns = read_columns(data, check=check)
    low, high = 0, columns.rows
    if columns.offsets is None and columns.counts is None:
        # A reader of a few rows pays for these alone.
        low, high = max(start - position, 0), max(min(end - position, high), 0)
    nothing = repeat(None)
    counts = columns.counts or repeat(1)
    metadatas = nothing if columns.metadata is None else columns.metadata.contents(data, low, high)
    keys = nothing if columns.key is None else columns.key.contents(data, low, high)
    times: Iterable[int | None] = repeat(timestamp)
    if columns.timestamp is not None:
        times = [timestamp if time == NO_TIME else time for time in columns.timestamp[low:high]]
    headers = nothing if columns.headers is None else columns.headers.contents(data, low, high)
    starts = range(low, high) if columns.counts is None and columns.offsets is None else columns.starts()
    for offset, count, content, metadata, key, time, said in zip(
        starts, counts, columns.data.contents(data, low, high), metadatas, keys, times, headers, strict=False
    ):
        place = position + offset
        if place >= end:
            return
        if place + count > start:
            assert content is not None
            yield Record(place, content, metadata, count, key, None if said is None else decode_headers(said), time)


def elements_of(pack: Pack) -> Iterator[Element]:
    """Yield the content of a pack, row by row."""
    for record in records_of(pack, check=False):
        yield record.element


def cut(pack: Pack, start: int, end: int) -> Pack:
    """Return the part of a pack that has rows from ``start`` to below ``end``: the pack itself if that is all of it.

    A row of several positions is not divided.
    """
    if start <= pack.position and pack.end <= end:
        return pack
    low = max(start, pack.position)
    records = list(records_of(pack, start, end, check=False))
    high = min(end, pack.end)
    if records:
        low, high = min(low, records[0].position), max(high, records[-1].end)
    if not records or records[-1].end < high:
        records.append(Record(high, b"", count=0))
    return pack_records(records, low)


def without_places(data: bytes, columns: Columns) -> bytes:
    """Return a pack without positions and timestamps of its own, as a log takes it; ``columns`` are its columns."""
    if columns.offsets is None and columns.timestamp is None:
        return data
    rows = columns.rows
    bits = data[4] & ~(OFFSETS | TIMESTAMP)
    with memoryview(data) as view:
        parts: list[bytes | memoryview] = [PACK_HEAD.pack(rows, bits)]
        at = PACK_HEAD.size + (4 * rows if columns.offsets is not None else 0)
        if columns.timestamp is None:
            parts.append(view[at : -_CRC.size])
        else:
            last = columns.key or columns.metadata or columns.data
            parts += (view[at : last.stop], view[last.stop + 8 * rows : -_CRC.size])
        return sealed(parts)


def validated(data: bytes, count: int | None) -> Pack:
    """Return a pack that a writer sent, as a log takes it; ``count`` is how many rows it is said to have, if it is.

    Raise ``ValueError``.
    """
    columns = check_pack(data, count)
    if not columns.rows:
        raise ValueError("a pack without rows")
    check_entries(columns)
    if columns.headers is not None:
        for said in columns.headers.contents(data):
            if said is not None:
                decode_headers(said)
    return Pack(without_places(data, columns), checked_span(columns.rows, columns.counts))


def check_entries(columns: Columns) -> None:
    """Raise ``ValueError`` if some metadata, key or headers are too long for the entry of a single row."""
    for what, column in (("metadata", columns.metadata), ("a key", columns.key), ("headers", columns.headers)):
        if column is not None and column.stop - column.start > LONGEST_ENTRY:
            longest = max(length for length in column.lengths if length != NONE)
            if longest > LONGEST_ENTRY:
                raise ValueError(f"a pack with {what} of {longest} bytes: the limit is {LONGEST_ENTRY}")


def checked_span(rows: int, counts: Iterable[int] | None) -> int:
    """Return how many positions ``rows`` with these ``counts`` take. Raise ``ValueError`` if they are too many."""
    span = rows if counts is None else sum(counts)
    if span > LARGEST_COUNT:
        raise ValueError(f"a pack of {span} rows: the limit is {LARGEST_COUNT}")
    return span


def rows_of(pack: Pack, start: int, end: int) -> Iterator[Record]:
    """Yield the records of a pack that was checked, and a record of 0 rows for positions at its end without any."""
    last = max(start, pack.position)
    for record in records_of(pack, start, end, check=False):
        yield record
        last = record.end
    high = min(pack.end, end)
    if last < high:
        yield Record(high, b"", count=0)


def flattened(stored: Iterable[Record | Pack], start: int, end: int) -> Iterator[Record]:
    """Yield the records that have rows from ``start`` to below ``end``, those of packs one by one."""
    for one in stored:
        if isinstance(one, Pack):
            yield from rows_of(one, start, end)
        else:
            yield one


def packed(stored: Iterable[Record | Pack], start: int, end: int) -> Iterator[Pack]:
    """Yield packs of all rows from ``start`` to below ``end``. Large packs of which all is wanted stay as they are."""
    singles: list[Record] = []
    size = 0
    for one in stored:
        if isinstance(one, Record):
            singles.append(one)
        elif one.size < SMALL_PACK:
            singles += rows_of(one, start, end)
        else:
            if singles:
                yield from split_into_packs(singles, start)
                start, singles, size = singles[-1].end, [], 0
            found = cut(one, start, end)
            start = found.end
            yield found
            continue
        size += len(one.data)
        if size >= PACK_BYTES or len(singles) >= PACK_ROWS:
            yield from split_into_packs(singles, start)
            start, singles, size = singles[-1].end, [], 0
    if singles:
        yield from split_into_packs(singles, start)
