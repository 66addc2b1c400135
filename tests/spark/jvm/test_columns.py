"""Keys, headers, times and routes in a real Spark: what is written comes back, and columns may be chosen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import lit

from rsocket_trio.replay.elements import now_us
from rsocket_trio.spark import register
from tests.spark.jvm.servers import SourceServer
from tests.spark.session import finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """Rows with keys and headers, some without."""
    register(spark)
    return spark.range(0, 300, 1, 2).selectExpr(
        "CAST(id AS STRING) AS data",
        "IF(id % 3 = 0, CAST(id AS STRING), NULL) AS key",
        f"IF(id % 2 = 0, array({header('kind', 'CAST(id % 7 AS STRING)')}, {header('none', 'NULL')}, "
        f"{header('kind', 'CAST(id AS STRING)')}), NULL) AS headers",
    )


def header(name: str, content: str) -> str:
    """A header in SQL."""
    return f"named_struct('name', '{name}', 'value', binary({content}))"


def read(spark: SparkSession, uri: str, **options: str) -> DataFrame:
    given = {"route": "written", "positions": "server", "includeHeaders": "true"} | options
    return spark.read.format("rsocket").options(**given).load(uri)


@pytest.mark.parametrize("delivery", ["atLeastOnce", "exactlyOnce"])
def test_keys_and_headers_that_are_written_come_back(
    delivery: str, spark: SparkSession, rows: DataFrame, server: SourceServer
) -> None:
    before = now_us()
    rows.write.format("rsocket").mode("append").options(route="written", delivery=delivery).save(server.uri)

    found = read(spark, server.uri)
    assert found.columns[:5] == ["partition", "position", "data", "metadata", "received_at"]
    assert found.columns[5:] == ["route", "key", "timestamp", "headers"]
    same = found.selectExpr("string(data)", "string(key)", "headers")
    assert sorted(map(tuple, same.collect()), key=str) == sorted(map(tuple, rows.collect()), key=str)
    [[first, last, routes]] = found.selectExpr(
        "unix_micros(min(timestamp))", "unix_micros(max(timestamp))", "collect_set(route)"
    ).collect()
    assert before <= first <= last <= now_us()
    assert routes == ["written"]


def test_rows_without_data_are_null_and_a_map_may_have_the_headers(spark: SparkSession, server: SourceServer) -> None:
    register(spark)
    columns = "IF(id % 3 = 0, NULL, string(id)) AS data", "string(id) AS key", "map('a', string(id)) AS headers"
    rows = spark.range(0, 100, 1, 2).selectExpr(*columns)
    rows.write.format("rsocket").mode("append").options(route="written", delivery="exactlyOnce").save(server.uri)

    found = read(spark, server.uri).selectExpr("string(data)", "string(key)", "headers[0].name", "headers[0].value")
    assert sorted(map(tuple, found.collect()), key=lambda row: int(row[1])) == [
        (None if number % 3 == 0 else str(number), str(number), "a", str(number).encode()) for number in range(100)
    ]


def test_rows_that_were_read_are_written_on_as_they_are(
    spark: SparkSession, rows: DataFrame, server: SourceServer, tmp_path: Path
) -> None:
    rows.write.format("rsocket").mode("append").options(route="written").save(server.uri)
    source = spark.readStream.format("rsocket").options(
        route="written", positions="server", includeHeaders="true", startingPosition="earliest"
    )
    sink = source.load(server.uri).writeStream.format("rsocket").options(route="copied", delivery="exactlyOnce")
    finish(sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start(server.uri))

    columns = ["data", "key", "headers"]
    copied, written = (
        read(spark, server.uri, route=route).selectExpr(*columns).collect() for route in ("copied", "written")
    )
    assert sorted(copied, key=str) == sorted(written, key=str)
    # A route of one's own is the route to write to.
    chosen = read(spark, server.uri).withColumn("route", lit("copied")).limit(5)
    chosen.write.format("rsocket").mode("append").options(route="written").save(server.uri)
    assert read(spark, server.uri, route="copied").count() == 305
