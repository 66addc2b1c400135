"""The layouts of segment files: a header, and records that each carry their length, CRC and position.

New files have this layout::

    segment   "RSTRIO-2"  first position 64  time 64  CRC 32 of these three
    record    magic 32  CRC 32  length 32  position 64  count 32  time 64  durable 32  content

All numbers are big-endian. The content of a record is a pack in the layout ``plain/1`` that spans ``count`` positions.
``time`` is that of its last row, and of all rows without a time of their own, in microseconds since 1970; that of a
segment is the last one before it. The CRC of a record covers everything behind it, ``length`` counts the content.
``durable`` is an offset in the same file: everything below it was on the disk before this record was written. So if a
record is unreadable and a later one says that it was durable, the file was damaged; else its writer died while it
wrote, and was told that it had written nothing.

Files of the former layout are read, and never written::

    segment   "RSTRIO-1"  first position 64  CRC 32 of these two
    record    magic 32  CRC 32  length 32  position 64  count 32  metadata 32  durable 32  metadata  data

Here ``length`` is that of metadata and data together, ``metadata`` its first part, or 0xFFFFFFFF for none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from typing import Final, TypeAlias
from zlib import crc32

import attrs

from rsocket_trio.replay.elements import LONGEST_RECORD, Record
from rsocket_trio.replay.packs import FOREVER, NO_TIME, NONE, Pack
from rsocket_trio.values import value

Stored: TypeAlias = Record | Pack
"""The content of one record of a file."""

CRC = struct.Struct(">I")
PREFIX = struct.Struct(">II")
LONGEST_BODY = LONGEST_RECORD + 4096
"""Bytes of the content of one record, at most: a pack has some more than the record in it."""


class Damage(Exception):
    """A record that can't be read: its offset in bytes, its expected position, and the reason."""

    def __init__(self, offset: int, position: int, reason: str) -> None:
        self.offset = offset
        self.position = position
        self.reason = reason
        super().__init__(offset, position, reason)


@value
class Head:
    """The place of a record, without its content: offsets in bytes, ``time`` in microseconds since 1970."""

    offset: int
    position: int
    count: int
    time: int | None
    durable: int
    stop: int

    @property
    def end(self) -> int:
        """Return the position of the record that follows."""
        return self.position + self.count


@attrs.frozen
class Layout:
    """One layout of segment files.

    ``name`` begins a file, ``segment`` are the fields of its header. ``magic`` begins a record, ``record`` are all
    fields of its header; the sixth is that of the layout, of which ``content`` makes a record with the position, the
    count and the bytes.
    """

    name: bytes
    segment: struct.Struct
    magic: int
    record: struct.Struct
    content: Callable[[int, int, int, bytes], Stored]
    has_times: bool

    @property
    def header(self) -> int:
        """Return the bytes of a file before its first record."""
        return self.segment.size + CRC.size


def _single(position: int, count: int, metadata: int, body: bytes) -> Record:
    if metadata == NONE:
        return Record(position, body, None, count)
    return Record(position, body[metadata:], body[:metadata], count)


def _pack(position: int, count: int, time: int, body: bytes) -> Pack:
    return Pack(body, count, position, None if time == NO_TIME else time)


FORMER: Final = Layout(
    b"RSTRIO-1", struct.Struct(">8sQ"), 0x5EC0DA7A, struct.Struct(">IIIQIII"), _single, has_times=False
)
PACKED: Final = Layout(
    b"RSTRIO-2", struct.Struct(">8sQq"), 0x5EC0DA7B, struct.Struct(">IIIQIqI"), _pack, has_times=True
)
LAYOUTS: Final = {layout.name: layout for layout in (FORMER, PACKED)}
_FIELDS = struct.Struct(">IQIqI")


@value
class SegmentStart:
    """The header of a segment: its layout, the position of its first record, and the last time before it."""

    layout: Layout
    first: int
    time: int | None = None


def encode_segment_header(first: int, time: int | None) -> bytes:
    """Return the header of a new segment: the position of its first record, and the last time before it."""
    fields = PACKED.segment.pack(PACKED.name, first, NO_TIME if time is None else time)
    return fields + CRC.pack(crc32(fields))


def decode_segment_header(data: bytes) -> SegmentStart:
    """Return the header of a segment. Raise ``ValueError`` for anything else."""
    layout = LAYOUTS.get(data[:8])
    if layout is None:
        if len(data) >= FORMER.header and data[:7] == PACKED.name[:7] and data[7:8].isdigit():
            raise ValueError(f"a segment of the layout {data[:8].decode()}: known are RSTRIO-1 and RSTRIO-2")
        if len(data) < FORMER.header:
            raise ValueError(f"a segment's header has {PACKED.header} bytes, found {len(data)}")
        raise ValueError("not the header of a segment")
    if len(data) < layout.header:
        raise ValueError(f"a segment's header has {layout.header} bytes, found {len(data)}")
    _, first, *times = layout.segment.unpack_from(data)
    (crc,) = CRC.unpack_from(data, layout.segment.size)
    if crc != crc32(data[: layout.segment.size]):
        raise ValueError("not the header of a segment")
    return SegmentStart(layout, first, times[0] if times and times[0] != NO_TIME else None)


def encode_record(buffer: bytearray, position: int, pack: Pack, durable: int) -> None:
    """Append one encoded record to the buffer."""
    body = pack.data
    fields = _FIELDS.pack(
        len(body), position, pack.count, NO_TIME if pack.timestamp is None else pack.timestamp, durable
    )
    buffer += PREFIX.pack(PACKED.magic, crc32(body, crc32(fields)))
    buffer += fields
    buffer += body


def missing(layout: Layout, block: bytes, limit: int) -> int:
    """Return the bytes that a block needs to hold its first record whole; 0 if it does.

    ``limit`` is the number of bytes of the file from the block on. Also 0 if no record begins there: to read it raises.
    """
    header = layout.record.size
    if len(block) < header:
        return header if header <= limit else 0
    magic, _, length, *_ = layout.record.unpack_from(block)
    size = header + length
    return size if magic == layout.magic and length <= LONGEST_BODY and len(block) < size <= limit else 0


def records(
    layout: Layout, block: bytes, base: int, limit: int, expected: int, start: int = 0, end: int = FOREVER
) -> Generator[Stored, None, tuple[int, int]]:
    """Yield the whole records of a block that have rows from ``start`` to below ``end``.

    ``base`` is the block's own offset in its file, ``limit`` that of the end of what was written, ``expected`` the
    position of the first record. Return the offset and the position from where to read on: a record that the block
    cuts is left. Raise ``Damage`` for a record with a wrong magic number, position or CRC.
    """
    unpack, header, size, magic, content = (
        layout.record.unpack_from, layout.record.size, len(block), layout.magic, layout.content
    )  # fmt: skip
    at = 0
    with memoryview(block) as view:
        while at + header <= size and expected < end:
            found, crc, length, position, count, own, _ = unpack(block, at)
            stop = at + header + length
            if found != magic or position != expected or base + stop > limit:
                raise _damage(layout, base + at, expected, found, position)
            if stop > size:
                break
            if crc32(view[at + 8 : stop]) != crc:
                raise Damage(base + at, expected, "its CRC is wrong")
            expected += count
            if expected > start:
                yield content(position, count, own, block[at + header : stop])
            at = stop
    if expected < end:
        _check_rest(base, at, size, limit, expected)
    return base + at, expected


def heads(layout: Layout, block: bytes, base: int, limit: int, expected: int, *, check: bool) -> Iterator[Head]:
    """Yield the same without the contents, and with the CRC looked at only if asked for."""
    at, size, header = 0, len(block), layout.record.size
    with memoryview(block) as view:
        while at + header <= size:
            magic, crc, length, position, count, own, durable = layout.record.unpack_from(block, at)
            stop = at + header + length
            if magic != layout.magic or position != expected or base + stop > limit:
                raise _damage(layout, base + at, expected, magic, position)
            if stop > size:
                break
            if check and crc32(view[at + 8 : stop]) != crc:
                raise Damage(base + at, expected, "its CRC is wrong")
            time = own if layout.has_times and own != NO_TIME else None
            yield Head(base + at, position, count, time, durable, base + stop)
            expected += count
            at = stop
    _check_rest(base, at, size, limit, expected)


def skipped(layout: Layout, block: bytes, expected: int, start: int) -> tuple[int, int] | None:
    """Return the offset in a block, and the position, of its first record that has rows from ``start`` on.

    ``expected`` is the position of the block's first record. Only headers are looked at, so the last record may be cut.
    Return ``None`` if the block holds anything else.
    """
    at, header = 0, layout.record.size
    while at + header <= len(block):
        magic, _, length, position, count, _, _ = layout.record.unpack_from(block, at)
        if magic != layout.magic or position != expected:
            return None
        if expected + count > start:
            break
        expected += count
        at += header + length
    return at, expected


def was_durable(layout: Layout, tail: bytes, base: int, damaged: int, expected: int) -> bool:
    """Return whether a whole record in the tail of a file says that the record at ``damaged`` was on the disk before
    it."""
    magic, header = CRC.pack(layout.magic), layout.record.size
    at = tail.find(magic)
    with memoryview(tail) as view:
        while at >= 0 and at + header <= len(tail):
            _, crc, length, position, _, _, durable = layout.record.unpack_from(tail, at)
            stop = at + header + length
            plausible = stop <= len(tail) and position >= expected and damaged < durable <= base + at
            if plausible and crc32(view[at + 8 : stop]) == crc:
                return True
            at = tail.find(magic, at + 1)
    return False


def _check_rest(base: int, at: int, size: int, limit: int, expected: int) -> None:
    """Raise ``Damage`` unless the rest of a block is the beginning of a record."""
    if at == 0 or base + size >= limit > base + at:
        raise Damage(base + at, expected, "the file ends within it")


def _damage(layout: Layout, offset: int, expected: int, magic: int, position: int) -> Damage:
    if magic != layout.magic:
        return Damage(offset, expected, "no record begins there")
    if position != expected:
        return Damage(offset, expected, f"the record there has position {position}")
    return Damage(offset, expected, "the file ends within it")
