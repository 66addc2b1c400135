"""Runs the connections of a Python process in one Trio thread while Spark pulls or pushes rows.

Spark's worker is synchronous: it pulls from an iterator, and pushes, when it wants. Meanwhile keepalives, credit and
reconnects go on in this thread, which stays from one task to the next. It starts lazily, in the process that needs it:
a thread does not survive the fork by which Spark makes its workers.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Generic, Protocol, TypeVar

import trio

from rsocket_trio.spark.connections import Pool

logger = logging.getLogger("rsocket_trio.spark")

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
STOP_TIMEOUT = 5.0
"""Seconds for a task of the thread to end once Spark's thread has closed it."""


class Taker(Protocol[T_contra]):
    """The receiver of the items that a task produces."""

    async def put(self, item: T_contra, weight: int) -> None:
        """Take an item, and wait while there is no room for more."""
        ...


class Queue(Generic[T]):
    """Items between a task and Spark's thread, used in the background thread only.

    Up to ``limit`` by weight may wait; one item is always taken, however heavy.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[tuple[T, int]] = deque()
        self._weight = 0
        self._is_complete = False
        self._changed = trio.Event()

    async def put(self, item: T, weight: int) -> None:
        """Put an item, and wait while the weight has reached the limit."""
        self._items.append((item, weight))
        self._weight += weight
        self._wake()
        while self._weight >= self._limit and not self._is_complete:
            await self._changed.wait()

    async def take(self) -> T | None:
        """Return the next item; ``None`` after the last."""
        while not self._items:
            if self._is_complete:
                return None
            await self._changed.wait()
        item, weight = self._items.popleft()
        self._weight -= weight
        self._wake()
        return item

    @property
    def is_full(self) -> bool:
        """Return whether nothing more is put before an item was taken."""
        return self._weight >= self._limit or self._is_complete

    def complete(self) -> None:
        """End the items: there are no more."""
        self._is_complete = True
        self._wake()

    def _wake(self) -> None:
        # Whoever waits looks again at what it waits for.
        self._changed.set()
        self._changed = trio.Event()


class Background:
    """The Trio thread of this process. Its methods are for other threads."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self.pool: Pool
        """The connections of this process, for what runs in the thread."""
        self._thread = threading.Thread(target=trio.run, args=(self._main,), name="rsocket-trio", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive() and self.pid == os.getpid()

    async def _main(self) -> None:
        async with trio.open_nursery() as self._nursery:
            self.pool = Pool(self._nursery)
            self._stop = trio.Event()
            self._token = trio.lowlevel.current_trio_token()
            # Wakes the constructor, in the thread that asked: pool, token and nursery are there from now on.
            self._started.set()
            await self._stop.wait()
            await self.pool.aclose()
            self._nursery.cancel_scope.cancel()

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run an async function in the thread, and wait for it. Return its result or raise its error."""
        return trio.from_thread.run(function, trio_token=self._token)

    def start(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run an async function in the thread until it ends. Its error is logged, and ends nothing else."""
        self._token.run_sync_soon(self._nursery.start_soon, _guarded, function)

    def close(self) -> None:
        """End all connections, and the thread."""
        if self.is_alive:
            self._token.run_sync_soon(self._stop.set)
            self._thread.join(STOP_TIMEOUT)


async def _guarded(function: Callable[[], Awaitable[None]]) -> None:
    try:
        await function()
    except Exception:
        # The other tasks of the thread serve other queries and must not end with this one.
        logger.exception("a task of the background thread failed")


class Job(Generic[T, R]):
    """A task of the background, and the queue between it and Spark's thread. Close it.

    ``work`` puts items into the queue, which Spark's thread takes, or takes those that Spark's thread puts there.
    ``limit`` is that of the queue. The methods are for Spark's thread, and raise the error of the task once it is over.
    """

    def __init__(self, background: Background, work: Callable[[Queue[T]], Awaitable[R]], limit: int) -> None:
        self._background = background
        self._work = work
        self._queue: Queue[T] = Queue(limit)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._result: list[R] = []
        self._error: Exception = RuntimeError("the task was cancelled")
        background.start(self._run)

    async def _run(self) -> None:
        try:
            with self._scope:
                self._result.append(await self._work(self._queue))
        except Exception as error:
            # Raised in Spark's thread.
            self._error = error
        finally:
            # Spark's thread gets the end behind the items before it, and need not wait for room.
            self._ended.set()
            self._queue.complete()

    def take(self, timeout: float | None = None) -> T | None:
        """Return the next item, ``None`` after the last. Raise ``TimeoutError`` if none came in so many seconds."""
        return self._background.run(partial(self._take, math.inf if timeout is None else timeout))

    async def _take(self, seconds: float) -> T | None:
        item = None
        with trio.move_on_after(seconds) as waiting:
            item = await self._queue.take()
        if waiting.cancelled_caught:
            raise TimeoutError
        if item is None:
            self._outcome()
        return item

    def put(self, item: T, weight: int) -> None:
        """Put an item, and wait while the queue is full."""
        self._background.run(partial(self._put, item, weight))

    async def _put(self, item: T, weight: int) -> None:
        await self._queue.put(item, weight)
        if self._ended.is_set():
            self._outcome()

    @property
    def is_full(self) -> bool:
        """Return whether nothing more comes before an item was taken: there is no room, or the task is over."""
        return self._queue.is_full

    def finish(self) -> R:
        """End the items, wait for the task, and return its result."""
        return self._background.run(self._finish)

    async def _finish(self) -> R:
        self._queue.complete()
        await self._ended.wait()
        return self._outcome()

    def _outcome(self) -> R:
        if not self._result:
            raise self._error
        return self._result[0]

    def close(self) -> None:
        """Cancel the task if it still runs, and wait until it has told its peer."""
        if self._background.is_alive:
            with suppress(trio.RunFinishedError):
                self._background.run(self._close)

    async def _close(self) -> None:
        self._scope.cancel()
        with trio.move_on_after(STOP_TIMEOUT):
            await self._ended.wait()


_here: Background | None = None
_lock = threading.Lock()


def background() -> Background:
    """Return the background of this process; start it if there is none yet."""
    global _here  # noqa: PLW0603  # one for each process is the point
    with _lock:
        if _here is None or not _here.is_alive:
            _here = Background()
        return _here
