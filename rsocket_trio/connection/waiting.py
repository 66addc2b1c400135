"""Tasks that wait for something of the connection's: parked in order, woken by whoever changes it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any

import outcome
import trio


class Place:
    """Where one task waits, and what it wishes for. Called by Trio when the task is cancelled."""

    __slots__ = ("_parking", "task", "wish")

    def __init__(self, parking: Parking, task: trio.lowlevel.Task, wish: Any) -> None:
        self._parking = parking
        self.task = task
        self.wish = wish

    def __call__(self, _: object) -> trio.lowlevel.Abort:
        self._parking.leave(self.task)
        return trio.lowlevel.Abort.SUCCEEDED


class Parking:
    """Where tasks wait in the order in which they came. Who wakes all says nothing: they look for themselves.

    ``first`` is the place of the task that waits longest, ``None`` where none does.
    """

    __slots__ = ("_others", "first")

    def __init__(self) -> None:
        # Most of these never see anybody, and nearly all others one task: an OrderedDict costs 400 bytes, and there
        # is one of these for each stream. Ordered, because a plain dict looks at every place that its front once had.
        self.first: Place | None = None
        self._others: OrderedDict[trio.lowlevel.Task, Place] | None = None

    def park(self, wish: object = None) -> Coroutine[Any, Any, Any]:
        """Wait until woken, for what the waker gives. A checkpoint; being cancelled leaves no trace.

        To be awaited at once by the task that calls it. No coroutine of its own, because each costs every task that
        waits 200 bytes.
        """
        task = trio.lowlevel.current_task()
        place = Place(self, task, wish)
        if self.first is None:
            self.first = place
        elif self._others is None:
            self._others = OrderedDict(((task, place),))
        else:
            self._others[task] = place
        return trio.lowlevel.wait_task_rescheduled(place)  # noqa: ASYNC105

    def leave(self, task: trio.lowlevel.Task) -> bool:
        """Forget this task. Whether it was here."""
        if self.first is not None and self.first.task is task:
            self._move_up()
            return True
        return self._others is not None and self._others.pop(task, None) is not None

    def wake_one(self, gift: object = None) -> None:
        """Wake the task that waits longest, if there is one. It gets the gift for certain: no cancel comes between."""
        place = self.first
        if place is not None:
            self._move_up()
            trio.lowlevel.reschedule(place.task, outcome.Value(gift))

    def wake(self, task: trio.lowlevel.Task) -> None:
        """Wake this task, if it waits here."""
        if self.leave(task):
            trio.lowlevel.reschedule(task)

    def wake_for(self, amount: int) -> None:
        """Wake the tasks that wait longest, until the sizes that they wish for add up to this."""
        while amount > 0 and self.first is not None:
            amount -= self.first.wish or 1
            self.wake_one()

    def wake_all(self) -> None:
        """Wake every task."""
        first, self.first = self.first, None
        others, self._others = self._others, None
        if first is not None:
            trio.lowlevel.reschedule(first.task)
        for task in others or ():
            trio.lowlevel.reschedule(task)

    def _move_up(self) -> None:
        self.first = self._others.popitem(last=False)[1] if self._others else None
