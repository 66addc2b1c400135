"""The duty cycle of a media driver and its client: one task steps them, and the others wait for what they need.

Neither has threads of its own. One task calls ``step`` again and again, which also tries what the others wait for, and
rests when nothing happens: until a socket of the driver is readable where those are all that anything can come by, else
for a time that grows. A task that begins to wait takes some steps itself, since the answer of a peer comes as fast.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic

import attrs
import outcome
import trio
from trio.lowlevel import cancel_shielded_checkpoint, checkpoint, checkpoint_if_cancelled, wait_readable

from rsocket_trio.tools.exception_groups import nursery_beside

IN_A_ROW = 16
"""Waits that may be over at once before other tasks run."""
SPINS = 40
"""Steps that a task takes at once when it begins to wait, each in 3 us: an answer of a peer that waits, too, comes as
fast, and neither has to be woken."""
MAX_WAITERS = 4
"""Tasks that wait, up to which others take such steps. To try what all of many wait for takes longer than several turns
of the driver."""
MAX_TURNS = 16
"""Turns of the driver at most, one behind the other, before what they brought is looked at."""
MAX_TAKEN = 16_384
"""Bytes taken before the peer has to hear soon that there is room: it may send 128 KiB before it waits for that."""
MAX_SKIPPED = 64
"""Waits at most that begin without those steps, after they were in vain: each time, twice as many as the last time."""
MAX_STEPS = 16
"""Steps at most, one behind the other, before other tasks run."""
BLIND_SPINS = 50
"""Steps in which nothing came before a rest that nothing ends but time. Other tasks run between them."""
MIN_REST_SECONDS = 0.001
"""Seconds: the selector of the system knows nothing shorter."""
MAX_REST_SECONDS = 0.02
"""Seconds. After a silence, what comes by memory waits for the end of a rest."""
GROWTH = 1.5
TICK = 0.04
"""Seconds between two steps at most: what was lost is asked for again, and what was heard is answered, by then."""
CLIENT_INTERVAL = 0.01
"""Seconds between two steps of the client at most."""
LOOK_INTERVAL = 0.25
"""Seconds after which every task looks again, whether its peer has gone without a word."""

give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)


@attrs.define(eq=False)
class _Waiter:
    """A task that waits in ``until``. Trio calls it when the task is cancelled."""

    task: trio.lowlevel.Task
    attempt: Callable[[], bool]
    watched: Sequence[int] | None
    seen: int
    """The number that ``watched`` points to, before the last attempt."""
    waiters: dict[_Waiter, None]

    def __call__(self, _: object) -> trio.lowlevel.Abort:
        del self.waiters[self]
        return trio.lowlevel.Abort.SUCCEEDED


class DutyCycle:
    """Steps of one media driver and its client, and the tasks that wait for them.

    ``drive`` has the driver do its work, and ``attend_client`` the client; both return whether there was any.
    """

    def __init__(self, drive: Callable[[], bool], attend_client: Callable[[], bool]) -> None:
        self._drive = drive
        self._attend_client = attend_client
        self.fault: str | None = None
        """The reason why nothing can be done any more."""
        self._waiters: dict[_Waiter, None] = {}
        self._stepping = trio.Lock()
        self._resting = trio.CancelScope()
        self._rest = MIN_REST_SECONDS
        self._turns = 0
        self._skip = 0
        self._skipping = 0
        self.taken = 0
        """Bytes taken out of the driver's terms that the peer has not heard of: it does before this side waits long."""
        self._has_served = False
        self._is_busy = False
        """True if the last step has made another necessary."""
        self._client_due = 0.0
        self._look_due = 0.0
        self.hurried = 0
        """The number of tasks that wait for something that no socket announces."""
        self.readable: int | None = None
        """The descriptor that is readable when anything has come; ``None`` if it may come without one."""

    @asynccontextmanager
    async def attended(self) -> AsyncIterator[None]:
        """Step for the block, in a task beside it. Of several blocks one's task does, and the next once that has ended.

        The task is shielded: a connection whose block is cancelled still sends its end, and waits for the peer's.
        """
        scope = trio.CancelScope(shield=True)
        async with nursery_beside(lambda _: scope.cancel()) as nursery:
            nursery.start_soon(self._run, scope)
            yield

    async def until(
        self, attempt: Callable[[], bool], *, watched: Sequence[int] | None = None, hurried: bool = False
    ) -> None:
        """Wait until ``attempt`` returns True. It is tried in steps of any task. What it raises is raised here.

        ``watched`` points to a number of the driver's that changes when something comes for this task: as long as it
        stays, few steps try. ``hurried`` says that what is waited for makes no socket readable. Some task has to be
        ``attended``. A cancelled task was not successful. Raise ``BrokenResourceError`` once driver or client are gone.
        """
        await checkpoint_if_cancelled()
        if self.fault is not None:
            raise trio.BrokenResourceError(self.fault)
        seen = 0 if watched is None else watched[0]
        if attempt() or self._spin(attempt, hurried=hurried):
            self._turns += 1
            if self._turns % IN_A_ROW == 0:
                await cancel_shielded_checkpoint()  # what came is the caller's, and must not be lost
            return
        waiter = _Waiter(trio.lowlevel.current_task(), attempt, watched, seen, self._waiters)
        self._waiters[waiter] = None
        self.hurried += hurried
        self.hurry()
        try:
            await trio.lowlevel.wait_task_rescheduled(waiter)
        finally:
            self.hurried -= hurried

    def hurry(self) -> None:
        """End a long rest of the task that steps: something is expected soon that makes no socket readable."""
        if self.hurried or (self.readable is None and self._rest > MIN_REST_SECONDS):
            self.wake()

    def wake(self) -> None:
        """End the rest of the task that steps, and begin with short ones again."""
        self._rest = MIN_REST_SECONDS
        self._resting.cancel()

    def push(self) -> None:
        """Have the driver send what was added."""
        self.hurry()
        self.step()

    def step(self, turns: int = 1) -> bool:
        """Have driver and client do their work, and try what tasks wait for. Return whether anything happened.

        ``turns`` are those of the driver at most, as long as there is work.
        """
        self._is_busy = False
        if self.fault is not None:
            return False
        worked = is_busy = self._drive()
        while is_busy and turns > 1:
            is_busy = self._drive()
            turns -= 1
        now = monotonic()
        if worked or self.readable is None or now >= self._client_due:
            self._client_due = now + CLIENT_INTERVAL
            is_busy |= self._attend_client()
            everywhere = now >= self._look_due or self.fault is not None
            if everywhere:
                self._look_due = now + LOOK_INTERVAL
            for waiter in tuple(self._waiters):
                watched = waiter.watched
                if watched is not None:
                    # Of many connections few have something: to try all would take longer than all else.
                    if watched[0] == waiter.seen and not everywhere:
                        continue
                    waiter.seen = watched[0]
                is_busy |= self._serve(waiter)
        self._is_busy = is_busy
        return worked or is_busy

    def end(self) -> None:
        """Raise the fault in every task that waits."""
        for waiter in tuple(self._waiters):
            self._serve(waiter)
        self.wake()

    def _serve(self, waiter: _Waiter) -> bool:
        """Try what a task waits for, and wake it if that is the end. Return whether it is."""
        result: outcome.Outcome[None] = outcome.Value(None)
        try:
            if self.fault is not None:
                raise trio.BrokenResourceError(self.fault)
            if not waiter.attempt():
                return False
        except Exception as error:
            # Not ours to judge: the task that waits raises it.
            result = outcome.Error(error)
        del self._waiters[waiter]
        trio.lowlevel.reschedule(waiter.task, result)
        self._has_served = True
        return True

    def _spin(self, attempt: Callable[[], bool], *, hurried: bool) -> bool:
        """Take some steps at once, but few where that was in vain lately. Return whether what is waited for came."""
        if self._skipping or len(self._waiters) > MAX_WAITERS:
            self._skipping = max(self._skipping - 1, 0)
            if self.taken < MAX_TAKEN and not hurried:
                return False
            # The driver answers at once. What was taken makes room, as one step finds, and the next tells the peer.
            self.taken = 0
            turns = MAX_TURNS if hurried else 1
            return any(self.step(turns) and attempt() for _ in range(2))
        is_blind = self.readable is None
        worked = False
        for _ in range(SPINS):
            if not worked:
                give_way()  # on one core the peer could not answer before
            worked = self.step()
            if (worked or is_blind) and attempt():
                self._skip = 0
                return True
        self._skipping = self._skip = min(2 * self._skip + 1, MAX_SKIPPED)
        return False

    async def _run(self, scope: trio.CancelScope) -> None:
        """Step until this scope is cancelled, once no other task does, or driver or client are gone."""
        with scope:
            async with self._stepping:
                spins = 0
                while self.fault is None:
                    if self._step_on():
                        spins = BLIND_SPINS
                        self._rest = MIN_REST_SECONDS
                    if self.readable is None and spins:
                        spins -= 1
                        give_way()
                        await checkpoint()
                    else:
                        await self._pause()

    def _step_on(self) -> bool:
        """Step while anything happens, but not for long. Return whether a task has what it waited for.

        A message may be in many datagrams, and what tasks have taken is room of which their peers have to hear.
        """
        self._has_served = False
        for _ in range(MAX_STEPS):
            self.step(MAX_TURNS if len(self._waiters) > MAX_WAITERS else 1)
            if not self._is_busy:
                break
        return self._has_served

    async def _pause(self) -> None:
        """Rest for a while, and step whenever a socket is readable. Another task may end it, if it has what for."""
        readable = self.readable
        rest = self._rest if readable is None or self.hurried else TICK
        # One scope for all that comes meanwhile: with one of its own each datagram would take twice as long.
        with trio.CancelScope(deadline=trio.current_time() + rest) as self._resting:
            try:
                while readable is not None:
                    await wait_readable(readable)
                    self._step_on()
                await trio.sleep_forever()
            except trio.ClosedResourceError:
                return
        self._rest = min(self._rest * GROWTH, MAX_REST_SECONDS)
