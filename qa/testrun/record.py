"""A pytest plugin: it records what became of the items of a part, with what each took, and writes the result."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

RESULT: Final = "RSOCKET_TRIO_RESULT"
"""The variable that names the file to write. Without it nothing is recorded."""


@attrs.define
class Result:
    """The outcome of one part."""

    part: str
    outcomes: dict[str, str] = attrs.Factory(dict)
    """The outcome of each item: passed, failed, skipped or xfailed."""
    failures: list[tuple[str, str]] = attrs.Factory(list)
    """Items, files or programs that failed, and why."""
    skips: dict[str, int] = attrs.Factory(dict)
    """The number of items by the reason for which they were skipped."""
    again: list[str] = attrs.Factory(list)
    """Items that were run once more."""
    files: dict[str, list[float]] = attrs.Factory(dict)
    """Seconds, CPU seconds and items of each file."""
    wall: float = 0.0
    cpu: float = 0.0

    @property
    def counts(self) -> Counter[str]:
        """The number of items by outcome."""
        return Counter(self.outcomes.values())

    def write(self, path: Path) -> None:
        """Write it where the table of all parts reads it."""
        path.write_text(json.dumps(attrs.asdict(self)), "utf-8")

    @classmethod
    def read(cls, path: Path) -> Result:
        """Return what a part wrote."""
        return cls(**json.loads(path.read_text("utf-8")))


class Recorder:
    """Gathers the reports of all processes of a part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._result = Result(path.stem)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that can't be collected, though each process says so."""
        if report.failed and all(name != report.nodeid for name, _ in self._result.failures):
            self._result.failures.append((report.nodeid, report.longreprtext))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note one phase of an item."""
        result, item = self._result, report.nodeid
        file = result.files.setdefault(item.partition("::")[0], [0.0, 0.0, 0.0])
        file[:] = [file[0] + report.duration, file[1] + getattr(report, "cpu", 0.0), file[2]]
        outcome: str = f"x{report.outcome}" if hasattr(report, "wasxfail") else report.outcome
        if outcome == "rerun":
            result.again.append(item)
            return
        before = result.outcomes.get(item)
        file[2] += before is None
        if outcome in ("failed", "xpassed"):
            result.outcomes[item] = "failed"
            result.failures.append((item, f"in {report.when}:\n{report.longreprtext}{_captured(report)}"))
        elif outcome == "passed":
            result.outcomes.setdefault(item, "passed")
        elif before != "failed":
            result.outcomes[item] = "skipped" if outcome == "skipped" else "xfailed"
            if outcome == "skipped":
                reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext)
                reason = reason.removeprefix("Skipped: ")
                result.skips[reason] = result.skips.get(reason, 0) + 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write all of it."""
        self._result.write(self._path)


def _captured(report: pytest.TestReport) -> str:
    return "".join(f"\n--- {name} ---\n{content}" for name, content in report.sections)[-20_000:]


def _cpu() -> float:
    """Return CPU seconds of this process and of the children that it waited for."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


class Clock:
    """Gives each report the CPU seconds since the one before, in the process that runs the item."""

    def __init__(self) -> None:
        self._before = 0.0

    def pytest_runtest_logstart(self) -> None:
        """Count from here on: what collecting took is no item's."""
        self._before = _cpu()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, pytest.TestReport]:
        """Note them in the report, which travels."""
        report = yield
        now = _cpu()
        report.cpu, self._before = now - self._before, now
        made: pytest.TestReport = report
        return made


class Files(LoadFileScheduling):  # type: ignore[misc]
    """Shares the items file by file: the one that a process died of is not run again."""

    def remove_node(self, node: WorkerController) -> str | None:
        """Take leave of a process. Return the item that it died of, if it did."""
        for unit in self.assigned_work.get(node, {}).values():
            for item, is_done in unit.items():
                if not is_done:
                    unit[item] = True
                    super().remove_node(node)
                    return str(item)
        super().remove_node(node)
        return None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Return what shares the items among processes."""
    return Files(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Generator[None, Any, Any]:
    """Show the tasks of Trio shortly before an item's limit: pytest-timeout shows threads alone and ends the run."""
    if settings.method == "thread":
        signal.signal(signal.SIGALRM, lambda *_: show_tasks(item))
        signal.setitimer(signal.ITIMER_REAL, settings.timeout * 0.9)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_timeout_cancel_timer() -> Generator[None, Any, Any]:
    """Show nothing of an item that has ended."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    return (yield)


def show_tasks(item: pytest.Item) -> None:
    """Write where each task waits, if Trio runs in this thread."""
    root = trio.lowlevel.current_root_task() if trio.lowlevel.in_trio_run() else None
    if root is None:
        return
    item.config.pluginmanager.getplugin("capturemanager").suspend_global_capture(item)
    pending = [root]
    while pending:
        task = pending.pop()
        stack = traceback.StackSummary.extract(iter(task.iter_await_frames()))
        print(f"task {task.name}:\n{''.join(stack.format())}", file=sys.stderr, flush=True)
        pending += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that has the reports of all others."""
    config.pluginmanager.register(Clock(), "clock")
    path = os.environ.get(RESULT)
    if path is not None and not hasattr(config, "workerinput"):
        del os.environ[RESULT]  # not for the runs of pytest that tests start
        config.pluginmanager.register(Recorder(Path(path)), "recorder")
