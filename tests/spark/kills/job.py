"""Spark jobs that write numbers, in a process that can be killed.

python -m tests.spark.kills.job SCRATCH

Each line of stdin is a job: ``["write", URI, {...}]``, a name of ``JOBS`` with its arguments. It prints ``ready``, and
``done NAME`` or ``failed NAME why`` after each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from rsocket_trio.spark import RSocketDataSource, ensure_java, register
from rsocket_trio.spark.writer import BatchWriter, Written
from tests.spark.session import MASTER, SETTINGS


def dying_source(flag: Path) -> type[RSocketDataSource]:
    """Return the source ``dying``: the first task that writes ends its worker with all staged and nothing told.

    That it did is shown by the file ``flag``.
    """

    class DyingWriter(BatchWriter):
        def write(self, iterator: Any) -> Written:
            written = super().write(iterator)
            try:
                flag.touch(exist_ok=False)
            except FileExistsError:
                return written
            os._exit(1)

    class DyingSource(RSocketDataSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def writer(self, schema: StructType, overwrite: bool) -> DyingWriter:
            made = super().writer(schema, overwrite)
            made.__class__ = DyingWriter
            assert isinstance(made, DyingWriter)
            return made

    return DyingSource


def write(spark: SparkSession, uri: str, rows: int, partitions: int = 2, format: str = "rsocket", **given: Any) -> None:
    """A batch write of numbers."""
    numbers = spark.range(0, rows, 1, partitions).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS data")
    writer = numbers.write.format(format).mode("append").option("route", "orders")
    writer.options(**given).save(uri)


def stream(spark: SparkSession, uri: str, checkpoint: str, partitions: int, rows_per_batch: int, **given: Any) -> None:
    """All numbers of the server, exactly once, batch after batch, until there are no more."""
    rows = spark.readStream.format("rsocket").option("route", "numbers").option("positions", "server")
    rows = rows.option("startingPosition", "earliest").option("maxRowsPerTrigger", rows_per_batch)
    query = (
        rows.option("minPartitions", partitions)
        .load(uri)
        .writeStream.format("rsocket")
        .options(route="orders", delivery="exactlyOnce", checkpointLocation=checkpoint, **given)
        .trigger(availableNow=True)
        .start(uri)
    )
    query.awaitTermination()


def foreach(spark: SparkSession, uri: str, checkpoint: str, rows_per_batch: int) -> None:
    """All numbers of the server to two sinks, batch after batch; the second gets each number and a million."""

    def both(frame: DataFrame, batch: int) -> None:
        for sink, more in (("a", 0), ("b", 1_000_000)):
            moved = frame.selectExpr(f"CAST(CAST(CAST(data AS STRING) AS BIGINT) + {more} AS STRING) AS data")
            writer = moved.write.format("rsocket").mode("append").option("route", "orders")
            writer.option("sinkId", sink).option("batch", batch).save(uri)

    rows = spark.readStream.format("rsocket").option("route", "numbers").option("positions", "server")
    rows = rows.option("startingPosition", "earliest").option("maxRowsPerTrigger", rows_per_batch)
    query = rows.load(uri).writeStream.foreachBatch(both).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


JOBS: dict[str, Callable[..., None]] = {"write": write, "stream": stream, "foreach": foreach}


def main(scratch: str) -> None:
    """Run the jobs that come on stdin in one session, until there are no more."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(os.environ.get("KILLS_MASTER", MASTER)).appName("kills")
    settings = json.loads(os.environ.get("KILLS_SETTINGS", "{}"))
    for key, value in {**SETTINGS, **settings, "spark.log.level": "OFF", "spark.sql.warehouse.dir": scratch}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    print("ready", flush=True)
    for line in sys.stdin:
        name, uri, arguments = json.loads(line)
        try:
            JOBS[name](spark, uri, **arguments)
        except Exception as error:
            print("failed", name, str(error).replace("\n", " "), flush=True)
        else:
            print("done", name, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
