"""The rate at which Spark reads a topic: by its own source, and through our server, in turns and in one run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.blocks import ROOT
from tests.kafka.broker import JARS, Broker
from tests.spark.session import SETTINGS, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS = 2_000_000
ROW = b"a row of twenty-eight bytes."
LEAST_SHARE = 0.6
"""The least rate through our server, as a part of that of Spark's own source."""


def fill(broker: Broker, topic: str, rows: int) -> None:
    """Make ``topic`` of two partitions, and write ``rows`` rows to it."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.servers, "log_level": 0, "linger.ms": 20})
    for number in range(rows):
        while True:
            try:
                producer.produce(topic, ROW, partition=number % 2)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


@contextmanager
def server(broker: Broker, topic: str) -> Iterator[str]:
    """Our server over ``topic``, in a process of its own; its URI."""
    given = {"servers": broker.servers, "numbers": topic, "orders": f"{topic}-orders", "uri": "tcp://127.0.0.1:0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "qa.kafka.server", json.dumps(given)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
    finally:
        process.kill()
        process.wait()


def measure(scratch: Path, rows: int = ROWS, rounds: int = 3) -> bool:
    """Print both rates, and return whether ours is fast enough."""
    from rsocket_trio.spark import register

    SETTINGS["spark.driver.extraClassPath"] = os.pathsep.join(map(str, sorted((JARS / "spark").glob("*.jar"))))
    took: dict[str, list[float]] = {"Spark's own source": [], "through our server": []}
    with Broker(scratch / "kafka") as broker, server(broker, "rates") as uri, spark_session(scratch) as spark:
        register(spark)
        fill(broker, "rates", rows)
        theirs = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.servers)
        ours = spark.read.format("rsocket").option("route", "numbers").option("positions", "server")
        for number in range(rounds + 1):
            # The first round warms up.
            for name, frame in (
                ("Spark's own source", theirs.option("subscribe", "rates").load()),
                ("through our server", ours.load(uri)),
            ):
                seconds = timed(frame)
                if number:
                    took[name].append(seconds)
        counts = theirs.option("subscribe", "rates").load().count(), ours.load(uri).count()
    rates = {name: rows / statistics.median(seconds) for name, seconds in took.items()}
    for name, rate in rates.items():
        print(f"{name}: {rate:,.0f} rows/s, median of {rounds}: " + ", ".join(f"{one:.2f} s" for one in took[name]))
    share = rates["through our server"] / rates["Spark's own source"]
    good = counts == (rows, rows) and share >= LEAST_SHARE
    print(
        f"through our server {share:.0%} of Spark's own source, at least {LEAST_SHARE:.0%}: {'good' if good else 'BAD'}"
    )
    return good


def timed(frame: DataFrame) -> float:
    """Read all of ``frame``. Return the seconds."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began
