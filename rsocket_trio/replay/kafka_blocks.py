"""Blocks of records of Kafka as columns, and the records and packs that are made of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import attrs

from rsocket_trio.replay.element_metadata import RECORD_METADATA
from rsocket_trio.replay.elements import Headers, Record
from rsocket_trio.replay.packs import (
    KEY,
    NO_TIME,
    NONE,
    OFFSETS,
    PACK_BYTES,
    PACK_HEAD,
    PACK_ROWS,
    TIMESTAMP,
    Pack,
    number_bytes,
    sealed,
    split_into_packs,
)

if TYPE_CHECKING:
    from confluent_kafka import Message

OVERHEAD = 100
"""Bytes that a record takes beside its content, about."""
LONGEST_GAP = 2**30
"""Positions that one pack leaves out, at most."""
_time_of = itemgetter(1)


@attrs.frozen(eq=False)
class Block:
    """The records of a partition from ``start`` to below ``end``, as columns; an offset that is missing has none.

    ``keys``, ``headers`` and ``times`` (milliseconds) are ``None`` where no record has one.
    """

    start: int
    end: int
    offsets: list[int]
    values: list[bytes]
    keys: list[bytes | None] | None
    headers: list[list[tuple[str, bytes | None]] | None] | None
    times: list[int]

    def between(self, start: int, end: int | None) -> tuple[int, int]:
        """Return the indexes of the first record from ``start`` on, and of the first from ``end`` on."""
        low = bisect_left(self.offsets, start)
        return low, len(self.offsets) if end is None else bisect_left(self.offsets, end, low)


def block_of(start: int, messages: list[Message]) -> Block:
    """Return the block of messages, the last of which may be the end of the partition."""
    from confluent_kafka import KafkaError, Message

    end = start
    if any(map(Message.error, messages)):
        kept = []
        for message in messages:
            error = message.error()
            if error is None:
                kept.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                end = max(end, message.offset() or 0)
        messages = kept
    if not messages:
        return Block(start, end, [], [], None, None, [])
    offsets: list[Any] = list(map(Message.offset, messages))
    values: list[Any] = list(map(Message.value, messages))
    if None in values:
        values = [b"" if found is None else found for found in values]
    keys: list[Any] = list(map(Message.key, messages))
    headers: list[Any] = list(map(Message.headers, messages))
    return Block(
        start,
        max(end, offsets[-1] + 1),
        offsets,
        values,
        None if keys.count(None) == len(keys) else keys,
        None if headers.count(None) == len(headers) else headers,
        list(map(_time_of, map(Message.timestamp, messages))),
    )


def rows_of(block: Block, start: int, end: int | None, max_bytes: int) -> Iterator[int]:
    """Yield the indexes of the records of a range, about ``max_bytes`` together and at least one."""
    low, high = block.between(start, end)
    for index in range(low, high):
        yield index
        max_bytes -= len(block.values[index]) + OVERHEAD
        if max_bytes <= 0:
            return


def records_of_block(block: Block, start: int, end: int | None, max_bytes: int) -> Iterator[Record]:
    """Yield the records of a block from ``start`` to below ``end``, about ``max_bytes`` together.

    Behind the last of them comes a record of no rows, if nothing else is there up to its position.
    """
    offsets, keys, headers = block.offsets, block.keys, block.headers
    low, high = block.between(start, end)
    last, index = start, low - 1
    for index in rows_of(block, start, end, max_bytes):
        metadata, others = _headers_of(headers[index]) if headers else (None, None)
        time = block.times[index]
        yield Record(
            offsets[index],
            block.values[index],
            metadata,
            1,
            keys[index] if keys else None,
            others,
            time * 1000 if time >= 0 else None,
        )
        last = offsets[index] + 1
    stop = block.end if end is None else min(block.end, end)
    if index + 1 == high and last < stop:
        yield Record(stop, b"", count=0)


def pack_block(block: Block, start: int, end: int | None, max_bytes: int) -> Iterator[Pack]:
    """Yield packs of the records of a block from ``start`` to below ``end``, about ``max_bytes`` together.

    They span all positions from ``start`` to the end of the last record, or to where nothing else is.
    """
    if block.headers is not None:
        # Each row has an encoding of its own.
        yield from split_into_packs(records_of_block(block, start, end, max_bytes), start)
        return
    offsets = block.offsets
    low, high = block.between(start, end)
    stop = block.end if end is None else min(block.end, end)
    while low < high and max_bytes > 0:
        while offsets[low] - start > LONGEST_GAP:
            yield _pack(block, low, low, start, start + LONGEST_GAP)
            start += LONGEST_GAP
        rows = min(_rows_within(block.values, low, high, min(PACK_BYTES, max_bytes)), PACK_ROWS)
        after = bisect_left(offsets, start + LONGEST_GAP + 1, low, low + rows)
        last = offsets[after - 1] + 1
        yield _pack(block, low, after, start, last)
        max_bytes -= sum(map(len, block.values[low:after]))
        low, start = after, last
    if low == high:
        while start < stop:
            last = min(stop, start + LONGEST_GAP)
            yield _pack(block, low, low, start, last)
            start = last


def _rows_within(values: Sequence[bytes], low: int, high: int, limit: int) -> int:
    """Return how many rows from ``low`` on have about ``limit`` bytes, at least one."""
    rows = min(high - low, PACK_ROWS)
    while rows > 1 and sum(map(len, values[low : low + rows])) > limit:
        rows //= 2
    return rows


def _pack(block: Block, low: int, high: int, start: int, end: int) -> Pack:
    """Return the records with indexes from ``low`` to below ``high`` as the pack from ``start`` to ``end``."""
    bits, rows, values = 0, high - low, block.values[low:high]
    parts = [b""]
    if end - start != rows:
        bits |= OFFSETS
        parts.append(number_bytes("I", [offset - start for offset in block.offsets[low:high]]))
    parts.append(number_bytes("I", map(len, values)))
    parts += values
    if block.keys is not None and (keys := block.keys[low:high]).count(None) < rows:
        bits |= KEY
        parts.append(number_bytes("I", [NONE if key is None else len(key) for key in keys]))
        parts += filter(None, keys)
    times, timestamp = block.times[low:high], None
    if times and times.count(times[0]) == rows:
        timestamp = times[0] * 1000 if times[0] >= 0 else None
    elif times:
        bits |= TIMESTAMP
        parts.append(number_bytes("q", [time * 1000 if time >= 0 else NO_TIME for time in times]))
    parts[0] = PACK_HEAD.pack(rows, bits)
    return Pack(sealed(parts), end - start, start, timestamp)


def _headers_of(headers: Sequence[tuple[str, bytes | None]] | None) -> tuple[bytes | None, Headers | None]:
    """Return the metadata of a record, and its other headers by name: of those that have one name the last."""
    if headers is None:
        return None, None
    found = {name: content or b"" for name, content in headers}
    return found.pop(RECORD_METADATA, None), found or None
