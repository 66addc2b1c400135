"""Makes a load with worker processes of this machine: they begin at one moment, and their counts are added up.

A worker is a process with a Trio loop, as a task of Spark is one. Each connects, checks its first request, and says so;
then all get the same start on the machine's monotonic clock, so that together they keep one schedule. They deliver what
they counted each second: one that dies takes a second of counts with it, and not the load.
"""

from __future__ import annotations

import logging
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TypeAlias, Unpack

import attrs
import trio

from rsocket_trio.errors import readable
from rsocket_trio.loadgen import measures
from rsocket_trio.loadgen.load_messages import (
    DONE,
    READY,
    ROWS,
    START,
    STOP,
    STOPPING,
    LoadError,
    Message,
    Part,
    encode,
    receive,
)
from rsocket_trio.loadgen.measures import Row
from rsocket_trio.loadgen.plan import Plan, Terms
from rsocket_trio.loadgen.summary import Summary, summarize

HOME = str(Path(__file__).parents[2])
BOOT = "import sys; sys.path.append(sys.argv[1]); from rsocket_trio.loadgen.load_worker import main; main()"
"""The program of a worker: this library, wherever it is. What it is to do comes through its pipe, secrets included."""
logger = logging.getLogger("rsocket_trio")

START_TIMEOUT = 60.0
"""Seconds that a worker may take to start, beside those to connect and to have its first request answered."""
LEAD = 0.25
"""Seconds from when all are ready to the start: all workers have been told of it by then."""
SILENCE = 30.0
"""Seconds without a word from a worker after which it hangs; it speaks each second."""
FAREWELL = 10.0
"""Seconds that workers get to end once they were stopped, beside those of the requests under way."""

Watch: TypeAlias = Callable[[Summary], object]
"""Gets the summary up to now, whenever counts have come. Return true to end the load."""


class WorkerError(RuntimeError):
    """A worker died or hung, so that the load was not the one that was asked for.

    ``summary`` holds what was counted until then.
    """

    def __init__(self, text: str, summary: Summary) -> None:
        """``text`` says which worker and why; ``summary`` is what there is."""
        super().__init__(text)
        self.summary = summary


async def run_workers(uri: str, *, stop: trio.Event | None = None, **terms: Unpack[Terms]) -> Summary:
    """Make a load on the server at ``uri`` from processes of this machine, and wait for its end. Return its summary.

    ``terms`` are the fields of ``Plan``, as for ``run``; ``tasks`` is the number of processes. No Spark is needed.
    Setting ``stop`` ends the load in order: the summary covers the time up to then.

    Raise ``ValueError`` for invalid terms, ``LoadError`` if a worker fails to begin, so that none does, ``WorkerError``
    if one dies on the way.
    """
    return await run_plan(Plan(uri=uri, **terms), stop=stop)


async def run_plan(plan: Plan, *, stop: trio.Event | None = None, watch: Watch | None = None) -> Summary:
    """Make the load of a plan with workers. Raise the errors of ``run_workers``.

    ``watch`` gets the summary up to now each second.
    """
    plan._connection_options()  # raises for files that can't be used, before anything is started
    with tempfile.TemporaryFile() as spoken:
        return await Crew(plan, spoken, watch).run(stop if stop is not None else trio.Event())


@attrs.define(eq=False)
class Worker:
    """One worker process."""

    number: int
    process: trio.Process
    ready: bool = False
    done: bool = False


class Crew:
    """The workers of one load, and the counts that they have delivered."""

    def __init__(self, plan: Plan, spoken: IO[bytes], watch: Watch | None = None) -> None:
        """``spoken`` is a file that takes what workers say on stderr."""
        self._plan = plan
        self._spoken = spoken
        self._watch = watch
        self._seed = secrets.randbits(32) if plan.seed is None else plan.seed
        self._workers: list[Worker] = []
        self._counts: dict[tuple[int, str, str, int | None], int] = {}
        self._problem: str | None = None
        self._death: str | None = None
        self._stopped = False
        self._start: float | None = None
        # Set by `_listen` when the last worker is ready, or one can't be or died; `run` waits for it.
        self._settled = trio.Event()
        # Set by `_listen` when the load is to end before its time; `_end_early` waits for it.
        self._over = trio.Event()

    async def run(self, stop: trio.Event) -> Summary:
        """Make the load. Return its summary; raise ``LoadError`` and ``WorkerError``."""
        plan = self._plan
        async with trio.open_nursery() as nursery:
            try:
                nursery.start_soon(self._stop_when, stop)
                for number in range(plan.tasks):
                    self._workers.append(await self._started(number))
                async with trio.open_nursery() as listening:
                    for worker in self._workers:
                        listening.start_soon(self._listen, worker)
                    nursery.start_soon(self._end_early)
                    await self._get_ready()
                    if not self._over.is_set():
                        self._start = trio.current_time() + LEAD
                        await self._tell((START, time.monotonic_ns() + round(LEAD * measures.NS)))
            finally:
                with trio.CancelScope(shield=True):
                    await self._end_all()
            nursery.cancel_scope.cancel()
        summary = self.summary()
        if self._problem is not None:
            raise LoadError(self._problem)
        if self._death is not None:
            raise WorkerError(self._death, summary)
        return summary

    def summary(self) -> Summary:
        """Return the summary of what was delivered up to now."""
        rows = [(*key, count) for key, count in self._counts.items()]
        found = summarize(self._plan, rows, seed=self._seed, interrupted=self._stopped)
        if not found.measured and self._start is not None:
            # A worker says how long it measured only at the end.
            elapsed = trio.current_time() - self._start - self._plan.warm_up
            found = attrs.evolve(found, measured=min(max(elapsed, 0.0), self._plan.seconds))
        return found

    async def _started(self, number: int) -> Worker:
        # In a group of its own: Ctrl-C in a terminal is for us, and workers are told what to do.
        level = logger.getEffectiveLevel()
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", BOOT, HOME, str(level)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Log lines that are wanted go where ours go; without them the last line is kept as the reason of a death.
            stderr=None if level < logging.WARNING else self._spoken,
            process_group=0,
        )
        return Worker(number, process)

    async def _get_ready(self) -> None:
        """Send each worker its part, and wait until all are ready or one can't be."""
        plan = self._plan
        for worker in self._workers:
            await self._send(worker, Part(plan=plan, task=worker.number, seed=self._seed))
        seconds = START_TIMEOUT + plan.connect_timeout + (plan.timeout if plan.probe else 0)
        with trio.move_on_after(seconds) as scope:
            await self._settled.wait()
        if scope.cancelled_caught:
            late = next(worker for worker in self._workers if not worker.ready)
            self._give_up(f"{self._name(late)} was not ready after {seconds:g} s")

    async def _listen(self, worker: Worker) -> None:
        """Take the messages of a worker until it is done or dead."""
        stream = worker.process.stdout
        assert stream is not None
        while not worker.done:
            with trio.move_on_after(SILENCE if worker.ready else float("inf")) as scope:
                message = await receive(stream)
            if scope.cancelled_caught:
                self._give_up(f"{self._name(worker)} said nothing for {SILENCE:g} s{self._since()}")
                worker.process.kill()
                return
            if message is None:
                await self._died(worker)
                return
            assert isinstance(message, tuple)
            self._take(worker, *message)

    def _take(self, worker: Worker, kind: str, content: object) -> None:
        if kind == READY:
            worker.ready = True
            if content:
                self._problem = self._problem or str(content)
                self._over.set()
            if content or all(each.ready for each in self._workers):
                self._settled.set()
        elif kind == ROWS:
            assert isinstance(content, Iterable)
            self._add(content)
            if self._watch is not None and self._watch(self.summary()):
                self._stopped = True
                self._over.set()
        elif kind == DONE:
            worker.done = True

    def _add(self, rows: Iterable[Row]) -> None:
        for second, measure, name, bucket, count in rows:
            key = second, measure, name, bucket
            if measure in measures.FACTS:
                self._counts[key] = max(self._counts.get(key, 0), count)
            else:
                self._counts[key] = self._counts.get(key, 0) + count

    async def _died(self, worker: Worker) -> None:
        """Say how a worker ended that had more to do, unless it was told to go."""
        code = await worker.process.wait()
        if worker.done:
            return
        if self._problem is None and not (self._over.is_set() and not worker.ready):
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            last = _last_line(self._spoken)
            self._give_up(f"{self._name(worker)} {how}{self._since()}{': ' if last else ''}{last}")

    def _give_up(self, reason: str) -> None:
        """End the load for the reason, the first one that there is."""
        self._death = self._death or reason
        self._over.set()
        self._settled.set()

    def _name(self, worker: Worker) -> str:
        return f"worker {worker.number + 1} of {self._plan.tasks} (process {worker.process.pid})"

    def _since(self) -> str:
        if self._start is None:
            return " before the load began"
        return f" {max(trio.current_time() - self._start, 0.0):.1f} s after the start"

    async def _stop_when(self, stop: trio.Event) -> None:
        await stop.wait()
        self._stopped = True
        self._over.set()
        self._settled.set()

    async def _end_early(self) -> None:
        """Once the load is over before its time, have the workers stop, and see to it that they do."""
        await self._over.wait()
        if self._start is None:
            # They wait for a start that does not come, or still connect: nothing is lost with them.
            for worker in self._workers:
                worker.done = True
                worker.process.kill()
            return
        await self._tell((STOP, None))
        await trio.sleep(STOPPING + FAREWELL)
        for worker in self._workers:
            if not worker.done:
                self._give_up(f"{self._name(worker)} did not stop")
                worker.process.kill()

    async def _tell(self, message: Message) -> None:
        for worker in self._workers:
            await self._send(worker, message)

    async def _send(self, worker: Worker, message: object) -> None:
        stream = worker.process.stdin
        assert stream is not None
        try:
            await stream.send_all(encode(message))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # It is dead, and `_listen` says so.
            return

    async def _end_all(self) -> None:
        """Leave no process behind."""
        for worker in self._workers:
            if not worker.done:
                worker.process.kill()
        for worker in self._workers:
            for stream in (worker.process.stdin, worker.process.stdout):
                if stream is not None:
                    await stream.aclose()
            with trio.move_on_after(FAREWELL):
                await worker.process.wait()
            if worker.process.returncode is None:
                worker.process.kill()
                await worker.process.wait()


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return readable(lines[-1])[:500] if lines else ""
