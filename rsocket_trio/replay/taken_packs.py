"""Packs as a log takes them: without positions of their own, in the order of time, and none larger than the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rsocket_trio.replay.elements import LARGEST_COUNT, Element
from rsocket_trio.replay.packs import (
    COUNTS,
    NONE,
    OFFSETS,
    PACK_BYTES,
    PACK_HEAD,
    PACK_ROWS,
    TIMESTAMP,
    Column,
    Pack,
    elements_of,
    number_bytes,
    read_columns,
    sealed,
)

LARGEST_TAKEN = 2 * PACK_BYTES
"""Bytes of a pack above which a log divides it, so that no reader gets much more at a time than it has room for."""


def as_taken(elements: Iterable[Element | Pack]) -> Iterator[Element | Pack]:
    """Yield elements as a log writes them: large packs are divided, and those with places or times have single rows.

    Raise ``ValueError`` for a pack of too many positions.
    """
    for element in elements:
        if not isinstance(element, Pack):
            yield element
        elif not 1 <= element.count <= LARGEST_COUNT:
            raise ValueError(f"a pack of {element.count} rows: must be between 1 and {LARGEST_COUNT}")
        elif element.data[4] & (OFFSETS | TIMESTAMP):
            yield from elements_of(element)
        elif element.size > LARGEST_TAKEN or element.count > PACK_ROWS:
            yield from divided(element)
        else:
            yield element


def divided(pack: Pack) -> Iterator[Pack]:
    """Yield the rows of a pack without positions and times of its own in packs of the usual size."""
    columns = read_columns(pack.data, check=False)
    rows, counts = columns.rows, columns.counts
    if rows == 1 or (rows <= PACK_ROWS and pack.size <= LARGEST_TAKEN):
        yield pack
        return
    variable = [one for one in (columns.data, columns.metadata, columns.key, columns.headers) if one is not None]
    places = [column.start for column in variable]
    bits = pack.data[4]
    low = 0
    with memoryview(pack.data) as view:
        while low < rows:
            high = min(low + PACK_ROWS, rows)
            sizes = content_sizes(variable, low, high)
            while sum(sizes) > PACK_BYTES and high > low + 1:
                high = low + (high - low) // 2
                sizes = content_sizes(variable, low, high)
            parts: list[bytes | memoryview] = [PACK_HEAD.pack(high - low, bits)]
            if bits & COUNTS and counts is not None:
                parts.append(number_bytes("I", counts[low:high]))
            for index, column in enumerate(variable):
                start, places[index] = places[index], places[index] + sizes[index]
                parts += (number_bytes("I", column.lengths[low:high]), view[start : places[index]])
            yield Pack(sealed(parts), high - low if counts is None else sum(counts[low:high]), 0, pack.timestamp)
            low = high


def content_sizes(columns: Iterable[Column], low: int, high: int) -> list[int]:
    """Return by column the bytes of the contents of the rows from ``low`` to below ``high``."""
    found = []
    for column in columns:
        lengths = column.lengths[low:high]
        found.append(sum(lengths) - NONE * lengths.count(NONE))
    return found
