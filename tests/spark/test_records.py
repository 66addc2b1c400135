"""Rows as record batches: always of one schema, whatever came."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from rsocket_trio.replay.elements import now_us
from rsocket_trio.spark.batching import Pending, decoded, sliced
from rsocket_trio.spark.records import (
    RAW_SCHEMA,
    Chunk,
    SchemaMismatchError,
    arrow_batches,
    fitted,
    joined,
    mismatch,
    raw_batch,
)
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
    chunks = [Chunk(7, [b"a", b""], None, 1_000_001), Chunk(20, [b"c"], [b"meta"], 2_000_000)]
    batch = raw_batch(3, chunks, "log")

    assert batch.schema.equals(RAW_SCHEMA, check_metadata=True)
    assert batch.to_pydict() == {
        "partition": [3, 3, 3],
        "position": [7, 8, 20],
        "data": [b"a", b"", b"c"],
        "metadata": [None, None, b"meta"],
        "received_at": [
            dt.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=dt.UTC),
            dt.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=dt.UTC),
            dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC),
        ],
        "route": ["log", "log", "log"],
        "key": [None, None, None],
        "timestamp": [None, None, None],
    }
    batch.validate(full=True)


@pytest.mark.parametrize("chunks", [[], [Chunk(0, [], None, 1)], [Chunk(2**63 - 2, [b"x"], [None], 5)]])
def test_the_schema_is_the_same_for_every_batch(chunks: list[Chunk]) -> None:
    batch = raw_batch(0, chunks, "log")

    assert batch.schema.equals(RAW_SCHEMA)
    batch.validate(full=True)


def test_the_time_is_that_of_now_in_microseconds() -> None:
    before = dt.datetime.now(dt.UTC).timestamp()

    assert 0 <= now_us() / 1e6 - before < 60


def test_a_chunk_is_split_with_its_metadata() -> None:
    head, tail = Chunk(5, [b"a", b"b", b"c"], [None, b"m", None], 9).split(1)

    assert (head, tail) == (Chunk(5, [b"a"], [None], 9), Chunk(6, [b"b", b"c"], [b"m", None], 9))
    assert [head.rows, tail.rows, tail.size] == [1, 2, 3]


# Arrow payloads


def test_an_arrow_payload_gives_its_batches() -> None:
    data = ipc(batch_of([1, 2]), batch_of([]), batch_of([3]))

    assert ids(arrow_batches(data, SCHEMA)) == [[1, 2], [3]]


def test_columns_may_come_in_another_order_and_be_never_null() -> None:
    came = pa.schema([pa.field("name", pa.string(), nullable=False), pa.field("id", pa.int64())])
    [batch] = arrow_batches(ipc(batch_of([1], came), schema=came), SCHEMA)

    assert batch.schema.equals(SCHEMA)
    assert batch.to_pydict() == {"id": [1], "name": ["n1"]}


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


@pytest.mark.parametrize(
    ("came", "message"),
    [
        (pa.schema([("id", pa.int64())]), "column 'name' is missing"),
        (pa.schema([*SCHEMA, ("more", pa.int8())]), "column 'more' is not wanted"),
    ],
)
def test_a_strict_query_refuses_columns_that_are_not_its_own(came: pa.Schema, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        list(arrow_batches(ipc(schema=came), SCHEMA, strict=True))


def test_a_column_that_must_not_be_null_must_be_there() -> None:
    wanted = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])

    with pytest.raises(SchemaMismatchError, match=r"column 'id' is missing, and may not be null$"):
        list(arrow_batches(ipc(schema=pa.schema([("name", pa.string())])), wanted))


def test_a_column_that_may_be_null_will_not_do_for_one_that_must_not() -> None:
    wanted = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])

    assert mismatch(SCHEMA, wanted) == "column 'id' may be null, wanted is one that is not"
    assert mismatch(wanted, SCHEMA) == ""


@pytest.mark.parametrize("data", [b"", b"no arrow at all", ipc(batch_of([1]))[:-20]])
def test_what_is_no_arrow_stream_is_named_as_such(data: bytes) -> None:
    with pytest.raises(SchemaMismatchError, match=f"payload of {len(data)} bytes is no Arrow IPC stream"):
        list(arrow_batches(data, SCHEMA))


def test_a_batch_that_fits_is_not_made_anew() -> None:
    batch = batch_of([1])

    assert fitted(batch, SCHEMA) is batch
    assert joined([batch], SCHEMA) is batch


def test_small_batches_are_joined() -> None:
    assert ids([joined([batch_of([1]), batch_of([2, 3])], SCHEMA)]) == [[1, 2, 3]]


def test_only_the_wanted_rows_of_a_payload_are_taken() -> None:
    data = ipc(batch_of([0, 1]), batch_of([2, 3, 4]))

    assert ids(decoded(Chunk(11, [data], None, 0, (1, 4, 5)), SCHEMA)) == [[1], [2, 3]]
    assert ids(decoded(Chunk(10, [data], None, 0, (0, 5, 5)), SCHEMA)) == [[0, 1], [2, 3, 4]]
    assert ids(sliced([batch_of([0, 1]), batch_of([2])], 2, 3)) == [[2]]


def test_a_payload_with_other_rows_than_its_metadata_says_is_refused() -> None:
    chunk = Chunk(10, [ipc(batch_of([1, 2]))], None, 0, (0, 3, 3))

    with pytest.raises(SchemaMismatchError, match="payload at position 10 has 2 rows, its metadata says 3"):
        list(decoded(chunk, SCHEMA))


# Gathering


def test_rows_are_cut_at_the_number_of_rows() -> None:
    pending = Pending(options(batch_rows=4), 0, None)

    full = [*pending.add(Chunk(0, [b"x"] * 3, None, 0)), *pending.add(Chunk(3, [b"x"] * 10, None, 0))]

    assert [batch.column("position").to_pylist() for batch in full] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert pending.rows == 1
    assert pending.flush().column("position").to_pylist() == [12]
    assert pending.rows == 0


def test_rows_are_handed_on_once_they_are_large_enough() -> None:
    pending = Pending(options(batch_bytes=100), 0, None)

    assert list(pending.add(Chunk(0, [bytes(60)], None, 0))) == []
    [batch] = pending.add(Chunk(1, [bytes(60)], None, 0))
    assert batch.num_rows == 2


@pytest.mark.parametrize("metadata", [None, bytes(10)])
def test_rows_are_cut_at_their_bytes(metadata: bytes | None) -> None:
    pending = Pending(options(batch_bytes=100), 0, None)
    size = 50 if metadata else 60
    chunk = Chunk(0, [bytes(size)] * 7, [metadata] * 7 if metadata else None, 0)

    full = list(pending.add(chunk))

    assert [batch.column("position").to_pylist() for batch in full] == [[0, 1], [2, 3], [4, 5]]
    assert pending.rows == 1
    # By the average of rows that came together.
    assert [batch.num_rows for batch in pending.add(Chunk(7, [bytes(500), b"", bytes(1)], None, 0))] == [2, 1, 1]


def test_the_number_of_rows_holds_where_bytes_are_cut_as_well() -> None:
    pending = Pending(options(batch_bytes=100, batch_rows=2), 0, None)

    full = list(pending.add(Chunk(0, [bytes(30)] * 5, None, 0)))

    assert [batch.num_rows for batch in full] == [2, 2]


def test_arrow_payloads_are_joined_up_to_the_number_of_rows_and_never_cut() -> None:
    pending = Pending(options(batch_rows=4, payload="arrow"), 0, SCHEMA)
    small, large = ipc(batch_of([1, 2])), ipc(batch_of(range(9)))

    full = [batch for data in (small, small, large) for batch in pending.add(Chunk(0, [data], None, 0))]

    assert ids(full) == [[1, 2, 1, 2], list(range(9))]
