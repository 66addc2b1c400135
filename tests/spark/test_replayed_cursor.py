"""The cursor of a range: every row once and in order, or an error that says what is missing."""

from __future__ import annotations

import pytest

from rsocket_trio import Payload, RemoteProtocolError
from rsocket_trio.replay import Record
from rsocket_trio.replay.element_metadata import source_payload
from rsocket_trio.spark.mistakes import DataLossError
from rsocket_trio.spark.ranges import Range
from rsocket_trio.spark.records import Chunk, Rows, SchemaMismatchError
from rsocket_trio.spark.replayed import Cursor

NOW = 77


def cursor(start: int = 0, end: int = 100, *, arrow: bool = False, fail: bool = True) -> Cursor:
    return Cursor(Range(2, start, end), arrow=arrow, fail_on_loss=fail)


def element(position: int, metadata: bytes | None = None, count: int = 1) -> Payload:
    return source_payload(Record(position, b"%d" % position, metadata, count))


def positions(chunks: list[Rows]) -> list[int]:
    return [chunk.start + number for chunk in chunks for number in range(chunk.rows)]


def test_rows_in_order_are_one_chunk() -> None:
    reading = cursor(5)

    assert reading.take([element(position) for position in range(5, 9)], NOW) == [
        Chunk(5, [b"5", b"6", b"7", b"8"], None, NOW)
    ]
    assert reading.position == 9
    assert not reading.is_done


def test_rows_with_metadata_are_one_chunk_as_well() -> None:
    chunks = cursor().take([element(0, b"m"), element(1, b""), element(2), element(3, b"n")], NOW)

    assert chunks == [
        Chunk(0, [b"0", b"1"], [b"m", b""], NOW),
        Chunk(2, [b"2"], None, NOW),
        Chunk(3, [b"3"], [b"n"], NOW),
    ]


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


@pytest.mark.parametrize(
    ("start", "end", "parts"),
    [
        (0, 12, [(0, 4, 4), (0, 4, 4), (0, 4, 4)]),
        (2, 12, [(2, 4, 4), (0, 4, 4), (0, 4, 4)]),
        (4, 8, [(0, 4, 4)]),
        (5, 7, [(1, 3, 4)]),
        (3, 9, [(3, 4, 4), (0, 4, 4), (0, 1, 4)]),
    ],
)
def test_of_an_arrow_element_the_rows_in_the_range_are_wanted(
    start: int, end: int, parts: list[tuple[int, int, int]]
) -> None:
    reading = cursor(start, end, arrow=True)

    chunks = reading.take([element(position, count=4) for position in (0, 4, 8)], NOW)

    assert [chunk.part for chunk in chunks if isinstance(chunk, Chunk)] == parts
    assert positions(chunks) == list(range(start, end))
    assert reading.is_done


def test_what_is_skipped_beyond_the_end_counts_up_to_the_end() -> None:
    reading = cursor(90, fail=False)
    reading.skip_to(200, "gone")

    assert (reading.lost, reading.is_done) == (10, True)


def test_a_range_that_is_cut_counts_what_lies_behind() -> None:
    reading = cursor(0, 100, fail=False)
    reading.cut(40)

    assert (reading.lost, reading.end) == (60, 40)
