"""Tasks that wait for something of the connection's: parked in order, woken by whoever changes it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import outcome
import trio


class Parking:
    """Where tasks wait in the order in which they came. Who wakes all says nothing: they look for themselves."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        # Ordered, because a plain dict looks at every place that its front once had; none at all as long as nobody
        # waits, because most of these never see anybody.
        self._tasks: OrderedDict[trio.lowlevel.Task, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._tasks)

    @property
    def longest(self) -> Any:
        """The wish of the task that waits longest."""
        return next(iter(self._tasks.values()), None) if self._tasks else None

    async def park(self, wish: object = None) -> object:
        """Wait until woken, for what the waker gives. A checkpoint; being cancelled leaves no trace."""
        task = trio.lowlevel.current_task()
        if self._tasks is None:
            self._tasks = OrderedDict()
        self._tasks[task] = wish

        def abort(_: object) -> trio.lowlevel.Abort:
            if self._tasks is not None:
                self._tasks.pop(task, None)
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(abort)

    def wake_one(self, gift: object = None) -> None:
        """Wake the task that waits longest, if there is one. It gets the gift for certain: no cancel comes between."""
        if self._tasks:
            task, _ = self._tasks.popitem(last=False)
            trio.lowlevel.reschedule(task, outcome.Value(gift))

    def wake(self, task: trio.lowlevel.Task) -> None:
        """Wake this task, if it waits here."""
        if self._tasks and task in self._tasks:
            del self._tasks[task]
            trio.lowlevel.reschedule(task)

    def wake_for(self, amount: int) -> None:
        """Wake the tasks that wait longest, until the sizes that they wish for add up to this."""
        while amount > 0 and self._tasks:
            amount -= self.longest or 1
            self.wake_one()

    def wake_all(self) -> None:
        """Wake every task."""
        tasks, self._tasks = self._tasks, None
        for task in tasks or ():
            trio.lowlevel.reschedule(task)
