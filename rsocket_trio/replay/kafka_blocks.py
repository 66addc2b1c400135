"""Blocks of records of Kafka as columns of Arrow, and the packs and records that are made of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rsocket_trio.replay.element_metadata import RECORD_METADATA
from rsocket_trio.replay.elements import Record
from rsocket_trio.replay.kafka_client import kafka
from rsocket_trio.replay.packs import FOREVER, PACK_BYTES, PACK_ROWS, Pack, arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Message

LONGEST_GAP = 2**30
"""Positions that one pack leaves out, at most."""


@attrs.frozen(eq=False)
class Block:
    """The records of a partition from ``start`` to below ``end``: those at ``offsets``, whose columns ``batch`` has."""

    start: int
    end: int
    offsets: list[int]
    batch: pa.RecordBatch

    def __contains__(self, offset: int) -> bool:
        index = bisect_left(self.offsets, offset)
        return self.offsets[index : index + 1] == [offset]


def block_of(start: int, messages: list[Message]) -> Block:
    """Return the block of messages, among which the end of the partition may be."""
    kind, end = kafka().Message, start
    if any(map(kind.error, messages)):
        eof = kafka().KafkaError._PARTITION_EOF
        end = max(start, *[one.offset() or 0 for one in messages if (error := one.error()) and error.code() == eof], 0)
        messages = [message for message in messages if message.error() is None]
    offsets: list[int] = list(map(kind.offset, messages))
    columns: dict[str, Sequence[Any]] = {
        "data": list(map(kind.value, messages)),
        "key": list(map(kind.key, messages)),
        "headers": list(map(kind.headers, messages)),
        "timestamp": [time * 1000 if time >= 0 else None for _, time in map(kind.timestamp, messages)],
    }
    return columnar(start, max(end, offsets[-1] + 1 if offsets else 0), offsets, columns)


def columnar(start: int, end: int, offsets: list[int], columns: dict[str, Sequence[Any]]) -> Block:
    """Return a block of values by column; what is null in all rows may be left out, but not ``data``."""
    import pyarrow as pa

    headers = columns.get("headers", ())
    if any(headers):
        others = [[pair for pair in row or () if pair[0] != RECORD_METADATA] or None for row in headers]
        columns = {**columns, "metadata": [dict(row or ()).get(RECORD_METADATA) for row in headers], "headers": others}
    schema = arrow().PACK_SCHEMA
    kept = {"position": pa.array(offsets, pa.int64())}
    for name, values in columns.items():
        if name == "data" or values.count(None) < len(values):
            kept[name] = pa.array(values, schema.field(name).type)
    return Block(start, end, offsets, pa.RecordBatch.from_pydict(kept))


def records_of(packs: Iterable[Pack]) -> Iterator[Record]:
    """Yield the records of packs: behind the last of them one of no rows, if nothing else is there up to the end."""
    for pack in packs:
        yield from arrow().rows_of(pack)


def pack_block(block: Block, start: int, end: int | None, max_bytes: int) -> Iterator[Pack]:
    """Yield packs of the records of a block from ``start`` to below ``end``, about ``max_bytes`` together.

    They span all positions from ``start`` to the end of the last record, or to where nothing else is.
    """
    stop = min(block.end, FOREVER if end is None else end)
    low, high = bisect_left(block.offsets, start), bisect_left(block.offsets, stop)
    while start < stop and max_bytes > 0:
        rows = min(high - low, PACK_ROWS)
        while rows > 1 and block.batch.slice(low, rows).nbytes > min(PACK_BYTES, max_bytes):
            rows //= 2
        after = bisect_left(block.offsets, start + LONGEST_GAP, low, low + rows)
        if after < high:
            last = block.offsets[after - 1] + 1 if after > low else start + LONGEST_GAP
        else:
            last = min(stop, start + LONGEST_GAP)
        part = block.batch.slice(low, after - low)
        yield _pack(part, start, last)
        max_bytes -= part.nbytes
        low, start = after, last


def _pack(rows: pa.RecordBatch, start: int, end: int) -> Pack:
    """Return records as the pack from ``start`` to ``end``."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    has_gaps = end - start != rows.num_rows
    if not has_gaps:
        del columns["position"]
    timestamp = None
    if "timestamp" in columns and len(times := columns["timestamp"].unique()) == 1:
        timestamp = times[0].value
        del columns["timestamp"]
    pack: Pack = arrow().pack_of(columns, count=end - start, position=start, timestamp=timestamp, has_gaps=has_gaps)
    return pack
