"""The tasks that run handlers: kept between requests, because starting one costs more than most handlers."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from rsocket_trio.connection.connection import Connection
    from rsocket_trio.connection.handlers import Job


class Worker:
    """One task and the job that it has."""

    __slots__ = ("job", "task")

    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.task: trio.lowlevel.Task | None = None


class Workers:
    """Runs jobs in the connection's nursery, each under a cancel scope that stands for its stream.

    The scope is replaced only after a cancel. Each job runs in a fresh copy of ``context``.
    """

    def __init__(
        self, connection: Connection, nursery: trio.Nursery, context: contextvars.Context, idle_limit: int
    ) -> None:
        self._connection = connection
        self._nursery = nursery
        self.context = context
        self._idle_limit = idle_limit
        self._idle: list[Worker] = []

    def start(self, job: Job) -> None:
        """Run a job, in a task that is free or in a new one."""
        if self._idle:
            worker = self._idle.pop()
            task = worker.task
            assert task is not None
            worker.job = job
            # A parked task takes its next step in whatever context it has then.
            task.context = self.context.copy()
            trio.lowlevel.reschedule(task)
        else:
            self.context.copy().run(self._nursery.start_soon, self._work, Worker(job))

    async def _work(self, worker: Worker) -> None:
        worker.task = trio.lowlevel.current_task()
        while worker.job is not None:
            function = worker.job.handler.function
            try:
                with trio.CancelScope() as scope:
                    while worker.job is not None and not scope.cancel_called:
                        function = worker.job.handler.function
                        await self._run(worker, worker.job, scope)
                        if not scope.cancel_called:
                            await self._park(worker)
            except Exception as error:  # noqa: BLE001 - what a handler raises beside being cancelled
                self._connection.log_failure(function, error)
            if worker.job is None and scope.cancel_called:
                await self._park(worker)

    async def _run(self, worker: Worker, job: Job, scope: trio.CancelScope) -> None:
        try:
            if not job.cancelled:
                job.scope = scope
                await job.run()
        finally:
            # Forgotten before this task parks, so that a late CANCEL can't hit the next job.
            worker.job = job.scope = None
            self._connection.job_over(job)

    async def _park(self, worker: Worker) -> None:
        """Wait for the next job; return at once, without one, when enough tasks wait already."""
        if len(self._idle) >= self._idle_limit:
            return

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle.remove(worker)
            return trio.lowlevel.Abort.SUCCEEDED

        self._idle.append(worker)
        await trio.lowlevel.wait_task_rescheduled(abort)
