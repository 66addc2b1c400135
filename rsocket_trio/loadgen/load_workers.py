"""Makes a load with worker processes of this machine: they begin at one moment, and their counts are added up.

Each worker is a child of the supervisor that ``serve`` has for its own workers. It connects to this process over a Unix
socket and asks there to begin, once it can; then all get the same start on the machine's monotonic clock, so that
together they keep one schedule. They deliver what they counted each second: one that dies takes a second of counts with
it, and not the load.
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
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import IO

import attrs
import trio

from rsocket_trio import Payload, Responder, open_connection, serve
from rsocket_trio.errors import RSocketError, readable
from rsocket_trio.loadgen import measures
from rsocket_trio.loadgen.load_task import STOPPING, LoadError, Part, perform
from rsocket_trio.loadgen.measures import Row
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.loadgen.summary import Summary, summarize
from rsocket_trio.server.processes.messages import StartMessage, Work, encode_run
from rsocket_trio.server.processes.supervisor import Child, open_child
from rsocket_trio.transports.listen import Inherited

logger = logging.getLogger("rsocket_trio")

LEAD = 0.25
"""Seconds from when all are ready to the start: all workers have been told of it by then."""
END_TIMEOUT = 10.0
"""Seconds that workers get to end once they were stopped, beside those of the requests under way."""
MAX_REASON = 500
"""Characters of a worker's last line that an error repeats."""


class WorkerError(RuntimeError):
    """A worker died, so that the load was not the one that was asked for.

    ``summary`` holds what was counted until then.
    """

    def __init__(self, text: str, summary: Summary) -> None:
        """``text`` says which worker and why; ``summary`` is what there is."""
        super().__init__(text)
        self.summary = summary


async def run_workers(plan: Plan, *, stop: trio.Event | None = None) -> Summary:
    """Make the load of a plan from processes of this machine, and wait for its end. Return its summary.

    ``plan.tasks`` is the number of processes. No Spark is needed. Setting ``stop`` ends the load in order: the summary
    covers the time up to then.

    Raise ``ValueError`` for files of certificates that can't be used, ``LoadError`` if a worker fails to begin, so that
    none does, ``WorkerError`` if one dies on the way.
    """
    plan._ssl_context()  # before anything is started
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory() as folder:
        return await Crew(plan, errors).run(f"unix://{folder}/load", stop if stop is not None else trio.Event())


class Crew:
    """The workers of one load, and the counts that they have delivered."""

    def __init__(self, plan: Plan, errors: IO[bytes]) -> None:
        """``errors`` is a file that takes what workers write to stderr."""
        self._plan = plan
        self._errors = errors
        self._seed = secrets.randbits(32) if plan.seed is None else plan.seed
        self._counts: Counter[tuple[int, str, str, int | None]] = Counter()
        self._ready: set[int] = set()
        self._done: set[int] = set()
        self._problem: str | None = None
        self._death: str | None = None
        self._stopped = False
        self._start: float | None = None
        self._start_ns = 0
        # Set by `_begin` when the last worker is ready: its handlers wait for it.
        self._started = trio.Event()
        # Set when the load is to end before its time; `_end_early` of each worker waits for it.
        self._over = trio.Event()

    async def run(self, uri: str, stop: trio.Event) -> Summary:
        """Make the load, with a server for the workers at ``uri``. Raise ``LoadError`` and ``WorkerError``."""
        responder = Responder()
        responder.request_response("begin")(self._begin)
        responder.request_response("count")(self._count)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(serve, responder, uri, grace=0))
            nursery.start_soon(self._stop_when, stop)
            async with trio.open_nursery() as workers:
                for number in range(self._plan.tasks):
                    workers.start_soon(self._run_worker, number, uri)
            nursery.cancel_scope.cancel()
        if self._problem is not None:
            raise LoadError(self._problem)
        if self._death is not None:
            raise WorkerError(self._death, self.summary())
        return self.summary()

    def summary(self) -> Summary:
        """Return the summary of what was delivered up to now."""
        rows = [(*key, count) for key, count in self._counts.items()]
        summary = summarize(self._plan, rows, seed=self._seed, interrupted=self._stopped)
        if not summary.measured and self._start is not None:
            # A worker says how long it measured only at the end.
            elapsed = trio.current_time() - self._start - self._plan.warm_up
            summary = attrs.evolve(summary, measured=min(max(elapsed, 0.0), self._plan._length))
        return summary

    # The requests of workers

    async def _begin(self, request: Payload) -> bytes:
        """Take the word of a worker that it is ready, or why it is not. Answer with the start, once all are ready."""
        number, problem = json.loads(request.data)
        if problem:
            self._problem = self._problem or problem
            self._over.set()
        else:
            self._ready.add(number)
            if len(self._ready) == self._plan.tasks and not self._over.is_set():
                self._start = trio.current_time() + LEAD
                self._start_ns = time.monotonic_ns() + round(LEAD * measures.NS)
                self._started.set()
        await self._started.wait()
        return b"%d" % self._start_ns

    def _count(self, request: Payload) -> bytes:
        """Take counts of a worker; its last ones say so."""
        number, rows, is_done = json.loads(request.data)
        for *key, count in rows:
            self._counts[tuple(key)] += count
        if is_done:
            self._done.add(number)
        return b""

    # The processes

    async def _run_worker(self, number: int, uri: str) -> None:
        """Run a worker to its end; one that dies before it is done ends the load."""
        part = Part(plan=self._plan, task=number, seed=self._seed)
        level = logger.getEffectiveLevel()
        message = StartMessage("load", (), 0.0, encode_run(partial(prepare_worker, part, uri, level)))
        # Log lines that are wanted go where ours go; without them the last line is kept as the reason of a death.
        async with open_child(message, self._errors if level >= logging.WARNING else None) as child:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_early, child)
                try:
                    await child.begin(message.encode())
                except ChildProcessError as error:
                    if child.process.returncode is None:
                        self._give_up(number, child, f"failed: {error}")
                        child.process.kill()
                await child.process.wait()
                nursery.cancel_scope.cancel()
            if number not in self._done and (self._start is not None or not self._over.is_set()):
                self._give_up(number, child, self._how_it_ended(child))

    def _how_it_ended(self, child: Child) -> str:
        code = child.process.returncode
        assert code is not None
        if code < 0:
            return "did not stop" if self._over.is_set() else f"was ended by {signal.Signals(-code).name}"
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"ended with code {code}" + (f": {readable(lines[-1])[:MAX_REASON]}" if lines else "")

    def _give_up(self, number: int, child: Child, reason: str) -> None:
        """End the load for the reason, the first one that there is."""
        name = f"worker {number + 1} of {self._plan.tasks} (process {child.process.pid})"
        self._death = self._death or f"{name} {reason}"
        self._over.set()

    async def _stop_when(self, stop: trio.Event) -> None:
        await stop.wait()
        self._stopped = True
        self._over.set()

    async def _end_early(self, child: Child) -> None:
        """Once the load is over before its time, have a worker stop, and see to it that it does."""
        await self._over.wait()
        if self._start is None:
            # It waits for a start that does not come, or still connects: nothing is lost with it.
            child.process.kill()
        else:
            await child.retire(STOPPING + END_TIMEOUT)


# In a worker process


def prepare_worker(part: Part, uri: str, level: int, inherited: Sequence[Inherited]) -> tuple[int, Work]:
    """Return the work of a worker: to make its part of the load for the crew at ``uri``, and log from a level on."""
    logging.basicConfig(level=level)
    return 0, partial(work, part, uri)


async def work(part: Part, uri: str, *, retiring: trio.Event, task_status: trio.TaskStatus[None]) -> None:
    """Make a part of a load and send its counts to the crew; stop in order once ``retiring`` is set."""
    try:
        async with open_connection(uri) as crew:

            async def ask(route: str, *content: object) -> bytes:
                answer = await crew.request_response(json.dumps((part.task, *content)), route=route)
                return answer.data

            async def ready(problem: str) -> tuple[str, float]:
                # What lives by now lives to the end: the collector need not hold up requests to look at it.
                gc.collect()
                gc.freeze()
                start_ns = int(await ask("begin", problem))
                # Both clocks are monotonic and of this machine, one moved by a constant.
                return problem, trio.current_time() + (start_ns - time.monotonic_ns()) / measures.NS

            def deliver(rows: list[Row]) -> Awaitable[bytes]:
                return ask("count", rows, False)

            task_status.started()
            rows = await perform(part, ready, retiring.wait, deliver=deliver)
            await ask("count", rows, True)
    except* RSocketError as group:
        # The crew is gone, and with it everybody who would take the counts.
        logger.info("the load ends early: %s", group.exceptions[0])
