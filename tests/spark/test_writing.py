"""Writers as Spark calls them, in a thread that is not the connection's: what comes out, and what is refused."""

from __future__ import annotations

import logging
import pickle
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import trio
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, LongType, StringType

from rsocket_trio import ApplicationError, Payload, Responder
from rsocket_trio.replay import elements
from rsocket_trio.spark import OptionError, SinkError
from rsocket_trio.spark.writer import Written, origin_of
from tests.spark.sinks import (
    ROUTE,
    batch,
    batch_writer,
    batches,
    numbers,
    planning_writer,
    schema_of,
    serving,
    sink,
    source,
    stream_writer,
)
from tests.threads import PATIENCE

DELIVERIES = [
    {"delivery": "atLeastOnce"},
    {"delivery": "exactlyOnce"},
]


@pytest.mark.parametrize("given", DELIVERIES, ids=lambda given: "-".join(given.values()))
def test_a_batch_write_arrives_once(given: dict[str, Any]) -> None:
    with sink(partitions=1) as server:
        planned = batch_writer(server.uri, **given)
        # Spark pickles the writer for its tasks and its messages for the driver.
        writer = pickle.loads(pickle.dumps(planned))
        messages = [pickle.loads(pickle.dumps(writer.write(batches(count)))) for count in (2500, 0, 1)]
        planned.commit(messages)
        rows = Counter(server.rows())

    assert rows == Counter(numbers(2500)) + Counter(numbers(1))
    assert [message.rows for message in messages] == [2500, 0, 1]


def test_a_stream_commits_batch_after_batch_with_new_writers() -> None:
    with sink() as server:
        for number in range(3):
            messages: list[WriterCommitMessage | None] = [
                stream_writer(server.uri, delivery="exactlyOnce").write(batches(10)) for _ in range(2)
            ]
            stream_writer(server.uri, delivery="exactlyOnce").commit(messages, number)
            # Spark may do so again after a restart.
            stream_writer(server.uri, delivery="exactlyOnce").commit(messages, number)
        # No task ran: nobody knows the query, and there is nothing to promote.
        stream_writer(server.uri, delivery="exactlyOnce").commit([], 3)
        assert Counter(server.rows()) == Counter(numbers(10) * 6)
        assert server.ledger.last("test") == 2


def test_an_aborted_batch_leaves_nothing() -> None:
    with sink() as server:
        for writer in (batch_writer(server.uri, delivery="exactlyOnce"),):
            message = writer.write(batches(10))
            assert len(server.ledger.staged) == 1
            writer.abort([message, None])
            assert (list(server.ledger.staged), server.rows()) == ([], [])
        stream = stream_writer(server.uri, delivery="exactlyOnce")
        stream.abort([stream.write(batches(10)), None], 4)
        assert list(server.ledger.staged) == []


def test_each_batch_write_is_a_sink_of_its_own_and_one_that_is_named_counts_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with sink() as server, caplog.at_level(logging.WARNING):
        for _ in range(2):
            writer = batch_writer(server.uri, delivery="exactlyOnce", sinkId=None)
            writer.commit([writer.write(batches(10))])
        assert len(server.rows()) == 20
        assert caplog.text == ""
        for _ in range(2):
            writer = batch_writer(server.uri, delivery="exactlyOnce", sinkId="nightly")
            writer.commit([writer.write(batches(10))])
        assert len(server.rows()) == 30
        # Of the others only the newest are remembered.
        assert server.ledger.sinks == {"nightly": 0}

    assert "batch 0 of sink nightly had been committed before" in caplog.text


def test_a_batch_counts_if_it_is_above_the_last_of_its_sink(caplog: pytest.LogCaptureFixture) -> None:
    with sink() as server, caplog.at_level(logging.WARNING):
        for batch in (0, 1, 1, 4):
            writer = batch_writer(server.uri, sinkId="x", batch=batch)
            writer.commit([writer.write(batches(10))])
        writer = batch_writer(server.uri, sinkId="x", batch=2)
        with pytest.raises(SinkError, match="batch 2 of sink 'x' is below the last one, 4: another checkpoint wrote"):
            writer.commit([writer.write(batches(10))])
        assert len(server.rows()) == 30
        assert server.ledger.sinks == {"x": 4}

    skipped = [record.getMessage() for record in caplog.records]
    assert skipped == ["batch 1 of sink x had been committed before: it is skipped"]


class Query:
    """The tasks and the commits of a streaming query: ``name`` is its id, that of its checkpoint."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, uri: str, name: str, **options: Any) -> None:
        self._monkeypatch = monkeypatch
        self._name = name
        self._make = partial(stream_writer, uri, delivery="exactlyOnce", **options)
        self._plan = partial(planning_writer, uri, delivery="exactlyOnce", **options)

    def stage(self, number: int, count: int = 10) -> list[WriterCommitMessage | None]:
        """Plan a batch and run its two tasks, on copies of the writer as Spark has them."""
        context = Context(queryId=self._name, batchId=str(number))
        self._monkeypatch.setattr(TaskContext, "get", lambda: context)
        planned = self._plan()
        copies = [pickle.loads(pickle.dumps(planned)) for _ in range(2)]
        return [copy.write(batches(count)) for copy in copies]

    def run(self, number: int) -> None:
        """Write a batch and commit it with another writer, as Spark does."""
        messages = self.stage(number)
        self._make().commit(messages, number)


def test_a_new_checkpoint_takes_an_old_sink_over_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with sink() as server:
        old, new = (Query(monkeypatch, server.uri, name, sinkId="x") for name in ("old", "new"))
        taking = Query(monkeypatch, server.uri, "new", sinkId="x", takeOver="true")
        for number in range(3):
            old.run(number)
        with pytest.raises(SinkError, match=r"belongs to query old, not to query new.*takeOver=true once"):
            new.run(0)
        taking.run(0)
        new.run(1)
        for former in (old, Query(monkeypatch, server.uri, "old", sinkId="x", takeOver="true")):
            with pytest.raises(SinkError, match="'x' was taken over from query old by query new: write to another"):
                former.run(3)
        assert len(server.rows()) == 100


def test_a_batch_write_outside_of_queries_does_not_write_to_the_sink_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with sink() as server:
        Query(monkeypatch, server.uri, "q", sinkId="x").run(0)
        monkeypatch.setattr(TaskContext, "get", Context)
        for _ in range(2):
            writer = batch_writer(server.uri, sinkId="x", batch=1)
            with pytest.raises(SinkError, match="'x' belongs to query q, not to writes outside of queries"):
                writer.commit([writer.write(batches(10))])
        assert len(server.rows()) == 20


@pytest.mark.parametrize("named", [{"sinkId": "x"}, {"sinkId": None}])
def test_what_a_killed_writer_staged_is_not_in_the_way_of_its_restart(
    named: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is room for one batch.
    with sink(staged_bytes=120_000) as server:
        query = Query(monkeypatch, server.uri, "q", **named)
        query.run(0)
        dead = query.stage(1, 2000)
        assert len(server.ledger.staged) == 2
        messages = query.stage(1, 2000)
        assert len(server.ledger.staged) == 2
        # The dead one was alive after all, and is late.
        with pytest.raises(SinkError, match=r"batch 1 of sink .* is written by epoch \d+, which was planned after"):
            stream_writer(server.uri, delivery="exactlyOnce", **named).commit(dead, 1)
        stream_writer(server.uri, delivery="exactlyOnce", **named).commit(messages, 1)
        assert len(server.rows()) == 20 + 4000


@pytest.mark.parametrize("packs", [True, False])
def test_rows_without_data_are_null_at_the_server(packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "has_arrow", lambda: packs)
    rows = pa.record_batch({"data": pa.array([b"1", None, b""], pa.binary()), "key": ["a", "b", "c"]})
    schema = schema_of(data=BinaryType(), key=StringType())
    with sink() as server:
        planned = batch_writer(server.uri, schema, delivery="exactlyOnce")
        message = pickle.loads(pickle.dumps(planned)).write(iter([rows]))
        planned.commit([message])
        assert [(one.key, one.data) for one in server.records()] == [(b"a", b"1"), (b"b", None), (b"c", b"")]


def test_skipped_rows_are_counted_in_the_message_and_told_on_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    responder = Responder()

    @responder.request_response(ROUTE)
    def picky(request: Payload) -> bytes:
        if request.data == b"3":
            raise ApplicationError("no threes")
        return b""

    rows = [batch([b"1", None, b"3", b"4"])]
    with serving(responder) as server, caplog.at_level(logging.WARNING):
        writer = stream_writer(server.uri, errorPolicy="skip")
        message = writer.write(iter(rows))
        writer.commit([message], 7)

    assert (message.rows, message.skipped) == (2, 2)
    assert f"writing to {ROUTE}, batch 7: 2 of 4 rows were skipped (errorPolicy=skip); the first: " in caplog.text
    assert "column 'data' is null" in caplog.text


def test_a_task_whose_server_fails_does_not_read_on() -> None:
    responder = Responder()

    @responder.request_response(ROUTE)
    def refuse(request: Payload) -> bytes:
        raise ApplicationError("no")

    pulled = 0

    def endless() -> Iterator[pa.RecordBatch]:
        nonlocal pulled
        while True:
            pulled += 1
            yield batch([bytes(1000)] * 1000)

    with serving(responder) as server, pytest.raises(SinkError, match="refused: no"):
        batch_writer(server.uri).write(endless())
    assert pulled < 50


def test_rows_are_held_back_while_the_server_does_not_answer_and_memory_stays_flat() -> None:
    responder = Responder()
    released = threading.Event()

    @responder.request_response(ROUTE)
    async def answer(request: Payload) -> bytes:
        if not released.is_set():
            await trio.to_thread.run_sync(released.wait)
        return b""

    pulled = 0
    stalled = threading.Event()

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal pulled
        for _ in range(60):
            pulled += 1
            yield batch([bytes(100_000)] * 10)

    def look() -> None:
        # Until nothing is pulled for a while.
        before = -1
        while pulled != before:
            before = pulled
            stalled.wait(0.5)
        seen.append(pulled)
        released.set()

    seen: list[int] = []
    with serving(responder) as server:
        writer = batch_writer(server.uri, inFlight=4)
        looking = threading.Thread(target=look)
        tracemalloc.start()
        looking.start()
        message = writer.write(rows())
        looking.join(PATIENCE)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert message.rows == 600
    # About four MB wait between the threads, and one on either side.
    assert seen[0] < 10
    assert peak < 24 * 2**20


def test_overwrite_and_complete_are_refused() -> None:
    found = source("tcp://127.0.0.1:1")
    schema = schema_of(data=LongType())
    for make in (found.writer, found.streamWriter):
        with pytest.raises(OptionError, match=r"mode 'overwrite' .*Use mode 'append'"):
            make(schema, True)


class Context:
    """A task context of Spark: the number of its partition, and its local properties."""

    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802  # Spark's name
        return 5

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self._properties.get(name.rpartition(".")[2])


def test_the_sink_is_the_query_unless_it_is_named() -> None:
    said = Context(queryId="the-query", batchId="12")
    for name, expected in ((None, "the-query"), ("mine", "mine")):
        origin = origin_of(said, name)  # type: ignore[arg-type]
        assert (origin.sink, origin.query, origin.batch, origin.partition) == (expected, "the-query", 12, 5)
    assert origin_of(None, "mine").partition == 0


def test_without_the_querys_id_the_sink_must_be_named() -> None:
    with pytest.raises(OptionError, match="'sinkId' must be set"):
        origin_of(Context(), None)  # type: ignore[arg-type]


def test_messages_of_tasks_that_failed_are_passed_over() -> None:
    with sink() as server:
        writer = stream_writer(server.uri, delivery="exactlyOnce", sinkId=None)
        # Nobody knows the sink, and there is nothing to promote.
        writer.commit([None], 0)
        writer.commit([Written("q", 0)], 1)
        assert server.ledger.last("q") == 1
