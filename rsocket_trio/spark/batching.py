"""Gathers rows into record batches for Spark, each bounded by rows, bytes and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa

from rsocket_trio.spark.background import Producer, background
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.records import (
    Chunk,
    PackChunk,
    Rows,
    SchemaMismatchError,
    Weights,
    arrow_batches,
    joined,
    raw_batch,
    raw_batch_of,
    raw_schema,
)


def rows_of(
    produce: Producer[Rows], options: Options, partition: int, schema: pa.Schema | None
) -> Iterator[pa.RecordBatch]:
    """Yield the chunks of a background producer as record batches; cancel it when the iterator is closed.

    ``schema`` has the columns of the query, ``None`` for all columns of raw rows.
    """
    stream = background().iterate(produce, Weights(options).limit)
    try:
        yield from gathered(stream.take, options, partition, schema)
    finally:
        stream.close()


def gathered(
    take: Callable[[float | None], Rows],
    options: Options,
    partition: int,
    schema: pa.Schema | None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of the chunks from ``take(timeout in seconds)``; see ``Conveyor.take``."""
    pending = Pending(options, partition, schema)
    deadline = 0.0
    while True:
        try:
            chunk = take(max(deadline - clock(), 0.0) if pending.rows else None)
        except TimeoutError:
            yield pending.flush()
            continue
        except StopIteration:
            break
        if not pending.rows:
            deadline = clock() + options.batch_max_delay
        yield from pending.add(chunk)
        if pending.rows and clock() >= deadline:
            yield pending.flush()
    if pending.rows:
        yield pending.flush()


class Pending:
    """Rows that wait until there are enough of them."""

    def __init__(self, options: Options, partition: int, schema: pa.Schema | None) -> None:
        self._max_rows = options.batch_rows
        self._max_bytes = options.batch_bytes
        self._partition = partition
        self._is_arrow = options.payload == "arrow"
        self._is_strict = options.strict_schema
        self._schema = raw_schema(options) if schema is None else schema
        self._route = options.route
        self._parts: list[Any] = []
        self._size = 0
        self.rows = 0

    def add(self, chunk: Rows) -> Iterator[pa.RecordBatch]:
        """Add rows, and yield the batches that they fill, by their number or by their bytes on the average."""
        if self._is_arrow and isinstance(chunk, Chunk):
            for batch in decoded(chunk, self._schema, strict=self._is_strict):
                yield from self._keep(batch, batch.num_rows, batch.nbytes)
            return
        average = max(chunk.size // max(chunk.rows, 1), 1)
        if isinstance(chunk, PackChunk):
            batch = raw_batch_of(self._partition, chunk.rows_wanted(), chunk.received_at, self._route, self._schema)
            average = max(chunk.size // max(chunk.pack.count, 1), 1)
            while batch.num_rows > (room := self._room(average)):
                head, batch = batch.slice(0, room), batch.slice(room)
                yield from self._keep(head, room, room * average)
            yield from self._keep(batch, batch.num_rows, batch.num_rows * average)
            return
        while chunk.rows > (room := self._room(average)):
            first, chunk = chunk.split(room)
            yield from self._keep(first, room, room * average)
        yield from self._keep(chunk, chunk.rows, chunk.rows * average)

    def _room(self, average: int) -> int:
        """Return how many rows of so many bytes there is room for, at least one."""
        return max(min(self._max_rows - self.rows, -(-(self._max_bytes - self._size) // average)), 1)

    def flush(self) -> pa.RecordBatch:
        """Return the waiting rows as one batch."""
        parts, self._parts = self._parts, []
        self.rows = self._size = 0
        return joined(parts if self._is_arrow else self._as_batches(parts), self._schema)

    def _as_batches(self, parts: list[Any]) -> list[pa.RecordBatch]:
        """Return the waiting parts of raw rows as batches: each pack is one already, chunks in a row become one."""
        return [
            one
            for is_batch, some in groupby(parts, lambda part: isinstance(part, pa.RecordBatch))
            for one in (some if is_batch else [raw_batch(self._partition, list(some), self._route, self._schema)])
        ]

    def _keep(self, part: Any, rows: int, size: int) -> Iterator[pa.RecordBatch]:
        self._parts.append(part)
        self.rows += rows
        self._size += size
        if self.rows >= self._max_rows or self._size >= self._max_bytes:
            yield self.flush()


def decoded(chunk: Chunk, schema: pa.Schema, *, strict: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of an Arrow payload. Raise ``SchemaMismatchError`` if it is not as declared."""
    for data in chunk.datas:
        assert data is not None
        if chunk.part is None:
            yield from arrow_batches(data, schema, strict=strict)
            continue
        low, high, said = chunk.part
        whole = list(arrow_batches(data, schema, strict=strict))
        rows = sum(batch.num_rows for batch in whole)
        if rows != said:
            raise SchemaMismatchError(
                f"the payload at position {chunk.start - low} has {rows} rows, its metadata says {said}"
            )
        yield from whole if (low, high) == (0, said) else sliced(whole, low, high)


def sliced(batches: list[pa.RecordBatch], low: int, high: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows from ``low`` to before ``high`` of batches in a row."""
    at = 0
    for batch in batches:
        first, last = max(low - at, 0), min(high - at, batch.num_rows)
        at += batch.num_rows
        if first < last:
            yield batch.slice(first, last - first)
