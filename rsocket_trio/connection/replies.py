"""Who waits for the one answer of a request/response: a parked task and nothing else."""

from __future__ import annotations

import outcome
import trio

from rsocket_trio.connection.streams import Owner
from rsocket_trio.errors import RSocketError
from rsocket_trio.payload import Payload


class Reply(Owner):
    """The task that asked. No scope, no event, no task of its own."""

    __slots__ = ("_task",)

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self._task: trio.lowlevel.Task | None = task

    def on_item(self, payload: Payload, complete: bool) -> None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Value(payload))

    def on_complete(self) -> None:
        self.on_item(Payload(), True)

    def on_error(self, error: RSocketError) -> None:
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Error(error))
