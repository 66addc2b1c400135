"""A streaming query of a replayable route, as Spark calls it: offsets, limits, what is planned, what is told."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing
from pyspark.sql import datasource_internal
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from rsocket_trio import Rejected, Responder
from rsocket_trio.replay import Element, Log, add_source
from rsocket_trio.replay.errors import TopicGone
from rsocket_trio.spark.background import background
from rsocket_trio.spark.errors import CheckpointError, DataLossError
from rsocket_trio.spark.options import Options, Use, parse_options
from rsocket_trio.spark.ranges import Range, RangePartition
from rsocket_trio.spark.rows import RAW_SCHEMA
from rsocket_trio.spark.stream_reader import (
    ROWS_PER_PARTITION,
    PlannedReader,
    ServerStreamReader,
    Volume,
    planned_reader,
)
from tests.spark.serving import URI, column, filled
from tests.spark.test_rows import ipc

Serving = Callable[[Responder], None]
PATIENCE = 10.0


def given(**more: object) -> Options:
    texts = {"path": URI, "route": "log", "positions": "server"} | {name: str(value) for name, value in more.items()}
    return parse_options(texts, Use.STREAM_READ)


RAW_COLUMNS = RAW_SCHEMA.set(0, RAW_SCHEMA.field(0).with_metadata({"SPARK::metadata::json": '{"comment": "a number"}'}))


class Query:
    """A reader as Spark drives it: offsets go through JSON, as they do there."""

    def __init__(self, options: Options, limit: ReadLimit | None = None, planned: pa.Schema | None = None) -> None:
        self.reader = ServerStreamReader(options, None, planned)
        self.at: dict[str, Any] = self.said(self.reader.initialOffset())
        assert self.at == self.said(self.reader.initialOffset())
        self.limit = self.reader.getDefaultReadLimit() if limit is None else limit
        self.fingerprint = options.fingerprint

    @staticmethod
    def said(offset: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(offset))
        return found

    def plan(self) -> list[Range]:
        """The next micro-batch; empty where Spark would plan none."""
        end = self.said(self.reader.latestOffset(self.at, self.limit))
        if end == self.at:
            return []
        found = self.reader.partitions(self.at, end)
        assert [repr(one) for one in found] == [repr(one) for one in self.reader.partitions(self.at, end)]
        self.at = end
        return [one for task in found if isinstance(task, RangePartition) for one in task.ranges]


@pytest.fixture
def log(serving: Serving) -> Log:
    found = trio.run(filled, {0: 100, 1: 50})
    responder = Responder()
    add_source(responder, "log", found)
    serving(responder)
    return found


def append(log: Log, partition: int, count: int, data: bytes = b"more") -> None:
    async def run() -> None:
        await log.append_all({partition: [Element(data)] * count})

    background().run(run)


def test_a_query_begins_with_what_is_new(log: Log) -> None:
    query = Query(given())

    assert query.at == {"v": 1, "f": query.fingerprint, "p": {"0": 100, "1": 50}}
    assert query.plan() == []
    append(log, 1, 3)
    assert query.plan() == [Range(1, 50, 53)]
    assert query.plan() == []


@pytest.mark.parametrize(
    ("start", "planned"),
    [
        ("earliest", [Range(0, 0, 100), Range(1, 0, 50)]),
        ('{"0": 90, "1": 50}', [Range(0, 90, 100)]),
        ('{"1": 49}', [Range(0, 0, 100), Range(1, 49, 50)]),
    ],
)
def test_a_query_begins_where_it_should(start: str, planned: list[Range], log: Log) -> None:
    assert Query(given(startingPosition=start)).plan() == planned


def test_a_micro_batch_is_bounded_by_default(log: Log) -> None:
    assert Query(given()).limit == ReadMaxRows(2 * ROWS_PER_PARTITION)


def test_rows_bound_a_micro_batch(log: Log) -> None:
    query = Query(given(startingPosition="earliest", maxRowsPerTrigger=60))

    assert query.limit == ReadMaxRows(60)
    assert query.plan() == [Range(0, 0, 40), Range(1, 0, 20)]
    assert query.plan() == [Range(0, 40, 80), Range(1, 20, 40)]
    assert query.plan() == [Range(0, 80, 100), Range(1, 40, 50)]


def test_bytes_bound_a_micro_batch_by_a_sample(log: Log) -> None:
    query = Query(given(startingPosition="latest", maxBytesPerTrigger=1000))
    append(log, 0, 500, bytes(100))

    assert query.limit == ReadMaxBytes(1000)
    assert query.plan() == [Range(0, 100, 110)]


def test_no_bound_holds_where_the_engine_wants_everything(log: Log) -> None:
    query = Query(
        given(startingPosition="earliest", maxRowsPerTrigger=6, minRowsPerTrigger=1000), limit=ReadAllAvailable()
    )

    assert query.plan() == [Range(0, 0, 100), Range(1, 0, 50)]


def test_what_is_available_at_the_start_is_where_a_query_ends(log: Log) -> None:
    query = Query(given(startingPosition="earliest", maxRowsPerTrigger=100, minRowsPerTrigger=90))
    query.reader.prepareForTriggerAvailableNow()
    append(log, 0, 1000)

    sizes = []
    while planned := query.plan():
        sizes.append(sum(one.size for one in planned))
    assert sizes == [100, 50]


def test_a_checkpoint_of_other_options_is_refused(log: Log) -> None:
    query = Query(given())
    query.at["f"] = "other"

    with pytest.raises(CheckpointError, match="other options"):
        query.plan()


# What is gone


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({"0": 3, "1": 50}, "position 3 of partition 0 has expired: the earliest is 10"),
        ({"0": 500, "1": 50}, "partition 0 was read up to 500, but the server ends at 100"),
        ({"0": 100, "1": 50, "7": 5}, "partition 7 is gone"),
    ],
)
def test_what_the_server_lacks_ends_a_query_unless_that_is_accepted(at: dict[str, int], message: str, log: Log) -> None:
    async def trim() -> None:
        await log.trim(0, 10)

    background().run(trim)
    strict = Query(given())
    strict.at["p"] = dict(at)
    with pytest.raises(DataLossError, match=message):
        strict.plan()

    lenient = Query(given(failOnDataLoss="false"))
    lenient.at["p"] = dict(at)
    assert all(one.partition == 0 for one in lenient.plan())


def test_a_log_that_was_replaced_is_read_from_its_earliest_where_that_is_accepted(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    async def trim() -> None:
        await log.trim(0, 10)

    background().run(trim)
    query = Query(given(failOnDataLoss="false"))
    query.at["p"] = {"0": 500, "1": 50}

    assert query.plan() == []
    assert "partition 0 was read up to 500, but the server ends at 100" in caplog.text
    assert "the 90 rows of the new one are read from position 10 on" in caplog.text
    assert query.plan() == [Range(0, 10, 100)]
    assert query.plan() == []
    assert caplog.text.count("was replaced") == 1


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_first_batch_that_was_not_committed_is_planned_the_same_by_another_process(start: str, log: Log) -> None:
    before = Query(given(startingPosition=start))
    began, limit = before.at, before.limit
    append(log, 0, 5)
    planned = before.plan()
    assert planned

    async def trim() -> None:
        await log.trim(0, 105)
        await log.trim(1, 7)

    background().run(trim)
    append(log, 1, 5)
    after = Query(given(startingPosition=start))
    assert after.at != began
    again = after.reader.partitions(after.at, before.at)
    assert [one for task in again if isinstance(task, RangePartition) for one in task.ranges] == planned
    # What was trimmed meanwhile is missed.
    with pytest.raises(DataLossError, match="expired"):
        list(after.reader.read(again[0]))

    after.at, after.limit = before.at, limit
    assert after.plan() == [Range(1, 50, 55)]
    assert "i" not in after.at


# A server that is away


def test_a_server_that_is_away_has_nothing_new(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(given(reconnectMaxAttempts=0))
    append(log, 0, 3)
    monkeypatch.setattr(log, "bounds", refuse)

    assert query.plan() == []
    assert query.plan() == []
    monkeypatch.undo()
    assert query.plan() == [Range(0, 100, 103)]
    assert caplog.text.count("no new rows until the server is back") == 1


def refuse(partition: int) -> tuple[int, int]:
    raise Rejected("closing")


def test_a_slow_answer_does_not_hold_up_a_micro_batch(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(given())
    opened = trio.Event()
    append(log, 0, 3)
    monkeypatch.setattr(log, "open", opened.wait)
    began = time.monotonic()
    assert query.plan() == []
    assert 0.4 < time.monotonic() - began < PATIENCE

    monkeypatch.undo()

    async def let_through() -> None:
        opened.set()

    background().run(let_through)
    assert query.plan() == [Range(0, 100, 103)]


def test_a_refusal_that_comes_late_ends_the_query(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(given())
    opened, asked = trio.Event(), 0

    async def refuse() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            await trio.sleep(1)  # longer than a micro-batch waits
        await opened.wait()
        raise TopicGone("topic 'log' is gone")

    monkeypatch.setattr(log, "open", refuse)
    assert query.plan() == []

    async def let_through() -> None:
        opened.set()
        await trio.testing.wait_all_tasks_blocked(0.05)

    background().run(let_through)
    with pytest.raises(DataLossError, match="topic 'log' is gone"):
        query.plan()


def test_a_volume_is_waited_for_and_not_for_ever() -> None:
    now = 0.0
    volume = Volume(given(minRowsPerTrigger=100, maxTriggerDelay="60s"), lambda: now)
    limit = ReadMaxRows(1000)

    assert not volume.is_worthwhile(0, limit)
    assert not volume.is_worthwhile(10, limit)
    now = 59.0
    assert not volume.is_worthwhile(99, limit)
    assert volume.is_worthwhile(100, limit)
    now = 70.0
    assert not volume.is_worthwhile(1, limit)
    now = 130.0
    assert volume.is_worthwhile(1, limit)
    assert not volume.is_worthwhile(1, limit)


def test_a_named_reader_is_known_from_its_first_position_on(serving: Serving) -> None:
    log = trio.run(filled, {0: 10})
    responder = Responder()
    add_source(responder, "log", log)
    serving(responder)

    query = Query(given(startingPosition='{"0": 3}', reader="billing"))
    assert ends_of(log, "billing", {0: 3})
    query.plan()
    query.reader.commit(query.at)

    assert ends_of(log, "billing", {0: 10})


def ends_of(log: Log, reader: str, wanted: dict[int, int]) -> bool:
    """Wait until a reader has acknowledged so much."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if reader in log.readers() and log.readers()[reader].ends == wanted:
            return True
        time.sleep(0.001)
    return False


# Rows that travel with the plan


def planned_rows(query: Query, rows: int) -> list[pa.RecordBatch] | None:
    """The rows that Spark gets with the plan of the next micro-batch; ``None`` if tasks read them."""
    before = query.at
    end = query.said(query.reader.latestOffset(before, ReadMaxRows(rows)))
    query.reader.partitions(before, end)
    query.at = end
    if not issubclass(type(query.reader), _SimpleStreamReaderWrapper):
        return None
    assert isinstance(query.reader, PlannedReader)
    found = list(query.reader.getCache(before, end))
    assert not issubclass(type(query.reader), _SimpleStreamReaderWrapper)
    return found


def test_rows_that_fit_travel_with_the_plan(log: Log) -> None:
    query = Query(given(startingPosition="earliest"), planned=RAW_COLUMNS)
    batches = planned_rows(query, 6)

    assert batches is not None
    assert column(batches, "partition") == [0, 0, 0, 0, 1, 1]
    assert column(batches, "position") == [0, 1, 2, 3, 0, 1]
    assert all(batch.schema.equals(RAW_COLUMNS, check_metadata=True) for batch in batches)
    # The next ones are planned as if nothing had been.
    assert column(planned_rows(query, 3) or [], "position") == [4, 5, 2]


def test_many_rows_are_read_by_tasks(log: Log) -> None:
    append(log, 0, 1000)

    assert planned_rows(Query(given(startingPosition="earliest"), planned=RAW_COLUMNS), 501) is None


def test_rows_that_do_not_fit_leave_all_rows_of_their_micro_batch_to_tasks(log: Log) -> None:
    columns = pa.schema([("id", pa.int64())])
    start = '{"0": 100, "1": 50}'
    reader = ServerStreamReader(given(payload="arrow", startingPosition=start), columns, columns)
    at = reader.initialOffset()
    append(log, 0, 1, ipc(pa.record_batch([pa.array([1])], columns), schema=columns))
    append(log, 1, 1, b"no Arrow")

    [part] = reader.partitions(at, reader.latestOffset(at, ReadMaxRows(10)))
    # With the rows that fit in the plan, the others would be lost.
    assert not isinstance(reader, PlannedReader)
    assert repr(part) == "RangePartition(0: 100 to 101, 1: 50 to 51)"


def test_a_spark_without_the_private_class_reads_by_tasks(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(datasource_internal, "_SimpleStreamReaderWrapper")
    planned_reader.cache_clear()
    try:
        query = Query(given(startingPosition="earliest"), planned=RAW_COLUMNS)
        assert planned_rows(query, 6) is None
    finally:
        planned_reader.cache_clear()
