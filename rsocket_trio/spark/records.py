"""Builds Arrow record batches of one fixed schema from received elements.

Spark compares the schema of the first batch only, and reads the others by it, so every batch has the same schema.
"""

from __future__ import annotations

import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from rsocket_trio import RemoteProtocolError
from rsocket_trio.replay.arrow_packs import TIME, placed_batch
from rsocket_trio.replay.elements import ARROW, Pack, Record
from rsocket_trio.spark.hosting import Explained
from rsocket_trio.spark.options import Options

RAW_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("position", pa.int64()),
        ("data", pa.binary()),
        ("metadata", pa.binary()),
        ("received_at", TIME),
        ("route", pa.string()),
        ("key", pa.binary()),
        ("timestamp", TIME),
    ]
)
"""The columns of raw rows."""
HEADERS_TYPE: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
"""The type of headers in Spark: that of packs, but that Spark takes names for such as may be null."""
HEADERS_FIELD = pa.field("headers", HEADERS_TYPE)
"""One more, with the option ``includeHeaders``."""
ROUTE_COMMENT: Final = "the route that the row was read from"
"""The comment of the column ``route`` of a source: a sink does not take such a column for the route to write to."""
RAW_DDL = (
    "partition INT, position BIGINT, data BINARY, metadata BINARY, received_at TIMESTAMP, "
    f"route STRING COMMENT '{ROUTE_COMMENT}', key BINARY, timestamp TIMESTAMP"
)
HEADERS_DDL = "headers ARRAY<STRUCT<name: STRING, value: BINARY>>"


def raw_schema(options: Options) -> pa.Schema:
    """Return the columns of raw rows with these options."""
    return RAW_SCHEMA.append(HEADERS_FIELD) if options.include_headers else RAW_SCHEMA


def raw_ddl(options: Options) -> str:
    """Return the same in Spark's notation."""
    return f"{RAW_DDL}, {HEADERS_DDL}" if options.include_headers else RAW_DDL


@attrs.define(slots=True)
class Chunk:
    """Elements that came together: positions from ``start`` on, without gaps.

    ``datas`` has ``None`` for null, and then there are ``records``. ``metadatas`` is ``None`` where none of them has
    metadata. ``received_at`` is UTC in microseconds. An Arrow payload is a chunk by itself: ``part`` says which of its
    rows are wanted, from the first to behind the last, and how many it is said to have. ``records`` have the keys,
    headers and times, ``None`` where none has any.
    """

    start: int
    datas: list[bytes | None]
    metadatas: list[bytes | None] | None
    received_at: int
    part: tuple[int, int, int] | None = None
    records: list[Record] | None = attrs.field(default=None, eq=False)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.datas) if self.part is None else self.part[1] - self.part[0]

    @property
    def size(self) -> int:
        """Return bytes of data and metadata, and of keys and headers where there are some."""
        if self.records is not None:
            return sum([record.element.size for record in self.records])
        return sum([len(content or b"") for content in chain(self.datas, self.metadatas or ())])

    def split(self, rows: int) -> tuple[Chunk, Chunk]:
        """Split the chunk into its first rows and the others."""
        head, tail = (None, None) if self.metadatas is None else (self.metadatas[:rows], self.metadatas[rows:])
        first, others = (None, None) if self.records is None else (self.records[:rows], self.records[rows:])
        return (
            Chunk(self.start, self.datas[:rows], head, self.received_at, records=first),
            Chunk(self.start + rows, self.datas[rows:], tail, self.received_at, records=others),
        )


@attrs.define(slots=True)
class PackChunk:
    """A received pack, of which the rows from ``start`` to below ``end`` are wanted.

    ``received_at`` is when it came, in microseconds since 1970, UTC.
    """

    start: int
    end: int
    pack: Pack
    received_at: int

    @property
    def rows(self) -> int:
        """Return the number of rows, at most."""
        span = self.end - self.start
        return min(span, number_of_rows(self.pack.data)) if self.pack.has_gaps else span

    @property
    def size(self) -> int:
        """Return the bytes of the pack."""
        return self.pack.size

    def rows_wanted(self) -> pa.RecordBatch:
        """Return the wanted rows in the columns of a pack.

        Raise ``RemoteProtocolError`` for a pack that is torn or is not as its metadata says, and
        ``SchemaMismatchError`` for a record of several rows.
        """
        pack = self.pack
        try:
            batch = placed_batch(pack)
        except ValueError as error:
            raise RemoteProtocolError(f"the pack at position {pack.position}: {error}") from None
        positions, counts = batch.column("position"), batch.column("count")
        if batch.num_rows and pc.max(counts).as_py() != 1:
            index = pc.index(pc.greater(counts, 1), True).as_py()
            raise SchemaMismatchError(
                f"the element at position {positions[index]} holds {counts[index]} rows: set payload=arrow"
            )
        if self.end - self.start == pack.count:
            return batch
        low, high = (pc.sum(pc.less(positions, place)).as_py() or 0 for place in (self.start, self.end))
        return batch.slice(low, high - low)


def number_of_rows(data: bytes) -> int:
    """Return how many rows a pack has, 0 if it is damaged."""
    try:
        with pa.ipc.open_stream(data) as stream:
            return sum(batch.num_rows for batch in stream)
    except (pa.ArrowException, OSError):
        return 0  # the error is raised once its rows are wanted


Rows: TypeAlias = Chunk | PackChunk
"""Rows that came together, as single elements or as a pack."""
WANTED = (ARROW,)
"""The formats of packs that are asked for."""


class Weights:
    """Weighs rows on a conveyor: by their bytes, but at least by a row's share of a full batch.

    The limit is that of two batches: so little is sent in vain to a reader that stops early.
    """

    def __init__(self, options: Options) -> None:
        self.limit = 2 * options.batch_bytes
        self._row = max(options.batch_bytes // options.batch_rows, 1)

    def __call__(self, chunk: Rows) -> int:
        return max(chunk.size, chunk.rows * self._row)


class SchemaMismatchError(Explained, ValueError):
    """Rows do not have the columns that the query declares; the message names each difference."""


def fixed(kind: pa.DataType, numbers: array.array[int]) -> pa.Array:
    """Return numbers of the native byte order as an Arrow array, not copied."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


@lru_cache(maxsize=16)
def repeated(text: str, rows: int) -> pa.Array:
    """Return a text so many times. Full batches share one column."""
    return pa.repeat(pa.scalar(text, pa.string()), rows)


def raw_batch(partition: int, chunks: Sequence[Chunk], route: str, schema: pa.Schema = RAW_SCHEMA) -> pa.RecordBatch:
    """Return one batch of the rows of all chunks, in the columns of ``schema``, which are some of the raw ones."""
    positions, times = array.array("q"), array.array("q")
    datas: list[bytes | None] = []
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
    columns = {
        "partition": fixed(pa.int32(), array.array("i", [partition]) * rows),
        "position": fixed(pa.int64(), positions),
        "data": pa.array(datas, pa.binary()),
        "received_at": fixed(TIME, times),
        "route": repeated(route, rows),
    }
    if has_metadata:
        columns["metadata"] = pa.array(metadatas, pa.binary())
    if any(chunk.records is not None for chunk in chunks):
        for name in ("key", "timestamp", "headers"):
            if name in schema.names:
                columns[name] = pa.array(_of_records(chunks, name), schema.field(name).type)
    return _in_schema(columns, rows, schema)


def _of_records(chunks: Sequence[Chunk], name: str) -> Iterator[Any]:
    """Yield the key, the time or the headers of each row."""
    for chunk in chunks:
        for record in [None] * len(chunk.datas) if chunk.records is None else chunk.records:
            yield None if record is None else getattr(record, name)


def raw_batch_of(
    partition: int, rows: pa.RecordBatch, received_at: int, route: str, schema: pa.Schema = RAW_SCHEMA
) -> pa.RecordBatch:
    """Return one batch of rows of a pack that came at ``received_at``, in the columns of ``schema``."""
    count = rows.num_rows
    columns = {name: rows.column(name) for name in ("position", "data", "metadata", "key", "timestamp")}
    if "headers" in schema.names:
        columns["headers"] = rows.column("headers").cast(HEADERS_TYPE)
    if "partition" in schema.names:
        columns["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), count)
    if "received_at" in schema.names:
        columns["received_at"] = pa.repeat(pa.scalar(received_at, TIME), count)
    if "route" in schema.names:
        columns["route"] = repeated(route, count)
    return _in_schema(columns, count, schema)


def _in_schema(columns: Mapping[str, pa.Array], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of ``schema``; those that are not there are null."""
    return pa.RecordBatch.from_arrays(
        [columns[field.name] if field.name in columns else pa.nulls(rows, field.type) for field in schema],
        schema=schema,
    )


def content_bytes(rows: pa.RecordBatch) -> int:
    """Return the bytes of data and metadata of rows of a pack."""
    return sum(pc.sum(pc.binary_length(rows.column(name))).as_py() or 0 for name in ("data", "metadata"))


def arrow_batches(data: bytes, schema: pa.Schema, *, strict: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a payload, an Arrow IPC stream, in the columns of the query; empty ones are left out.

    Columns that the query does not name are left out, and absent ones are null; where ``strict``, both are refused.
    Raise ``SchemaMismatchError`` naming every column that does not fit.
    """
    try:
        with pa.ipc.open_stream(data) as stream:
            if problem := mismatch(stream.schema, schema, strict=strict):
                raise SchemaMismatchError(f"the payload's schema is not that of the query: {problem}")
            for batch in stream:
                if batch.num_rows:
                    yield fitted(batch, schema)
    except (pa.ArrowInvalid, OSError) as error:
        raise SchemaMismatchError(f"a payload of {len(data)} bytes is no Arrow IPC stream: {error}") from None


def mismatch(found: pa.Schema, wanted: pa.Schema, *, strict: bool = True) -> str:
    """Return the difference between the received columns and the wanted ones, as text; empty if they fit.

    The order of the columns is free, and a column that is never null fits one that may be. Unless ``strict``, there may
    be others, and those that may be null may be missing.
    """
    problems = [f"column {name!r} is not wanted" for name in found.names if strict and name not in wanted.names]
    for field in wanted:
        count = found.names.count(field.name)
        if count != 1:
            if count:
                problems.append(f"column {field.name!r} comes twice")
            elif strict or not field.nullable:
                problems.append(f"column {field.name!r} is missing{'' if field.nullable else ', and may not be null'}")
            continue
        came = found.field(field.name)
        if came.type != field.type:
            problems.append(f"column {field.name!r} is {came.type}, wanted is {field.type}{_advice(came.type)}")
        elif came.nullable and not field.nullable:
            problems.append(f"column {field.name!r} may be null, wanted is one that is not")
    return "; ".join(problems)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in exactly this schema; the columns are not copied, and absent ones are null."""
    if batch.schema.equals(schema):
        return batch
    there = {name: batch.column(name) for name in schema.names if name in batch.schema.names}
    return _in_schema(there, batch.num_rows, schema)


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
