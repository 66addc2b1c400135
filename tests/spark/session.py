"""The one Spark session of a test run: small, quiet, and quick to start. Whoever asks again is given the same."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.blocks import ROOT
from tests.missing import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2,4]"
"""Two tasks at a time, each tried four times, as on a cluster."""
FAST_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss2m"
"""Half the time to start, at the price of speed later."""


def require_spark() -> None:
    """Skip the test, or fail it where ``CI`` is set, if Spark cannot run here."""
    require(missing_for_spark())


def missing_for_spark() -> str | None:
    """Return what must be installed first."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
        return "Spark is missing: pip install 'rsocket-trio[spark]'"
    from rsocket_trio.spark.java import JavaNotFoundError, ensure_java

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
    session = (
        SparkSession.builder.master(MASTER)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", f"{FAST_JAVA} -Dderby.system.home={scratch}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        # Code is made and plans are changed for each query anew: for few rows that costs more than it saves.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.streaming.stopTimeout", "30s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
        os.environ.clear()
        os.environ.update(before)
