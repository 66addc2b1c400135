"""Streaming queries in a real Spark: checkpoints, limits, available-now, live streams, and servers that go away."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from rsocket_trio.spark import Progress, register
from rsocket_trio.spark.progress import Place, QueryState
from tests.blocks import ROOT
from tests.each_row import ALL_CASES
from tests.rows import Rows
from tests.spark.jvm.servers import SourceServer
from tests.spark.session import finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

StartServer = Callable[..., SourceServer]
PATIENCE = 120.0
GONE = "tcp://127.0.0.1:1"


class Sink:
    """The rows of each micro-batch of a query, by its number."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Take a micro-batch; the same one again replaces it."""
        self.batches[batch] = sorted((row.partition, row.position) for row in frame.collect())

    @property
    def rows(self) -> list[tuple[int, int]]:
        """All rows, in the order of their positions."""
        return sorted(row for rows in self.batches.values() for row in rows)


class Queries:
    """Starts queries, and ends them with the test."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._started: list[StreamingQuery] = []

    def start(self, uri: str, sink: Sink, /, *, now: bool = False, **options: Any) -> StreamingQuery:
        """A query of the route ``log``."""
        reader = self._spark.readStream.format("rsocket")
        defaults = {"route": "log", "positions": "server", "startingPosition": "earliest"}
        for name, value in (defaults | options).items():
            if value is not None:
                reader = reader.option(name, str(value))
        writer = reader.load(uri).writeStream.foreachBatch(sink).option("checkpointLocation", str(self._checkpoint))
        query = (writer.trigger(availableNow=True) if now else writer).start()
        self._started.append(query)
        return query

    def run(self, uri: str, sink: Sink, /, **options: Any) -> None:
        """A query that ends with what is available."""
        finish(self.start(uri, sink, now=True, **options))

    def stop(self) -> None:
        """End them all."""
        for query in self._started:
            query.stop()


@pytest.fixture
def queries(spark: SparkSession, tmp_path: Path) -> Iterator[Queries]:
    register(spark)
    found = Queries(spark, tmp_path / "checkpoint")
    yield found
    found.stop()


def eventually(condition: Callable[[], Any], query: StreamingQuery) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, query.lastProgress
        assert query.exception() is None, query.exception()
        time.sleep(0.05)


def head(query: StreamingQuery) -> object:
    """Return how far the server is, as the query's progress tells it."""
    progress: Any = query.lastProgress
    return json.loads(progress["sources"][0]["latestOffset"])["p"]


def rows(*counts: int) -> list[tuple[int, int]]:
    return [(partition, position) for partition, count in enumerate(counts) for position in range(count)]


def test_what_is_available_is_read_in_bounded_micro_batches_and_a_restart_goes_on_or_says_why_not(
    queries: Queries, server: SourceServer
) -> None:
    sink = Sink()
    queries.run(server.uri, sink, maxRowsPerTrigger=800, ackRoute="log.ack")

    assert [len(batch) for batch in sink.batches.values()] == [800, 800, 400]
    assert sink.rows == rows(1000, 1000)
    # The last micro-batch is never committed by a query that ends.
    assert server.acks == {0: 800, 1: 800}

    server.append(1, 5)
    queries.run(server.uri, sink, minPartitions=4)
    assert len(sink.batches) == 4
    assert sink.rows == rows(1000, 1005)

    other = queries.start(server.uri, Sink(), now=True, route="slow")
    with pytest.raises(PySparkException, match="the checkpoint was made with other options"):
        finish(other)

    server.append(0, 500)
    server.trim(0, 1200)
    late = queries.start(server.uri, Sink(), now=True)
    with pytest.raises(PySparkException, match=r"position 1000 of partition 0 has expired: the earliest is 1\d\d\d"):
        finish(late)


def test_a_query_follows_a_server_that_goes_away_and_comes_back(queries: Queries, start_server: StartServer) -> None:
    server, sink = start_server(50, 0), Sink()
    query = queries.start(server.uri, sink)
    eventually(lambda: sink.rows == rows(50, 0), query)

    server.stop()
    time.sleep(2)
    server = start_server(80, 20, port=server.port)
    eventually(lambda: sink.rows == rows(80, 20), query)
    assert query.isActive
    eventually(lambda: head(query) == {"0": 80, "1": 20}, query)


def test_a_small_micro_batch_is_read_by_the_driver_alone(queries: Queries, start_server: StartServer) -> None:
    server, sink = start_server(500, 500), Sink()
    queries.run(server.uri, sink, maxRowsPerTrigger=400)

    assert [len(batch) for batch in sink.batches.values()] == [400, 400, 200]
    assert sink.rows == rows(500, 500)
    # A task has a connection of its own.
    assert server.connections == 1


def test_a_listener_tells_how_far_a_query_is_behind(
    queries: Queries, server: SourceServer, spark: SparkSession
) -> None:
    progress, seen = Progress(), list[QueryState]()

    def is_read() -> bool:
        seen.extend(progress.queries())
        return bool(seen) and seen[-1].rows_total == 2000

    spark.streams.addListener(progress)
    try:
        query = queries.start(server.uri, Sink(), maxRowsPerTrigger=600)
        eventually(is_read, query)
    finally:
        spark.streams.removeListener(progress)

    [route] = seen[-1].routes
    assert max(one.routes[0].behind["max"] for one in seen) > route.behind["max"] == 0
    assert route.partitions == {0: Place(1000, 1000), 1: Place(1000, 1000)}
    assert route.read_total == 2000


def test_a_pattern_of_routes_is_read_also_those_that_come_later(queries: Queries, start_server: StartServer) -> None:
    server, sink = start_server(30, 20), Sink()
    queries.run(server.uri, sink, route=None, routePattern="sensors.*", minPartitions=3)
    assert sink.rows == rows(30, 20)

    server.add("sensors.b")
    server.append(1, 5)
    query = queries.start(server.uri, sink, route=None, routePattern="sensors.*")
    eventually(lambda: len(sink.rows) == 50 + 5 + 55, query)
    eventually(lambda: query.lastProgress, query)
    eventually(lambda: head(query) == {"sensors.a": {"0": 30, "1": 25}, "sensors.b": {"0": 30, "1": 25}}, query)
    assert sink.rows == sorted([*rows(30, 25), *rows(30, 25)])


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"route": "nowhere"}, "option 'route': route 'nowhere' at tcp://127.0.0.1:"),
    ({"path": GONE, "reconnectMaxAttempts": 0}, f"route 'log' at {GONE} failed.*'path'.*refused"),
    ({"positions": None, "startingPosition": None}, "'positions' must be set for readStream: server where"),
    ({"route": "ticks"}, "option 'route': route 'ticks' at tcp://127.0.0.1:"),
    ({"startingPosition": '{"0": 5000}'}, "option 'startingPosition': position 5000 of partition 0 is not there"),
    ({"startingPosition": '{"7": 0}'}, "'startingPosition' names partition 7"),
]
"""Options that a query can't be started with, and what it says."""


def test_what_is_wrong_is_said_when_the_query_starts(queries: Queries, server: SourceServer) -> None:
    with Rows() as row:
        # Each starts a Python of its own; what it would say is tested without Spark.
        for given, message in WRONG if ALL_CASES else WRONG[:3]:
            with row(given):
                options = dict(given)
                query = queries.start(options.pop("path", server.uri), Sink(), **options)
                with pytest.raises(PySparkException, match=message) as caught:
                    finish(query)
                assert "Traceback" not in str(caught.value)
                [line] = [line for line in str(caught.value).splitlines() if re.search(message, line)]
                assert "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR" in line


def test_a_live_stream_is_read_without_a_gap(queries: Queries, server: SourceServer) -> None:
    sink = Sink()
    query = queries.start(
        server.uri, sink, route="ticks", positions="none", startingPosition=None, maxRowsPerTrigger=2000
    )
    eventually(lambda: len(sink.rows) >= 6000, query)
    query.stop()

    found = sink.rows
    assert found == rows(len(found))
    assert max(map(len, sink.batches.values())) <= 2000


@contextmanager
def recording(uri: str, log: Path) -> Iterator[str]:
    """``rsocket-trio record`` of the live stream of a server; where it serves it."""
    words = ["record", uri, "ticks", "--to", str(log), "--listen", "tcp://127.0.0.1:0", "--credit", "10"]
    command = [sys.executable, "-c", "from rsocket_trio.cli.entry import main; main()", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as recorder:
        assert recorder.stdout is not None
        try:
            yield recorder.stdout.readline().strip().removeprefix("listening ")
        finally:
            recorder.kill()


def test_what_was_recorded_of_a_live_stream_is_read_after_both_ends_were_killed(
    queries: Queries, start_server: StartServer, tmp_path: Path
) -> None:
    server, sink = start_server(1), Sink()
    options: dict[str, Any] = {"route": "ticks", "startingPosition": "earliest", "maxRowsPerTrigger": 1000}
    with recording(server.uri, tmp_path / "ticks.log") as uri:
        query = queries.start(uri, sink, **options)
        eventually(lambda: len(sink.rows) >= 2000, query)
        query.stop()
    server.stop()

    # Without its producer a query reads what the file holds: it goes on where the first one ended.
    with recording(server.uri, tmp_path / "ticks.log") as uri:
        before = len(sink.rows)
        query = queries.start(uri, sink, **options)
        eventually(lambda: len(sink.rows) > before, query)
        query.stop()
    found = sink.rows
    assert found == rows(len(found))
