"""``python -m qa.spark_kills [--rounds N]``: a streaming query whose processes are killed, one kind after the other.

The query moves numbers from a server's log to its ledger, exactly once. Driver, Python workers, the runner of the
source, executors of a cluster of two, and the server are killed N times each (6), at random moments of its batches. At
the end each number has to be in the ledger once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.spark.cluster.standalone import SETTINGS, cluster
from tests.spark.jvm.test_sink_kills import Process, ledger
from tests.spark.kills.processes import SOURCE_RUNNER, WORKER, kill_started

ROUNDS = 6
ROWS_PER_BATCH = 100
BATCHES_PER_KILL = 3
MAX_DELAY = 0.5
"""Seconds between a batch's promotion and a kill, at most: long enough for the next batch to be staged."""
EXECUTOR = "CoarseGrainedExecutorBackend"


class Query:
    """The server, and the Spark session whose query reads it and writes to it; both are started again when killed."""

    def __init__(self, folder: Path, rows: int, master: str | None) -> None:
        self._folder = folder
        self._master = master
        self.rows = rows
        self.uri = "tcp://127.0.0.1:0"
        self.starts = 0
        self.serve()
        self.start_session()

    def serve(self) -> None:
        """Start the server, where it was before."""
        terms = {"directory": str(self._folder / "ledger"), "uri": self.uri, "source_rows": self.rows, "is_kept": True}
        self.server = Process("server", json.dumps(terms))
        self.uri = self.server.reads("listening .*").split()[1]

    def start_session(self) -> None:
        """Start the driver, and the query in it."""
        environment = (
            {} if self._master is None else {"KILLS_MASTER": self._master, "KILLS_SETTINGS": json.dumps(dict(SETTINGS))}
        )
        os.environ |= environment
        try:
            self.session = Process("job", str(self._folder))
        finally:
            for name in environment:
                del os.environ[name]
        self.session.reads("ready")
        self.start()

    def start(self) -> None:
        """Start the query, which goes on where it was."""
        self.starts += 1
        checkpoint = str(self._folder / "checkpoint")
        terms = {"checkpoint": checkpoint, "partitions": 2, "rows_per_batch": ROWS_PER_BATCH}
        self.session.tell("stream", self.uri, terms)

    def end(self) -> None:
        """Wait until the query has moved everything. One that failed because of a kill is started again."""
        while self.session.reads("(done|failed) stream.*").startswith("failed"):
            self.start()

    def close(self) -> None:
        """End both."""
        self.session.kill()
        self.server.kill()


def kill_driver(query: Query) -> None:
    query.session.kill()
    query.start_session()


def kill_runner(query: Query) -> None:
    # Spark ends a query whose source has lost its runner.
    if kill_started(query.session.pid, SOURCE_RUNNER):
        query.session.reads("failed stream.*")
        query.start()


def kill_server(query: Query) -> None:
    query.server.kill()
    query.serve()


VICTIMS: dict[str, Callable[[Query], object]] = {
    "driver": kill_driver,
    "Python workers": lambda query: kill_started(query.session.pid, WORKER),
    "runner": kill_runner,
    "executors": lambda query: kill_started(os.getpid(), EXECUTOR),
    "server": kill_server,
}


@contextmanager
def running(folder: Path, rows: int, victim: str) -> Iterator[Query]:
    """A query of ``rows``, on a cluster of two workers where executors are to be killed."""
    with ExitStack() as stack:
        (folder / "cluster").mkdir()
        master = stack.enter_context(cluster(folder / "cluster")).url if victim == "executors" else None
        query = Query(folder, rows, master)
        stack.callback(query.close)
        yield query


def play(victim: str, rounds: int, chance: random.Random) -> bool:
    """Kill one kind of process ``rounds`` times. Print what came of it, and return whether it is good."""
    began = time.monotonic()
    rows = ROWS_PER_BATCH * BATCHES_PER_KILL * (rounds + 2)
    with tempfile.TemporaryDirectory() as scratch, running(Path(scratch), rows, victim) as query:
        for _ in range(rounds):
            query.server.reads(r"promoted \d+")
            time.sleep(chance.uniform(0, MAX_DELAY))
            VICTIMS[victim](query)
        query.end()
        counts = ledger(query.uri)
        starts = query.starts
    lost, twice = rows - len(counts), sum(count > 1 for count in counts.values())
    good = not lost and not twice and set(counts) == set(range(rows))
    print(
        f"{victim} killed {rounds} times in {rows} rows, query started {starts} times: lost {lost}, twice {twice}, "
        f"{time.monotonic() - began:.0f} s: {'good' if good else 'BAD'}",
        flush=True,
    )
    return good


def main() -> int:
    """Play all kinds, or the one that is named."""
    parser = argparse.ArgumentParser(prog="python -m qa.spark_kills", description="kill what Spark has started")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"kills of each kind ({ROUNDS})")
    parser.add_argument("--victim", choices=list(VICTIMS), action="append", help="only this kind")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (1)")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    results = [play(victim, options.rounds, chance) for victim in options.victim or VICTIMS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
