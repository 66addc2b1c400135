"""A pytest plugin: an item that exceeds its limit of real time fails, and says where it hung.

pytest-timeout keeps the limits and says how they are set (``timeout`` in pyproject.toml, ``pytest.mark.timeout``). What
happens at a limit is decided here. Where the main thread is in no event loop, an exception is raised in place. Where it
is inside of Trio, Trio is asked to cancel the run, through its token: an exception out of a signal handler would land
in Trio's own code as well, and every later run in this process would fail. A limit is of real time, whatever clock the
test has. An item that neither ends is the business of the supervisor.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from types import FrameType
from typing import Any

import attrs
import pytest
import trio
from pytest_timeout import is_debugging  # type: ignore[import-untyped]


@attrs.frozen
class Fixture:
    """A fixture that serves several items, as it is set up with one of its parameters."""

    name: str
    base: str
    """The folder or file below which it is known."""
    param: int
    scope: str

    def is_needed_by(self, item: pytest.Item) -> bool:
        """Return whether an item is given this fixture."""
        if not isinstance(item, pytest.Function) or self.name not in item.fixturenames:
            return False
        defined = item._fixtureinfo.name2fixturedefs.get(self.name, ())
        callspec = getattr(item, "callspec", None)
        param = callspec.indices.get(self.name, 0) if callspec is not None else 0
        return bool(defined) and defined[-1].baseid == self.base and param == self.param


@attrs.frozen
class Expiry:
    """The limit of an item that was exceeded."""

    item: str
    limit: float
    phase: str
    fixture: Fixture | None
    """The fixture that was being set up, if it serves several items."""
    stacks: str

    def __str__(self) -> str:
        where = f"the set-up of the fixture {self.fixture.name!r}" if self.fixture is not None else self.phase
        return f"hung in {where}: exceeded its limit of {self.limit:g} s\n\n{self.stacks}"


class Limits:
    """Watches the limits of items."""

    def __init__(self) -> None:
        self.expiry: Expiry | None = None
        """That of the phase that runs now."""
        self.expired: list[Expiry] = []
        """Those that were reported."""
        self._phase = "setup"
        self._fixtures: list[Fixture] = []
        """Those in set-up, the innermost last."""

    @property
    def shared_fixture(self) -> Fixture | None:
        """The innermost fixture in set-up, if it serves several items."""
        innermost = self._fixtures[-1] if self._fixtures else None
        return innermost if innermost is not None and innermost.scope != "function" else None

    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool:
        """Begin the time of an item: called by pytest-timeout."""
        self.expiry = None
        self._phase = "setup"

        def expire(number: int, frame: FrameType | None) -> None:
            if is_debugging():
                return
            self.expiry = Expiry(item.nodeid, settings.timeout, self._phase, self.shared_fixture, stacks(frame))
            if trio.lowlevel.in_trio_run():
                cancel_run()
            else:
                pytest.fail(f"exceeded its limit of {settings.timeout:g} s", pytrace=True)

        signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
        return True

    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool:
        """End the time of an item: called by pytest-timeout."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: Any) -> Iterator[None]:
        """Know which fixture is being set up."""
        param = getattr(request, "param_index", 0)
        self._fixtures.append(Fixture(fixturedef.argname, fixturedef.baseid, param, fixturedef.scope))
        try:
            return (yield)
        finally:
            self._fixtures.pop()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        self._phase = "the test"
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        self._phase = "teardown"
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Have a phase that exceeded the limit fail, even if it dealt with the cancellation."""
        report = yield
        expiry = self.expiry
        if expiry is not None:
            report.outcome = "failed"
            report.longrepr = f"{expiry}\n{report.longreprtext}"
            self.expired.append(expiry)
            self.expiry = None
        return report


def cancel_run() -> None:
    """Cancel the main task of Trio's run in this thread, and so end that run. Call it from a signal handler."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    # The innermost nursery of the root task has the main task alone; those round it end when it has ended.
    scope = root.child_nurseries[-1].cancel_scope
    trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)


def stacks(frame: FrameType | None) -> str:
    """Return the stacks of all threads, and of the tasks where Trio runs in this one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    here = threading.get_ident()
    parts = []
    for ident, its in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame if ident == here else its))
        parts.append(f"thread {names.get(ident, ident)}:\n{stack}")
    if trio.lowlevel.in_trio_run():
        root = trio.lowlevel.current_root_task()
        assert root is not None
        parts += [f"task {task.name}:\n{stack}" for task, stack in _tasks(root)]
    return "\n".join(parts)


def _tasks(task: trio.lowlevel.Task) -> Iterator[tuple[trio.lowlevel.Task, str]]:
    stack = traceback.StackSummary.extract(iter(task.iter_await_frames()))
    yield task, "".join(stack.format())
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _tasks(child)
