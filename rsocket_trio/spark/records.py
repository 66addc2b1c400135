"""Builds Arrow record batches of one fixed schema from received elements.

Spark compares the schema of the first batch only, and reads the others by it, so every batch has the same schema.
"""

from __future__ import annotations

import array
import time
from collections.abc import Iterable, Iterator, Sequence

import attrs
import pyarrow as pa

from rsocket_trio.spark.hosting import Explained
from rsocket_trio.spark.options import Options

RAW_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("position", pa.int64()),
        ("data", pa.binary()),
        ("metadata", pa.binary()),
        ("received_at", pa.timestamp("us", tz="UTC")),
    ]
)
RAW_DDL = "partition INT, position BIGINT, data BINARY, metadata BINARY, received_at TIMESTAMP"


@attrs.define(slots=True)
class Chunk:
    """Elements that came together: positions from ``start`` on, without gaps.

    ``metadatas`` is ``None`` where none of them has metadata. ``received_at`` is UTC in microseconds. An Arrow payload
    is a chunk by itself: ``part`` says which of its rows are wanted, from the first to behind the last, and how many it
    is said to have.
    """

    start: int
    datas: list[bytes]
    metadatas: list[bytes | None] | None
    received_at: int
    part: tuple[int, int, int] | None = None

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.datas) if self.part is None else self.part[1] - self.part[0]

    @property
    def size(self) -> int:
        """Return bytes of data and metadata."""
        return sum(self.sizes())

    def sizes(self) -> Iterable[int]:
        """Return the bytes of data and metadata of each element."""
        if self.metadatas is None:
            return map(len, self.datas)
        return [
            len(data) + (0 if metadata is None else len(metadata))
            for data, metadata in zip(self.datas, self.metadatas, strict=True)
        ]

    def split(self, rows: int) -> tuple[Chunk, Chunk]:
        """Split the chunk into its first rows and the others."""
        head, tail = (None, None) if self.metadatas is None else (self.metadatas[:rows], self.metadatas[rows:])
        return (
            Chunk(self.start, self.datas[:rows], head, self.received_at),
            Chunk(self.start + rows, self.datas[rows:], tail, self.received_at),
        )


class Weights:
    """Weighs rows on a conveyor: by their bytes, but at least by a row's share of a full batch.

    The limit is that of two batches: so little is sent in vain to a reader that stops early.
    """

    def __init__(self, options: Options) -> None:
        self.limit = 2 * options.batch_bytes
        self._row = max(options.batch_bytes // options.batch_rows, 1)

    def __call__(self, chunk: Chunk) -> int:
        return max(chunk.size, chunk.rows * self._row)


def now_us() -> int:
    """Return the time in microseconds since 1970, UTC."""
    return time.time_ns() // 1000


class SchemaMismatchError(Explained, ValueError):
    """Rows do not have the columns that the query declares; the message names each difference."""


def raw_batch(partition: int, chunks: Sequence[Chunk]) -> pa.RecordBatch:
    """Return one batch of the rows of all chunks."""
    positions, times = array.array("q"), array.array("q")
    datas: list[bytes] = []
    metadatas: list[bytes | None] = []
    has_metadata = any(chunk.metadatas is not None for chunk in chunks)
    for chunk in chunks:
        count = len(chunk.datas)
        positions.extend(range(chunk.start, chunk.start + count))
        times.extend([chunk.received_at] * count)
        datas += chunk.datas
        if has_metadata:
            metadatas += chunk.metadatas if chunk.metadatas is not None else [None] * count
    rows = len(datas)
    return pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(array.array("i", [partition]) * rows)]),
            pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(positions)]),
            pa.array(datas, pa.binary()),
            pa.array(metadatas, pa.binary()) if has_metadata else pa.nulls(rows, pa.binary()),
            pa.Array.from_buffers(RAW_SCHEMA.types[4], rows, [None, pa.py_buffer(times)]),
        ],
        schema=RAW_SCHEMA,
    )


def arrow_batches(data: bytes, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a payload, an Arrow IPC stream, in the columns of the query; empty ones are left out.

    Raise ``SchemaMismatchError`` naming every column that differs.
    """
    try:
        with pa.ipc.open_stream(data) as stream:
            problem = mismatch(stream.schema, schema)
            if problem:
                raise SchemaMismatchError(f"the payload's schema is not that of the query: {problem}")
            for batch in stream:
                if batch.num_rows:
                    yield fitted(batch, schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise SchemaMismatchError(f"a payload of {len(data)} bytes is no Arrow IPC stream: {error}") from None


def mismatch(found: pa.Schema, wanted: pa.Schema) -> str:
    """Return the difference between the received columns and the wanted ones, as text; empty if they fit.

    The order of the columns is free, and a column that is never null fits one that may be.
    """
    problems = [f"column {name!r} is missing" for name in wanted.names if name not in found.names]
    problems += [f"column {name!r} is not wanted" for name in found.names if name not in wanted.names]
    problems += [f"column {name!r} comes twice" for name in set(found.names) if found.names.count(name) > 1]
    for field in wanted:
        if found.names.count(field.name) != 1:
            continue
        came = found.field(field.name)
        if came.type != field.type:
            problems.append(f"column {field.name!r} is {came.type}, wanted is {field.type}{_advice(came.type)}")
        elif came.nullable and not field.nullable:
            problems.append(f"column {field.name!r} may be null, wanted is one that is not")
    return "; ".join(problems)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in exactly this schema; the columns are not copied."""
    if batch.schema.equals(schema):
        return batch
    return pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema)


def joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Join small batches into one."""
    if len(batches) == 1:
        return batches[0]
    [whole] = pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches() or [
        pa.RecordBatch.from_pylist([], schema=schema)
    ]
    return whole


def _advice(came: pa.DataType) -> str:
    if pa.types.is_dictionary(came):
        return " (send plain values: Spark takes no dictionaries)"
    if pa.types.is_timestamp(came):
        return " (Spark takes microseconds in UTC)"
    if pa.types.is_large_binary(came) or pa.types.is_large_string(came):
        return " (Spark takes the types with 32-bit offsets)"
    return ""
