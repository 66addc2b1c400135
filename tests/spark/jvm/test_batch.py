"""Batch reads in a real Spark: rows, columns, plans, failures, and what servers see of them."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812  # as everybody writes it

from tests.rows import Rows
from tests.spark.jvm.servers import SourceServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

StartServer = Callable[..., SourceServer]
PATIENCE = 60.0


def load(spark: SparkSession, server: SourceServer, *, schema: str | None = None, **options: object) -> DataFrame:
    """A read of the route ``log``, which Spark finds by the name of its format alone."""
    reader = spark.read.format("rsocket").option("route", "log").option("positions", "server")
    for name, value in options.items():
        reader = reader.option(name.replace("_", "."), str(value))
    return (reader if schema is None else reader.schema(schema)).load(server.uri)


def test_every_row_is_read_in_the_columns_that_are_documented(spark: SparkSession, server: SourceServer) -> None:
    frame = load(spark, server)

    assert frame.schema.simpleString() == (
        "struct<partition:int,position:bigint,data:binary,metadata:binary,received_at:timestamp,"
        "route:string,key:binary,timestamp:timestamp>"
    )
    rows = frame.orderBy("partition", "position").collect()
    assert [(row.partition, row.position) for row in rows] == [(one, at) for one in (0, 1) for at in range(1000)]
    assert (bytes(rows[1999].data), bytes(rows[1999].metadata)) == (b"row 999", b"m1")
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    assert abs((rows[0].received_at - now).total_seconds()) < 3600


def test_a_read_has_as_many_tasks_as_asked_for(spark: SparkSession, server: SourceServer) -> None:
    assert load(spark, server).rdd.getNumPartitions() == 2
    frame = load(spark, server, minPartitions=5)
    assert frame.rdd.getNumPartitions() == 5
    assert frame.agg(F.count("*"), F.sum("position")).collect()[0][:] == (2000, 999_000)


def test_arrow_payloads_fill_the_columns_of_the_query(spark: SparkSession, server: SourceServer) -> None:
    frame = load(spark, server, route="arrow", payload="arrow", schema="id BIGINT, name STRING", minPartitions=7)

    found = frame.agg(F.count("*"), F.sum("id"), F.countDistinct("name")).collect()[0]
    assert found[:] == (2000, 999_000, 1000)


def test_what_is_wrong_is_said_when_the_read_is_planned(spark: SparkSession, server: SourceServer) -> None:
    with Rows() as row:
        for options, message in (
            ({"rout": "x"}, "unknown option 'rout': did you mean 'route'"),
            ({"credit": "much"}, "option 'credit' of 'much' is not a whole number"),
            ({"delivery": "exactlyOnce"}, "'delivery' is not for read"),
            ({"route": "nowhere"}, "option 'route': route 'nowhere' at tcp://127.0.0.1:"),
            ({"route": "ticks"}, "option 'route': route 'ticks' at tcp://127.0.0.1:"),
            ({"positions": "none"}, "option 'positions' must be set to server: route 'log' at tcp://127.0.0.1:"),
            ({"startingPosition": '{"9": 0}'}, "'startingPosition' names partition 9"),
            ({"payload": "arrow"}, "'payload' arrow needs the columns"),
        ):
            with row(options):
                with pytest.raises(PySparkException, match=message) as caught:
                    load(spark, server, **options).collect()
                assert "Traceback" not in str(caught.value)


def test_no_secret_is_in_plans_and_errors(
    spark: SparkSession, server: SourceServer, capsys: pytest.CaptureFixture[str]
) -> None:
    secrets = {"auth_type": "simple", "auth_user": "hidden-1", "auth_password": "hidden-2", "setupData": "hidden-3"}
    frame = load(spark, server, **secrets)
    frame.explain("extended")
    frame.explain("formatted")
    with pytest.raises(PySparkException) as caught:
        load(spark, server, route="nowhere", **secrets).collect()

    assert frame.count() == 2000
    assert "hidden" not in capsys.readouterr().out + str(caught.value)


def test_a_limit_ends_the_stream(spark: SparkSession, start_server: StartServer) -> None:
    server = start_server(10)
    frame = load(spark, server, route="ticks", positions="none", credit=64)

    assert frame.limit(5).count() == 5
    deadline = time.monotonic() + PATIENCE
    while server.open and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (server.streams, server.open) == (1, 0)


def test_filters_are_pushed_down_where_that_is_asked_for(spark: SparkSession, server: SourceServer) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, server, pushdown="true")
        found = frame.where("partition = 1 AND position >= 10 AND position < 20 AND data != 'row 15'")
        assert sorted(row.position for row in found.collect()) == [10, 11, 12, 13, 14, 16, 17, 18, 19]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_server_that_goes_away_and_comes_back_costs_no_retry_of_sparks(
    spark: SparkSession, start_server: StartServer
) -> None:
    server = start_server(1500, 1500)
    attempts = spark.sparkContext.accumulator(0)
    frame = load(spark, server, route="slow")

    def noting(found: Iterable[Row]) -> Iterable[tuple[int, int]]:
        context = TaskContext.get()
        assert context is not None
        attempts.add(context.attemptNumber())
        for row in found:
            yield row.partition, row.position

    def restart() -> None:
        time.sleep(1)
        server.stop()
        time.sleep(2)
        start_server(1500, 1500, port=server.port)

    killer = threading.Thread(target=restart)
    killer.start()
    try:
        rows = frame.select("partition", "position").rdd.mapPartitions(noting).collect()
    finally:
        killer.join()

    assert sorted(rows) == [(one, at) for one in (0, 1) for at in range(1500)]
    assert attempts.value == 0


def test_tasks_of_a_worker_share_a_connection_and_it_outlives_them(spark: SparkSession, server: SourceServer) -> None:
    for _ in range(3):
        assert load(spark, server, minPartitions=8).count() == 2000

    # Each of the three was planned by a process of Spark's; the other connections served eight tasks each time.
    assert server.connections < 3 + 8
