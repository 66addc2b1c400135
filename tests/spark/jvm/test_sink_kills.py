"""Driver, worker and server are killed where it hurts most; the server's ledger shows that each row is there once.

``make test`` plays the first one; ``make gate`` plays all.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from rsocket_trio import open_connection
from rsocket_trio.spark import register
from tests.blocks import ROOT
from tests.each_row import whole
from tests.spark.kills.job import dying_source, stream, write
from tests.spark.kills.processes import SOURCE_RUNNER, WORKER, kill_started
from tests.spark.session import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 240.0
"""Seconds that one step may take on a busy machine."""
AWAY = 4.0
"""Seconds for which a server that was killed stays away."""


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    """Spark needs one, here as well."""
    require_spark()


class Process:
    """A program of the kills, and the lines that it prints. It ends with everything that it started."""

    def __init__(self, name: str, argument: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.spark.kills.{name}", argument],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.seen: list[str] = []

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.strip())
        self._lines.put(None)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def tell(self, *words: object) -> None:
        """Say a line to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def reads(self, pattern: str) -> str:
        """Wait for a line."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError("\n".join([f"{pattern!r} did not come:", *self.seen]))
            self.seen.append(line)
            if re.fullmatch(pattern, line):
                return line
            if line.startswith("failed"):
                raise AssertionError("\n".join(self.seen))

    def kill(self) -> None:
        """Kill it and what it started, at once."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        # Spark's workers have a group of their own, and end when they find its JVM gone.
        self._reader.join(PATIENCE)


@contextmanager
def server_of(directory: Path, uri: str = "tcp://127.0.0.1:0", **given: Any) -> Iterator[tuple[Process, str]]:
    """A server with a ledger on files, and its URI."""
    started = Process("server", json.dumps({"directory": str(directory), "uri": uri, **given}))
    try:
        yield started, started.reads("listening .*").split()[1]
    finally:
        started.kill()


@contextmanager
def session_in(scratch: Path) -> Iterator[Process]:
    """A Spark session in a process of its own."""
    started = Process("job", str(scratch))
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def session(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A session that may be killed, in a process of its own."""
    with session_in(tmp_path_factory.mktemp("spark")) as started:
        started.reads("ready")
        yield started


def ledger(uri: str) -> Counter[int]:
    """Return how often each number counts at the server."""

    async def ask() -> bytes:
        with trio.fail_after(PATIENCE):
            async with open_connection(uri) as connection:
                return (await connection.request_response(route="dump")).data

    return Counter(map(int, json.loads(trio.run(ask))))


def once(count: int) -> Counter[int]:
    return Counter(range(count))


def test_a_worker_killed_after_staging_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(dying_source(tmp_path / "died"))
    with server_of(tmp_path / "ledger") as (_, uri):
        write(spark, uri, 2000, format="dying", delivery="exactlyOnce")
        assert (tmp_path / "died").exists()
        assert ledger(uri) == once(2000)


@whole
def test_tasks_and_a_streaming_source_killed_in_the_middle_lose_and_repeat_nothing(
    session: Process, tmp_path: Path
) -> None:
    batches, rows = 9, 2700
    with server_of(tmp_path / "ledger", source_rows=rows) as (server, uri):

        def job(partitions: int) -> tuple[str, str, dict[str, object]]:
            checkpoint = str(tmp_path / "checkpoint")
            return (
                "stream",
                uri,
                {"checkpoint": checkpoint, "partitions": partitions, "rows_per_batch": rows // batches},
            )

        session.tell(*job(2))
        # Wherever they are then, reading or staging: Spark repeats their tasks, and the query goes on.
        for batch in (1, 3, 5):
            server.reads(f"promoted {batch}")
            assert kill_started(session.pid, WORKER) >= 1
        server.reads("promoted 6")
        assert kill_started(session.pid, SOURCE_RUNNER) >= 1
        # Spark ends the query with that process: it has to be started again, here with other partitions.
        session.reads("failed stream .*")
        found = ledger(uri)
        assert set(found.values()) == {1}
        assert len(found) < rows
        session.tell(*job(3))
        session.reads("done stream")
        assert ledger(uri) == once(rows)


@whole
@pytest.mark.parametrize(
    ("given", "rows"),
    [({"delivery": "exactlyOnce"}, 400_000), ({"inFlight": "1000"}, 15_000)],
    ids=["exactlyOnce", "atLeastOnce"],
)
def test_a_server_killed_in_the_middle_loses_nothing(
    given: dict[str, str], rows: int, session: Process, tmp_path: Path
) -> None:
    with server_of(tmp_path / "ledger", tell_after=rows // 3) as (server, uri):
        session.tell("write", uri, {"rows": rows, **given})
        server.reads("took .*")
        server.kill()
        # How long it is away is what this is about.
        time.sleep(AWAY)
        with server_of(tmp_path / "ledger", uri):
            session.reads("done write")
            found = ledger(uri)

    if given.get("delivery") == "exactlyOnce":
        assert found == once(rows)
    else:
        assert set(found) == set(range(rows))


@whole
def test_a_driver_killed_between_the_commit_and_sparks_own_repeats_nothing(
    session: Process, spark: SparkSession, tmp_path: Path
) -> None:
    """The last test here: it kills the session that the others use, and goes on in that of all tests."""
    register(spark)
    checkpoint = str(tmp_path / "checkpoint")
    with server_of(tmp_path / "ledger", source_rows=3000, hold=1) as (server, uri):
        session.tell("stream", uri, {"checkpoint": checkpoint, "partitions": 2, "rows_per_batch": 1000})
        # Promoted, and the driver does not know: its commit log ends with the batch before.
        server.reads("promoted 1")
        session.kill()
        assert sorted(path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")) == ["0"]
        assert ledger(uri) == once(2000)

        stream(spark, uri, checkpoint, partitions=3, rows_per_batch=1000)
        server.reads("repeated 1")
        server.reads("promoted 2")
        assert ledger(uri) == once(3000)
