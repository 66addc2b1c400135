"""The supervisor of one part of a test run: the parent of its processes, which no hang of theirs can hold up.

It follows the journal of each process. An item that exceeds its limit, and is not ended by the process itself, is ended
from outside: all stacks are written, the process is killed with everything that descends from it, the item has failed,
and another process is started for the items that have not run.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from qa.testrun.descendants import become_subreaper, descendants, end_descendants, reap
from qa.testrun.journal import Reader
from qa.testrun.part import ORDERS, STACKS_SIGNAL, Orders

TICK: Final = 0.1
"""Seconds between two looks at the journals."""
GRACE: Final = 30.0
"""Seconds beyond its limit in which an item may still end by itself: its cancellation, its teardown."""
BETWEEN: Final = 150.0
"""Seconds that collecting a file may take, and the end of a process."""
STACKS_TIME: Final = 2.0
"""Seconds in which the stacks of a process must be written."""
COMMAND_LIMIT: Final = 7200.0
"""Seconds that a program of a part may take."""
NEWS_TIME: Final = 60.0
"""Seconds between two lines that say how far a part is."""


@attrs.define
class Result:
    """The outcome of one part."""

    part: str
    outcomes: dict[str, str] = attrs.Factory(dict)
    """What became of each item: passed, failed, skipped or xfailed."""
    failures: list[tuple[str, str]] = attrs.Factory(list)
    """Each failure once: its item, fixture or file, and the text of it."""
    skips: dict[str, int] = attrs.Factory(dict)
    """The number of items by the reason for which they were skipped."""
    again: list[str] = attrs.Factory(list)
    """Items that were run once more."""
    files: dict[str, list[float]] = attrs.Factory(dict)
    """Seconds, CPU seconds and items of each file."""
    restarts: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    @property
    def counts(self) -> Counter[str]:
        """The number of items by outcome."""
        return Counter(self.outcomes.values())

    def write(self, folder: Path) -> None:
        """Write it where the table of all parts reads it."""
        (folder / f"{self.part}.json").write_text(json.dumps(attrs.asdict(self)), "utf-8")

    @classmethod
    def read(cls, path: Path) -> Result:
        """Return what a part wrote."""
        return cls(**json.loads(path.read_text("utf-8")))


class Process:
    """One process of a part: what runs in it, since when, and how long that may take."""

    def __init__(self, supervisor: Supervisor, worker: int) -> None:
        self._supervisor = supervisor
        self.worker = worker
        self.done: list[str] = []
        self.items = 0
        """Those of the files that it has collected."""
        self.ignored: list[str] = []
        """Files that could not be collected in time."""
        self.ended = False
        self._reader = Reader(self._orders.journal)
        self._start()

    @property
    def _orders(self) -> Orders:
        supervisor = self._supervisor
        return Orders(str(supervisor.folder), self.worker, supervisor.workers, list(supervisor.hung.values()))

    def _start(self) -> None:
        orders = self._orders
        orders.write(self.done)
        self.item: str | None = None
        self.collecting: str | None = None
        self.fixture: dict[str, Any] | None = None
        self.failed: str | None = None
        self._is_over = False
        self._is_killed = False
        self._expects(BETWEEN)
        command = [*self._supervisor.command, *(f"--ignore={path}" for path in self.ignored)]
        log = os.open(self._supervisor.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self.pid = os.posix_spawnp(
                command[0],
                command,
                os.environ | {ORDERS: str(orders.path)},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                ],
                setsid=True,
            )
        finally:
            os.close(log)

    def _expects(self, seconds: float) -> None:
        self._limit = seconds
        self._since = time.monotonic()

    @property
    def is_late(self) -> bool:
        """Return whether what it does takes longer than it may."""
        return time.monotonic() > self._since + self._limit

    def read(self) -> None:
        """Take in what the journal says."""
        for event in self._reader.read():
            getattr(self, f"_on_{event.pop('event')}")(**event)

    def _on_collect(self, file: str) -> None:
        self.collecting = file
        self._expects(BETWEEN)

    def _on_broken(self, file: str, text: str) -> None:
        self._supervisor.fail_once(file, text)

    def _on_collected(self, items: int) -> None:
        self.collecting = None
        self.items = max(items, self.items)
        self._expects(BETWEEN)

    def _on_needs(self, item: str, fixture: str) -> None:
        self.done.append(item)
        self._supervisor.lack(item, fixture)

    def _on_start(self, item: str, limit: float) -> None:
        self.item = item
        self.failed = None
        self.fixture = None
        self._outcome = "passed"
        self._expects(limit + self._supervisor.grace)

    def _on_fixture(self, **fixture: Any) -> None:
        self.fixture = fixture

    def _on_ready(self, name: str) -> None:
        self.fixture = None

    def _on_report(self, item: str, outcome: str, when: str, text: str) -> None:
        result = self._supervisor.result
        if outcome == "rerun":
            result.again.append(item)
            self.failed = None
            self._outcome = "passed"
        elif outcome in ("failed", "xpassed"):
            self._outcome = "failed"
            self.failed = f"{self.failed}\n\n{text}" if self.failed else f"in {when}:\n{text}"
        elif self._outcome != "failed":
            self._outcome = "skipped" if outcome == "skipped" else "xfailed"
            if outcome == "skipped":
                reason = text.removeprefix("Skipped: ")
                result.skips[reason] = result.skips.get(reason, 0) + 1

    def _on_finish(self, item: str, seconds: float, cpu: float, *, hung: bool, fixture: dict[str, Any] | None) -> None:
        self.item = None
        self.done.append(item)
        self._supervisor.finish(item, self._outcome, self.failed, fixture, seconds, cpu)
        self._expects(BETWEEN)
        if hung and not self._is_killed:
            self._again()

    def _on_end(self) -> None:
        self._is_over = True
        self._expects(BETWEEN)

    def on_exit(self, status: int) -> None:
        """Go on after the process has ended by itself: at the end of its items, or before."""
        self.read()
        code = os.waitstatus_to_exitcode(status)
        cause = f"signal {-code}" if code < 0 else f"exit status {code}"
        if self._is_over and code in (0, 1, 5):
            self._stop()
        elif self.item is not None:
            self._fail_item(f"ended the process of the tests: {cause}")
            self._again()
        else:
            self._supervisor.fail("the process of the tests", f"ended early: {cause}\n{self._supervisor.log_end()}")
            self._stop()

    def on_late(self) -> None:
        """End from outside what takes longer than it may."""
        late = item, collecting, was_over = self.item, self.collecting, self._is_over
        where = item or collecting or "the process of the tests"
        text = f"did not end {self._limit:g} s after its start, and was killed\n\n{self._evidence()}"
        self._kill()
        self.read()  # what it wrote until then
        if late != (self.item, self.collecting, self._is_over):
            self._again()  # it was about to go on
        elif item is not None:
            self._fail_item(text)
            self._again()
        elif collecting is not None:
            self._supervisor.fail(where, f"collection {text}")
            self.ignored.append(collecting)
            self._again()
        else:
            self._supervisor.fail(where, f"{text}\nAll of its items had run." if was_over else text)
            self._stop()

    def _fail_item(self, text: str) -> None:
        assert self.item is not None
        seconds = time.monotonic() - self._since
        self.done.append(self.item)
        if self.fixture is not None:
            text = f"hung in the set-up of the fixture {self.fixture['name']!r}: {text}"
        failed = f"{text}\n\n{self.failed}" if self.failed else text
        self._supervisor.finish(self.item, "failed", failed, self.fixture, seconds, 0.0)

    def _evidence(self) -> str:
        """Return the stacks of the process and the list of those below it."""
        path = self._orders.stacks
        before = path.stat().st_size if path.exists() else 0
        below = "\n".join(map(str, descendants()))
        try:
            os.kill(self.pid, STACKS_SIGNAL)
        except ProcessLookupError:
            return "it was gone"
        deadline = time.monotonic() + STACKS_TIME
        written = before
        while time.monotonic() < deadline:
            time.sleep(TICK)
            size = path.stat().st_size if path.exists() else 0
            if size > before and size == written:
                break
            written = size
        stacks = path.read_text("utf-8", "replace")[before:] if path.exists() else ""
        return f"{stacks or 'It wrote no stacks: it is stopped, or had not begun.'}\nProcesses:\n{below}"

    def _again(self) -> None:
        if not self._is_killed:
            self._kill()
        self._supervisor.result.restarts += 1
        self._start()

    def _kill(self) -> None:
        self._is_killed = True
        self._supervisor.kill(self)

    def _stop(self) -> None:
        self.ended = True
        self._reader.close()


class Supervisor:
    """Runs the items of one part in one or more processes of pytest."""

    def __init__(
        self, part: str, command: Sequence[str], folder: Path, *, workers: int = 1, grace: float = GRACE
    ) -> None:
        self.command = list(command)
        self.workers = workers
        self.grace = grace
        self.folder = folder / part
        (self.folder / "taken").mkdir(parents=True)
        self.log = self.folder / "output.txt"
        self.result = Result(part)
        self.hung: dict[str, dict[str, Any]] = {}
        """Fixtures that hung, by name and parameter."""
        self._lacking: dict[str, list[str]] = {}
        """Items that could not run, by the name of a fixture that hung."""
        self._parent = folder
        self._processes: list[Process] = []
        self._statuses: dict[int, int] = {}
        """Wait statuses of processes that have ended, by their id."""

    def run(self) -> Result:
        """Run everything and return the result, which is also written."""
        become_subreaper()
        start = time.monotonic()
        news = start + NEWS_TIME
        try:
            self._processes = [Process(self, worker) for worker in range(self.workers)]
            while running := [process for process in self._processes if not process.ended]:
                time.sleep(TICK)
                self._statuses |= reap()
                for process in running:
                    process.read()
                    if process.pid in self._statuses:
                        process.on_exit(self._statuses.pop(process.pid))
                    elif process.is_late:
                        process.on_late()
                if time.monotonic() > news:
                    news = time.monotonic() + NEWS_TIME
                    self._say(f"{len(self.result.outcomes)} items in {time.monotonic() - start:.0f} s")
        finally:
            end_descendants()
        collected = sum(process.items for process in self._processes)
        missing = collected - len(self.result.outcomes)
        if missing > 0:
            self.fail("items that did not run", f"{missing} of {collected}\n{self.log_end()}")
        for name, items in self._lacking.items():
            listed = "\n".join(f"  {item}" for item in items)
            self.result.failures = [
                (item, f"{text}\n\nNot run, for they need {name!r}:\n{listed}" if f"fixture {name!r}" in text else text)
                for item, text in self.result.failures
            ]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.result.wall = time.monotonic() - start
        self.result.cpu = used.ru_utime + used.ru_stime
        self.result.write(self._parent)
        return self.result

    def kill(self, process: Process) -> None:
        """Kill a process and all that descends from it: everything, where it is the only one."""
        others = {one.pid for one in self._processes if one is not process and not one.ended}
        self._statuses |= end_descendants(spare=others)
        self._statuses.pop(process.pid, None)

    def fail(self, name: str, text: str) -> None:
        """Note a failure, and say it at once."""
        self.result.failures.append((name, text))
        self._say(f"FAILED {name}\n{text}")

    def fail_once(self, file: str, text: str) -> None:
        """Note that a file can't be collected, though each process of the part says so."""
        if all(name != file for name, _ in self.result.failures):
            self.fail(file, text)

    def finish(
        self, item: str, outcome: str, failed: str | None, fixture: dict[str, Any] | None, seconds: float, cpu: float
    ) -> None:
        """Note the outcome of an item. The failure of a fixture that hung is the first item's alone."""
        if fixture is not None:
            key = f"{fixture['base']} {fixture['name']} {fixture['param']}"
            if key in self.hung:
                self.lack(item, fixture["name"])
                return
            self.hung[key] = fixture
        self.result.outcomes[item] = outcome
        totals = self.result.files.setdefault(item.partition("::")[0], [0.0, 0.0, 0.0])
        totals[:] = [totals[0] + seconds, totals[1] + cpu, totals[2] + 1]
        if outcome == "failed":
            self.fail(item, failed or "")

    def lack(self, item: str, fixture: str) -> None:
        """Note an item that can't run, since a fixture hung."""
        self.result.outcomes[item] = "not run"
        self._lacking.setdefault(fixture, []).append(item)

    def log_end(self) -> str:
        """Return the last lines that its processes printed."""
        return self.log.read_text("utf-8", "replace")[-4000:]

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{self.result.part}: {text}\n")
        sys.stdout.flush()


def run_command(part: str, commands: Sequence[Sequence[str]], folder: Path) -> Result:
    """Run programs one after the other as a part, each as an item; the programs print for themselves."""
    become_subreaper()
    result = Result(part)
    start = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    for command in commands:
        name = " ".join(command)
        began = time.monotonic()
        try:
            status = _status_of(os.posix_spawnp(command[0], list(command), os.environ), began + COMMAND_LIMIT)
        finally:
            end_descendants()
        result.outcomes[name] = "passed" if status == 0 else "failed"
        result.files[name] = [time.monotonic() - began, 0.0, 1]
        if status is None:
            result.failures.append((name, f"did not end within {COMMAND_LIMIT:g} s, and was killed"))
        elif status != 0:
            result.failures.append((name, f"exit status {status}"))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result.wall, result.cpu = time.monotonic() - start, used.ru_utime + used.ru_stime
    result.write(folder)
    return result


def _status_of(pid: int, deadline: float) -> int | None:
    """Wait for a process and return its exit status, or ``None`` at the deadline."""
    while time.monotonic() < deadline:
        statuses = reap()
        if pid in statuses:
            return os.waitstatus_to_exitcode(statuses[pid])
        time.sleep(TICK)
    return None


def stop_on_signals() -> None:
    """Have SIGTERM and SIGHUP end this program as Ctrl-C does: with all that descends from it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(128))
