"""The duty cycle of a media driver and its client: whoever waits for something runs it meanwhile.

Neither has threads of its own. Of the tasks that wait, one leads: it calls ``step`` again and again, which also tries
what the others wait for. Between steps it lets other tasks run, and rests when nothing happens: until a socket of the
driver is readable where those are all that anything can come by, else for a time that grows. A leader that has what it
waited for wakes another that waits, which leads from then on unless a third was quicker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from time import monotonic
from typing import Protocol, TypeVar

import trio
from trio.lowlevel import checkpoint, checkpoint_if_cancelled, wait_readable

IN_A_ROW = 4
"""Waits that may be over at once before other tasks run."""
SPINS = 10
"""Steps that a task takes at once when it begins to wait, each in 3 us: an answer of a peer that waits, too, comes as
fast, and neither has to be woken."""
FEW = 4
"""Tasks that wait, up to which each step of any task may try what they wait for."""
DRIVES = 16
"""Turns of the driver at most before what they brought is looked at, where many tasks wait."""
BLIND_SPINS = 50
"""Steps in which nothing happened before a rest that nothing ends but time. Other tasks run between them."""
SHORTEST_REST = 0.001
"""Seconds: the selector of the system knows nothing shorter."""
LONGEST_REST = 0.01
"""Seconds. Retransmissions and answers to heartbeats wait for the end of a rest."""
GROWTH = 1.3
ATTENTION = 0.05
"""Seconds between two steps while no task waits: a peer that is alive is never silent for longer."""
CLIENT_INTERVAL = 0.01
"""Seconds between two steps of the client, while no object is being added."""

give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)

Result = TypeVar("Result")


class Work(Protocol):
    """What is done in each step."""

    fault: str | None
    """The reason why nothing can be done any more."""

    def drive(self) -> bool:
        """Have the driver do its work, if it is embedded. Return whether there was any."""
        ...

    def attend_client(self) -> bool:
        """Have the client do its work. Return whether there was any."""
        ...


class DutyCycle:
    """Steps of one media driver and its client, taken by the tasks that wait for them."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._waiters: dict[_Waiter, None] = {}
        self._leader: _Waiter | None = None
        self._resting: trio.CancelScope | None = None
        self._rest = SHORTEST_REST
        self._turns = 0
        self._stepping = False
        self._is_unlooked = False
        self._client_due = 0.0
        self._last = 0.0
        self._attending = trio.Lock()
        self.hurried = 0
        """The number of tasks that add objects, or accept: the client does its work in each step for them."""
        self.rounds = 0
        """How often the client did its work: images open, end and close in no other moment."""
        self.readable: int | None = None
        """The descriptor that is readable when anything has come; ``None`` if it may come without one."""

    async def until(self, attempt: Callable[[], bool]) -> None:
        """Wait until ``attempt`` returns True. It is tried in steps of any task. What it raises is raised here.

        Raise ``BrokenResourceError`` once driver or client are gone.
        """
        await checkpoint_if_cancelled()
        self._check()
        if attempt() or (self._leader is None and len(self._waiters) <= FEW and self._spin(attempt)):
            self._turns += 1
            if self._turns % IN_A_ROW == 0:
                await checkpoint()
            return
        waiter = _Waiter(attempt)
        self._waiters[waiter] = None
        try:
            while not waiter.is_over:
                if self._leader is None:
                    await self._lead(waiter)
                else:
                    self.hurry()
                    await waiter.park()
        finally:
            del self._waiters[waiter]
            self._hand_over()
        if waiter.error is not None:
            raise waiter.error

    async def complete(self, steps: Generator[None, None, Result]) -> Result:
        """Resume a generator in each step until it returns. Return its result, or raise what it raises."""
        result: list[Result] = []

        def attempt() -> bool:
            try:
                next(steps)
            except StopIteration as end:
                result.append(end.value)
                return True
            return False

        self.hurried += 1
        try:
            await self.until(attempt)
        finally:
            self.hurried -= 1
            steps.close()
        return result[0]

    def hurry(self) -> None:
        """End a long rest of the leader: something is expected soon."""
        if self._resting is not None and self.readable is None and self._rest > SHORTEST_REST:
            self._rest = SHORTEST_REST
            self._resting.cancel()

    def step(self) -> bool:
        """Have driver and client do their work, and try what tasks wait for. Return whether anything happened."""
        work = self._work
        if self._stepping or work.fault is not None:
            return False
        self._stepping = True
        try:
            worked = work.drive()
            if worked and len(self._waiters) > FEW:
                # To try what all of them wait for takes longer than many steps of the driver.
                for _ in range(DRIVES):
                    if not work.drive():
                        break
            self._last = now = monotonic()
            looking = worked or self._is_unlooked or self.readable is None
            if now >= self._client_due or self.hurried:
                self._client_due = now + CLIENT_INTERVAL
                looking = True
                self.rounds += 1
                worked |= work.attend_client()
            if looking:
                self._is_unlooked = False
                for waiter in tuple(self._waiters):
                    if not waiter.is_over:
                        worked |= waiter.attempt(work.fault)
        finally:
            self._stepping = False
        return worked

    def push(self) -> None:
        """Have the driver send what was added. What comes meanwhile is for the leader to find, unless few wait."""
        if len(self._waiters) <= FEW:
            self.step()
        elif not self._stepping and self._work.fault is None and self._work.drive():
            # The sockets are read: nothing but this tells the leader that something came.
            self._is_unlooked = True
            if self._resting is not None:
                self._resting.cancel()

    async def attend(self) -> None:
        """Step while no task waits, until cancelled. Of several that do this, one does."""
        async with self._attending:
            while True:
                await trio.sleep(ATTENTION)
                if monotonic() - self._last >= ATTENTION:
                    self.step()

    def end(self) -> None:
        """Raise the fault in every task that waits."""
        for waiter in self._waiters:
            if not waiter.is_over:
                waiter.attempt(self._work.fault)

    def _check(self) -> None:
        if self._work.fault is not None:
            raise trio.BrokenResourceError(self._work.fault)

    def _spin(self, attempt: Callable[[], bool]) -> bool:
        """Take some steps at once. Return whether they brought what is waited for."""
        for _ in range(SPINS):
            give_way()  # on one core the peer could not answer before
            if (self.step() or self.readable is None) and attempt():
                return True
        return False

    async def _lead(self, waiter: _Waiter) -> None:
        """Step until this waiter has what it waits for."""
        self._leader = waiter
        spins = BLIND_SPINS if self.readable is None else 0
        self._rest = SHORTEST_REST
        try:
            while not waiter.is_over:
                if spins > 0:
                    spins -= 1
                    await checkpoint()
                else:
                    await self._pause(waiter)
                if self.step():
                    spins = BLIND_SPINS if self.readable is None else 1
                    self._rest = SHORTEST_REST
        finally:
            self._leader = None

    async def _pause(self, waiter: _Waiter) -> None:
        """Rest until something has come, or for a while. The step of another task ends the rest if it has what for."""
        with trio.CancelScope(deadline=trio.current_time() + self._rest) as scope:
            self._resting = waiter.scope = scope
            try:
                if self.readable is not None:
                    await wait_readable(self.readable)
                else:
                    await trio.sleep_forever()
            finally:
                self._resting = waiter.scope = None
            return
        self._rest = min(self._rest * GROWTH, LONGEST_REST)

    def _hand_over(self) -> None:
        """Wake a task that waits, so that it leads, if none does."""
        if self._leader is None:
            for waiter in self._waiters:
                if not waiter.is_over:
                    waiter.wake()
                    return


class _Waiter:
    """A task that waits in ``until``."""

    __slots__ = ("_attempt", "_task", "error", "is_over", "scope")

    def __init__(self, attempt: Callable[[], bool]) -> None:
        self._attempt = attempt
        self._task: trio.lowlevel.Task | None = None
        self.scope: trio.CancelScope | None = None
        self.error: BaseException | None = None
        self.is_over = False

    def attempt(self, fault: str | None) -> bool:
        """Try once, and wake the task if that is the end. Return whether it is."""
        try:
            if fault is not None:
                raise trio.BrokenResourceError(fault)
            self.is_over = self._attempt()
        except Exception as error:
            # Not ours to judge: the task that waits raises it.
            self.error = error
            self.is_over = True
        if self.is_over:
            self.wake()
        return self.is_over

    def wake(self) -> None:
        """Have the task look again."""
        if self.scope is not None:
            self.scope.cancel()
        elif self._task is not None:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    async def park(self) -> None:
        """Wait for ``wake``."""
        self._task = trio.lowlevel.current_task()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
