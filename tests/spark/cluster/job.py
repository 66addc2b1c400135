"""A job for a cluster: reads rows, writes them once, and does both as streams. What it found is a line of JSON.

Its argument is JSON: ``read`` and ``write`` are options, ``folder`` is for checkpoints.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import SparkSession


def main() -> None:
    """Run the job."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    builder: SparkSession.Builder = SparkSession.builder
    spark = builder.getOrCreate()
    found: dict[str, Any] = {}
    folder = given["folder"]
    if "read" in given:
        found["read"] = copy(spark, given["read"], given["write"], folder)
        # The parent of a worker forks those of one executor.
        parents = spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getppid())
        found["workers"] = len(set(parents.collect()))
    print("FOUND " + json.dumps(found), flush=True)
    spark.stop()


def copy(spark: SparkSession, read: dict[str, str], write: dict[str, str], folder: str) -> int:
    """Copy all rows, as a batch and as a stream, and return how many there are."""
    selected = "data", "CAST(partition AS STRING) AS key"
    rows = spark.read.format("rsocket").options(**read).load()
    stream = spark.readStream.format("rsocket").options(startingPosition="earliest", **read).load()
    rows.selectExpr(*selected).write.format("rsocket").mode("append").options(**write).save()
    sink = stream.selectExpr(*selected).writeStream.format("rsocket").options(**write)
    sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    return rows.count()


if __name__ == "__main__":
    main()
