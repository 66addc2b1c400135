"""Kills a broker, servers or a driver in the middle of commits, and counts what is in the topic then.

Numbers are copied from one topic of Kafka to another: two servers serve both, and a query of Spark reads, stages and
commits batch after batch. What was killed is started again at once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Literal, TypeAlias

import attrs

from rsocket_trio.replay.kafka_client import Cluster
from tests.blocks import ROOT
from tests.kafka.broker import Broker, free_ports

Victim: TypeAlias = Literal["broker", "server", "driver"]
VICTIMS: tuple[Victim, ...] = ("broker", "server", "driver")
TOPICS = {"numbers": "numbers", "orders": "orders"}
SERVERS = 2
PATIENCE = 300.0
"""Seconds without any sign of life after which a run has failed."""


@attrs.define(eq=False)
class Child:
    """A process and what it says, each line with its name to one queue of all."""

    name: str
    words: list[str]
    lines: Queue[tuple[str, str]]
    process: subprocess.Popen[str] | None = None
    listener: threading.Thread | None = None

    def start(self) -> None:
        """Start it."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, *self.words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment,
            # Spark's driver has a Java of its own, which dies with it.
            start_new_session=True,
        )
        self.listener = threading.Thread(target=self._listen, args=(self.process,), daemon=True)
        self.listener.start()

    def tell(self, line: str) -> None:
        """Send a line to its stdin."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill it with SIGKILL, and what it started."""
        process, self.process = self.process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        if self.listener is not None:
            # Spark's workers have its output, and end by themselves.
            self.listener.join(30)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                self.lines.put((self.name, line.strip()))


@attrs.define
class Outcome:
    """The counts of a run: ``lost`` and ``twice`` are rows of the topic."""

    rounds: int = 0
    batches: int = 0
    restarts: int = 0
    lost: int = 0
    twice: int = 0
    foreign: int = 0

    @property
    def is_good(self) -> bool:
        """Return whether each row is there once."""
        return not (self.lost or self.twice or self.foreign)


class Run:
    """One run with a broker, two servers and a driver in ``scratch``."""

    def __init__(self, scratch: Path, *, rows: int, step: int, seed: int) -> None:
        self._scratch = scratch
        self._rows = rows
        self._step = step
        self._chance = random.Random(seed)
        self._lines: Queue[tuple[str, str]] = Queue()
        self.outcome = Outcome()
        self.broker = Broker(scratch / "kafka")
        self._uris = [f"tcp://127.0.0.1:{port}" for port in free_ports(SERVERS)]
        self._servers = [
            Child(
                f"server {number}",
                ["-m", "qa.kafka.server", json.dumps({"servers": self.broker.servers, "uri": uri, **TOPICS})],
                self._lines,
            )
            for number, uri in enumerate(self._uris)
        ]
        self._driver = Child("driver", ["-m", "tests.spark.kills.job", str(scratch / "spark")], self._lines)

    def play(self, victims: Sequence[Victim]) -> Outcome:
        """Kill each of ``victims`` in a commit, go on to the end, and count."""
        with self.broker, self._children():
            self._fill()
            for one in self._servers:
                one.start()
                self._wait_for("listening")
            self._start_driver()
            is_done = False
            while self.outcome.rounds < len(victims) and not is_done:
                found = self._wait_for("committing", "done")
                is_done = found[1].startswith("done")
                if not is_done and self._chance.random() < 0.5:
                    # At any moment of a commit, the first one among them.
                    time.sleep(self._chance.random() * 0.03)
                    self._strike(victims[self.outcome.rounds], found[0])
                    self.outcome.rounds += 1
            if not is_done:
                self._wait_for("done")
            self._count()
        return self.outcome

    @contextmanager
    def _children(self) -> Iterator[None]:
        with ExitStack() as stack:
            for one in (*self._servers, self._driver):
                stack.callback(one.kill)
            yield

    def _strike(self, victim: Victim, server: str) -> None:
        if victim == "broker":
            self.broker.kill()
            self.broker.start(wait=False)
        elif victim == "driver":
            self._driver.kill()
            self._start_driver()
        else:
            struck = next(one for one in self._servers if one.name == server)
            struck.kill()
            struck.start()
            self._wait_for(f"{server} listening")

    def _start_driver(self) -> None:
        self._driver.start()
        self._wait_for("ready")
        self._ask_spark()

    def _ask_spark(self) -> None:
        arguments = {"checkpoint": str(self._scratch / "checkpoint"), "partitions": 2, "rows_per_batch": 2 * self._step}
        self._driver.tell(json.dumps(["stream", ",".join(self._uris), arguments]))

    def _wait_for(self, *words: str) -> tuple[str, str]:
        """Wait for a line that begins with one of the words, and look after the driver meanwhile."""
        while True:
            try:
                name, line = self._lines.get(timeout=PATIENCE)
            except Empty:
                raise TimeoutError(f"nothing for {PATIENCE:g} s while waiting for {' or '.join(words)}") from None
            if line.startswith("promoted"):
                self.outcome.batches += 1
            if line.startswith("failed"):
                # As a supervisor does: the query is started again.
                self.outcome.restarts += 1
                self._ask_spark()
            if any(line.startswith(word) or f"{name} {line}".startswith(word) for word in words):
                return name, line

    def _fill(self) -> None:
        from confluent_kafka import Producer

        for topic in TOPICS.values():
            Cluster(self.broker.servers).make(topic, 2, 1, {})
        producer = Producer({"bootstrap.servers": self.broker.servers, "log_level": 0, "transactional.id": "filler"})
        producer.init_transactions(60)
        # Several transactions, some aborted: their markers and rows are gaps.
        for begin in range(0, self._rows, self._rows // 4 or 1):
            for aborted in (True, False):
                producer.begin_transaction()
                for number in range(begin, min(begin + (self._rows // 4 or 1), self._rows)):
                    producer.produce(TOPICS["numbers"], b"%d" % number, partition=number % 2)
                producer.flush()
                (producer.abort_transaction if aborted else producer.commit_transaction)(60)

    def _count(self) -> None:
        """Count what is in the topic, as any reader of Kafka sees it."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.servers,
                "group.id": "count",
                "log_level": 0,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(TOPICS["orders"], partition, 0) for partition in range(2)])
        found: Counter[bytes] = Counter()
        ends: set[int] = set()
        while len(ends) < 2:
            message = consumer.poll(PATIENCE)
            if message is None:
                raise TimeoutError("the topic can't be read to its end")
            if message.error() is not None:
                ends.add(message.partition() or 0)
            else:
                found[message.value() or b""] += 1
        consumer.close()
        wanted = {b"%d" % number for number in range(self._rows)}
        self.outcome.lost = len(wanted - found.keys())
        self.outcome.twice = sum(count - 1 for count in found.values())
        self.outcome.foreign = len(found.keys() - wanted)
