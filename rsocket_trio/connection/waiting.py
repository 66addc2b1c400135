"""Tasks that wait for something of the connection's: parked in order, woken by whoever changes it."""

from __future__ import annotations

from typing import Any

import outcome
import trio


class Parking:
    """Where tasks wait in the order in which they came. Who wakes all says nothing: they look for themselves."""

    __slots__ = ("_tasks",)

    def __init__(self) -> None:
        self._tasks: dict[trio.lowlevel.Task, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._tasks)

    @property
    def longest(self) -> Any:
        """The wish of the task that waits longest."""
        return next(iter(self._tasks.values()), None)

    async def park(self, wish: object = None) -> object:
        """Wait until woken, for what the waker gives. A checkpoint; being cancelled leaves no trace."""
        task = trio.lowlevel.current_task()
        self._tasks[task] = wish

        def abort(_: object) -> trio.lowlevel.Abort:
            self._tasks.pop(task, None)
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(abort)

    def wake_one(self, gift: object = None) -> None:
        """Wake the task that waits longest, if there is one. It gets the gift for certain: no cancel comes between."""
        for task in self._tasks:
            del self._tasks[task]
            trio.lowlevel.reschedule(task, outcome.Value(gift))
            return

    def wake_all(self) -> None:
        """Wake every task."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            trio.lowlevel.reschedule(task)
