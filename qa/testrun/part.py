"""A pytest plugin: a part of the test run tells its supervisor what it does, and runs what it is told to.

The supervisor names a file of orders in the environment variable ``ORDERS``; without it the plugin does nothing.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from qa.testrun.descendants import end_with_parent
from qa.testrun.journal import Writer
from qa.testrun.limits import Fixture, Limits

ORDERS: Final = "RSOCKET_TRIO_TEST_ORDERS"
STACKS_SIGNAL: Final = signal.SIGUSR1
"""Has a part write the stacks of its threads, even while its main thread is in C."""


@attrs.frozen
class Orders:
    """What a process of a part is to run, and where it writes."""

    folder: str
    """That of the part, which its processes share."""
    worker: int
    of: int
    """The number of processes that share the items, file by file."""
    hung: list[dict[str, Any]]
    """Fixtures that hung: an item that needs one does not run."""

    @property
    def path(self) -> Path:
        """Where they are written."""
        return Path(self.folder) / f"orders-{self.worker}.json"

    @property
    def journal(self) -> Path:
        """Return the journal, which restarts go on with."""
        return Path(self.folder) / f"journal-{self.worker}.jsonl"

    @property
    def stacks(self) -> Path:
        """Return where the stacks of a process that hangs are written."""
        return Path(self.folder) / f"stacks-{self.worker}.txt"

    @property
    def done(self) -> Path:
        """Return the list of items that need no run any more."""
        return Path(self.folder) / f"done-{self.worker}.json"

    def write(self, done: list[str]) -> None:
        """Write them, and the items that have been run."""
        self.done.write_text(json.dumps(done), "utf-8")
        self.path.write_text(json.dumps(attrs.asdict(self)), "utf-8")

    @classmethod
    def read(cls, path: str) -> Orders:
        """Return the orders that a file holds."""
        return cls(**json.loads(Path(path).read_text("utf-8")))


class Part:
    """Writes the journal, and leaves out what is done or can't be."""

    def __init__(self, orders: Orders, limits: Limits) -> None:
        self._orders = orders
        self._limits = limits
        self._journal = Writer(orders.journal)
        self._done = set(json.loads(orders.done.read_text("utf-8")))
        self._hung = [Fixture(**one) for one in orders.hung]
        self._cpu = 0.0
        self._seconds = 0.0
        self._collected = 0
        self._files: list[pytest.File] = []
        """Those that are collected when a process takes them: none is imported by two processes."""
        self._takes = orders.of == 1
        self._stacks = orders.stacks.open("w")
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        if not isinstance(collector, pytest.File):
            return None
        if self._takes:
            self._journal.write("collect", file=collector.nodeid)
            return None
        self._files.append(collector)
        return pytest.CollectReport(collector.nodeid, "passed", None, [])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._journal.write("broken", file=report.nodeid, text=report.longreprtext)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        left = []
        for item in items:
            hung = next((fixture for fixture in self._hung if fixture.is_needed_by(item)), None)
            if item.nodeid in self._done:
                continue
            if hung is not None:
                self._journal.write("needs", item=item.nodeid, fixture=hung.name)
            else:
                left.append(item)
        self._collected += len(items)
        if self._takes:
            self._journal.write("collected", items=self._collected)
        items[:] = left

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run the items of the files that this process is the first to take. See ``_pytest.main``."""
        if self._orders.of == 1:
            return None
        self._takes = True
        taken = self._taken(session)
        item = next(taken, None)
        while item is not None:
            following = next(taken, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = following
        return True

    def _taken(self, session: pytest.Session) -> Iterator[pytest.Item]:
        for file in self._files:
            if self._take(file.path):
                items = list(session.genitems(file))
                session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=items)
                session.testscollected += len(items)
                yield from items

    def _take(self, path: Path) -> bool:
        """Return whether this process is the one that runs a file: the first to ask, and the same after a restart."""
        name = path.as_posix().replace("/", "%")
        claim = Path(self._orders.folder) / "taken" / name
        try:
            descriptor = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return claim.read_text("utf-8") == str(self._orders.worker)
        os.write(descriptor, str(self._orders.worker).encode())
        os.close(descriptor)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        self._journal.write("start", item=item.nodeid, limit=settings.timeout)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self) -> Iterator[None]:
        fixture = self._limits.shared_fixture
        if fixture is None:
            return (yield)
        self._journal.write("fixture", **attrs.asdict(fixture))
        try:
            return (yield)
        finally:
            self._journal.write("ready", name=fixture.name)

    def pytest_runtest_logstart(self) -> None:
        self._seconds, self._cpu = times()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed" or hasattr(report, "wasxfail"):
            xfailed = hasattr(report, "wasxfail")
            text = report.wasxfail if xfailed else report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
            outcome = f"x{report.outcome}" if xfailed else report.outcome
            sections = "".join(f"\n--- {name} ---\n{content}" for name, content in report.sections)
            self._journal.write(
                "report",
                item=report.nodeid,
                when=report.when,
                outcome=outcome,
                text=text or report.longreprtext + sections[-20_000:],
            )

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds, cpu = times()
        expiry = next((expiry for expiry in self._limits.expired if expiry.item == nodeid), None)
        fixture = attrs.asdict(expiry.fixture) if expiry is not None and expiry.fixture is not None else None
        self._journal.write(
            "finish",
            item=nodeid,
            seconds=seconds - self._seconds,
            cpu=cpu - self._cpu,
            hung=expiry is not None,
            fixture=fixture,
        )
        if expiry is not None:
            # What was left half done may hold up others: the supervisor ends this process with all that it started,
            # and starts another for the rest.
            signal.pause()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        self._journal.write("end")
        # The plugin's own file would be reported as unclosed.
        faulthandler.unregister(STACKS_SIGNAL)
        self._stacks.close()


def times() -> tuple[float, float]:
    """Return seconds since some moment, and CPU seconds of this process and of the children that it waited for."""
    now = os.times()
    return time.monotonic(), now.user + now.system + now.children_user + now.children_system


def pytest_configure(config: pytest.Config) -> None:
    """Register the limits, and the part where a supervisor asks for one."""
    limits = Limits()
    config.pluginmanager.register(limits, "limits")
    orders = os.environ.pop(ORDERS, None)  # not for the runs of pytest that tests start
    if orders is not None:
        end_with_parent()
        config.pluginmanager.register(Part(Orders.read(orders), limits), "part")
