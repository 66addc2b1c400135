"""Packs between Spark and a server: read and staged, and rows where the other side has none."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType
from trio.testing import MockClock

from rsocket_trio import Outgoing, Payload, Rejected, RemoteProtocolError, Responder
from rsocket_trio.metadata import Entry, encode_composite
from rsocket_trio.replay import Element, Log, Record, add_source, source_payload
from rsocket_trio.replay.arrow_packs import PACK_SCHEMA, elements_of, encoded, pack_elements, pack_records
from rsocket_trio.replay.element_metadata import POSITION, behind_gap, pack_payload, read_sink_payload
from rsocket_trio.replay.elements import PACK_BYTES, Pack
from rsocket_trio.spark.deliveries import commit
from rsocket_trio.spark.errors import DataLossError, SchemaMismatchError
from rsocket_trio.spark.ranges import Range
from rsocket_trio.spark.replayed import Credit, Cursor, fetch
from rsocket_trio.spark.request_rows import Piece
from rsocket_trio.spark.rows import RowShape
from rsocket_trio.spark.writer import deliver
from tests.spark.deliveries import ORIGIN, Rows, encoder, numbers, options, rows_in, sink_of
from tests.spark.serving import Collected, served
from tests.spark.serving import options as read_options
from tests.spark.sinks import planning_writer, schema_of, serving, stream_writer

SINK = ORIGIN.sink
KEYED = schema_of(data=BinaryType(), key=BinaryType())
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
        [element] = read_sink_payload(one.payloads[0], staged=True).elements
        assert isinstance(element, Pack)
        assert list(elements_of(element)) == wanted


def test_rows_that_can_not_be_sent_are_counted_and_the_others_are_sent() -> None:
    made = encoder(options(delivery="exactlyOnce", errorPolicy="skip"), packs=True, schema=KEYED)
    found = [*made.pieces(pa.record_batch({"data": [b"1", b"2", b"3"], "key": [b"a", bytes(2**24), b"c"]}))]

    assert [piece.rows for piece in found] == [1, 1]
    assert (made.rows, made.skipped) == (2, 1)
    assert made.problem == "row 2 of the task can't be sent: column 'key' has 16777216 bytes, the limit is 16777215"


def test_packs_are_of_limited_size() -> None:
    made = encoder(ONCE, packs=True)
    sizes = [len(piece.payloads[0].data) for piece in made.pieces(pa.record_batch({"data": [bytes(1000)] * 3000}))]
    small = [piece.rows for piece in made.pieces(pa.record_batch({"data": [b"1"] * 20_000}))]

    assert max(sizes) < 1.1 * PACK_BYTES
    assert small == [8192, 8192, 3616]


@pytest.mark.parametrize("packs", [True, False])
async def test_every_row_of_a_pack_counts_once(packs: bool) -> None:
    # In real time: the server looks at packs in threads.
    responder, _, log = await sink_of()
    async with served(responder) as connections:
        report = await deliver(connections, ONCE, ORIGIN, Rows(pieces(30_000, packs=packs)))  # type: ignore[arg-type]
        assert sum(rows for _, rows in report.attempts) == 30_000
        assert await commit(connections, ONCE, SINK, 0, report.attempts)
    assert await rows_in(log) == numbers(30_000)


@pytest.mark.parametrize("knows_packs", [True, False])
def test_the_driver_asks_once_for_each_planning_what_a_sink_takes(knows_packs: bool) -> None:
    asked: list[str] = []
    responder = Responder()
    if knows_packs:

        @responder.request_response("orders.pack")
        async def packs(request: Payload) -> bytes:
            asked.append(request.text)
            return b'{"pack": ["zstd/9", "arrow/1"]}'

    with serving(responder) as sink:
        for _ in range(2):
            writer = planning_writer(sink.uri, delivery="exactlyOnce", sinkId="s")
            # Spark pickles it twice: with the function of the tasks, and alone.
            for _ in range(2):
                assert pickle.loads(pickle.dumps(writer))._packs is knows_packs
        # A writer that commits is made anew, and asks nothing.
        again = stream_writer(sink.uri, delivery="exactlyOnce", sinkId="s")
        again.abort([], 0)
    assert asked == (["{}", "{}"] if knows_packs else [])


# The source


async def test_credit_is_by_bytes() -> None:
    def elements(count: int, size: int) -> list[Payload]:
        return [Payload(bytes(size))] * count

    credit = Credit(2048, packs=True)
    assert credit.window == 16
    # Packs of 256 KiB: 4 MiB may be on their way.
    assert [credit.after(elements(4, 2**18)) for _ in range(4)] == [0, 8, 0, 8]
    small = Credit(2048, packs=True)
    assert small.after(elements(8, 28)) == 2040
    assert Credit(1, packs=True).after(elements(1, 2**22)) == 1
    assert Credit(64, packs=False).window == 64


@pytest.mark.parametrize(("start", "end"), [(0, 30), (9, 11), (10, 20), (15, 16), (29, 30)])
async def test_of_a_pack_the_rows_in_the_range_are_taken(start: int, end: int, autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream("log")
    async def packs(request: Payload, out: Outgoing) -> None:
        assert json.loads(request.data)["pack"] == ["arrow/1"]
        for place in (0, 10, 20):
            pack = pack_records([Record(place + n, b"%d" % (place + n)) for n in range(10)], place)
            await out.send(pack_payload(pack))

    found = Collected()
    async with served(responder) as connections:
        await fetch(connections, read_options(), Range(0, start, end), found)
    assert found.positions == list(range(start, end))
    assert found.datas == numbers(end - start, start)


def cursor_of(end: int, **given: Any) -> Cursor:
    return Cursor(Range(0, 0, end), RowShape(read_options(**given), 0, None), fail_on_loss=True)


def of_pack(pack: Pack, start: int, end: int) -> pa.RecordBatch:
    return RowShape(read_options(), 0, None).of_pack(pack, start, end, 0)


def packed(rows: list[Record], start: int) -> Payload:
    return pack_payload(pack_records(rows, start))


def test_positions_without_a_record_are_no_loss_where_the_server_says_so() -> None:
    cursor = cursor_of(100)
    # Within a pack, between a pack and a record, and at the end of the range.
    batches = cursor.take([packed([Record(3, b"3"), Record(7, b"7"), Record(20, b"", count=0)], 0)], 1)
    batches += cursor.take([behind_gap(source_payload(Record(25, b"25")), 20)], 1)
    batches += cursor.take([behind_gap(source_payload(Record(100, b"", count=0)), 26)], 1)
    rows = [row for batch in batches for row in batch.to_pylist()]

    assert [(row["position"], row["data"]) for row in rows] == [(3, b"3"), (7, b"7"), (25, b"25")]
    assert (cursor.is_done, cursor.lost) == (True, 0)


def test_a_gap_that_nobody_announced_is_a_loss() -> None:
    cursor = cursor_of(100)
    with pytest.raises(DataLossError, match="a gap before position 5"):
        cursor.take([packed([Record(5, b"5")], 5)], 1)
    with pytest.raises(DataLossError, match="a gap before position 5"):
        cursor.take([behind_gap(source_payload(Record(5, b"5")), 3)], 1)


GOOD = pack_elements([Element(b"a"), Element(b"b")]).data


@pytest.mark.parametrize(
    ("data", "count", "problem"),
    [
        (GOOD[:-200], 2, "the pack at position 5: a pack of .* bytes is not in arrow/1"),
        (GOOD, 3, "the pack at position 5: it has 2 rows, its metadata says 3"),
        (b"", 2, "is not in arrow/1"),
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


def test_a_record_of_several_rows_in_a_pack_needs_payload_arrow() -> None:
    pack = pack_records([Record(5, b"a"), Record(6, b"b", count=3)], 5)
    with pytest.raises(SchemaMismatchError, match="the element at position 6 holds 3 rows: set payload=arrow"):
        of_pack(pack, 5, 9)


def test_a_pack_that_was_not_asked_for_is_an_error() -> None:
    payload = packed([Record(0, b"0"), Record(1, b"1")], 0)
    with pytest.raises(RemoteProtocolError, match="position 0 is a pack in the format 'arrow/1', asked for was none"):
        cursor_of(2, payload="arrow").take([payload], 1)
    assert payload.metadata is not None
    other = Payload(payload.data, payload.metadata.replace(b"arrow/1", b"plain/1"))
    with pytest.raises(RemoteProtocolError, match="is a pack in the format 'plain/1', asked for was arrow/1"):
        cursor_of(2).take([other], 1)


async def test_a_server_without_packs_is_read_row_by_row(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream("log")
    async def rows(request: Payload, out: Outgoing) -> None:
        # A position and nothing else.
        for position in range(5000):
            await out.send(Payload(b"%d" % position, encode_composite([Entry(POSITION, struct.pack(">Q", position))])))

    found = Collected()
    async with served(responder) as connections:
        await fetch(connections, read_options(), Range(0, 0, 5000), found)
    assert found.datas == numbers(5000)


async def test_rows_and_packs_of_servers_of_both_forms_follow_each_other(autojump_clock: MockClock) -> None:
    responder = Responder()
    asked: list[int] = []

    @responder.request_stream("log")
    async def either(request: Payload, out: Outgoing) -> None:
        start = json.loads(request.data)["from"]
        asked.append(start)
        rows = [Record(start + n, b"%d" % (start + n)) for n in range(7)]
        if len(asked) % 2:
            # It may begin below what is wanted, where another server packed other rows together.
            low = max(start - 3, 0)
            rows = [Record(n, b"%d" % n) for n in range(low, start + 7)]
            await out.send(packed(rows, low))
        else:
            for row in rows:
                await out.send(source_payload(row))
        raise Rejected("closing")

    found = Collected()
    async with served(responder) as connections:
        await fetch(connections, read_options(reconnectMaxAttempts=1), Range(0, 0, 50), found)
    assert asked == list(range(0, 50, 7))
    assert found.positions == list(range(50))
    assert found.datas == numbers(50)


async def test_a_log_on_files_is_read_in_packs_from_any_place(tmp_path: Any) -> None:
    for log in (Log(tmp_path / "log.db"), Log()):
        async with log:
            await log.append_all({0: [Element(data) for data in numbers(20_000)]})
            responder = Responder()
            add_source(responder, "log", log)
            async with served(responder) as connections:
                for start, end in ((0, 20_000), (5, 6), (8191, 8193), (19_999, 20_000)):
                    found = Collected()
                    await fetch(connections, read_options(), Range(0, start, end), found)
                    assert found.positions == list(range(start, end))
                    assert found.datas == numbers(end - start, start)
