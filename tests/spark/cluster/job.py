"""A job for a cluster: reads rows, writes them once, and does both as streams. What it found is a line of JSON.

Its argument is JSON: ``read`` and ``write`` are options, ``folder`` is for checkpoints; ``tables`` has it use tables of
a metastore; ``live`` are the options of a stream that is read through a log, until it had ``rows`` of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    """Run the job."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    builder: SparkSession.Builder = SparkSession.builder
    if given.get("tables"):
        builder = builder.enableHiveSupport()
    spark = builder.getOrCreate()
    found: dict[str, Any] = {}
    folder = given["folder"]
    if "read" in given:
        found["read"] = copy(spark, given["read"], given["write"], folder, with_tables=given.get("tables", False))
        # The parent of a worker forks those of one executor.
        parents = spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getppid())
        found["workers"] = len(set(parents.collect()))
    if given.get("live"):
        found["live"] = live(spark, given["live"], given["rows"], folder)
    print("FOUND " + json.dumps(found), flush=True)
    spark.stop()


def copy(spark: SparkSession, read: dict[str, str], write: dict[str, str], folder: str, *, with_tables: bool) -> int:
    """Copy all rows, as a batch and as a stream, and return how many there are."""
    selected = "data", "CAST(partition AS STRING) AS key"
    if with_tables:
        listed = ", ".join(f"{name} '{value}'" for name, value in read.items())
        spark.sql(f"CREATE TABLE log USING rsocket OPTIONS ({listed}, startingPosition 'earliest')")
        listed = ", ".join(f"{name} '{value}'" for name, value in write.items())
        spark.sql(f"CREATE TABLE orders USING rsocket OPTIONS ({listed}, schema 'data BINARY, key STRING')")
        rows, stream = spark.table("log"), spark.readStream.table("log")
        spark.sql(f"INSERT INTO orders SELECT {', '.join(selected)} FROM log")
    else:
        rows = spark.read.format("rsocket").options(**read).load()
        stream = spark.readStream.format("rsocket").options(startingPosition="earliest", **read).load()
        rows.selectExpr(*selected).write.format("rsocket").mode("append").options(**write).save()
    sink = stream.selectExpr(*selected).writeStream.format("rsocket").options(**write)
    sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    return rows.count()


def live(spark: SparkSession, options: dict[str, str], rows: int, folder: str) -> list[int]:
    """Return the numbers that a live stream brought, read through a log in a folder."""
    stream = spark.readStream.format("rsocket").options(**options).load()
    seen: list[int] = []

    def keep(frame: DataFrame, _: int) -> None:
        seen.extend(int(bytes(row[0])) for row in frame.select("data").collect())

    query = stream.writeStream.foreachBatch(keep).option("checkpointLocation", f"{folder}/live").start()
    deadline = time.monotonic() + 120
    while len(seen) < rows and query.isActive and time.monotonic() < deadline:
        query.awaitTermination(1)
    query.stop()
    return sorted(seen)


if __name__ == "__main__":
    main()
