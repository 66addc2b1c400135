"""The one Spark session of a test run: small, quiet, and quick to start. Whoever asks again is given the same."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.blocks import ROOT
from tests.missing import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MASTER = "local[2,4]"
"""Two tasks at a time, each tried four times, as on a cluster."""
FAST_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss2m"
"""Half the time to start, at the price of speed later."""
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": FAST_JAVA,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    # Code is made and plans are changed for each query anew: for few rows that costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "30s",
}
LATE = "Python worker failed to connect back"
"""What Spark says of a Python that did not start within 10 s, which can't be set."""
LIMIT = 120
"""Seconds after which a query that should have ended has failed; only a fault takes so long."""


def require_spark() -> None:
    """Skip the test, or fail it where ``CI`` is set, if Spark cannot run here."""
    require(missing_for_spark())


def missing_for_spark() -> str | None:
    """Return what must be installed first."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
        return "Spark is missing: pip install '.[spark]'"
    from rsocket_trio.spark.installation import JavaNotFoundError, ensure_java

    try:
        ensure_java()
    except JavaNotFoundError as error:
        return str(error)
    return None


@contextmanager
def spark_session(scratch: Path) -> Iterator[SparkSession]:
    """The session, which ends with the block; ``scratch`` is for what it writes."""
    require_spark()
    from pyspark.sql import SparkSession

    before = os.environ.copy()
    # Workers are to run this Python, with this checkout, wherever they are started.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = SparkSession.builder.master(MASTER)
    places = {
        "spark.driver.extraJavaOptions": f"{FAST_JAVA} -Dderby.system.home={scratch}",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
    }
    for name, value in (SETTINGS | places).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
        os.environ.clear()
        os.environ.update(before)


def finish(query: StreamingQuery) -> None:
    """Wait until a query ends; raise what it failed with, or ``AssertionError`` if it goes on."""
    assert query.awaitTermination(LIMIT), f"query {query.id} goes on after {LIMIT} s: {query.status}"


def tend(item: pytest.Function) -> Generator[None, object, object]:
    """Run a test, as a wrapper of ``pytest_runtest_call``: one that is broken off leaves nothing in its session.

    A group of failures is raised from the one of a Python that was late, for which a test is played again.
    """
    try:
        return (yield)
    except pytest.fail.Exception:
        if "spark" in item.funcargs:
            free(cast("SparkSession", item.funcargs["spark"]))
        raise
    except ExceptionGroup as failed:
        late = failed.subgroup(lambda error: LATE in str(error) and not isinstance(error, ExceptionGroup))
        if late is None:
            raise
        raise failed from late.exceptions[0]


def free(session: SparkSession) -> None:
    """End the jobs and queries of a test that was broken off.

    This thread's connection to the JVM may still wait for an answer to it, which the next test would be given.
    """
    gateway = session.sparkContext._gateway
    assert gateway is not None
    connection = gateway._gateway_client.get_thread_connection()
    if connection is not None:
        connection.close()
    session.sparkContext.cancelAllJobs()
    for query in session.streams.active:
        query.stop()
