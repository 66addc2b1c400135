"""Tasks that wait for a change, in order; another task wakes them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Coroutine

import attrs
import outcome
import trio


@attrs.define(eq=False)
class Waiter:
    """One waiting task and the size that it asks for. Trio calls it when the task is cancelled."""

    _lot: ParkingLot
    task: trio.lowlevel.Task
    size: int

    def __call__(self, _: object) -> trio.lowlevel.Abort:
        self._lot.leave(self.task)
        return trio.lowlevel.Abort.SUCCEEDED


class ParkingLot:
    """The tasks that wait, in the order in which they came. Tasks that are woken together check again by themselves.

    ``first`` is the waiter of the task that waits longest, ``None`` where none does.
    """

    __slots__ = ("_others", "first")

    def __init__(self) -> None:
        # Most of these never see anybody, and nearly all others one task: an OrderedDict costs 400 bytes, and there
        # is one of these for each stream. Ordered, because a plain dict looks at every waiter that its front once had.
        self.first: Waiter | None = None
        self._others: OrderedDict[trio.lowlevel.Task, Waiter] | None = None

    def park(self, size: int = 0) -> Coroutine[object, object, object]:
        """Wait until woken, and return the value that the waker gives. A checkpoint; being cancelled leaves no trace.

        To be awaited at once by the task that calls it. No coroutine of its own, because each costs every task that
        waits 200 bytes.
        """
        task = trio.lowlevel.current_task()
        waiter = Waiter(self, task, size)
        if self.first is None:
            self.first = waiter
        elif self._others is None:
            self._others = OrderedDict(((task, waiter),))
        else:
            self._others[task] = waiter
        return trio.lowlevel.wait_task_rescheduled(waiter)  # noqa: ASYNC105

    def leave(self, task: trio.lowlevel.Task) -> bool:
        """Forget this task. Return whether it was here."""
        if self.first is not None and self.first.task is task:
            self._move_up()
            return True
        return self._others is not None and self._others.pop(task, None) is not None

    def wake_one(self, value: object = None) -> None:
        """Wake the task that waits longest, if there is one. It gets the value for certain: no cancel comes between."""
        waiter = self.first
        if waiter is not None:
            self._move_up()
            trio.lowlevel.reschedule(waiter.task, outcome.Value(value))

    def wake(self, task: trio.lowlevel.Task) -> None:
        """Wake this task, if it waits here."""
        if self.leave(task):
            trio.lowlevel.reschedule(task)

    def wake_for(self, amount: int) -> None:
        """Wake the tasks that wait longest, until the sizes that they ask for add up to this."""
        while amount > 0 and self.first is not None:
            amount -= self.first.size or 1
            self.wake_one()

    def wake_all(self) -> None:
        first, self.first = self.first, None
        others, self._others = self._others, None
        if first is not None:
            trio.lowlevel.reschedule(first.task)
        for task in others or ():
            trio.lowlevel.reschedule(task)

    def _move_up(self) -> None:
        self.first = self._others.popitem(last=False)[1] if self._others else None
