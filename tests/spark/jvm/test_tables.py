"""Tables of a catalog whose rows are those of a server, and writes from threads of Python's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from rsocket_trio.spark import activate, register
from tests.rows import Rows
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


@pytest.fixture
def tables(spark: SparkSession, server: SourceServer, sink: Sink) -> Iterator[SourceServer]:
    """The tables ``log`` and ``orders``, of a source and of a sink."""
    register(spark)
    spark.sql(
        f"CREATE TABLE log USING rsocket OPTIONS (path '{server.uri}', route 'log', positions 'server', "
        "startingPosition 'earliest', maxRowsPerTrigger 1500, reconnectMaxAttempts 0) "
        "COMMENT 'rows of a server' TBLPROPERTIES ('team' = 'ours')"
    )
    spark.sql(
        f"CREATE TABLE orders USING rsocket OPTIONS (uri '{sink.uri}', route 'orders', delivery 'exactlyOnce', "
        "schema 'data BINARY, key STRING')"
    )
    yield server
    for name in ("log", "orders"):
        spark.sql(f"DROP TABLE {name}")


def test_a_table_is_read_in_batches_and_streams(spark: SparkSession, tables: SourceServer, tmp_path: Path) -> None:
    assert spark.table("log").count() == 2000
    assert spark.sql("SELECT count(*) FROM log WITH ('endingPosition' = '{\"0\": 7, \"1\": 3}')").first() == (10,)

    query = spark.readStream.table("log").writeStream.format("memory").queryName("read_of_log")
    finish(query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start())
    assert spark.table("read_of_log").distinct().count() == 2000


def test_rows_are_inserted_into_a_table(spark: SparkSession, tables: SourceServer, sink: Sink) -> None:
    with Rows() as row:
        for number, statement in enumerate(
            (
                "INSERT INTO orders VALUES (X'61', 'k')",
                "INSERT INTO orders (data) VALUES (X'61')",
                # Columns of the same names and types as the table's.
                "INSERT INTO orders SELECT CAST('a' AS BINARY) AS data, 'k' AS key",
            )
        ):
            with row(statement):
                spark.sql(statement)

                assert sink.rows() == [b"a"] * (number + 1)


def test_rows_of_one_table_are_inserted_into_another(spark: SparkSession, tables: SourceServer, sink: Sink) -> None:
    # The column ``data`` comes with what the table ``log`` says about itself; the rows are for the other server.
    spark.sql("INSERT INTO orders SELECT data, 'k' AS key FROM log WHERE partition = 0 AND position < 2")
    spark.table("log").where("position = 5").selectExpr("data", "'k' AS key").writeTo("orders").append()

    assert sorted(sink.rows()) == [b"row 0", b"row 1", b"row 5", b"row 5"]


def test_a_table_of_raw_rows_takes_rows_as_well(spark: SparkSession, tables: SourceServer, sink: Sink) -> None:
    spark.sql(f"CREATE TABLE both USING rsocket OPTIONS (uri '{sink.uri}', route 'orders', positions 'server')")
    try:
        spark.sql("INSERT INTO both (data) VALUES (X'61')")
        # Columns of the same names and types as those of the other table.
        spark.sql("INSERT INTO both SELECT * FROM log WHERE partition = 0 AND position = 3")
    finally:
        spark.sql("DROP TABLE both")

    assert sorted(sink.rows()) == [b"a", b"row 3"]


def test_a_table_whose_server_is_gone_is_an_error_that_names_it(spark: SparkSession, tables: SourceServer) -> None:
    tables.stop()

    with pytest.raises(PySparkException, match=f"(?s){tables.uri}.*route 'log'|route 'log'.*{tables.uri}"):
        spark.table("log").count()


def test_a_table_that_could_not_be_used_is_not_created(spark: SparkSession) -> None:
    register(spark)
    with Rows() as row:
        for options, message in (
            ("path 'tcp://127.0.0.1:1', rout 'log'", "unknown option 'rout': did you mean 'route'"),
            ("path 'tcp://127.0.0.1:1'", "option 'route' is missing"),
            ("path 'tcp://127.0.0.1:1', route 'log', auth.token 'xyzzy'", "'auth.token' is secret, and a table would"),
            ("path 'tcp://127.0.0.1:1', route 'log', schema 'data BINARY, key VARCHAR(5)'", "has VARCHAR"),
        ):
            with row(options), pytest.raises(PySparkException, match=message):
                spark.sql(f"CREATE TABLE wrong USING rsocket OPTIONS ({options})")


def test_a_table_with_columns_of_its_own_says_why_it_has_no_options(spark: SparkSession) -> None:
    register(spark)
    spark.sql("CREATE TABLE own (data BINARY) USING rsocket OPTIONS (uri 'tcp://127.0.0.1:1', route 'log')")
    try:
        with pytest.raises(PySparkException, match="only if it was created without columns"):
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


def test_a_thread_writes_a_batch(spark: SparkSession, sink: Sink) -> None:
    register(spark)
    writer = spark.sql("SELECT 'a' AS data").write.format("rsocket").mode("append").option("route", "orders")
    thread = threading.Thread(target=writer.save, args=(sink.uri,))
    thread.start()
    thread.join(LIMIT)

    assert sink.rows() == [b"a"]
