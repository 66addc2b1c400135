"""Rows as record batches: always of one schema, whatever came."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from rsocket_trio.replay import Record
from rsocket_trio.spark.errors import SchemaMismatchError
from rsocket_trio.spark.rows import RAW_SCHEMA, RowShape, arrow_batches, gathered
from tests.spark.serving import options

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def ipc(*batches: pa.RecordBatch, schema: pa.Schema = SCHEMA) -> bytes:
    """An Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def batch_of(ids: Sequence[int], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids), "name": [f"n{one}" for one in ids]}, schema=schema)


def ids(batches: Any) -> list[list[int]]:
    return [batch.column("id").to_pylist() for batch in batches]


# Raw rows


def test_raw_rows_are_columns() -> None:
    records = [Record(7, b"a"), Record(8, b""), Record(20, b"c", b"meta")]
    batch = RowShape(options(), 3, None).of_records(records, 1_000_001)

    assert batch.schema.equals(RAW_SCHEMA, check_metadata=True)
    assert batch.to_pydict() == {
        "partition": [3, 3, 3],
        "position": [7, 8, 20],
        "data": [b"a", b"", b"c"],
        "metadata": [None, None, b"meta"],
        "received_at": [dt.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=dt.UTC)] * 3,
        "route": ["log", "log", "log"],
        "key": [None, None, None],
        "timestamp": [None, None, None],
    }
    batch.validate(full=True)


# Arrow payloads


def test_an_arrow_payload_gives_its_batches() -> None:
    data = ipc(batch_of([1, 2]), batch_of([]), batch_of([3]))

    assert ids(arrow_batches(data, SCHEMA)) == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("came", "message"),
    [
        (pa.schema([("id", pa.int32()), ("name", pa.string())]), "column 'id' is int32, wanted is int64"),
        (
            pa.schema([("id", pa.int64()), ("name", pa.dictionary(pa.int32(), pa.string()))]),
            r"'name' is dictionary.*wanted is string \(send plain values",
        ),
        (pa.schema([("id", pa.int64()), ("name", pa.large_string())]), "32-bit offsets"),
        (pa.schema([("id", pa.timestamp("ns")), ("name", pa.string())]), "microseconds in UTC"),
        (pa.schema([*SCHEMA, ("id", pa.int64())]), "column 'id' comes twice"),
        (
            pa.schema([("id", pa.int8()), ("name", pa.int8())]),
            "column 'id' is int8, wanted is int64; column 'name' is int8, wanted is string",
        ),
    ],
)
def test_columns_that_differ_are_named(came: pa.Schema, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        list(arrow_batches(ipc(schema=came), SCHEMA))


def test_columns_that_the_query_does_not_name_are_left_out_and_absent_ones_are_null() -> None:
    came = pa.schema([("more", pa.int8()), ("id", pa.int64()), ("more", pa.int8())])
    columns = [pa.array([0], pa.int8()), pa.array([7], pa.int64()), pa.array([0], pa.int8())]
    data = ipc(pa.record_batch(columns, came), schema=came)

    [batch] = arrow_batches(data, SCHEMA)

    assert batch.schema.equals(SCHEMA)
    assert batch.to_pydict() == {"id": [7], "name": [None]}


@pytest.mark.parametrize("data", [b"", b"no arrow at all", ipc(batch_of([1]))[:-20]])
def test_what_is_no_arrow_stream_is_named_as_such(data: bytes) -> None:
    with pytest.raises(SchemaMismatchError, match=f"payload of {len(data)} bytes is no Arrow IPC stream"):
        list(arrow_batches(data, SCHEMA))


def test_a_payload_with_other_rows_than_its_metadata_says_is_refused() -> None:
    shape = RowShape(options(payload="arrow"), 0, SCHEMA)

    with pytest.raises(SchemaMismatchError, match="payload at position 10 has 2 rows, its metadata says 3"):
        shape.of_part(ipc(batch_of([1, 2])), 10, 3, 0, 3)


# Joining


def joined_ids(sizes: list[int], **bounds: int) -> list[int]:
    """The rows of the batches that batches of these sizes are joined to."""
    batches = iter([*(batch_of(range(size)) for size in sizes), None])
    return [batch.num_rows for batch in gathered(lambda timeout: next(batches), options(**bounds))]


def test_small_batches_are_joined_up_to_the_number_of_rows_and_never_cut() -> None:
    assert joined_ids([2, 2, 9, 0, 1, 1], batch_rows=4) == [4, 9, 2]


def test_rows_are_handed_on_once_they_have_waited() -> None:
    now = 0.0
    waited: list[float | None] = []

    def take(timeout: float | None) -> pa.RecordBatch | None:
        nonlocal now
        waited.append(timeout)
        if len(waited) % 2:
            return batch_of([1]) if len(waited) < 4 else None
        now += timeout or 0.0
        raise TimeoutError

    found = list(gathered(take, options(), lambda: now))

    assert [batch.num_rows for batch in found] == [1, 1]
    assert waited == [None, 0.2, None, 0.2, None]
