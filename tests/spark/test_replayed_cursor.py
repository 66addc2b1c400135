"""The cursor of a range: every row once and in order, or an error that says what is missing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rsocket_trio import Payload, RemoteProtocolError
from rsocket_trio.replay import Record
from rsocket_trio.replay.element_metadata import source_payload
from rsocket_trio.spark.errors import DataLossError, SchemaMismatchError
from rsocket_trio.spark.ranges import Range
from rsocket_trio.spark.replayed import Cursor
from rsocket_trio.spark.rows import RowShape
from tests.spark.serving import column, options
from tests.spark.test_rows import SCHEMA, batch_of, ipc

NOW = 77


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


def test_the_end_of_the_range_is_the_end() -> None:
    reading = cursor(0, 3)

    assert positions(reading.take([element(position) for position in range(6)], NOW)) == [0, 1, 2]
    assert reading.is_done


def test_rows_that_come_again_are_left_out() -> None:
    reading = cursor()
    reading.take([element(0), element(1)], NOW)

    assert positions(reading.take([element(0), element(1), element(2)], NOW)) == [2]


def test_a_gap_is_an_error_that_names_what_is_missing() -> None:
    with pytest.raises(DataLossError, match=r"gap before position 5: positions 2 to 4 of partition 2.*failOnDataLoss"):
        cursor().take([element(0), element(1), element(5)], NOW)


def test_a_gap_is_counted_where_that_is_accepted() -> None:
    reading = cursor(fail=False)

    assert positions(reading.take([element(0), element(5), element(6), element(9)], NOW)) == [0, 5, 6, 9]
    assert reading.lost == 6
    assert reading.position == 10


def test_an_element_without_a_position_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="no position"):
        cursor().take([Payload(b"x")], NOW)


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


def test_what_is_skipped_beyond_the_end_counts_up_to_the_end() -> None:
    reading = cursor(90, fail=False)
    reading.skip_to(200, "gone")

    assert (reading.lost, reading.is_done) == (10, True)


def test_a_range_that_is_cut_counts_what_lies_behind() -> None:
    reading = cursor(0, 100, fail=False)
    reading.cut(40)

    assert (reading.lost, reading.end) == (60, 40)
