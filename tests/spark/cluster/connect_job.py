"""A client of Spark Connect that reads and writes ``rsocket``: arguments are the server's URI and options as JSON."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession

from rsocket_trio.spark import activate


def main() -> None:
    """Run the job; the query starts in a thread."""
    given: dict[str, Any] = json.loads(sys.argv[2])
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    activate(spark)
    rows = spark.read.format("rsocket").options(**given["read"]).load()
    count = rows.count()
    rows.selectExpr("data").write.format("rsocket").mode("append").options(**given["write"]).save()
    stream = spark.readStream.format("rsocket").options(startingPosition="earliest", **given["read"]).load()
    sink = stream.selectExpr("data").writeStream.format("rsocket").options(**given["write"])
    sink = sink.option("checkpointLocation", f"{given['folder']}/connect").trigger(availableNow=True)
    thread = threading.Thread(target=lambda: sink.start().awaitTermination())
    thread.start()
    thread.join()
    print("FOUND " + json.dumps({"read": count}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
