"""Whose deadline comes next? One task that waits for the deadlines of any number of connections."""

from __future__ import annotations

import heapq
import logging
import math
from itertools import count
from typing import Protocol

import trio

logger = logging.getLogger("rsocket_trio")

PORTION = 64
"""Deadlines that are told of in one go: where thousands come at once, others run in between."""
SLACK = 64
"""Entries that mean nothing any more and may wait beside as many as mean something."""


class Alarm(Protocol):
    """Who wants to hear of a deadline. ``due`` is set by the timers: when it will, infinite when it will not."""

    due: float

    def ring(self, now: float) -> None:
        """The deadline has come."""
        ...


class Timers:
    """The next deadline of each alarm, kept by one task: one each would cost every connection a task of its own."""

    __slots__ = ("_heap", "_live", "_numbers", "_scope", "_stopped", "_task")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Alarm]] = []
        self._numbers = count()
        self._live = 0
        self._scope: trio.CancelScope | None = None
        self._task: trio.lowlevel.Task | None = None
        self._stopped = False

    def __len__(self) -> int:
        return self._live

    def set(self, alarm: Alarm, deadline: float) -> None:
        """Ring at this time, which is earlier than any that the alarm was set to and has not rung at."""
        if math.isinf(alarm.due):
            self._live += 1
        alarm.due = deadline
        heapq.heappush(self._heap, (deadline, next(self._numbers), alarm))
        if len(self._heap) > 2 * self._live + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].due == entry[0]]
            heapq.heapify(self._heap)
        if self._scope is not None and deadline < self._scope.deadline:
            self._scope.deadline = deadline

    def clear(self, alarm: Alarm) -> None:
        """Do not ring."""
        if not math.isinf(alarm.due):
            self._live -= 1
            alarm.due = math.inf

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
            for number, alarm in enumerate(self._take(trio.current_time()), 1):
                try:
                    alarm.ring(trio.current_time())
                except Exception:
                    # Whoever rings looks after its own faults; what gets here must not silence all the others.
                    logger.exception("a deadline could not be told of")
                if number % PORTION == 0:
                    await trio.lowlevel.checkpoint()

    def stop(self) -> None:
        """Ring no more: the task ends, if it waits for a deadline, now."""
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort_wait(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _take(self, now: float) -> list[Alarm]:
        """All alarms whose time has come."""
        taken: list[Alarm] = []
        while self._heap and self._heap[0][0] <= now:
            deadline, _, alarm = heapq.heappop(self._heap)
            if alarm.due == deadline:
                self.clear(alarm)
                taken.append(alarm)
        return taken
