"""The layout of a segment file: its header, and records that each carry their length, CRC and position.

::

    segment   "RSTRIO-1"  first position 64  CRC 32 of these two
    record    magic 32  CRC 32  length 32  position 64  count 32  metadata 32  durable 32  metadata  data

All numbers are big-endian. The CRC of a record covers everything behind it. ``length`` is that of metadata and data
together, ``metadata`` its first part, or ``NO_METADATA``. ``durable`` is an offset in the same file: everything below
it was on the disk before this record was written. So if a record is unreadable and a later one says that it was
durable, the file was damaged; else its writer died while it wrote, and was told that it had written nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from zlib import crc32

from rsocket_trio.replay.log import LONGEST_RECORD, Element, Record
from rsocket_trio.values import value

SEGMENT_MAGIC = b"RSTRIO-1"
SEGMENT_FIELDS = struct.Struct(">8sQ")
CRC = struct.Struct(">I")
SEGMENT_HEADER = SEGMENT_FIELDS.size + CRC.size

MAGIC = 0x5EC0DA7A
MAGIC_BYTES = MAGIC.to_bytes(4, "big")
PREFIX = struct.Struct(">II")
FIELDS = struct.Struct(">IQIII")
HEADER = struct.Struct(">IIIQIII")
NO_METADATA = 0xFFFFFFFF
"""The size of metadata that stands for none, unlike 0 for empty ones."""


class Damage(Exception):
    """A record that can't be read: its offset in bytes, its expected position, and the reason."""

    def __init__(self, offset: int, position: int, reason: str) -> None:
        self.offset = offset
        self.position = position
        self.reason = reason
        super().__init__(offset, position, reason)


@value
class Head:
    """The place of a record, without its content: offsets in bytes."""

    offset: int
    position: int
    count: int
    durable: int
    stop: int


def encode_segment_header(first: int) -> bytes:
    """Return the header of a segment whose first record has this position."""
    fields = SEGMENT_FIELDS.pack(SEGMENT_MAGIC, first)
    return fields + CRC.pack(crc32(fields))


def decode_segment_header(data: bytes) -> int:
    """Return the position of the first record. Raise ``ValueError`` for anything else."""
    if len(data) < SEGMENT_HEADER:
        raise ValueError(f"a segment's header has {SEGMENT_HEADER} bytes, found {len(data)}")
    magic, first = SEGMENT_FIELDS.unpack_from(data)
    (crc,) = CRC.unpack_from(data, SEGMENT_FIELDS.size)
    if magic != SEGMENT_MAGIC or crc != crc32(data[: SEGMENT_FIELDS.size]):
        raise ValueError("not the header of a segment")
    return int(first)


def encode_record(buffer: bytearray, position: int, element: Element, durable: int) -> None:
    """Append one encoded record to the buffer."""
    data, metadata, count = element.data, element.metadata, element.count
    if metadata is None:
        fields = FIELDS.pack(len(data), position, count, NO_METADATA, durable)
        buffer += PREFIX.pack(MAGIC, crc32(data, crc32(fields)))
        buffer += fields
    else:
        fields = FIELDS.pack(len(metadata) + len(data), position, count, len(metadata), durable)
        buffer += PREFIX.pack(MAGIC, crc32(data, crc32(metadata, crc32(fields))))
        buffer += fields
        buffer += metadata
    buffer += data


def missing(block: bytes, limit: int) -> int:
    """Return the bytes that a block needs to hold its first record whole; 0 if it does.

    ``limit`` is the number of bytes of the file from the block on. Also 0 if no record begins there: to read it raises.
    """
    if len(block) < HEADER.size:
        return HEADER.size if HEADER.size <= limit else 0
    magic, _, length, *_ = HEADER.unpack_from(block)
    size = HEADER.size + length
    return size if magic == MAGIC and length <= LONGEST_RECORD and len(block) < size <= limit else 0


def records(
    block: bytes, base: int, limit: int, expected: int, start: int, end: int
) -> Generator[Record, None, tuple[int, int]]:
    """Yield the whole records of a block that have rows from ``start`` to below ``end``.

    ``base`` is the block's own offset in its file, ``limit`` that of the end of what was written, ``expected`` the
    position of the first record. Return the offset and the position from where to read on: a record that the block
    cuts is left. Raise ``Damage`` for a record with a wrong magic number, position or CRC.
    """
    unpack, header, size = HEADER.unpack_from, HEADER.size, len(block)
    at = 0
    with memoryview(block) as view:
        while at + header <= size and expected < end:
            magic, crc, length, position, count, metadata_size, _ = unpack(block, at)
            stop = at + header + length
            if magic != MAGIC or position != expected or base + stop > limit:
                raise _damage(base + at, expected, magic, position)
            if stop > size:
                break
            if crc32(view[at + 8 : stop]) != crc:
                raise Damage(base + at, expected, "its CRC is wrong")
            expected += count
            if expected > start:
                middle = at + header
                if metadata_size == NO_METADATA:
                    yield Record(position, block[middle:stop], None, count)
                else:
                    begin = middle + metadata_size
                    yield Record(position, block[begin:stop], block[middle:begin], count)
            at = stop
    if expected < end:
        _check_rest(base, at, size, limit, expected)
    return base + at, expected


def heads(block: bytes, base: int, limit: int, expected: int, *, check: bool) -> Iterator[Head]:
    """Yield the same without the contents, and with the CRC looked at only if asked for."""
    at, size = 0, len(block)
    with memoryview(block) as view:
        while at + HEADER.size <= size:
            magic, crc, length, position, count, _, durable = HEADER.unpack_from(block, at)
            stop = at + HEADER.size + length
            if magic != MAGIC or position != expected or base + stop > limit:
                raise _damage(base + at, expected, magic, position)
            if stop > size:
                break
            if check and crc32(view[at + 8 : stop]) != crc:
                raise Damage(base + at, expected, "its CRC is wrong")
            yield Head(base + at, position, count, durable, base + stop)
            expected += count
            at = stop
    _check_rest(base, at, size, limit, expected)


def was_durable(tail: bytes, base: int, damaged: int, expected: int) -> bool:
    """Return whether a whole record in the tail of a file says that the record at ``damaged`` was on the disk before
    it."""
    at = tail.find(MAGIC_BYTES)
    with memoryview(tail) as view:
        while at >= 0 and at + HEADER.size <= len(tail):
            _, crc, length, position, _, _, durable = HEADER.unpack_from(tail, at)
            stop = at + HEADER.size + length
            plausible = stop <= len(tail) and position >= expected and damaged < durable <= base + at
            if plausible and crc32(view[at + 8 : stop]) == crc:
                return True
            at = tail.find(MAGIC_BYTES, at + 1)
    return False


def _check_rest(base: int, at: int, size: int, limit: int, expected: int) -> None:
    """Raise ``Damage`` unless the rest of a block is the beginning of a record."""
    if at == 0 or base + size >= limit > base + at:
        raise Damage(base + at, expected, "the file ends within it")


def _damage(offset: int, expected: int, magic: int, position: int) -> Damage:
    if magic != MAGIC:
        return Damage(offset, expected, "no record begins there")
    if position != expected:
        return Damage(offset, expected, f"the record there has position {position}")
    return Damage(offset, expected, "the file ends within it")
