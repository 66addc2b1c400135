"""The cursor of a range: every row once and in order, or an error that says what is missing."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from rsocket_trio import Payload
from rsocket_trio.replay import Record
from rsocket_trio.replay.elements import source_payload
from rsocket_trio.spark.errors import DataLossError, SchemaMismatchError
from rsocket_trio.spark.ranges import Range
from rsocket_trio.spark.replayed import Cursor
from rsocket_trio.spark.rows import RowShape, raw_schema
from tests.spark.serving import column, options
from tests.spark.test_rows import SCHEMA, batch_of, ipc

NOW = 77
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


def cursor(start: int = 0, end: int = 100, *, fail: bool = True) -> Cursor:
    return Cursor(Range(2, start, end), RowShape(options(), 2, None), fail_on_loss=fail)


def element(position: int, metadata: bytes | None = None, count: int = 1) -> Payload:
    return source_payload(Record(position, b"%d" % position, metadata, count))


def positions(batches: list[pa.RecordBatch]) -> list[int]:
    return column(batches, "position")


def test_rows_in_order_are_one_batch() -> None:
    reading = cursor(5)
    [batch] = reading.take([element(5), element(6, b"m"), element(7, b""), element(8)], NOW)

    assert positions([batch]) == [5, 6, 7, 8]
    assert column([batch], "data") == [b"5", b"6", b"7", b"8"]
    assert column([batch], "metadata") == [None, b"m", b"", None]
    assert (reading.position, reading.is_done) == (9, False)


def test_rows_that_come_again_are_left_out() -> None:
    reading = cursor()
    reading.take([element(0), element(1)], NOW)

    assert positions(reading.take([element(0), element(1), element(2)], NOW)) == [2]


def test_a_gap_is_an_error_that_names_what_is_missing() -> None:
    with pytest.raises(DataLossError, match=r"gap before position 5: positions 2 to 4 of partition 2.*failOnDataLoss"):
        cursor().take([element(0), element(1), element(5)], NOW)


def test_a_raw_element_of_several_rows_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="holds 4 rows: set payload=arrow"):
        cursor().take([element(0, count=4)], NOW)


@pytest.mark.parametrize(("start", "end"), [(0, 12), (2, 12), (4, 8), (5, 7), (3, 9)])
def test_of_an_arrow_element_the_rows_in_the_range_are_taken(start: int, end: int) -> None:
    shape = RowShape(options(payload="arrow"), 2, SCHEMA)
    reading = Cursor(Range(2, start, end), shape, fail_on_loss=True)
    elements = [Record(place, ipc(batch_of(range(place, place + 4))), count=4) for place in (0, 4, 8)]

    assert column(reading.take(list(map(source_payload, elements)), NOW), "id") == list(range(start, end))
    assert reading.is_done


def test_rows_one_by_one_have_keys_headers_and_times() -> None:
    chosen = options(includeHeaders="true")
    reading = Cursor(Range(0, 0, len(RECORDS)), RowShape(chosen, 0, None), fail_on_loss=True)
    batches = reading.take([source_payload(record) for record in RECORDS], NOON + 5)

    assert all(batch.schema.equals(raw_schema(chosen)) for batch in batches)
    assert column(batches, "key") == [b"k", None, None, None]
    assert column(batches, "metadata") == [None, b"m", None, None]
    assert column(batches, "headers") == [None, HEADERS, None, None]
    assert column(batches, "timestamp") == [moment(NOON), moment(NOON + 1), moment(NOON + 1), None]
    assert column(batches, "route") == ["log"] * 4
    assert column(batches, "received_at") == [moment(NOON + 5)] * 4
