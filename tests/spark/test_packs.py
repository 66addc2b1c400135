"""Packs between Spark and a server: read and staged, and rows where the other side has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType
from trio.testing import MockClock

from rsocket_trio import Outgoing, Payload, RemoteProtocolError, Responder
from rsocket_trio.replay import Element, Record, source_payload
from rsocket_trio.replay.arrow_packs import PACK_SCHEMA, elements_of, encoded, packed, packs_of
from rsocket_trio.replay.elements import Pack, read_sink_payload
from rsocket_trio.spark.deliveries import commit
from rsocket_trio.spark.ranges import Range
from rsocket_trio.spark.replayed import Cursor, fetch
from rsocket_trio.spark.request_rows import Piece
from rsocket_trio.spark.rows import RowShape
from rsocket_trio.spark.writer import deliver
from tests.spark.deliveries import ORIGIN, Rows, encoder, options, rows_in, sink_of
from tests.spark.serving import Collected, served
from tests.spark.serving import options as read_options
from tests.spark.sinks import numbers, schema_of

SINK = ORIGIN.sink
ONCE = options(delivery="exactlyOnce")


def batches(count: int, size: int = 1000) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, size):
        yield pa.record_batch({"data": pa.array(numbers(min(size, count - start), start), pa.binary())})


def pieces(count: int, *, packs: bool = True) -> Iterator[Piece]:
    made = encoder(ONCE, packs=packs)
    for batch in batches(count):
        yield from made.pieces(batch)


# The sink


def test_rows_become_packs_with_their_keys_and_metadata() -> None:
    schema = schema_of(key=StringType(), data=BinaryType(), metadata=BinaryType())
    made = encoder(ONCE, schema, packs=True)
    batch = pa.record_batch({"key": ["a", None, "c"], "data": [b"1", None, b"333"], "metadata": [None, None, b"m"]})
    [piece] = made.pieces(batch.slice(0))
    [sliced] = made.pieces(batch.slice(1, 2))

    assert (piece.rows, len(piece.payloads), made.rows) == (3, 1, 5)
    rows = [Element(b"1", key=b"a"), Element(None), Element(b"333", b"m", key=b"c")]
    for one, wanted in ((piece, rows), (sliced, rows[1:])):
        _, [element] = read_sink_payload(one.payloads[0])
        assert isinstance(element, Pack)
        assert list(elements_of(element)) == wanted


@pytest.mark.parametrize("packs", [True, False])
async def test_every_row_of_a_pack_counts_once(packs: bool) -> None:
    # In real time: the server looks at packs in threads.
    responder, _, log = await sink_of()
    async with served(responder) as connections:
        report = await deliver(connections, ONCE, ORIGIN, Rows(pieces(30_000, packs=packs)))  # type: ignore[arg-type]
        assert sum(rows for _, rows in report.attempts) == 30_000
        assert await commit(connections, ONCE, SINK, 0, report.attempts)
    assert await rows_in(log) == numbers(30_000)


# The source


@pytest.mark.parametrize(("start", "end"), [(0, 30), (9, 11), (10, 20), (15, 16), (29, 30)])
async def test_of_a_pack_the_rows_in_the_range_are_taken(start: int, end: int, autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream("log")
    async def packs(request: Payload, out: Outgoing) -> None:
        assert json.loads(request.data)["pack"] == ["arrow/1"]
        for place in (0, 10, 20):
            [pack] = packed([Record(place + n, b"%d" % (place + n)) for n in range(10)], place)
            await out.send(source_payload(pack))

    found = Collected()
    async with served(responder) as connections:
        await fetch(connections, read_options(), Range(0, start, end), found)
    assert found.positions == list(range(start, end))
    assert found.datas == numbers(end - start, start)


def cursor_of(end: int, **given: Any) -> Cursor:
    return Cursor(Range(0, 0, end), RowShape(read_options(**given), 0, None), fail_on_loss=True)


def of_pack(pack: Pack, start: int, end: int) -> pa.RecordBatch:
    return RowShape(read_options(), 0, None).of_pack(pack, start, end, 0)


def payload_of(rows: list[Record], start: int) -> Payload:
    return source_payload(*packed(rows, start))


def test_positions_without_a_record_are_no_loss_where_the_server_says_so() -> None:
    cursor = cursor_of(100)
    # Within a pack, between a pack and a record, and at the end of the range.
    batches = cursor.take([payload_of([Record(3, b"3"), Record(7, b"7"), Record(20, b"", count=0)], 0)], 1)
    batches += cursor.take([source_payload(Pack(b"", 5, 20)), source_payload(Record(25, b"25"))], 1)
    batches += cursor.take([source_payload(Pack(b"", 2**40, 26))], 1)
    rows = [row for batch in batches for row in batch.to_pylist()]

    assert [(row["position"], row["data"]) for row in rows] == [(3, b"3"), (7, b"7"), (25, b"25")]
    assert (cursor.is_done, cursor.lost) == (True, 0)


GOOD = next(packs_of([Element(b"a"), Element(b"b")])).data


@pytest.mark.parametrize(
    ("data", "count", "problem"),
    [
        (GOOD[:-200], 2, "the pack at position 5: a pack of .* bytes is not in arrow/1"),
        (GOOD, 3, "the pack at position 5: a pack of 2 rows, its metadata says 3"),
    ],
)
def test_a_pack_that_is_torn_or_not_as_it_says_is_an_error_that_names_its_position(
    data: bytes, count: int, problem: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        of_pack(Pack(data, count, 5), 5, 5 + count)


def arrow_answer(**columns: list[int | bytes | None]) -> bytes:
    there = {"data": [b"a", b"b"]} | columns
    return encoded(
        pa.RecordBatch.from_pydict(
            {name: pa.array(column, PACK_SCHEMA.field(name).type) for name, column in there.items()}
        )
    )


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"position": [5, None]}, "the pack at position 5: it has rows without a position"),
        ({"position": [6, 5]}, "the pack at position 5: its rows are not in order, or overlap"),
        ({"position": [5, 5]}, "the pack at position 5: its rows are not in order, or overlap"),
        ({"position": [5, 7]}, "the pack at position 5: it spans 2 positions, and its 2 rows are those from 5 to 7"),
    ],
)
def test_a_pack_whose_rows_are_not_where_they_should_be_is_an_error(
    columns: dict[str, list[int | bytes | None]], problem: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        of_pack(Pack(arrow_answer(**columns), 2, 5), 5, 7)


def test_a_pack_that_was_not_asked_for_is_an_error() -> None:
    payload = payload_of([Record(0, b"0"), Record(1, b"1")], 0)
    with pytest.raises(RemoteProtocolError, match="the element at position 0 is a pack, asked for was none"):
        cursor_of(2, payload="arrow").take([payload], 1)
    assert payload.metadata is not None
    other = Payload(payload.data, payload.metadata.replace(b"arrow/1", b"plain/1"))
    with pytest.raises(RemoteProtocolError, match="position 0 is a pack in the format 'plain/1'"):
        cursor_of(2).take([other], 1)
