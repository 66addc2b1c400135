"""A batch read as Spark does it: planned by one object, read by pickled copies of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import trio
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
)

from rsocket_trio import Outgoing, Payload, Rejected, Responder
from rsocket_trio.replay import Log, add_source
from rsocket_trio.replay.elements import Bounds
from rsocket_trio.spark.background import background
from rsocket_trio.spark.batch_reader import BatchReader, PushdownReader, Selection, planned, selection_of
from rsocket_trio.spark.errors import DataLossError, SchemaMismatchError, SourceError
from rsocket_trio.spark.live_reader import LivePartition
from rsocket_trio.spark.ranges import Range, RangePartition
from rsocket_trio.spark.rows import RAW_SCHEMA
from tests.spark.serving import column, filled, options
from tests.spark.test_rows import SCHEMA, batch_of, ipc

Serving = Callable[[Responder], None]


def replayable(rows: dict[int, int]) -> tuple[Responder, Log]:
    log = trio.run(filled, rows)
    responder = Responder()
    add_source(responder, "log", log)
    return responder, log


def ranges(reader: BatchReader) -> list[Range]:
    return [one for task in reader.partitions() if isinstance(task, RangePartition) for one in task.ranges]


def read_all(reader: BatchReader) -> list[Any]:
    """As Spark does: each partition by a copy of the reader."""
    batches = []
    for partition in reader.partitions():
        copied, place = pickle.loads(pickle.dumps((reader, partition)))
        batches += list(copied.read(place))
    assert all(batch.schema.equals(RAW_SCHEMA) for batch in batches)
    return batches


def test_every_row_of_every_partition_is_read(serving: Serving) -> None:
    serving(replayable({0: 5000, 1: 0, 2: 300})[0])
    reader = BatchReader(options(), None)

    assert ranges(reader) == [Range(0, 0, 5000), Range(2, 0, 300)]
    batches = read_all(reader)
    assert column(batches, "position") == [*range(5000), *range(300)]
    assert column(batches, "partition") == [0] * 5000 + [2] * 300
    assert column(batches, "data")[4999:5001] == [b"row 4999", b"row 0"]
    assert max(batch.num_rows for batch in batches) <= 8192


def test_arrow_payloads_are_read_in_the_columns_of_the_query(serving: Serving) -> None:
    responder, log = replayable({0: 0})

    async def fill() -> None:
        for first in range(0, 100, 10):
            await log.append(ipc(batch_of(range(first, first + 10))), count=10)

    trio.run(fill)
    serving(responder)
    reader = BatchReader(options(payload="arrow", startingPosition='{"0": 7}', endingPosition='{"0": 93}'), SCHEMA)
    [partition] = reader.partitions()

    assert column(list(reader.read(partition)), "id") == list(range(7, 93))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (pa.schema([("id", pa.int32())]), "column 'id' is int64, wanted is int32"),
        (pa.schema([pa.field("more", pa.int8(), nullable=False)]), "column 'more' is missing, and may not be null"),
    ],
)
def test_columns_that_no_payload_can_fill_are_an_error_of_the_plan(
    schema: pa.Schema, problem: str, serving: Serving
) -> None:
    responder, log = replayable({0: 0, 1: 0})
    trio.run(partial(log.append, ipc(batch_of(range(10))), count=10, partition=1))
    serving(responder)

    with pytest.raises(SchemaMismatchError, match=problem):
        BatchReader(options(payload="arrow", minPartitions=3), schema).partitions()


def test_a_reader_that_stops_early_cancels_and_has_had_little_sent(serving: Serving) -> None:
    sent, said = 0, []
    responder, _ = replayable({0: 1})

    @responder.request_stream("endless")
    async def endless(request: Payload, out: Outgoing) -> None:
        nonlocal sent
        try:
            while True:
                await out.send(b"x" * 20)
                sent += 1
        finally:
            said.append("cancelled")

    serving(responder)
    reader = BatchReader(options(route="endless", positions="none", batch_rows=100, credit=64), None)
    [partition] = reader.partitions()
    rows = reader.read(partition)
    assert 100 <= next(rows).num_rows < 200
    rows.close()  # type: ignore[attr-defined]
    background().run(trio.testing.wait_all_tasks_blocked)

    assert said == ["cancelled"]
    assert sent <= 600


# Live streams


def live(count: int = 10, error: Exception | None = None) -> Responder:
    responder = Responder()

    @responder.request_stream("ticks")
    async def ticks(request: Payload, out: Outgoing) -> None:
        for number in range(count):
            await out.send(Payload(request.data + b"%d" % number, b"m" if number % 2 else None))
        if error is not None:
            raise error

    @responder.request_response("one")
    def one(request: Payload) -> Payload:
        return Payload(b"answer to " + request.data)

    return responder


def test_a_live_stream_is_read_to_its_end(serving: Serving) -> None:
    serving(live())
    reader = BatchReader(options(route="ticks", positions="none", requestData="tick "), None)

    assert [type(one) for one in reader.partitions()] == [LivePartition]
    batches = read_all(reader)
    assert column(batches, "data") == [b"tick %d" % number for number in range(10)]
    assert column(batches, "position") == list(range(10))
    assert column(batches, "metadata") == [None, b"m"] * 5


def test_a_live_stream_is_read_for_a_time(serving: Serving) -> None:
    responder = Responder()

    @responder.request_stream("ticks")
    async def ticks(request: Payload, out: Outgoing) -> None:
        await out.send(b"only")
        await trio.sleep_forever()

    serving(responder)
    reader = BatchReader(options(route="ticks", positions="none", maxDuration="100ms"), None)

    assert column(read_all(reader), "data") == [b"only"]


@pytest.mark.usefixtures("ends_background")
@pytest.mark.parametrize(
    ("time", "tries"), [("100ms", "no connection within 0.1 s"), ("5s", "reading log: given up after 1 tries")]
)
def test_a_server_that_is_not_there_is_no_empty_stream(time: str, tries: str) -> None:
    most = 5 if time == "100ms" else 0
    reader = BatchReader(options(positions="none", maxDuration=time, reconnectMaxAttempts=most), None)

    with pytest.raises(SourceError, match=rf"'log' at memory://spark failed \(see options 'path'.*{tries}"):
        read_all(reader)


def test_a_single_answer_is_a_row(serving: Serving) -> None:
    serving(live())
    reader = BatchReader(options(route="one", positions="none", interaction="response", requestData="it"), None)

    assert column(read_all(reader), "data") == [b"answer to it"]


def test_a_live_stream_that_breaks_is_an_error_or_the_end(serving: Serving) -> None:
    serving(live(3, Rejected("closing")))
    with pytest.raises(DataLossError, match=r"broke after 3 rows.*failOnDataLoss=false"):
        read_all(BatchReader(options(route="ticks", positions="none"), None))

    reader = BatchReader(options(route="ticks", positions="none", failOnDataLoss="false"), None)
    assert len(column(read_all(reader), "data")) == 3


# Planning


BOUNDS = {("", 0): Bounds(5, 20), ("", 1): Bounds(0, 7)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingPosition": '{"0": 3}'}, "'startingPosition': position 3 of partition 0 has expired"),
        ({"endingPosition": '{"0": 21}'}, "'endingPosition': position 21 of partition 0 is not there yet"),
    ],
)
def test_positions_that_are_not_there_are_named_when_the_read_is_planned(given: dict[str, str], message: str) -> None:
    with pytest.raises(DataLossError, match=message):
        planned(options(**given), BOUNDS)

    assert planned(options(failOnDataLoss="false", **given), BOUNDS) == [Range(0, 5, 20), Range(1, 0, 7)]


# Filters


@pytest.mark.parametrize(
    ("one", "selection"),
    [
        (EqualTo(("position",), 5), Selection(start=5, end=6)),
        (GreaterThan(("position",), 5), Selection(start=6)),
        (GreaterThanOrEqual(("position",), 5), Selection(start=5)),
        (EqualTo(("partition",), 1), Selection(frozenset({1}))),
        (In(("partition",), (1, 2)), Selection(frozenset({1, 2}))),
        (EqualTo(("data",), b"x"), None),
        (EqualTo(("position",), None), None),
    ],
)
def test_a_filter_is_obeyed_exactly_or_not_at_all(one: Filter, selection: Selection | None) -> None:
    assert selection_of(one) == selection


def test_filters_narrow_a_read_and_the_others_go_back(serving: Serving) -> None:
    serving(replayable({0: 100, 1: 100})[0])
    reader = PushdownReader(options(pushdown="true"), None)
    other = EqualTo(("data",), b"x")

    assert list(reader.pushFilters([EqualTo(("partition",), 1), other, GreaterThan(("position",), 96)])) == [other]
    assert column(read_all(reader), "position") == [97, 98, 99]
