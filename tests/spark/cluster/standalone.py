"""A standalone cluster of Spark, started from the package of pip: a master and two workers, each a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from tests.blocks import ROOT
from tests.spark import session
from tests.spark.session import FAST_JAVA

PATIENCE = 90.0
"""Seconds that a process may take to come up or to finish on a busy machine."""
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


def spark_home() -> Path:
    """Return the folder of the package."""
    import pyspark

    return Path(pyspark.__file__).parent


def environment(**more: str | None) -> dict[str, str]:
    """Return the environment of Spark's processes: this Python, this checkout, small and quick JVMs, all on loopback.

    ``None`` leaves a variable out.
    """
    wanted: dict[str, str | None] = {
        **os.environ,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": FAST_JAVA,
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": None,
        "PYTHONPATH": str(ROOT),
        **more,
    }
    return {name: value for name, value in wanted.items() if value is not None}


SETTINGS: Mapping[str, str] = {
    **session.SETTINGS,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": FAST_JAVA,
    "spark.log.level": "ERROR",
}
"""Settings of a driver here: small, quiet, on loopback."""


@attrs.define
class Process:
    """A process of Spark whose lines go to a file."""

    running: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, pattern: str) -> str:
        """Return the first group of the pattern when a line has it."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            text = self.log.read_text(errors="replace")
            if found := re.search(pattern, text):
                return found[1] if found.groups() else found[0]
            assert self.running.poll() is None, f"it ended: {text[-3000:]}"
            time.sleep(0.05)
        raise AssertionError(f"it never said {pattern}: {self.log.read_text(errors='replace')[-3000:]}")

    def stop(self) -> None:
        """End it and all that it started."""
        if self.running.poll() is None:
            self.running.terminate()
            try:
                self.running.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.running.kill()
                self.running.wait()


def start(arguments: Sequence[str | Path], log: Path, env: Mapping[str, str], folder: Path | None = None) -> Process:
    """Start a process with its lines in ``log``, in ``folder``."""
    with log.open("wb") as file:
        running = subprocess.Popen(
            [str(one) for one in arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=folder or log.parent,
        )
    return Process(running, log)


@attrs.define
class Cluster:
    """A running cluster; ``folder`` is for what is written."""

    url: str
    folder: Path

    def run(
        self, arguments: Sequence[str | Path], env: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a driver to its end, and return what it said."""
        return subprocess.run(
            [str(one) for one in arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=dict(env or environment()),
            cwd=folder or self.folder,
            timeout=3 * PATIENCE,
            check=False,
        )

    def submit(
        self,
        script: Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        **settings: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script by ``spark-submit``; settings have ``_`` for their dots."""
        given = {**SETTINGS, **{f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}}
        env = environment() if env is None else env
        submit = spark_home() / "bin" / "spark-submit"
        return self.run([submit, "--master", self.url, *confs(given, env), script, *arguments], env, folder)


def confs(settings: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """Return the arguments for settings, and for executors to find the packages that ``env`` finds."""
    if "PYTHONPATH" in env:
        settings = {**settings, "spark.executorEnv.PYTHONPATH": env["PYTHONPATH"]}
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master and its workers of one core each, for as long as the block."""
    # Executors have the environment of their worker: what they find is for the job to say.
    env = environment(PYTHONPATH=None)
    started: list[Process] = []
    java = [str(spark_home() / "bin" / "spark-class")]
    here = ["--host", "127.0.0.1", "--webui-port", "0"]
    try:
        master = start([*java, MASTER, *here, "--port", "0"], folder / "master.log", env)
        started.append(master)
        url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        for number in range(workers):
            work = folder / f"work-{number}"
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(work)]
            started.append(start([*java, WORKER, *here, *size, url], folder / f"worker-{number}.log", env))
        for worker in started[1:]:
            worker.wait_for("Successfully registered with master")
        yield Cluster(url, folder)
    finally:
        for one in reversed(started):
            one.stop()
