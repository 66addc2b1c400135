"""Shortens the footer of a Parquet file to its first row groups, for a file whose last ones found no room.

A footer is a struct in Thrift's compact protocol. Its fields are copied as they are, but two: the number of rows, and
the list of row groups (``FileMetaData`` in parquet.thrift, fields 3 and 4). pyarrow cannot do it: it shows row groups
and joins whole footers, but neither takes row groups out of a footer nor writes another number of rows. A footer for
each row group, joined at the end, would need a writer and a complete file for each, with the rows still in memory.
"""

from __future__ import annotations

from typing import Final

NUM_ROWS: Final = 3
ROW_GROUPS: Final = 4

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
VARINTS: Final = frozenset({I16, I32, I64})
STOP: Final = 0
LONG: Final = 15
"""The size in a list's header that stands for a size behind the header."""


def shortened(footer: bytes, groups: int, rows: int) -> bytes:
    """Return the footer of the file with its first ``groups`` row groups only, of ``rows`` rows."""
    made = bytearray()
    offset = field = copied = 0
    while footer[offset] != STOP:
        field, kind, offset = _field(footer, offset, field)
        end = _skip(footer, offset, kind)
        if field == NUM_ROWS:
            made += footer[copied:offset] + _varint_of(rows << 1)
            copied = end
        elif field == ROW_GROUPS:
            made += footer[copied:offset] + _groups(footer, offset, groups)
            copied = end
        offset = end
    return bytes(made + footer[copied:])


def _groups(footer: bytes, offset: int, groups: int) -> bytes:
    """Return a list of the first ``groups`` structs of the list at an offset."""
    _, kind, begin = _list(footer, offset)
    end = begin
    for _ in range(groups):
        end = _skip(footer, end, kind)
    head = bytes([groups << 4 | kind]) if groups < LONG else bytes([LONG << 4 | kind]) + _varint_of(groups)
    return head + footer[begin:end]


def _skip(data: bytes, offset: int, kind: int) -> int:
    """Return the offset of the end of a value."""
    if kind in (TRUE, FALSE):
        return offset  # the value is in the header
    if kind in VARINTS:
        return _varint(data, offset)[1]
    if kind == BYTE:
        return offset + 1
    if kind == DOUBLE:
        return offset + 8
    if kind == BINARY:
        size, offset = _varint(data, offset)
        return offset + size
    if kind in (LIST, SET):
        size, kind, offset = _list(data, offset)
        for _ in range(size):
            offset = offset + 1 if kind in (TRUE, FALSE) else _skip(data, offset, kind)
        return offset
    if kind == STRUCT:
        while data[offset] != STOP:
            _, kind, offset = _field(data, offset, 0)
            offset = _skip(data, offset, kind)
        return offset + 1
    raise ValueError(f"a value of kind {kind} at {offset}: footers have none")


def _field(data: bytes, offset: int, before: int) -> tuple[int, int, int]:
    """Return the number of a field, its kind and the offset of its value.

    ``before`` is the number of the last field.
    """
    head = data[offset]
    if head >> 4:
        return before + (head >> 4), head & 0x0F, offset + 1
    zigzag, offset = _varint(data, offset + 1)
    return zigzag >> 1, head & 0x0F, offset


def _list(data: bytes, offset: int) -> tuple[int, int, int]:
    """Return the number of values of a list, their kind and the offset of the first."""
    size, kind = data[offset] >> 4, data[offset] & 0x0F
    offset += 1
    if size == LONG:
        size, offset = _varint(data, offset)
    return size, kind, offset


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, offset
        shift += 7


def _varint_of(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
