"""Received rows as Arrow record batches of one fixed schema, small ones joined before they are handed to Spark.

Spark compares the schema of the first batch only, and reads the others by it, so every batch has the same schema.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rsocket_trio import RemoteProtocolError
from rsocket_trio.replay.arrow_packs import HEADERS_TYPE, TIME, placed
from rsocket_trio.replay.elements import Pack, Record
from rsocket_trio.spark.background import Job, Queue, background
from rsocket_trio.spark.errors import SchemaMismatchError
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
HEADERS_FIELD = pa.field("headers", HEADERS_TYPE)
"""One more, with the option ``includeHeaders``."""
ROUTE_COMMENT: Final = "the route that the row was read from"
"""The comment of the column ``route`` of a source: a sink does not take such a column for the route to write to."""
RAW_DDL = (
    "partition INT, position BIGINT, data BINARY, metadata BINARY, received_at TIMESTAMP, "
    f"route STRING COMMENT '{ROUTE_COMMENT}', key BINARY, timestamp TIMESTAMP"
)
HEADERS_DDL = "headers ARRAY<STRUCT<name: STRING, value: BINARY>>"
OF_RECORDS: Final = ("position", "data", "metadata", "key", "timestamp", "headers")
"""The columns that come from the server."""


def raw_schema(options: Options) -> pa.Schema:
    return RAW_SCHEMA.append(HEADERS_FIELD) if options.include_headers else RAW_SCHEMA


def raw_ddl(options: Options) -> str:
    return f"{RAW_DDL}, {HEADERS_DDL}" if options.include_headers else RAW_DDL


class RowShape:
    """The form in which rows of one partition are wanted.

    ``schema`` has the columns of the query; given as ``None`` they are all columns of raw rows.
    """

    def __init__(self, options: Options, partition: int, schema: pa.Schema | None) -> None:
        self.is_arrow = options.payload == "arrow"
        self.schema: pa.Schema = raw_schema(options) if schema is None else schema
        self._is_strict = options.strict_schema
        self._partition = partition
        self._route = options.route
        self._row_weight = max(options.batch_bytes // options.batch_rows, 1)

    def weight(self, batch: pa.RecordBatch) -> int:
        """Return the weight of rows in a queue: their bytes, but at least each row's share of a full batch."""
        return max(int(batch.nbytes), int(batch.num_rows) * self._row_weight)

    def of_records(self, records: Sequence[Record], received_at: int) -> pa.RecordBatch:
        """Return raw rows of records that came at ``received_at``, in microseconds since 1970, UTC."""
        columns = {
            name: pa.array([getattr(record, name) for record in records], self.schema.field(name).type)
            for name in OF_RECORDS
            if name in self.schema.names
        }
        return self._raw(columns, len(records), received_at)

    def of_pack(self, pack: Pack, start: int, end: int, received_at: int) -> pa.RecordBatch:
        """Return the raw rows of a pack from ``start`` to below ``end``.

        Raise ``RemoteProtocolError`` for a pack that is torn or is not as its metadata says, and
        ``SchemaMismatchError`` for a record of several rows.
        """
        try:
            batch = placed(pack)
        except ValueError as error:
            raise RemoteProtocolError(f"the pack at position {pack.position}: {error}") from None
        positions, counts = batch.column("position"), batch.column("count")
        if batch.num_rows and pc.max(counts).as_py() != 1:
            index = pc.index(pc.greater(counts, 1), True).as_py()
            raise several_rows(positions[index], counts[index])
        if end - start != pack.count:
            low, high = (pc.sum(pc.less(positions, place)).as_py() or 0 for place in (start, end))
            batch = batch.slice(low, high - low)
        columns = {name: batch.column(name) for name in OF_RECORDS if name in self.schema.names}
        return self._raw(columns, batch.num_rows, received_at)

    def _raw(self, columns: Mapping[str, pa.Array], rows: int, received_at: int) -> pa.RecordBatch:
        same = {"partition": self._partition, "received_at": received_at, "route": self._route}
        arrays = [
            pa.repeat(pa.scalar(same[field.name], field.type), rows) if field.name in same else columns[field.name]
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def of_payload(self, data: bytes) -> list[pa.RecordBatch]:
        """Return the rows of an Arrow payload. Raise ``SchemaMismatchError`` if it has not the columns of the query."""
        return list(arrow_batches(data, self.schema, strict=self._is_strict))

    def of_part(self, data: bytes, position: int, count: int, low: int, high: int) -> list[pa.RecordBatch]:
        """Return some rows of an Arrow payload that is said to have ``count`` rows from ``position`` on."""
        whole = self.of_payload(data)
        rows = sum(batch.num_rows for batch in whole)
        if rows != count:
            raise SchemaMismatchError(f"the payload at position {position} has {rows} rows, its metadata says {count}")
        if (low, high) == (0, count) or not whole:
            return whole
        return [joined(whole).slice(low, high - low)]


def several_rows(position: object, count: object) -> SchemaMismatchError:
    """Return the error for an element of several rows where each is to be one."""
    return SchemaMismatchError(f"the element at position {position} holds {count} rows: set payload=arrow")


# Arrow payloads


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


def mismatch(actual: pa.Schema, declared: pa.Schema, *, strict: bool = True) -> str:
    """Return the difference between the received columns and the wanted ones, as text; empty if they fit.

    The order of the columns is free, and a column that is never null fits one that may be. Unless ``strict``, there may
    be others, and those that may be null may be missing.
    """
    problems = [f"column {name!r} is not wanted" for name in actual.names if strict and name not in declared.names]
    for field in declared:
        count = actual.names.count(field.name)
        if count != 1:
            if count:
                problems.append(f"column {field.name!r} comes twice")
            elif strict or not field.nullable:
                problems.append(f"column {field.name!r} is missing{'' if field.nullable else ', and may not be null'}")
            continue
        came = actual.field(field.name)
        if came.type != field.type:
            problems.append(f"column {field.name!r} is {came.type}, wanted is {field.type}{_advice(came.type)}")
        elif came.nullable and not field.nullable:
            problems.append(f"column {field.name!r} may be null, wanted is one that is not")
    return "; ".join(problems)


def _advice(came: pa.DataType) -> str:
    if pa.types.is_dictionary(came):
        return " (send plain values: Spark takes no dictionaries)"
    if pa.types.is_timestamp(came):
        return " (Spark takes microseconds in UTC)"
    if pa.types.is_large_binary(came) or pa.types.is_large_string(came):
        return " (Spark takes the types with 32-bit offsets)"
    return ""


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch in exactly this schema; the columns are not copied, and absent ones are null."""
    if batch.schema.equals(schema):
        return batch
    names, rows = batch.schema.names, batch.num_rows
    columns = [batch.column(field.name) if field.name in names else pa.nulls(rows, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# Joining


def rows_of(produce: Callable[[Queue[pa.RecordBatch]], Awaitable[None]], options: Options) -> Iterator[pa.RecordBatch]:
    """Yield the record batches that a task of the background produces; cancel it when the iterator is closed.

    Two batches may wait: so little is sent in vain to a reader that stops early.
    """
    job: Job[pa.RecordBatch, None] = Job(background(), produce, 2 * options.batch_bytes)
    try:
        yield from gathered(job.take, options)
    finally:
        job.close()


def gathered(
    take: Callable[[float | None], pa.RecordBatch | None], options: Options, clock: Callable[[], float] = time.monotonic
) -> Iterator[pa.RecordBatch]:
    """Yield the batches from ``take(timeout in seconds)``, joined until they have the rows, the bytes or the age that
    the options bound; see ``Job.take``.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    deadline = 0.0
    while True:
        try:
            batch = take(max(deadline - clock(), 0.0) if waiting else None)
        except TimeoutError:
            pass
        else:
            if batch is None:
                break
            if not waiting:
                deadline = clock() + options.batch_max_delay
            if batch.num_rows:
                waiting.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
        if waiting and (rows >= options.batch_rows or size >= options.batch_bytes or clock() >= deadline):
            yield joined(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield joined(waiting)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join small batches of one schema, at least one, into one."""
    if len(batches) == 1:
        return batches[0]
    [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole
