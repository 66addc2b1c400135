"""The tasks that run handlers: kept between requests, because starting one costs more than most handlers."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from rsocket_trio.connection.handlers import RUNNERS, Job, is_failure, only_leaf
from rsocket_trio.connection.waiting import Parking
from rsocket_trio.errors import RSocketError
from rsocket_trio.forms import Handler
from rsocket_trio.mux.stream_state import NEITHER

if TYPE_CHECKING:
    from rsocket_trio.connection.engine import Engine


class Worker:
    """One task and the job that it has, or ``idle``: those that wait for one."""

    __slots__ = ("idle", "job", "task")

    def __init__(self, job: Job, idle: list[Worker]) -> None:
        self.job: Job | None = job
        self.idle = idle
        self.task: trio.lowlevel.Task | None = None

    def leave(self, _: object) -> trio.lowlevel.Abort:
        """Wait no more: called by Trio when the task is cancelled."""
        self.idle.remove(self)
        return trio.lowlevel.Abort.SUCCEEDED


CREW = 32
"""Tasks that may be on their way to their first job at once. In a burst the next jobs wait for a task that is done
soon, which most handlers are, rather than start one task each."""


PORTION = 256
"""Handlers that the end of a connection cancels in one go: ten thousand at once would hold up everybody else."""


class Workers:
    """Runs jobs in the connection's nursery, each under a cancel scope that stands for its stream.

    The scope is replaced only after a cancel. Each job runs in a fresh copy of ``context``.

    Jobs of a burst that find no task wait in line. Whoever finishes takes the next of them; and as soon as all tasks
    that were called have begun, more are called for those still in line, so that handlers that wait hold up nobody.
    """

    __slots__ = (
        "_afterlife",
        "_coming",
        "_done",
        "_ending",
        "_engine",
        "_idle",
        "_idle_limit",
        "_line",
        "_nursery",
        "context",
        "finished",
    )

    def __init__(self, engine: Engine, nursery: trio.Nursery, context: contextvars.Context, idle_limit: int) -> None:
        self.context = context
        self._engine = engine
        self._nursery = nursery
        self._idle_limit = idle_limit
        self._idle: list[Worker] = []
        self._line: deque[Job] | tuple[()] = ()  # an empty deque costs 600 bytes
        self._coming = 0
        self.finished = 0
        self._afterlife: dict[Job, None] = {}  # no set: an empty one costs 216 bytes
        self._ending = False
        self._done = Parking()

    def start(self, job: Job) -> None:
        """Run a job, in a task that is free or in a new one, or as soon as there is one."""
        if self._idle:
            worker = self._idle.pop()
            task = worker.task
            assert task is not None
            worker.job = job
            self._coming += 1
            # A parked task takes its next step in whatever context it has then.
            task.context = self.context.copy()
            trio.lowlevel.reschedule(task)
        elif self._coming < CREW:
            self._coming += 1
            self.context.copy().run(self._nursery.start_soon, self._work, Worker(job, self._idle))
        elif isinstance(self._line, deque):
            self._line.append(job)
        else:
            self._line = deque((job,))

    def dismiss(self) -> int:
        """Let the tasks go that wait for a job. Returns how many."""
        going = len(self._idle)
        for worker in self._idle:
            assert worker.task is not None
            self._coming += 1
            trio.lowlevel.reschedule(worker.task)
        self._idle.clear()
        return going

    def linger(self, job: Job) -> None:
        """A handler's stream is over before the handler is: it goes on counting as a stream."""
        if not job.lingering:
            job.lingering = True
            self._engine.session.detached += 1

    def outlive(self, job: Job) -> None:
        """A handler that answers nobody: it counts as a stream, and gets a moment when the connection ends."""
        self.linger(job)
        self._afterlife[job] = None

    @property
    def afterlives(self) -> int:
        """Handlers at work that answer nobody."""
        return len(self._afterlife)

    def end(self, jobs: Sequence[Job], error: RSocketError) -> None:
        """The connection is over: cancel these handlers, the first of them at once."""
        for job in jobs[:PORTION]:
            job.on_error(error)
        if len(jobs) > PORTION:
            rest = jobs[PORTION:]
            for job in rest:
                # Nothing more begins, or is said, until its turn comes.
                job.cancelled = True
                job.stream.open = NEITHER
            self._ending = True
            self._nursery.start_soon(self._end_in_portions, rest, error)

    @property
    def outlives(self) -> bool:
        """Whether handlers that answer nobody are at work, or others have still to be cancelled."""
        return bool(self._afterlife) or self._ending

    async def outlast(self) -> None:
        """Wait for the handlers that answer nobody, and until all others were cancelled."""
        while self.outlives:
            await self._done.park()

    async def give_up(self) -> None:
        """Cancel the handlers that answer nobody and did not end; those that wait for a task never begin."""
        self._line = ()
        for number, job in enumerate(list(self._afterlife), 1):
            job.cancel()
            if number % PORTION == 0:
                await trio.lowlevel.checkpoint()

    async def _end_in_portions(self, jobs: Sequence[Job], error: RSocketError) -> None:
        for start in range(0, len(jobs), PORTION):
            await trio.lowlevel.checkpoint()
            for job in jobs[start : start + PORTION]:
                job.on_error(error)
        self._ending = False
        self._done.wake_all()

    async def _work(self, worker: Worker) -> None:
        # One coroutine on purpose: every frame on the way to a waiting handler costs memory for each open stream.
        worker.task = trio.lowlevel.current_task()
        self._begin()
        while (job := worker.job) is not None:
            handler = job.handler
            scope = trio.CancelScope()
            was_cancelled = False
            try:
                with scope:
                    while job is not None:
                        handler = job.handler
                        try:
                            if not job.cancelled:
                                job.scope = scope
                                await RUNNERS[job.stream.interaction](job)
                        except Exception as error:
                            job.fail(error)
                        finally:
                            # Forgotten before this task parks, so that a late CANCEL can't hit the next job.
                            worker.job = job.scope = None
                            was_cancelled = job.cancelled
                            self._forget(job)
                            job = None  # a task that waits keeps no request alive
                        if not was_cancelled:
                            job = await self._next_job(worker)
            except Exception as error:
                # What a handler raised beside being cancelled: its stream is over, so only the log can hear of it.
                self._fail(handler, error)
            except BaseExceptionGroup as group:
                # The same when the nursery was cancelled meanwhile: being cancelled goes on, and nothing else.
                failures, rest = group.split(Exception)
                if failures is not None:
                    self._fail(handler, failures)
                if rest is not None:
                    raise rest from None
            if was_cancelled:
                await self._next_job(worker)

    def _fail(self, handler: Handler, error: Exception) -> None:
        if is_failure(self._engine, only_leaf(error)):
            self._engine.faults.of_handler(handler, error)

    async def _next_job(self, worker: Worker) -> Job | None:
        """The next job in line, or one that comes later; ``None`` at once when enough tasks wait already."""
        if self._line:
            worker.job = self._line.popleft()
            trio.lowlevel.current_task().context = self.context.copy()
            # The new context holds from the next step on.
            await trio.lowlevel.cancel_shielded_checkpoint()
        elif len(self._idle) < self._idle_limit:
            self._idle.append(worker)
            await trio.lowlevel.wait_task_rescheduled(worker.leave)
            self._begin()
        return worker.job

    def _begin(self) -> None:
        """A task that was called has come. If it was the last, those before it may all be waiting: call more."""
        self._coming -= 1
        if self._coming == 0:
            for _ in range(CREW):
                if not self._line:
                    self._line = ()
                    break
                self.start(self._line.popleft())

    def _forget(self, job: Job) -> None:
        self.finished += 1
        if job.channel is not None:
            # A job that was cancelled before its first step has read nothing of what came.
            job.channel.discard()
        if job.stream.owner is job:
            job.stream.owner = None
        if job.lingering:
            self._engine.session.detached -= 1
        if job in self._afterlife:
            del self._afterlife[job]
            self._done.wake_all()
