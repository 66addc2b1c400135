"""Feeds items from Spark's thread to a background task through a queue of limited weight.

This is the opposite direction of ``background.Stream``: Spark's thread puts items, and waits while the queue is full.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import trio

from rsocket_trio.spark.background import STOP_TIMEOUT, Background

T = TypeVar("T")
R = TypeVar("R")
ALIVE_CHECK_INTERVAL = 1.0
"""Seconds after which a waiting thread checks that the background still runs."""


class Feed(Generic[T, R]):
    """Items for one task of the background, ``consume``, and the result that it returns. Close it.

    ``limit`` is the weight that may wait; one item is always taken, however heavy.
    """

    def __init__(self, background: Background, consume: Callable[[Feed[T, R]], Awaitable[R]], limit: int) -> None:
        self._background = background
        self._consume = consume
        self._limit = limit
        # Shared by two threads, and changed under the lock only.
        self._changed = threading.Condition()
        self._items: deque[tuple[T, int]] = deque()
        self._weight = 0
        self._complete = False
        self._outcome: list[R] = []
        self._error: BaseException | None = None
        self._over = False
        # Used in the background only.
        self._scope = trio.CancelScope()
        self._arrived = trio.Event()
        background.start(self._run)

    # Spark's thread

    def put(self, item: T, weight: int) -> None:
        """Put an item, and wait while the queue is full. Raise the task's error, once it is over."""
        with self._changed:
            while self._weight >= self._limit and not self._over:
                self._wait()
            if self._over:
                self._raise()
            self._items.append((item, weight))
            self._weight += weight
        # Outside of the lock: it wakes the task in ``take``, which wants the lock next.
        self._tell()

    def finish(self) -> R:
        """End the items, wait for the task, and return its result or raise its error."""
        with self._changed:
            self._complete = True
        self._tell()
        with self._changed:
            while not self._over:
                self._wait()
        self._raise()
        return self._outcome[0]

    def close(self) -> None:
        """Cancel the task if it still runs, and wait until it has told its peer."""
        with self._changed:
            if self._over or not self._background.is_alive:
                return
            self._background.soon(self._scope.cancel)
            self._changed.wait_for(lambda: self._over, STOP_TIMEOUT)

    def _wait(self) -> None:
        if not self._changed.wait(ALIVE_CHECK_INTERVAL) and not self._background.is_alive:
            raise RuntimeError("the background thread has ended")

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, RuntimeError("the task has failed before")
            raise error

    def _tell(self) -> None:
        self._background.soon(self._on_arrival)

    # The background

    def _on_arrival(self) -> None:
        self._arrived.set()

    async def take(self) -> T | None:
        """Return the next item; ``None`` after the last."""
        while True:
            # A new event before the look: an item that is put after the look sets this one.
            self._arrived = trio.Event()
            with self._changed:
                if self._items:
                    item, weight = self._items.popleft()
                    self._weight -= weight
                    # Wakes Spark's thread in ``put``.
                    self._changed.notify_all()
                    return item
                if self._complete:
                    return None
            await self._arrived.wait()

    async def _run(self) -> None:
        error: BaseException | None = RuntimeError("the task was cancelled")
        try:
            with self._scope:
                self._outcome.append(await self._consume(self))
                error = None
        except trio.Cancelled:
            error = RuntimeError("the background thread was closed")
            raise
        except Exception as exc:
            # Raised in Spark's thread, by ``put`` or ``finish``.
            error = exc
        finally:
            with self._changed:
                self._error = error
                self._over = True
                self._items.clear()
                # Wakes Spark's thread, whether it is in ``put``, ``finish`` or ``close``.
                self._changed.notify_all()
            del error
