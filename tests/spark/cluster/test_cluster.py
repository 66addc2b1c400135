"""The recipes of docs/spark-cluster.md on a standalone cluster of two workers.

They are played where ``RSOCKET_TRIO_ALL_CASES`` is in the environment, as ``make cluster`` sets it, which also makes
what they need beside: packages for Connect, and a venv.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from rsocket_trio import Responder
from rsocket_trio.replay import Element, Log, add_source
from tests.blocks import ROOT, blocks, page
from tests.each_row import ALL_CASES
from tests.missing import require
from tests.spark.cluster.standalone import SETTINGS, Cluster, cluster, confs, environment, spark_home, start
from tests.spark.session import require_spark
from tests.spark.sinks import Sink

pytestmark = pytest.mark.skipif(not ALL_CASES, reason="make cluster plays it")
ROWS = 500
"""Rows in each of two partitions."""
HERE = Path(__file__).parent
CONNECT = ROOT / "build" / "spark-connect"
"""The packages that a client of Spark Connect needs."""
VENV = ROOT / "build" / "spark-venv"
"""A venv of this package and pyarrow, without Spark."""


@pytest.fixture(autouse=True)
def nothing_is_left() -> None:
    """In place of the one for all tests: the cluster runs until the last of them."""


class Served(Sink):
    """A server with a source and a sink."""

    def __init__(self) -> None:
        source, responder = Log(partitions=2), Responder()
        trio.run(source.open)
        for partition in range(2):
            elements = [Element(b"%d" % (2 * number + partition)) for number in range(ROWS)]
            trio.run(source.append_all, {partition: elements})
        add_source(responder, "log", source)
        super().__init__(2, responder)

    def job(self, folder: Path, **more: Any) -> str:
        """Return the argument of the job."""
        read = {"path": self.uri, "route": "log", "positions": "server"}
        write = {"path": self.uri, "route": "orders", "delivery": "exactlyOnce"}
        return json.dumps({"read": read, "write": write, "folder": str(folder), **more})

    def numbers(self) -> Counter[int]:
        """Return how often each number counts."""
        return Counter(map(int, self.rows()))


SERVED_AT = "tcp://orders.example:7878"
"""The server of the page's code."""
CODE = {
    name: block.text
    for block in blocks(page("docs/spark-cluster.md"))
    for name, first in (("client", "# client.py"), ("pipeline", "# transformations/orders.py"))
    if block.text.startswith(first)
}
TWICE = Counter(dict.fromkeys(range(2 * ROWS), 2))
"""Each row once by the batch, and once by the stream."""


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_spark()
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.stop()


def found_by(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what a job found."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    found: dict[str, Any] = json.loads(lines[0].removeprefix("FOUND "))
    return found


def test_a_job_on_two_workers_reads_and_writes(spark_cluster: Cluster, served: Served, tmp_path: Path) -> None:
    done = spark_cluster.submit(HERE / "job.py", served.job(tmp_path), folder=tmp_path)

    assert found_by(done) == {"read": 2 * ROWS, "workers": 2}
    assert served.numbers() == TWICE


def test_an_archive_of_a_venv_serves_where_nothing_is_installed(
    spark_cluster: Cluster, served: Served, tmp_path: Path
) -> None:
    require(None if (VENV / ".built").exists() else "the venv is missing: make cluster")
    archive = tmp_path / "venv.tar.gz"
    subprocess.run([VENV / "bin" / "venv-pack", "--prefix", VENV, "--output", archive, "--quiet"], check=True)
    (tmp_path / "environment").symlink_to(VENV)
    env = environment(PYSPARK_PYTHON="./environment/bin/python", PYTHONPATH=None)
    done = spark_cluster.submit(
        HERE / "job.py", served.job(tmp_path), env=env, folder=tmp_path, archives=f"{archive}#environment"
    )

    assert found_by(done) == {"read": 2 * ROWS, "workers": 2}
    assert served.numbers() == TWICE


@pytest.fixture(scope="module")
def connect(spark_cluster: Cluster) -> Iterator[str]:
    """The URI of a server of Spark Connect on the cluster."""
    require(None if (CONNECT / ".built").exists() else "packages for Spark Connect are missing: make cluster")
    env = connect_environment()
    given = {
        **SETTINGS,
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.log.level": "INFO",
        "spark.sql.warehouse.dir": str(spark_cluster.folder / "tables"),
    }
    kind = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    server = start(
        [
            *(spark_home() / "bin" / "spark-submit", "--master", spark_cluster.url),
            *(*kind, *confs(given, env), "spark-internal"),
        ],
        spark_cluster.folder / "connect.log",
        {**env, "SPARK_DAEMON_MEMORY": "512m"},
    )
    try:
        yield f"sc://127.0.0.1:{server.wait_for(r'Spark Connect server started at: .*?:([0-9]+)')}"
    finally:
        server.stop()


def connect_environment() -> dict[str, str]:
    """Return the environment of a client of Connect."""
    return environment(PYTHONPATH=os.pathsep.join([str(ROOT), str(CONNECT)]))


def test_the_page_shows_a_client_of_connect(connect: str, spark_cluster: Cluster, served: Served) -> None:
    code = CODE["client"].replace("sc://spark.example:15002", connect).replace(SERVED_AT, served.uri)
    done = spark_cluster.run([sys.executable, "-c", code], connect_environment())

    assert done.stdout.split() == [str(2 * ROWS)], done.stderr


def test_a_declarative_pipeline_has_the_source_and_the_sink(
    connect: str, spark_cluster: Cluster, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: orders\nstorage: file://{tmp_path}/storage\nlibraries:\n  - glob:\n      include: transformations/**\n"
    )
    (tmp_path / "transformations" / "orders.py").write_text(CODE["pipeline"].replace(SERVED_AT, served.uri))
    done = spark_cluster.run(
        [spark_home() / "bin" / "spark-pipelines", "--remote", connect, "run"], connect_environment(), folder=tmp_path
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    assert served.numbers() == Counter(range(2 * ROWS))
