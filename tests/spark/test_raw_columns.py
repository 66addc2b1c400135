"""Keys, headers, times and routes of records as columns: of packs, of rows one by one, and of logs that have none."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import trio

from rsocket_trio import Responder
from rsocket_trio.replay import Element, Log, Record, add_source, source_payload
from rsocket_trio.spark.batch_reader import BatchReader
from rsocket_trio.spark.ranges import Range
from rsocket_trio.spark.replayed import Cursor
from rsocket_trio.spark.rows import RAW_SCHEMA, RowShape, raw_schema
from tests.spark.serving import column, options

Serving = Callable[[Responder], None]
NOON = 1_769_860_800_000_000
RECORDS = [
    Record(0, b"0", key=b"k", timestamp=NOON),
    Record(1, b"1", metadata=b"m", headers=[("b", b"x"), ("a", b""), ("b", None)], timestamp=NOON + 1),
    Record(2, b"2", timestamp=NOON + 1),
    Record(3, None),
]
HEADERS = [{"name": "b", "value": b"x"}, {"name": "a", "value": b""}, {"name": "b", "value": None}]


def moment(us: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)


def read_row_by_row(schema: pa.Schema | None = None, **given: Any) -> list[pa.RecordBatch]:
    """The records as a server without packs sends them."""
    cursor = Cursor(Range(0, 0, len(RECORDS)), RowShape(options(**given), 0, schema), fail_on_loss=True)
    return cursor.take([source_payload(record) for record in RECORDS], NOON + 5)


@pytest.fixture
def served(serving: Serving) -> None:
    log = Log()
    elements = [Element(one.data, one.metadata, 1, one.key, one.headers, NOON + one.position) for one in RECORDS]
    trio.run(log.open)
    trio.run(log.append_all, {0: elements})
    responder = Responder()
    add_source(responder, "log", log)
    serving(responder)


def test_rows_one_by_one_have_keys_headers_and_times() -> None:
    batches = read_row_by_row(includeHeaders="true")

    assert all(batch.schema.equals(raw_schema(options(includeHeaders="true"))) for batch in batches)
    assert column(batches, "key") == [b"k", None, None, None]
    assert column(batches, "metadata") == [None, b"m", None, None]
    assert column(batches, "headers") == [None, HEADERS, None, None]
    assert column(batches, "timestamp") == [moment(NOON), moment(NOON + 1), moment(NOON + 1), None]
    assert column(batches, "route") == ["log"] * 4
    assert column(batches, "received_at") == [moment(NOON + 5)] * 4


def test_packs_have_keys_headers_and_times(served: None) -> None:
    reader = BatchReader(options(includeHeaders="true"), None)
    batches = list(reader.read(reader.partitions()[0]))

    assert column(batches, "key") == [b"k", None, None, None]
    assert column(batches, "headers") == [None, HEADERS, None, None]
    assert column(batches, "timestamp") == [moment(NOON + number) for number in range(4)]
    assert column(batches, "route") == ["log"] * 4


def test_headers_are_no_column_unless_they_are_asked_for(served: None) -> None:
    reader = BatchReader(options(), None)

    assert all(batch.schema.equals(RAW_SCHEMA) for batch in reader.read(reader.partitions()[0]))
    assert all(batch.schema.equals(RAW_SCHEMA) for batch in read_row_by_row())


def test_only_the_columns_that_are_wanted_are_made(served: None) -> None:
    schema = pa.schema([RAW_SCHEMA.field("timestamp"), RAW_SCHEMA.field("data")])
    reader = BatchReader(options(), schema)
    packs, rows = list(reader.read(reader.partitions()[0])), read_row_by_row(schema)

    for batches in (packs, rows):
        assert all(batch.schema.equals(schema) for batch in batches)
        assert column(batches, "data") == [b"0", b"1", b"2", None]
