"""What a sweep of cancellations is made of: a task that is cancelled at its n-th step, and what must hold then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from rsocket_trio import Connection
from tests.conformance import raw
from tests.connection.pairs import Said
from tests.each_row import ALL_CASES

MOST_STEPS = 400
STRIDE = 1 if ALL_CASES else 2
"""Of so many steps one is cancelled at."""
PATIENCE = 100.0


class CancelAtStep(trio.abc.Instrument):
    """Cancels the scope of one task at the step of that number of it and its children, before the step or after it.

    Step 0 stands for a scope that is cancelled from the start.
    """

    def __init__(self, step: int, *, before: bool) -> None:
        self.step = step
        self.scope = trio.CancelScope()
        self.tasks: set[trio.lowlevel.Task] = set()
        self.taken = 0
        self._before = before

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        if task.parent_nursery is not None and task.parent_nursery.parent_task in self.tasks:
            self.tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self.tasks:
            self.taken += 1
            if self._before and self.taken == self.step:
                self.scope.cancel()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self.tasks and not self._before and self.taken == self.step:
            self.scope.cancel()

    async def run(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run this in a task of its own, which is cancelled at the step."""

        async def under_test() -> None:
            self.tasks.add(trio.lowlevel.current_task())
            if not self.step:
                self.scope.cancel()
            with self.scope:
                await function(*args)

        trio.lowlevel.add_instrument(self)
        try:
            with trio.fail_after(PATIENCE):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(under_test)
        finally:
            trio.lowlevel.remove_instrument(self)


def nothing_is_open(*connections: Connection) -> None:
    """No stream, no handler, nothing queued, nothing unread; and nobody did anything wrong."""
    for connection in connections:
        session = connection._engine.session
        assert session.is_quiet
        assert session.receiver.detached == 0
        assert session.outbox.size == 0
        assert connection._engine.receive_budget.size == 0
        assert connection.faults.peer_faults == 0
        assert connection.faults.handler_errors == 0


def cancelled_once(said: Said) -> None:
    """CANCEL goes out once at most, and only for what was opened."""
    cancels = Counter(frame.stream_id for frame in said.of(raw.CANCEL))
    assert max(cancels.values(), default=0) <= 1
    opened = {frame.stream_id for frame in said if frame.type in range(4, 8)}
    assert set(cancels) <= opened
