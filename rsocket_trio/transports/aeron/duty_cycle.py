"""The duty cycle of a media driver and its client: whoever waits for something runs it meanwhile.

Neither has threads of its own. Of the tasks that wait, one leads: it calls ``step`` again and again, which also tries
what the others wait for. Between steps it lets other tasks run, and rests when nothing happens: until a socket of the
driver is readable where those are all that anything can come by, else for a time that grows. A leader that has what it
waited for wakes another that waits, which leads from then on unless a third was quicker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeVar

import trio
from trio.lowlevel import cancel_shielded_checkpoint, checkpoint, checkpoint_if_cancelled, notify_closing, wait_readable

IN_A_ROW = 16
"""Waits that may be over at once before other tasks run."""
SPINS = 40
"""Steps that a task takes at once when it begins to wait, each in 3 us: an answer of a peer that waits, too, comes as
fast, and neither has to be woken."""
MOST_SKIPPED = 64
"""Waits at most that begin without those steps, after they were in vain: each time, twice as many as the last time."""
ROOM = 16_384
"""Bytes taken of which the peer has to hear soon: it may send 128 KiB before it has to wait for that."""
FEW = 4
"""Tasks that wait, up to which each step of any task may try what they wait for."""
DRIVES = 16
"""Turns of the driver at most, one behind the other, before what they brought is looked at."""
BLIND_SPINS = 50
"""Steps in which nothing happened before a rest that nothing ends but time. Other tasks run between them."""
SHORTEST_REST = 0.001
"""Seconds: the selector of the system knows nothing shorter."""
LONGEST_REST = 0.04
LONGEST_BLIND_REST = 0.02
"""Seconds. After a silence, what comes by memory waits for the end of a rest."""
GROWTH = 1.5
TICK = 0.04
"""Seconds between two steps at most: what was lost is asked for again, and what was heard is answered, by then."""
CLIENT_INTERVAL = 0.01
"""Seconds between two steps of the client, while no object is being added."""
ROUNDS = 25
"""Steps of the client after which every task looks again, whether its peer has gone without a word."""

give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)

Result = TypeVar("Result")


class Work(Protocol):
    """The work of each step."""

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
        self._unwatched: dict[_Waiter, None] = {}
        """Those of them whose attempts no number of the driver's announces, as of a connection that is being made."""
        self._leader: _Waiter | None = None
        self._ring: Callable[[], None] | None = None
        self._is_ticking = False
        self._rest = SHORTEST_REST
        self._turns = 0
        self._skip = 0
        self._skipping = 0
        self.taken = 0
        """Bytes taken out of the driver's terms that the peer has not heard of: it does before this side waits long."""
        self._stepping = False
        self._is_unlooked = False
        self._has_served = False
        self._client_due = 0.0
        self._last = 0.0
        self._attending = trio.Lock()
        self.hurried = 0
        """The number of tasks that add objects, or accept: the client does its work in each step for them."""
        self.rounds = 0
        """The number of times the client did its work because that was due: images end and close at no other time."""
        self.readable: int | None = None
        """The descriptor that is readable when anything has come; ``None`` if it may come without one."""

    async def until(self, attempt: Callable[[], bool], *, is_patient: bool = False, watched: Any = None) -> None:
        """Wait until ``attempt`` returns True. It is tried in steps of any task. What it raises is raised here.

        ``is_patient`` says that this need not lead as soon as nobody does: another is likely to be back at once.
        ``watched`` points to a number of the driver's that changes when something comes for this task: as long as it
        stays, steps do not try. Raise ``BrokenResourceError`` once driver or client are gone.
        """
        await checkpoint_if_cancelled()
        if self._work.fault is not None:
            raise trio.BrokenResourceError(self._work.fault)
        seen = 0 if watched is None else watched[0]
        if attempt() or self._spin(attempt):
            self._turns += 1
            if self._turns % IN_A_ROW == 0:
                await cancel_shielded_checkpoint()  # what came is the caller's, and must not be lost
            return
        waiter = _Waiter(attempt, is_patient, watched, seen)
        self._waiters[waiter] = None
        if watched is None:
            self._unwatched[waiter] = None
        try:
            while not waiter.is_over:
                if self._leader is None:
                    await self._lead(waiter)
                else:
                    self.hurry()
                    await waiter.park()
        finally:
            del self._waiters[waiter]
            self._unwatched.pop(waiter, None)
            self.hand_over(even_to_patient=not waiter.is_over)
        if waiter.error is not None:
            raise waiter.error

    async def complete(
        self, steps: Generator[None, None, Result], undo: Callable[[Result], object] = lambda _: None
    ) -> Result:
        """Resume a generator in each step until it returns. Return its result, or raise what it raises.

        ``undo`` is called with a result that came too late: after the cancellation of the task that waited for it, and
        before that task could run.
        """
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
        except BaseException:
            for late in result:
                undo(late)
            raise
        finally:
            self.hurried -= 1
            steps.close()
        return result[0]

    def hurry(self) -> None:
        """End a long rest of the leader: something is expected soon."""
        if self._ring is not None and (self.hurried or (self.readable is None and self._rest > SHORTEST_REST)):
            self._rest = SHORTEST_REST
            self._ring()

    def step(self) -> bool:
        """Have driver and client do their work, and try what tasks wait for. Return whether anything happened."""
        work = self._work
        if self._stepping or work.fault is not None:
            return False
        self._stepping = True
        try:
            worked = work.drive()
            if worked and len(self._waiters) > FEW:
                # To try what all of them wait for takes longer than many turns of the driver.
                self._drive_on()
            self._last = now = monotonic()
            looking = worked or self._is_unlooked or self.readable is None
            is_due = now >= self._client_due
            if is_due or self.hurried:
                worked |= work.attend_client()
                looking |= is_due or worked
                if is_due:
                    self._client_due = now + CLIENT_INTERVAL
                    self.rounds += 1
            if looking or self.hurried:
                self._has_served = False
                self._is_unlooked &= not looking
                everywhere = is_due and self.rounds % ROUNDS == 0
                # Where nothing came, all that can go on is what waits for the client.
                for waiter in tuple(self._waiters if looking else self._unwatched):
                    watched = waiter.watched
                    if watched is not None:
                        # Of many connections few have something: to try all would take longer than all else.
                        if watched[0] == waiter.seen and not everywhere and work.fault is None:
                            continue
                        waiter.seen = watched[0]
                    if not waiter.is_over and waiter.attempt(work.fault):
                        worked = self._has_served = True
        finally:
            self._stepping = False
        return worked

    def _drive_on(self) -> None:
        """Have the driver do its work while there is any, but not for long."""
        for _ in range(DRIVES):
            if not self._work.drive():
                return

    def push(self) -> None:
        """Have the driver send what was added. What comes meanwhile is for the leader to find, unless few wait."""
        if self._ring is not None:
            self.hurry()
        if len(self._waiters) <= FEW:
            self.step()
        elif not self._stepping and self._work.fault is None and self._work.drive():
            # The sockets are read: nothing but this tells the leader that something came.
            self._is_unlooked = True
            if self._ring is not None:
                self._ring()

    async def attend(self) -> None:
        """Step at least so often that driver and client do in time what they have to, until cancelled.

        Of several tasks that do this one does, and the next once that is cancelled.
        """
        async with self._attending:
            self._is_ticking = True
            try:
                while True:
                    await trio.sleep(TICK)
                    if monotonic() - self._last >= TICK / 2:
                        self.step()
                    self.hand_over()
            finally:
                self._is_ticking = False
                if self._ring is not None:
                    self._ring()  # the leader relied on this task

    def unwatch(self, attempt: Callable[[], bool]) -> None:
        """Have steps try this for the task that waits by it, if there is one, whatever it watches."""
        for waiter in self._waiters:
            if waiter.tries(attempt):
                waiter.watched = None
                self._unwatched[waiter] = None

    def end(self) -> None:
        """Raise the fault in every task that waits."""
        for waiter in self._waiters:
            if not waiter.is_over:
                waiter.attempt(self._work.fault)

    def _spin(self, attempt: Callable[[], bool]) -> bool:
        """Take some steps at once, but few where that was in vain lately. Return whether what is waited for came."""
        if self._skipping or self._leader is not None or len(self._waiters) > FEW:
            self._skipping = max(self._skipping - 1, 0)
            if self.taken < ROOM:
                return False
            # What was taken makes room, as one turn of the driver finds, and the next tells the peer.
            self.taken = 0
            self.push()
            self.push()
            return attempt()
        step, is_blind = self.step, self.readable is None
        worked = False
        for _ in range(SPINS):
            if not worked:
                give_way()  # on one core the peer could not answer before
            worked = step()
            if (worked or is_blind) and attempt():
                self._skip = 0
                return True
        self._skipping = self._skip = min(2 * self._skip + 1, MOST_SKIPPED)
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
                    give_way()
                    await checkpoint()
                else:
                    await self._pause(waiter)
                if self.step():
                    if not self._has_served:
                        # A message may be in many datagrams: those that are here don't need a step each.
                        self._drive_on()
                        self._is_unlooked = True
                    # One more at least: what came may be room for what waits to be sent.
                    spins = 1
                    if self._has_served or self.hurried:
                        spins = BLIND_SPINS if self.readable is None else 1
                        self._rest = SHORTEST_REST
                    else:
                        # Driver and client keep each other alive, or something was lost: that is repeated soon.
                        self._rest = max(self._rest / 2, SHORTEST_REST)
        finally:
            self._leader = None

    async def _pause(self, waiter: _Waiter) -> None:
        """Rest until something has come, or for a while. The step of another task ends the rest if it has what for."""
        readable = self.readable
        if readable is not None and self._is_ticking and not self.hurried:
            # A scope with a deadline would take as long as all else between a datagram and this task: the task that
            # ticks does what has to be done in time, and ends this wait as if the descriptor were closed.
            self._ring = waiter.ring = partial(notify_closing, readable)
            try:
                await wait_readable(readable)
            except trio.ClosedResourceError:
                return
            finally:
                self._ring = waiter.ring = None
            return
        with trio.CancelScope(deadline=trio.current_time() + self._rest) as scope:
            self._ring = waiter.ring = scope.cancel
            try:
                if readable is not None:
                    await wait_readable(readable)
                else:
                    await trio.sleep_forever()
            except trio.ClosedResourceError:
                return
            finally:
                self._ring = waiter.ring = None
            return
        self._rest = min(self._rest * GROWTH, LONGEST_BLIND_REST if readable is None else LONGEST_REST)

    def hand_over(self, *, even_to_patient: bool = True) -> None:
        """Wake a task that waits, so that it leads, if none does."""
        if self._leader is None:
            for waiter in self._waiters:
                if not waiter.is_over and (even_to_patient or not waiter.is_patient):
                    waiter.wake()
                    return


class _Waiter:
    """A task that waits in ``until``."""

    __slots__ = ("_attempt", "_task", "error", "is_over", "is_patient", "ring", "seen", "watched")

    def __init__(self, attempt: Callable[[], bool], is_patient: bool, watched: Any, seen: int) -> None:
        self._attempt = attempt
        self.is_patient = is_patient
        self.watched = watched
        """Points to a number that changes when something comes; ``None`` if nothing tells."""
        self.seen = seen
        """That number before the last attempt."""
        self._task: trio.lowlevel.Task | None = None
        self.ring: Callable[[], None] | None = None
        """Ends the rest of a leader."""
        self.error: BaseException | None = None
        self.is_over = False

    def tries(self, attempt: Callable[[], bool]) -> bool:
        """Return whether this is what it tries."""
        return self._attempt == attempt

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
        if self.ring is not None:
            self.ring()
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
