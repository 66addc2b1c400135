"""Makes a load with worker processes of this machine: they begin at one moment, and their counts are added up.

Each worker is a child of the supervisor that ``serve`` has for its own workers. It connects to this process over a Unix
socket and asks there to begin, once it can; then all get the same start on the machine's monotonic clock, so that
together they keep one schedule. At the end they deliver what they counted.
"""

from __future__ import annotations

import gc
import json
import logging
import secrets
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import trio

from rsocket_trio import Payload, Responder, open_connection, serve
from rsocket_trio.errors import RSocketError
from rsocket_trio.loadgen.load_task import STOPPING, LoadError, Part, perform
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.loadgen.summary import NS, Summary, summarize
from rsocket_trio.server.processes.messages import StartMessage, Work, encode_run
from rsocket_trio.server.processes.supervisor import Child, open_child
from rsocket_trio.transports.listen import Inherited

logger = logging.getLogger("rsocket_trio")

LEAD = 0.25
"""Seconds from when all are ready to the start: all workers have been told of it by then."""
DELIVERED = 10_000
"""Rows of counts in one message to this process."""
END_TIMEOUT = 10.0
"""Seconds that workers get to end once they were stopped, beside those of the requests under way."""


class WorkerError(RuntimeError):
    """A worker died, so that the load was not the one that was asked for."""


async def run_workers(plan: Plan, *, stop: trio.Event | None = None) -> Summary:
    """Make the load of a plan from processes of this machine, and wait for its end. Return its summary.

    ``plan.tasks`` is the number of processes. No Spark is needed. Setting ``stop`` ends the load in order: the summary
    covers the time up to then.

    Raise ``OSError`` for files of certificates that can't be used, ``LoadError`` if a worker fails to begin, so that
    none does, ``WorkerError`` if one dies on the way.
    """
    plan._connection_options()  # before anything is started
    with tempfile.TemporaryDirectory() as folder:
        return await Crew(plan, f"unix://{folder}/load", trio.Event() if stop is None else stop).run()


class Crew:
    """The workers of one load, and the counts that they have delivered."""

    def __init__(self, plan: Plan, uri: str, stop: trio.Event) -> None:
        """Workers connect to ``uri``."""
        self._plan = plan
        self._uri = uri
        self._stop = stop
        self._seed = secrets.randbits(32) if plan.seed is None else plan.seed
        self._counts = Counter[tuple[int, str, str, int | None]]()
        self._ready = 0
        self._done: set[int] = set()
        self._problem: str | None = None
        self._death: str | None = None
        self._start_ns = 0
        # Set by `_begin` when the last worker is ready: its handlers wait for it.
        self._started = trio.Event()
        # Set when the load is to end before its time; `_end_early` of each worker waits for it.
        self._over = trio.Event()

    async def run(self) -> Summary:
        """Make the load, with a server for the workers. Raise ``LoadError`` and ``WorkerError``."""
        responder = Responder()
        responder.request_response("begin")(self._begin)
        responder.request_response("count")(self._count)
        responder.request_response("end")(self._end)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve, responder, self._uri, grace=0))
            nursery.start_soon(self._end_when_stopped)
            async with trio.open_nursery() as workers:
                for number in range(self._plan.tasks):
                    workers.start_soon(self._run_worker, number)
            nursery.cancel_scope.cancel()
        if self._problem is not None:
            raise LoadError(self._problem)
        if self._death is not None:
            raise WorkerError(self._death)
        rows = [(*key, count) for key, count in self._counts.items()]
        return summarize(self._plan, rows, seed=self._seed, interrupted=self._stop.is_set())

    async def _end_when_stopped(self) -> None:
        await self._stop.wait()
        self._over.set()

    async def _begin(self, request: Payload) -> bytes:
        """Count a worker as ready, or hear why it is not. Answer with the start, once all are ready."""
        problem = json.loads(request.data)
        if problem:
            self._problem = self._problem or problem
            self._over.set()
        else:
            self._ready += 1
            if self._ready == self._plan.tasks and not self._over.is_set():
                self._start_ns = time.monotonic_ns() + round(LEAD * NS)
                self._started.set()
        await self._started.wait()
        return b"%d" % self._start_ns

    def _count(self, request: Payload) -> bytes:
        for *key, count in json.loads(request.data):
            self._counts[tuple(key)] += count
        return b""

    def _end(self, request: Payload) -> bytes:
        """Hear of a worker that it has delivered all."""
        self._done.add(json.loads(request.data))
        return b""

    async def _run_worker(self, number: int) -> None:
        """Run a worker to its end; one that dies before it is done ends the load."""
        part = Part(plan=self._plan, task=number, seed=self._seed)
        prepare = partial(prepare_worker, part, self._uri, logger.getEffectiveLevel())
        message = StartMessage("load", (), 0.0, encode_run(prepare))
        async with open_child(message) as child:
            reason = ""
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_early, child)
                try:
                    await child.begin(message.encode())
                except ChildProcessError as error:
                    if child.process.returncode is None:
                        reason = f"failed: {error}"
                        child.process.kill()
                await child.process.wait()
                nursery.cancel_scope.cancel()
            if number not in self._done and (self._started.is_set() or not self._over.is_set()):
                name = f"worker {number + 1} of {self._plan.tasks} (process {child.process.pid})"
                self._death = self._death or f"{name} {reason or self._how_it_ended(child)}"
                self._over.set()

    def _how_it_ended(self, child: Child) -> str:
        code = child.process.returncode or 0
        if code >= 0:
            return f"ended with code {code}"
        return "did not stop" if self._over.is_set() else f"was ended by {signal.Signals(-code).name}"

    async def _end_early(self, child: Child) -> None:
        """Once the load is over before its time, have a worker stop, and see to it that it does."""
        await self._over.wait()
        if not self._started.is_set():
            # It waits for a start that does not come, or still connects: nothing is lost with it.
            child.process.kill()
        else:
            await child.retire(STOPPING + END_TIMEOUT)


def prepare_worker(part: Part, uri: str, level: int, inherited: Sequence[Inherited]) -> tuple[int, Work]:
    """Return the work of a worker: to make its part of the load for the crew at ``uri``, and log from a level on."""
    # Why a connection is refused or lost is told by the load's error, and counted: not as a warning of each as well.
    logging.basicConfig(level=logging.ERROR if level == logging.WARNING else level)
    return 0, partial(work, part, uri)


async def work(part: Part, uri: str, *, retiring: trio.Event, task_status: trio.TaskStatus[None]) -> None:
    """Make a part of a load and send its counts to the crew; stop in order once ``retiring`` is set."""
    try:
        async with open_connection(uri) as crew:

            async def ready(problem: str) -> tuple[str, float]:
                # What lives by now lives to the end: the collector need not hold up requests to look at it.
                gc.collect()
                gc.freeze()
                answer = await crew.request_response(json.dumps(problem), route="begin")
                # Both clocks are monotonic and of this machine, one moved by a constant.
                return problem, trio.current_time() + (int(answer.data) - time.monotonic_ns()) / NS

            task_status.started()
            rows = await perform(part, ready, retiring.wait)
            for start in range(0, len(rows), DELIVERED):
                await crew.request_response(json.dumps(rows[start : start + DELIVERED]), route="count")
            await crew.request_response(json.dumps(part.task), route="end")
    except* RSocketError as group:
        # The crew is gone, and with it everybody who would take the counts.
        logger.info("the load ends early: %s", group.exceptions[0])
