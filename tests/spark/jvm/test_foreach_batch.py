"""Exactly once from ``foreachBatch``: batches that are repeated count once at each of several sinks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rsocket_trio.spark import register
from tests.each_row import whole
from tests.spark.jvm.servers import SourceServer
from tests.spark.jvm.test_sink_kills import Process, ledger, server_of, session_in
from tests.spark.kills.job import foreach
from tests.spark.session import finish
from tests.spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Handle = Callable[["DataFrame", int], None]


class Crash(Exception):
    """The driver dies, as far as Spark can tell: it has not noted the batch."""


@pytest.fixture
def repeat(spark: SparkSession, server: SourceServer, tmp_path: Path) -> Callable[..., None]:
    """Runs a query over the 2000 rows of a server, 400 at a time, with a crash behind a batch."""

    def run(handle: Handle) -> None:
        crashes = {1}

        def crash_once(frame: DataFrame, batch: int) -> None:
            handle(frame, batch)
            if batch in crashes:
                crashes.remove(batch)
                raise Crash

        rows = spark.readStream.format("rsocket").options(route="log", positions="server", startingPosition="earliest")
        query = rows.option("maxRowsPerTrigger", 800).load(server.uri).writeStream.foreachBatch(crash_once)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        with pytest.raises(Exception, match="Crash"):
            finish(query.start())
        assert not crashes
        finish(query.start())

    return run


def write(frame: DataFrame, sink: Sink, batch: int, name: str) -> None:
    frame.write.format("rsocket").mode("append").option("route", "orders").option("sinkId", name).option(
        "batch", batch
    ).save(sink.uri)


def told(sink: Sink) -> Counter[str]:
    return Counter(row.decode() for row in sink.rows())


def test_a_batch_that_is_repeated_counts_once_at_two_sinks(repeat: Callable[..., None], sink: Sink) -> None:
    def both(frame: DataFrame, batch: int) -> None:
        for name in ("a", "b"):
            made = frame.selectExpr(f"concat('{name} ', partition, ' ', position) AS data")
            write(made, sink, batch, name)

    repeat(both)

    wanted = (f"{name} {partition} {position}" for name in "ab" for partition in range(2) for position in range(1000))
    assert told(sink) == Counter(wanted)


@whole
def test_a_driver_and_a_server_killed_between_two_sinks_repeat_nothing(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    given: dict[str, Any] = {"checkpoint": str(tmp_path / "checkpoint"), "rows_per_batch": 400}
    directory = tmp_path / "ledger"
    with server_of(directory, source_rows=1200, hold=1) as (server, uri):
        with session_in(tmp_path / "session") as session:
            session.reads("ready")
            session.tell("foreach", uri, given)
            # The first sink has batch 1, which the driver does not know; the second has not.
            reads_twice(server, "promoted 0")
            server.reads("promoted 1")
            session.kill()
        server.kill()
        with server_of(directory, uri, source_rows=1200) as (again, _):
            foreach(spark, uri, **given)
            again.reads("repeated 1")
            again.reads("promoted 1")
            assert ledger(uri) == Counter(number + more for number in range(1200) for more in (0, 1_000_000))


def reads_twice(server: Process, line: str) -> None:
    server.reads(line)
    server.reads(line)
