"""Bodies: what is stored together in a log, one row or many as a pack."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from zlib import crc32

import attrs

from rsocket_trio.replay.elements import (
    LARGEST_COUNT,
    Element,
    Record,
    check_element,
    decode_headers,
    encode_headers,
)
from rsocket_trio.replay.packs import PACK_BYTES, PACK_ROWS, Pack, arrow, has_arrow

OVERHEAD = 200
"""Bytes that a body takes beside its content, about."""
ROW, ARROW = 0, 1
"""The forms of a body."""
CONTENTS = "form, data, metadata, key, headers"
"""The columns of a body that is read."""
_LENGTHS = struct.Struct(">Bqqqq")


@attrs.frozen
class Body:
    """A body of ``count`` positions. ``headers`` are encoded; ``time`` is that of its rows, ``None`` for the log's."""

    count: int
    form: int
    data: bytes | None
    metadata: bytes | None = None
    key: bytes | None = None
    headers: bytes | None = None
    time: int | None = None

    @property
    def contents(self) -> tuple[bytes | None, ...]:
        """Return what is stored beside its form."""
        return self.data, self.metadata, self.key, self.headers

    @property
    def size(self) -> int:
        """Return the bytes that it counts."""
        return size_of(self.contents)

    @property
    def crc(self) -> int:
        """Return the CRC of its form and its contents."""
        return crc_of_body((self.form, *self.contents))


def size_of(contents: Sequence[bytes | None]) -> int:
    """Return the bytes that a body of these contents counts."""
    return OVERHEAD + sum([len(content) for content in contents if content is not None])


def crc_of_body(columns: Sequence[Any]) -> int:
    """Return the CRC of the columns of a body. Raise ``TypeError`` or ``struct.error`` if it is damaged or missing."""
    form, *contents = columns
    crc = crc32(_LENGTHS.pack(form, *[-1 if content is None else len(content) for content in contents]))
    for content in contents:
        if content:
            crc = crc32(content, crc)
    return crc


def stored(position: int, count: int, time: int | None, form: int, contents: Sequence[Any]) -> Record | Pack:
    """Return a body at its place, as it is read."""
    data, metadata, key, headers = contents
    if form == ARROW:
        return Pack(data, count, position, time)
    return Record(position, data, metadata, count, key, None if headers is None else decode_headers(headers), time)


def bodies_of(elements: Iterable[Element | Pack]) -> Iterator[Body]:
    """Yield elements as they are stored: those of one time together if pyarrow is installed.

    Raise ``ValueError`` for an element that can't be a record.
    """
    together: list[Element] = []
    size = 0
    for one in elements:
        if isinstance(one, Element):
            own = check_element(one)
            grown = size + own
            if together and (
                grown > PACK_BYTES or len(together) >= PACK_ROWS or one.timestamp != together[0].timestamp
            ):
                yield from _bodies(together)
                together, grown = [], own
            together.append(one)
            size = grown
            continue
        if not 1 <= one.count <= LARGEST_COUNT:
            raise ValueError(f"a pack of {one.count} rows: must be between 1 and {LARGEST_COUNT}")
        if together:
            yield from _bodies(together)
            together, size = [], 0
        if arrow().is_placed(one):
            # A log gives places itself, and what is stored together has one time.
            yield from bodies_of(arrow().elements_of(one))
        else:
            yield from (Body(part.count, ARROW, part.data, time=one.timestamp) for part in arrow().divided(one))
    if together:
        yield from _bodies(together)


def _bodies(elements: list[Element]) -> Iterator[Body]:
    time = elements[0].timestamp
    if len(elements) > 1 and has_arrow():
        pack = arrow().pack_elements(elements)
        yield Body(pack.count, ARROW, pack.data, time=time)
        return
    for one in elements:
        headers = None if one.headers is None else encode_headers(one.headers)
        yield Body(one.count, ROW, one.data, one.metadata, one.key, headers, time)
