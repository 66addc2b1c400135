"""Opens a small local Spark session for an analysis that is given none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JVM: Final = "-XX:+UseSerialGC -Xss2m"
QUICK_JVM: Final = f"-XX:TieredStopAtLevel=1 {JVM}"
"""Starts in half the time, with code that is slower afterwards."""
SMALL: Final = 192 * 2**20
"""Bytes of a capture up to which ``QUICK_JVM`` pays: it took an eighth less CPU with 10 million frames."""
SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": JVM,
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    # A table known to be smaller is broadcast to all tasks, instead of shuffling all frames.
    "spark.sql.autoBroadcastJoinThreshold": "64m",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def local_session(
    master: str = "local[2]", settings: Mapping[str, str] | None = None, *, size: int = SMALL + 1
) -> Iterator[SparkSession]:
    """Open a session that ends with the block. ``settings`` override ``SETTINGS``; ``size`` is the capture's, in bytes.

    With a ``master`` that is not local, the driver's addresses and JVM options are the defaults of its cluster.
    """
    from pyspark.sql import SparkSession

    defaults = dict(SETTINGS)
    if not master.startswith("local"):
        defaults = {key: SETTINGS[key] for key in ("spark.log.level", "spark.sql.session.timeZone")}
    elif size <= SMALL:
        defaults |= {"spark.driver.extraJavaOptions": QUICK_JVM, "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master(master).appName("rsocket-trio analyze")
    for key, value in (defaults | dict(settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
