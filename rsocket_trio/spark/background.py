"""Runs the connections of a Python process in one Trio thread while Spark pulls rows.

Spark's worker is synchronous: it pulls from an iterator when it wants. Meanwhile keepalives, credit and reconnects go
on in this thread, which stays from one task to the next. It starts lazily, in the process that needs it: a thread does
not survive the fork by which Spark makes its workers.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, Protocol, TypeAlias, TypeVar

import trio

from rsocket_trio.spark.connections import Pool

logger = logging.getLogger("rsocket_trio.spark")

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
STOP_TIMEOUT = 5.0
"""Seconds for a task of the thread to end once its reader has closed it."""


class Taker(Protocol[T_contra]):
    """The receiver of the items that a task produces."""

    async def put(self, item: T_contra, weight: int) -> None:
        """Take an item, and wait while there is no room for more."""
        ...


class Conveyor(Generic[T]):
    """Items from the thread's tasks to Spark's: bounded by weight, so that a slow reader holds the producer back.

    ``limit`` is the weight that may lie on it; one item is always taken, however heavy.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: queue.SimpleQueue[tuple[T, int] | BaseException] = queue.SimpleQueue()
        # The producer writes ``_put`` and the reader ``_taken``, so that comparing them needs no lock.
        self._put = 0
        self._taken = 0
        self._waiting: trio.Event | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    async def put(self, item: T, weight: int) -> None:
        """Put an item, and wait while the weight has reached the limit."""
        self._queue.put((item, weight))
        self._put += weight
        while self._put - self._taken >= self._limit:
            self._token = trio.lowlevel.current_trio_token()
            self._waiting = waiting = trio.Event()
            # The reader may have taken items before it could see the event: look again before waiting for it.
            if self._put - self._taken < self._limit:
                break
            await waiting.wait()
        self._waiting = None

    def end(self, error: BaseException | None) -> None:
        """End the items. The reader gets the error behind the items before it."""
        self._queue.put(StopIteration() if error is None else error)

    def take(self, timeout: float | None) -> T:
        """Return the next item, to Spark's thread.

        Raise ``StopIteration`` at the end, ``TimeoutError`` when none came in ``timeout`` seconds, or the error.
        """
        try:
            found = self._queue.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(found, BaseException):
            self._queue.put(StopIteration())
            raise found
        item, weight = found
        # Counted before the event is read: a producer that waits from now on sees the room by itself.
        self._taken += weight
        waiting, token = self._waiting, self._token
        if waiting is not None and token is not None and self._put - self._taken < self._limit:
            try:
                token.run_sync_soon(waiting.set, idempotent=True)
            except trio.RunFinishedError:
                pass  # the thread is over, and so is the task that waited
        return item


Producer: TypeAlias = Callable[[Taker[T]], Awaitable[None]]
"""An async function that lays items on a conveyor until there are no more."""


async def _guarded(function: Callable[[], Awaitable[None]]) -> None:
    try:
        await function()
    except Exception:
        # The other tasks of the thread serve other queries and must not end with this one.
        logger.exception("a task of the background thread failed")


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
        """Return whether the thread runs, and is this process's."""
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

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function in the thread, soon; it must not raise."""
        self._token.run_sync_soon(function)

    def iterate(self, produce: Producer[T], limit: int) -> Stream[T]:
        """Return the stream of items that an async function produces; up to ``limit`` (by weight) may wait."""
        return Stream(self, produce, limit)

    def close(self) -> None:
        """End all connections, and the thread."""
        if self.is_alive:
            self._token.run_sync_soon(self._stop.set)
            self._thread.join(STOP_TIMEOUT)


class Stream(Generic[T]):
    """Items that a task of the background makes, for one reader in another thread. Close it."""

    def __init__(self, background: Background, produce: Producer[T], limit: int) -> None:
        self._background = background
        self._conveyor: Conveyor[T] = Conveyor(limit)
        self._produce = produce
        self._scope = trio.CancelScope()
        self._ended = threading.Event()
        background.start(self._run)

    async def _run(self) -> None:
        error: BaseException | None = None
        try:
            with self._scope:
                await self._produce(self._conveyor)
        except trio.Cancelled:
            error = RuntimeError("the background thread was closed")
            raise
        except Exception as exc:
            # Raised in the thread of the reader.
            error = exc
        finally:
            # The end wakes a reader in ``take``; the flag wakes one in ``close``.
            self._conveyor.end(error)
            self._ended.set()
            del error

    def take(self, timeout: float | None = None) -> T:
        """Return the next item. Raise ``StopIteration``, ``TimeoutError``, or the producer's error."""
        return self._conveyor.take(timeout)

    def __iter__(self) -> Iterator[T]:
        while True:
            try:
                yield self._conveyor.take(None)
            except StopIteration:
                return

    def close(self) -> None:
        """Cancel the producer, and wait until it has told its peer."""
        if not self._ended.is_set() and self._background.is_alive:
            self._background._token.run_sync_soon(self._scope.cancel)
            self._ended.wait(STOP_TIMEOUT)


_here: Background | None = None
_lock = threading.Lock()


def background() -> Background:
    """Return the background of this process; start it if there is none yet."""
    global _here  # noqa: PLW0603  # one for each process is the point
    with _lock:
        if _here is None or not _here.is_alive:
            _here = Background()
        return _here


def close_background() -> None:
    """End the background of this process, if there is one: for tests, and for programs that end in order."""
    global _here
    with _lock:
        found, _here = _here, None
    if found is not None:
        found.close()
