"""Kills of writers of a log and a ledger: nothing acknowledged is lost, nothing comes twice, no commit is half done."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

import apsw
import trio

from qa.log.child import ROWS, TASKS, started
from rsocket_trio.replay import Ledger, Log

START_SECONDS = 60


class Writer:
    """A process that writes, and what it has acknowledged: the last number of each of its tasks."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.acknowledged: dict[int, int] = {}
        self._reading = Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                *task, number = map(int, line.split())
                self.acknowledged[task[0] if task else 0] = number

    def wait(self) -> None:
        """Wait for the next acknowledgement."""
        known = dict(self.acknowledged)
        deadline = time.monotonic() + START_SECONDS
        while self.acknowledged == known and time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.001)
        assert time.monotonic() < deadline, "a writer hangs"

    def kill(self) -> str | None:
        """Kill it, and read all that it said. Return what is wrong, if it ended by itself or said nothing."""
        self.process.send_signal(signal.SIGKILL)
        code = self.process.wait()
        self._reading.join()
        return None if self.acknowledged and code == -signal.SIGKILL else f"the writer ended by itself, with {code}"


def damage(path: Path) -> list[str]:
    """Return what SQLite itself finds wrong with a file, and what the reserves of a log leave out."""
    connection = apsw.Connection(str(path))
    found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check") if line != "ok"]
    lost = connection.execute("SELECT count(*) FROM bodies WHERE id NOT IN (SELECT body FROM places)").get
    connection.close()
    return found + ([f"{lost} bodies belong to nothing"] if lost else [])


class Rows:
    """The rows of a log that are known, so that each round reads those that are new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ends: dict[int, int] = {}

    async def new(self) -> tuple[list[list[str]], int | None]:
        """Return the rows of each partition that came since the last time, and the last batch of the sink."""
        found: list[list[str]] = []
        async with Log(self.path, 2) as log, Ledger(log) as ledger:
            for partition in log.partitions():
                earliest, latest = log.bounds(partition)
                start = max(self.ends.get(partition, 0), earliest)
                found.append([(one.data or b"").decode() async for one in log.read(partition, start, latest)])
                self.ends[partition] = latest
            return found, ledger.last("sink")


def kill_log(folder: Path, rounds: int, chance: random.Random, writers: int = 1) -> Iterator[str]:
    """Kill processes that append to one file, one after the other. Yield what is wrong."""
    rows = Rows(folder / f"log-{writers}")
    for round_ in range(rounds):
        with ExitStack() as stack:
            running = {
                f"{round_}-{n}": Writer(stack.enter_context(started("append", rows.path, f"{round_}-{n}")))
                for n in range(writers)
            }
            for writer in running.values():
                writer.wait()
            for number, writer in enumerate(running.values()):
                if number:
                    writer.wait()  # the death of another does not stop it
                time.sleep(chance.uniform(0.01, 0.4))
                if (problem := writer.kill()) is not None:
                    yield f"round {round_}: {problem}"
        yield from (f"round {round_}: {line}" for line in damage(rows.path))
        first, second = trio.run(rows.new)[0]
        expected = 0
        for name, writer in running.items():
            for task in range(TASKS):
                own = [row for row in first if row.startswith(f"{name} {task} ")]
                expected += len(own)
                known = writer.acknowledged.get(task, -1)
                if own != [f"{name} {task} {n // ROWS} {n % ROWS}" for n in range(len(own))]:
                    yield f"round {round_}: rows of task {task} are out of order, missing or there twice"
                if len(own) // ROWS - 1 not in (known, known + 1) or len(own) % ROWS:
                    yield f"round {round_}: {len(own)} rows of task {task}, and {known + 1} appends are acknowledged"
        if len(first) != expected or second != first[len(first) - len(second) :]:
            yield f"round {round_}: {len(first)} and {len(second)} rows, {expected} are expected in both partitions"


def kill_ledger(folder: Path, rounds: int, chance: random.Random) -> Iterator[str]:
    """Kill a process that commits batches, which does the last again when it is back. Yield what is wrong."""
    rows = Rows(folder / "ledger")
    begin = done = 0
    for round_ in range(rounds):
        with started("commit", rows.path, round_, begin) as process:
            writer = Writer(process)
            writer.wait()
            time.sleep(chance.uniform(0.0, 0.3))
            if (problem := writer.kill()) is not None:
                yield f"round {round_}: {problem}"
        yield from (f"round {round_}: {line}" for line in damage(rows.path))
        found, last = trio.run(rows.new)
        acknowledged = writer.acknowledged.get(0, begin - 1)
        if last is None or last not in (acknowledged, acknowledged + 1):
            yield f"round {round_}: the last batch is {last}, and {acknowledged} is acknowledged"
            return
        expected = [f"{batch} {row}" for batch in range(done, last + 1) for row in range(ROWS)]
        if found != [expected, expected]:
            yield f"round {round_}: {[len(some) for some in found]} rows of batches {done} to {last}: {len(expected)}"
        begin, done = acknowledged + 1, last + 1


def play(folder: Path, log: int = 40, ledger: int = 40, both: int = 12, seed: int = 1) -> list[str]:
    """Play so many rounds of each. Return what is wrong."""
    chance = random.Random(seed)
    wrong = [f"log: {line}" for line in kill_log(folder, log, chance)]
    wrong += [f"ledger: {line}" for line in kill_ledger(folder, ledger, chance)]
    wrong += [f"two writers: {line}" for line in kill_log(folder, both, chance, 2)]
    print(f"kills: {log} of the log, {ledger} of the ledger, {both} of two writers", flush=True)
    return wrong
