"""The next deadlines of any number of connections, and one task that waits for all of them."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterable
from itertools import count
from types import TracebackType
from typing import Protocol, Self, TypeGuard

import trio

logger = logging.getLogger("rsocket_trio")


BATCH = 64
"""Timers that expire in one go: where thousands come at once, other tasks run in between."""
SLACK = 64
"""Entries that mean nothing any more and may wait beside as many as mean something."""
ROUNDS = 8
"""Turns of all tasks, and looks at the sockets, before a peer is judged by what did not come. A plain socket
is read within two rounds, whatever its task was at; one under TLS or a WebSocket takes some more."""
LATE_READ_LIMIT = 1.0
"""Seconds that a peer gets at most, of those that its deadline was noticed too late, to be read to the end."""
PAUSE = 0.01
"""Seconds from one look to the next, meanwhile."""


class Timer(Protocol):
    """An object with a deadline. ``due`` is when it will expire, set by ``Deadlines``; infinite for never."""

    due: float

    def expire(self, now: float) -> None:
        """Act on the deadline, which has come."""
        ...


class PeerTimer(Timer, Protocol):
    """A timer at which a silent peer may be given up."""

    def overdue_since(self, now: float) -> float:
        """Return when the time of a peer was over that ``expire`` would give up now; infinite where it would not."""
        ...

    @property
    def has_unread(self) -> bool:
        """Return whether something of the peer's may be here, and waits to be read."""
        ...


class Deadlines:
    """The next deadline of each timer, kept by one task: one each would cost every connection a task of its own.

    A process that stalls finds deadlines in the past when it goes on, and in its sockets what its peers said in time.
    So no peer is judged before what was there at the moment of the judgement has been read: the tasks that read get
    their turns, and where the moment came late, some of the time that it was late by.
    """

    __slots__ = ("_heap", "_live", "_numbers", "_put_off", "_scope", "_stopped", "_task")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._live = 0
        self._put_off: dict[Timer, float] = {}  # until when, for those that are looked at again
        self._scope: trio.CancelScope | None = None
        self._task: trio.lowlevel.Task | None = None
        self._stopped = False

    def __len__(self) -> int:
        return self._live

    def set(self, timer: Timer, deadline: float) -> None:
        """Ring at this time, which is earlier than any that the timer was set to and has not rung at."""
        if math.isinf(timer.due):
            self._live += 1
        timer.due = deadline
        heapq.heappush(self._heap, (deadline, next(self._numbers), timer))
        if len(self._heap) > 2 * self._live + SLACK:
            self._heap = [entry for entry in self._heap if entry[2].due == entry[0]]
            heapq.heapify(self._heap)
        if self._scope is not None and deadline < self._scope.deadline:
            self._scope.deadline = deadline

    def clear(self, timer: Timer) -> None:
        """Do not ring."""
        if not math.isinf(timer.due):
            self._live -= 1
            timer.due = math.inf
        if self._put_off:
            self._put_off.pop(timer, None)

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
            now = trio.current_time()
            judged: list[PeerTimer] = []
            for number, timer in enumerate(self._take(now), 1):
                if is_peer_timer(timer) and self._overdue_since(timer, now) <= now:
                    judged.append(timer)
                else:
                    self._expire(timer, now)
                if number % BATCH == 0:
                    await trio.lowlevel.checkpoint()
            if judged:
                await self._expire_peers(judged, now)

    def stop(self) -> None:
        """End the task: at once if it waits for a deadline."""
        # The task runs once more and ends by itself, which is cheaper than to be cancelled.
        self._stopped = True
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort_wait(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _take(self, now: float) -> list[Timer]:
        """Remove and return the timers whose time has come."""
        taken: list[Timer] = []
        while self._heap and self._heap[0][0] <= now:
            deadline, _, timer = heapq.heappop(self._heap)
            if timer.due == deadline:
                self._live -= 1
                timer.due = math.inf
                taken.append(timer)
        return taken

    async def _expire_peers(self, timers: Iterable[PeerTimer], now: float) -> None:
        """Have what came until now be read, then ring for those whose peers are still silent, as of now.

        Time goes on meanwhile, and a peer that is heard has a later deadline. Where there was more than was read in so
        many rounds, as in a large frame, or where a handshake takes an answer, a late judgement comes later still, but
        within bounds: bytes are no life.
        """
        for _ in range(ROUNDS):
            await trio.lowlevel.checkpoint()
        for number, timer in enumerate(timers, 1):
            passed = self._overdue_since(timer, now)
            until = self._put_off.get(timer, now + min(now - passed, LATE_READ_LIMIT))
            if passed <= now < until and timer.has_unread:
                self._put_off[timer] = until
                self.set(timer, min(until, trio.current_time() + PAUSE))
            else:
                self._expire(timer, now)
            if number % BATCH == 0:
                await trio.lowlevel.checkpoint()

    def _overdue_since(self, timer: PeerTimer, now: float) -> float:
        try:
            return timer.overdue_since(now)
        except Exception:
            logger.exception("a deadline could not be looked at")
            return math.inf

    def _expire(self, timer: Timer, now: float) -> None:
        if self._put_off:
            self._put_off.pop(timer, None)
        try:
            timer.expire(now)
        except Exception:
            # A timer handles its own faults; one that gets here must not silence all the others.
            logger.exception("a timer failed")


def is_peer_timer(timer: Timer) -> TypeGuard[PeerTimer]:
    """Return whether a peer may be given up when the timer expires."""
    return hasattr(timer, "overdue_since")


class Timeout:
    """A block that is cancelled at a deadline, as by a cancel scope that does not take stalls of this process for the
    peer's. ``scope`` is what cancels it. Without ``deadlines`` it is a plain cancel scope with a deadline."""

    __slots__ = ("_deadline", "_deadlines", "due", "scope")

    has_unread = True
    """A connection that begins may always have bytes to read."""

    def __init__(self, deadlines: Deadlines | None, deadline: float) -> None:
        self.scope = trio.CancelScope(deadline=math.inf if deadlines is not None else deadline)
        self.due = math.inf
        self._deadlines = deadlines
        self._deadline = deadline

    def __enter__(self) -> Self:
        self.scope.__enter__()
        if self._deadlines is not None:
            self._deadlines.set(self, self._deadline)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        self.lift()
        return self.scope.__exit__(kind, error, at)

    def lift(self) -> None:
        """Remove the deadline."""
        self._deadline = self.scope.deadline = math.inf
        if self._deadlines is not None:
            self._deadlines.clear(self)

    def overdue_since(self, now: float) -> float:
        """Return when the time was over; infinite while it is not."""
        return self._deadline if self._deadline <= now else math.inf

    def expire(self, now: float) -> None:
        """Cancel the block, if it is not over."""
        if self._deadline <= now:
            self.scope.cancel()


class DeadlineOwner(Protocol):
    """A connection with a deadline that moves."""

    @property
    def next_deadline(self) -> float:
        """The time at which ``on_deadline`` has something to do, as far as is known now."""
        ...

    @property
    def has_unread(self) -> bool:
        """Return whether bytes of the peer may be here, and wait to be read."""
        ...

    def overdue_since(self, now: float) -> float:
        """Return the time at which the peer's time was over; infinite while it is not."""
        ...

    def on_deadline(self, now: float) -> None:
        """Act on a deadline that has come, or on the time that it was set to before. Nothing may be raised."""
        ...


class ConnectionTimer:
    """The timer of one connection: of its SETUP, its keepalives, and a peer that is silent.

    It refers to the connection only until that is over, so that the deadlines keep nothing of it.
    """

    __slots__ = ("_owner", "deadlines", "due")

    def __init__(self, owner: DeadlineOwner) -> None:
        self._owner: DeadlineOwner | None = owner
        self.deadlines: Deadlines | None = None
        self.due = math.inf

    def start(self, deadlines: Deadlines) -> None:
        """Wait for the connection's deadlines among these, from now on."""
        self.deadlines = deadlines
        self.reset()

    def reset(self) -> None:
        """Look whether the deadline came nearer. One that moved away is looked at when it would have come."""
        if self.deadlines is not None and self._owner is not None:
            deadline = self._owner.next_deadline
            if deadline < self.due:
                self.deadlines.set(self, deadline)

    def stop(self) -> None:
        """Forget the connection, which is over."""
        if self.deadlines is not None:
            self.deadlines.clear(self)
        self._owner = None

    def overdue_since(self, now: float) -> float:
        """Return the time at which the peer's time was over; infinite while it is not."""
        return math.inf if self._owner is None else self._owner.overdue_since(now)

    @property
    def has_unread(self) -> bool:
        """Return whether bytes of the peer may be here, and wait to be read."""
        return self._owner is not None and self._owner.has_unread

    def expire(self, now: float) -> None:
        """Have the connection act. ``now`` is when the deadline was noticed: what came since was heard later."""
        if self._owner is not None:
            self._owner.on_deadline(now)
