"""Views of a session whose rows are those of a server, and writes from threads of Python's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from rsocket_trio.spark import activate, create_view, register
from tests.spark.jvm.servers import SourceServer
from tests.spark.session import LIMIT, finish
from tests.spark.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def sink() -> Iterator[Sink]:
    found = Sink(partitions=1)
    yield found
    found.stop()


def test_a_view_reads_anew_for_each_query(spark: SparkSession, server: SourceServer) -> None:
    create_view(spark, "log", path=server.uri, route="log", positions="server", endingPosition='{"0": 7, "1": 3}')
    try:
        assert spark.table("log").count() == 10
        assert spark.sql("SELECT count(*) FROM log WHERE partition = 1").first() == (3,)
        server.stop()
        with pytest.raises(PySparkException, match=f"(?s){server.uri}.*route 'log'|route 'log'.*{server.uri}"):
            spark.table("log").count()
    finally:
        spark.catalog.dropTempView("log")


def test_a_view_can_be_made_in_sql(spark: SparkSession, server: SourceServer) -> None:
    register(spark)
    options = f"path '{server.uri}', route 'log', positions 'server', endingPosition '{{\"0\": 7, \"1\": 3}}'"
    spark.sql(f"CREATE TEMPORARY VIEW in_sql USING rsocket OPTIONS ({options})")
    assert spark.sql("SELECT count(*) FROM in_sql").first() == (10,)
    spark.catalog.dropTempView("in_sql")


def test_a_table_is_refused_with_the_words_for_a_view(spark: SparkSession, server: SourceServer) -> None:
    register(spark)
    with pytest.raises(PySparkException, match=r"there are no tables USING rsocket.*create_view\(spark, name"):
        spark.sql(f"CREATE TABLE wrong USING rsocket OPTIONS (uri '{server.uri}', route 'log', positions 'server')")
    # With columns of its own Spark makes a table without a question.
    spark.sql(f"CREATE TABLE own (data BINARY) USING rsocket OPTIONS (uri '{server.uri}', route 'log')")
    try:
        with pytest.raises(PySparkException, match=r"Is this a table\? But there are no tables USING rsocket"):
            spark.table("own").count()
    finally:
        spark.sql("DROP TABLE own")


def test_three_threads_start_a_query_each(spark: SparkSession, sink: Sink, tmp_path: Path) -> None:
    activate(spark)
    failed: list[str] = []

    def run(number: int) -> None:
        # Rows of files: sources in Python would have to start at once, within ten seconds each.
        folder = tmp_path / f"rows-{number}"
        folder.mkdir()
        (folder / "rows.txt").write_text("".join(f"{10 * number + row}\n" for row in range(10)))
        rows = spark.readStream.text(str(folder)).selectExpr("value AS data")
        writer = rows.writeStream.format("rsocket").options(route="orders", delivery="exactlyOnce", path=sink.uri)
        writer = writer.option("checkpointLocation", str(tmp_path / str(number))).trigger(availableNow=True)
        try:
            finish(writer.start())
        except PySparkException as error:
            failed.append(str(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(2 * LIMIT)

    assert failed == [], "\n".join(failed)
    assert sorted(map(int, sink.rows())) == list(range(30))
