"""The next deadlines of any number of connections, and one task that waits for all of them."""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import count
from types import TracebackType
from typing import Self

import trio

BATCH = 64
"""Timers that expire in one go: where thousands come at once, other tasks run in between."""
SLACK = 64
"""Entries that mean nothing any more and may wait beside as many as mean something."""
ROUNDS = 8
"""Turns of all tasks, and looks at the sockets, before a peer is judged by what did not come. A plain socket
is read within two rounds, whatever its task was at; one under TLS or a WebSocket takes some more."""
LATE_READ_LIMIT = 1.0
"""Seconds that a peer gets at most, of those that its deadline was noticed too late, to be read to the end."""
PAUSE = 0.01
"""Seconds from one look to the next, meanwhile."""


class Timer(ABC):
    """An object with a deadline: ``due`` is when it will expire, set by ``Deadlines``; infinite for never."""

    __slots__ = ("due", "number")

    def __init__(self) -> None:
        self.due = math.inf
        self.number = 0
        """The number of its deadline among those of ``Deadlines``."""

    @property
    def has_unread(self) -> bool:
        """Return whether bytes of a peer may be here, and wait to be read."""
        return False

    def overdue_since(self, now: float) -> float:
        """Return when the time of a peer was over that ``expire`` would give up now; infinite if it gives up none."""
        return math.inf

    @abstractmethod
    def expire(self, now: float) -> None:
        """Act on the deadline, which was noticed at ``now``: what a peer sent since counts as later. Raise nothing."""


class Deadlines:
    """The next deadline of each timer, kept by one task: one each would cost every connection a task of its own.

    A process that stalls finds deadlines in the past when it goes on, and in its sockets what its peers said in time.
    So no peer is judged before what was there at the moment of the judgement has been read: the tasks that read get
    their turns, and where the moment came late, some of the time that it was late by.
    """

    __slots__ = ("_heap", "_numbers", "_put_off", "_scope", "_stopped", "_task", "_timers")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._timers: dict[int, Timer] = {}  # by number: an entry of the heap whose number is not here means nothing
        self._numbers = count()
        self._put_off: dict[Timer, float] = {}  # until when, for those that are looked at again
        self._scope: trio.CancelScope | None = None
        self._task: trio.lowlevel.Task | None = None
        self._stopped = False

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, timer: Timer, deadline: float) -> None:
        """Have the timer expire at this time, and not at the one that was set before."""
        if timer.due < math.inf:
            self._timers.pop(timer.number, None)
        timer.due, timer.number = deadline, next(self._numbers)
        self._timers[timer.number] = timer
        heapq.heappush(self._heap, (deadline, timer.number))
        if len(self._heap) > 2 * len(self._timers) + SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in self._timers]
            heapq.heapify(self._heap)
        if self._scope is not None and deadline < self._scope.deadline:
            self._scope.deadline = deadline

    def clear(self, timer: Timer) -> None:
        """Remove the timer's deadline. Nothing here refers to it any more."""
        if timer.due < math.inf:
            timer.due = math.inf
            self._timers.pop(timer.number, None)
        self._put_off.pop(timer, None)

    async def run(self) -> None:
        """Wait and ring, until stopped or cancelled."""
        while True:
            deadline = self._heap[0][0] if self._heap else math.inf
            with trio.CancelScope(deadline=deadline) as self._scope:
                if not self._stopped:
                    self._task = trio.lowlevel.current_task()
                    await trio.lowlevel.wait_task_rescheduled(self._abort_wait)
            if self._stopped:
                return
            await self._expire_due(trio.current_time())

    async def _expire_due(self, now: float) -> None:
        """Ring for the timers whose time has come: here, so that no variable of a task that waits refers to one."""
        judged: list[Timer] = []
        for number, timer in enumerate(self._take(now), 1):
            if timer.overdue_since(now) <= now:
                judged.append(timer)
            else:
                self._expire(timer, now)
            if number % BATCH == 0:
                await trio.lowlevel.checkpoint()
        if judged:
            await self._expire_peers(judged, now)

    def stop(self) -> None:
        """End the task: at once if it waits for a deadline."""
        # The task runs once more and ends by itself, which is cheaper than to be cancelled.
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort_wait(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _take(self, now: float) -> list[Timer]:
        taken: list[Timer] = []
        while self._heap and self._heap[0][0] <= now:
            timer = self._timers.pop(heapq.heappop(self._heap)[1], None)
            if timer is not None:
                timer.due = math.inf
                taken.append(timer)
        return taken

    async def _expire_peers(self, timers: Iterable[Timer], now: float) -> None:
        """Have what came until now be read, then ring for those whose peers are still silent, as of now.

        Time goes on meanwhile, and a peer that is heard has a later deadline. Where there was more than was read in so
        many rounds, as in a large frame, or where a handshake takes an answer, a late judgement comes later still, but
        within bounds: bytes are no life.
        """
        for _ in range(ROUNDS):
            await trio.lowlevel.checkpoint()
        for number, timer in enumerate(timers, 1):
            passed = timer.overdue_since(now)
            until = self._put_off.get(timer, now + min(now - passed, LATE_READ_LIMIT))
            if passed <= now < until and timer.has_unread:
                self._put_off[timer] = until
                self.set(timer, min(until, trio.current_time() + PAUSE))
            else:
                self._expire(timer, now)
            if number % BATCH == 0:
                await trio.lowlevel.checkpoint()

    def _expire(self, timer: Timer, now: float) -> None:
        self._put_off.pop(timer, None)
        timer.expire(now)


class Timeout(Timer):
    """A block that is cancelled at a deadline, as by a cancel scope that does not take stalls of this process for the
    peer's. ``scope`` is what cancels it. Without ``deadlines`` it is a plain cancel scope with a deadline."""

    __slots__ = ("_deadline", "_deadlines", "scope")

    def __init__(self, deadlines: Deadlines | None, deadline: float) -> None:
        super().__init__()
        self.scope = trio.CancelScope(deadline=math.inf if deadlines is not None else deadline)
        self._deadlines = deadlines
        self._deadline = deadline

    def __enter__(self) -> Self:
        self.scope.__enter__()
        if self._deadlines is not None:
            self._deadlines.set(self, self._deadline)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        self.lift()
        return self.scope.__exit__(kind, error, at)

    @property
    def has_unread(self) -> bool:
        return True  # a connection that begins may always have bytes to read

    def lift(self) -> None:
        self._deadline = self.scope.deadline = math.inf
        if self._deadlines is not None:
            self._deadlines.clear(self)

    def overdue_since(self, now: float) -> float:
        return self._deadline if self._deadline <= now else math.inf

    def expire(self, now: float) -> None:
        if self._deadline <= now:
            self.scope.cancel()
