"""Answers the questions of a capture in Spark, in a small session of its own: the same SQL as in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from rsocket_trio.analytics.capture_tables import check_capture
from rsocket_trio.analytics.data_frames import read_capture
from rsocket_trio.analytics.sql import for_spark
from rsocket_trio.analytics.views import IN_ORDER, KEPT, QUERIES, READS, VIEWS, Answer, answer_of, question_of, select

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


LARGE: Final = ("connection_seconds", "cancelled_streams", "request_cells")
"""Tables of ``KEPT`` that may be too large for the driver: Spark keeps them where they were computed."""


@attrs.define
class SparkEngine:
    """Answers questions in Spark; ``spark`` has views of the three tables of a capture."""

    spark: SparkSession
    _made: set[str] = attrs.field(factory=set)

    def ask(self, view: str) -> Answer:
        """Return the rows of a view, in the order of the report if it is part of that. Raise ``KeyError``."""
        asked = question_of(view)
        self._make(view)
        times = {name: kind == "timestamp" for name, kind in self.spark.table(view).dtypes}
        rows = [tuple(row) for row in self.spark.sql(for_spark(select(asked, times))).collect()]
        return answer_of(asked, times, rows)

    def _make(self, view: str) -> None:
        """Create a view and those that it reads. A small one that others read becomes a local table: plans stay short,
        and Spark knows what it may send to all tasks.
        """
        if view not in QUERIES or view in self._made:
            return
        for source in READS[view]:
            self._make(source)
        _create_view(self.spark, view)
        if view in LARGE:
            self.spark.catalog.cacheTable(view)
        elif view in KEPT:
            rows = self.spark.table(view)
            self.spark.createDataFrame(rows.toArrow(), rows.schema).createOrReplaceTempView(view)
        if view == "cancelled_streams":
            # Computed before it is joined: knowing how small it is, Spark need not shuffle the frames by stream.
            self.spark.table(view).count()
        self._made.add(view)


@contextmanager
def open_spark(
    directory: str | Path,
    *,
    server: str | Path | None = None,
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkEngine]:
    """Open the capture in ``directory`` in a Spark session of its own for the block. Raise ``Unreadable``.

    ``server`` is that of ``create_views``; ``master`` and ``settings`` are those of the session.
    """
    size = check_capture(directory) + (0 if server is None else check_capture(server))
    with local_session(master, settings, size=size) as spark:
        yield spark_engine(spark, directory, server)


def spark_engine(spark: SparkSession, directory: str | Path, server: str | Path | None = None) -> SparkEngine:
    """Register the tables of a capture in this session. Return the engine that asks there."""
    _register(spark, directory, server)
    return SparkEngine(spark)


def create_views(spark: SparkSession, directory: str | Path, *, server: str | Path | None = None) -> tuple[str, ...]:
    """Register the tables of a capture and all derived tables as temporary views of ``spark``. Return their names.

    ``directory`` is that of ``read_capture``. ``server`` is the directory of a second capture, of the other side:
    ``client_server`` then joins the requesters of the first with the responders of the second. Without it, both sides
    are read from the one directory.
    """
    _register(spark, directory, server)
    for name in IN_ORDER:
        _create_view(spark, name)
    return VIEWS


def _register(spark: SparkSession, directory: str | Path, server: str | Path | None) -> None:
    """Register the tables of a capture, and the interactions of both sides."""
    capture = read_capture(spark, directory)
    theirs = capture if server is None else read_capture(spark, server)
    for name, rows in {
        "frames": capture.frames,
        "interactions": capture.interactions,
        "connections": capture.connections,
        "requesters": capture.interactions,
        "responders": theirs.interactions,
    }.items():
        rows.createOrReplaceTempView(name)


def _create_view(spark: SparkSession, name: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {for_spark(QUERIES[name])}")
