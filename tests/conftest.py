"""What holds for every test: nothing that it made is left when it ends.

File descriptors, child processes, Trio's system tasks and the objects of ``WATCHED`` are compared before and after.
Every other task ends with the test by itself: Trio's run does not return before its nurseries do.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import trio

from tests.each_row import ALL_CASES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Objects of these classes must not outlive their test.
WATCHED = (
    "rsocket_trio.connection.connection:Connection",
    "rsocket_trio.rsocket.session:Session",
    "rsocket_trio.streamux.session:Session",
)
STREAMS = (("rsocket_trio.rsocket.stream_table", "Stream"), ("rsocket_trio.streamux.request_table", "Exchange"))
"""Too many and too small for weak references: they are looked for where a connection was made."""
DESCRIPTORS = Path("/proc/self/fd")
PATIENCE = 1.0
"""Seconds of real time in which a system task may still end after the test."""

pytest_plugins = ["qa.testrun.record"]

_reasons: list[str] = []
"""Why the test that runs was skipped: pytest-trio keeps that to itself."""
FAILED = pytest.StashKey[bool]()
"""True if the test itself failed: its traceback keeps objects alive."""
_alive: list[weakref.ref[Any]] = []
_watched: set[str] = set()


def pytest_configure() -> None:
    # How long an example takes says how busy the machine is.
    hypothesis.settings.register_profile(
        "untimed",
        deadline=None,
        max_examples=100 if ALL_CASES else 20,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("untimed")
    # What a shell starts in the background ignores Ctrl-C, and so would every program that a test interrupts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems() -> None:
    set_aside()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    _reasons.clear()
    item.stash[FAILED] = False
    try:
        yield
    except pytest.skip.Exception as skip:
        if not _reasons:
            raise
        raise pytest.skip.Exception(_reasons[0]) from skip
    except BaseException:
        item.stash[FAILED] = True
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    # The traceback of a failure keeps what its frames held: it is not counted again behind each test that follows.
    if nextitem is not None and (nextitem.path != item.path or item.stash.get(FAILED, False)):
        set_aside()


def set_aside() -> None:
    """Have the collector pass over what there is: what the test run itself keeps need not be looked at after every
    test, and it grows."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark, started once for all tests that ask for it."""
    from tests.spark.session import spark_session

    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test that leaves something behind."""
    is_trio_test = request.node.get_closest_marker("trio") is not None
    if is_trio_test:
        check_system_tasks(request.node)
    before = open_descriptors()
    processes = children() if has_children() else set()
    _alive.clear()
    for name in WATCHED:
        watch(name)
    yield
    for record in caplog.get_records("call"):
        record.exc_info = None  # the log keeps tracebacks, and they their frames, until the next test

    def left() -> list[str]:
        found = [f"descriptor {number} {target}" for number, target in targets(open_descriptors() - before)]
        if has_children():
            found += [f"child process {number}" for number in sorted(children() - processes)]
        return found if request.node.stash.get(FAILED, False) else found + live_objects()

    if left():
        gc.collect()
    assert (rest := left()) == [], f"left behind: {', '.join(rest)}"


def open_descriptors() -> set[str]:
    """Return the numbers of the descriptors that are open."""
    # The one that listed them is closed by now.
    return {number for number in os.listdir(DESCRIPTORS) if is_open(int(number))} if DESCRIPTORS.is_dir() else set()


def is_open(descriptor: int) -> bool:
    """Return whether this number stands for a descriptor."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def targets(numbers: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Return what these descriptors are open for."""
    for number in sorted(numbers):
        target = os.readlink(DESCRIPTORS / number)
        if target != "/dev/urandom":  # Aeron's library opens it once, and keeps it
            yield number, target


def has_children() -> bool:
    """Return whether this process has any child, ended ones that nobody waited for included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children() -> set[str]:
    found: set[str] = set()
    for one in Path("/proc/self/task").glob("*/children"):
        try:
            found.update(one.read_text().split())
        except (FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            continue
    return found


def live_objects() -> list[str]:
    """The objects of ``WATCHED`` that were made in this test and are still referred to."""
    left = [f"{type(one).__qualname__} object" for ref in _alive if (one := ref()) is not None]
    kinds = {getattr(sys.modules[module], name) for module, name in STREAMS if module in sys.modules}
    if _alive and kinds:
        left += [f"{type(one).__name__} object" for one in gc.get_objects() if type(one) in kinds]
    return left


def watch(name: str) -> None:
    """From now on remember, weakly, every object of a class that is made, if a test has imported it."""
    module_name, class_name = name.split(":")
    module = sys.modules.get(module_name)
    if module is None or name in _watched:
        return
    _watched.add(name)
    cls = getattr(module, class_name)
    original = cls.__init__

    @functools.wraps(original)
    def init(self: object, *args: object, **kwargs: object) -> None:
        _alive.append(weakref.ref(self))
        original(self, *args, **kwargs)

    cls.__init__ = init


def check_system_tasks(item: pytest.Function) -> None:
    """Have a test end with a look at the tasks that no nursery of its own ends."""
    if hasattr(item.obj, "hypothesis"):
        handle = item.obj.hypothesis  # the same function for each set of parameters
        if not getattr(handle.inner_test, "is_checked", False):
            handle.inner_test = checked(handle.inner_test)
    elif not getattr(item.obj, "is_checked", False):
        item.obj = checked(item.obj)


def checked(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def run(*args: object, **kwargs: object) -> None:
        before = system_tasks()
        try:
            await test(*args, **kwargs)
        except pytest.skip.Exception as skip:
            _reasons.append(str(skip))
            raise
        gc.collect()  # Trio complains of an asynchronous generator that nobody closed when it is collected
        deadline = time.monotonic() + PATIENCE
        # Not trio.sleep: the test's clock may be one that stands still.
        while (left := system_tasks() - before) and time.monotonic() < deadline:
            await trio.lowlevel.checkpoint()
        assert not left, f"system tasks left behind: {sorted(task.name for task in left)}"

    run.is_checked = True  # type: ignore[attr-defined]
    return run


def system_tasks() -> set[trio.lowlevel.Task]:
    """The tasks beside the main one, which live as long as Trio's run."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    return {task for nursery in root.child_nurseries for task in nursery.child_tasks}
