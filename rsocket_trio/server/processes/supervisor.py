"""Binds the addresses, keeps the wanted number of workers running, and replaces all of them on SIGHUP.

The workers accept from the same sockets, so a replacement refuses no connection.
"""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from rsocket_trio.server.processes.messages import (
    DRAIN,
    MARGIN,
    RETIRE,
    RETIRE_DELAY,
    Run,
    StartMessage,
    check_workers,
    encode_run,
    prepare_serving,
)
from rsocket_trio.transports.listen import BoundListener, open_listeners
from rsocket_trio.transports.schemes import parse_uri

if TYPE_CHECKING:
    from rsocket_trio.server.serve import ServeOptions

logger = logging.getLogger("rsocket_trio")

START_TIMEOUT = 60.0
"""Seconds that a worker may take until it serves."""
HOME = str(Path(__file__).parents[3])
BOOT = "import sys; sys.path.append(sys.argv[3]); from rsocket_trio.server.processes.worker import main; main()"
"""The program of a worker: this library, wherever it is; the start message says where to find everything else."""
FAILURES = (ValueError, TypeError, ImportError, OSError)
"""Errors that keep a worker from serving; ``ChildProcessError`` is one of the last."""
GOOD_LIFE = 10.0
"""Seconds after which a worker's death says nothing about the next one."""
FIRST_PAUSE = 0.1
"""Seconds before the first worker that died early is replaced. They double with each one that follows."""
TRIES = 5
"""Deaths in a row, each of a worker that lived less than ``GOOD_LIFE``, after which the supervisor gives up."""


async def serve_in_processes(
    name: Any,
    uris: Sequence[str],
    run: Run,
    options: ServeOptions,
    *,
    on_routes: Callable[[int], object] = lambda routes: None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Have ``options["workers"]`` processes serve the named responder on all URIs, until cancelled.

    Each process imports the responder and calls ``run``. The addresses are bound here, once; the workers accept from
    the same sockets, so no client that connects is lost with one of them. Report the bound URIs once all workers
    serve.

    ``on_routes`` is called before that with the number of routes that the first workers serve.

    In the main thread SIGHUP starts new workers, and then lets the old ones finish. A worker that dies is replaced.

    Raise the error that keeps the first workers from serving, and ``ChildProcessError`` when workers die again and
    again.
    """
    schemes = [parse_uri(uri).scheme for uri in uris]
    workers = check_workers(options["workers"], name, schemes, resumes=options["resume"] is not None)
    encoded = encode_run(partial(prepare_serving, name, run))
    listeners = await open_listeners(uris, ssl_context=options["ssl_context"], unix_mode=options["unix_mode"])
    async with AsyncExitStack() as stack:
        for listener in listeners:
            stack.push_async_callback(listener.aclose)
        message = StartMessage(name, tuple(listener.to_inherit() for listener in listeners), options["grace"], encoded)
        try:
            async with _hangups() as hangups, trio.open_nursery() as nursery:
                nursery.start_soon(_close_when_cancelled, listeners)
                retired, routes = await _start_generation(nursery, message, workers)
                on_routes(routes)
                task_status.started([listener.uri for listener in listeners])
                async for _ in hangups:
                    logger.info("new workers are started")
                    try:
                        successor, routes = await _start_generation(nursery, message, workers)
                    except FAILURES as error:
                        logger.error("new workers could not be started, the old ones go on: %s", error)  # noqa: TRY400
                        continue
                    retired.set()
                    retired = successor
                    logger.info("new workers serve %d routes, the old ones finish", routes)
        except BaseExceptionGroup as group:
            # Workers that end again and again may do so together.
            are_alike = group.split(ChildProcessError)[1] is None
            leaf: BaseException = group
            while isinstance(leaf, BaseExceptionGroup) and (are_alike or len(leaf.exceptions) == 1):
                leaf = leaf.exceptions[0]
            raise leaf from leaf.__cause__


async def _close_when_cancelled(listeners: Iterable[BoundListener]) -> None:
    """Close the supervisor's own sockets as soon as it is cancelled.

    Each worker accepts what waits before it closes its own. What came after the last one, while the workers drain,
    would wait for nobody.
    """
    try:
        await trio.sleep_forever()
    finally:
        for listener in listeners:
            await listener.aclose()


@asynccontextmanager
async def _hangups() -> AsyncIterator[AsyncIterator[int]]:
    """Receive SIGHUPs in the main thread; in any other thread none arrive."""
    if threading.current_thread() is threading.main_thread():
        # A SIGHUP that is still unhandled at the end is raised for the handler before: ignore it, lest it kill us.
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with trio.open_signal_receiver(signal.SIGHUP) as hangups:
                yield hangups
        finally:
            # Until Trio has passed on all signals that it caught: one that finds its receiver gone is raised anew.
            heard = trio.Event()
            trio.lowlevel.current_trio_token().run_sync_soon(heard.set)
            with trio.CancelScope(shield=True):
                await heard.wait()
            signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)
    else:
        nobody, hangups_of_nobody = trio.open_memory_channel[int](0)
        with nobody, hangups_of_nobody:
            yield hangups_of_nobody


async def _start_generation(nursery: trio.Nursery, start: StartMessage, workers: int) -> tuple[trio.Event, int]:
    """Start so many workers, and wait until all of them serve.

    Return the event that retires them when it is set, and the number of their routes.
    """
    retired = trio.Event()
    slot = Slot(start, retired)
    failures: list[Exception] = []
    routes: list[int] = []

    async def fill() -> None:
        try:
            routes.append(await nursery.start(slot.keep))
        except FAILURES as error:
            failures.append(error)
            starting.cancel_scope.cancel()

    try:
        # The slots run in the server's nursery and outlive this one, which ends when each has a worker that serves.
        async with trio.open_nursery() as starting:
            for _ in range(workers):
                starting.start_soon(fill)
    except BaseException:
        retired.set()
        raise
    if failures:
        retired.set()
        raise failures[0]
    return retired, routes[0]


@attrs.define
class Slot:
    """Keeps each worker of a generation running, by replacement, until that is retired."""

    start: StartMessage
    retired: trio.Event
    deaths: int = 0
    """Short lives in a row."""

    async def keep(self, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a worker running. The first one must start, the next ones may fail at that for a while.

        Report the number of routes that the first one serves.
        """
        encoded = self.start.encode()
        served = False
        while not self.retired.is_set():
            started = trio.current_time()
            async with open_child(self.start) as child:
                try:
                    routes = await child.begin(encoded)
                except FAILURES as error:
                    if not served:
                        raise
                    why = f"a new worker could not be started: {error}"
                else:
                    if not served:
                        served = True
                        task_status.started(routes)
                    # Either the worker dies and gets a successor, or SIGHUP has started a new generation.
                    await _first_of(child.process.wait, self.retired.wait)
                    if child.process.returncode is None:
                        await child.retire(RETIRE_DELAY)
                        return
                    why = f"{child} ended: {child.end}"
            if not self.retired.is_set():
                self.deaths = self.deaths + 1 if trio.current_time() - started < GOOD_LIFE else 0
                if self.deaths >= TRIES:
                    raise ChildProcessError(f"workers end again and again: {why}")
                pause = FIRST_PAUSE * 2.0 ** (self.deaths - 1) if self.deaths else 0.0
                logger.error("%s; the next one is started in %g seconds", why, pause)
                await _first_of(partial(trio.sleep, pause), self.retired.wait)


@attrs.define(eq=False)
class Child:
    """A worker process, as its supervisor sees it."""

    process: trio.Process
    _control: trio.SocketStream
    _grace: float
    _has_started: bool = False

    def __str__(self) -> str:
        return f"worker {self.process.pid}"

    @property
    def end(self) -> str:
        code = self.process.returncode
        assert code is not None
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    async def begin(self, start: bytes) -> int:
        """Wait until it serves. Return the number of its routes.

        Raise the error that kept it from that, by its kind; ``ChildProcessError`` if it just ended or takes too long.
        """
        answer = b""
        with trio.move_on_after(START_TIMEOUT) as timeout:
            try:
                await self._control.send_all(start)
                self._has_started = True
                while not answer.endswith(b"\n") and (more := await self._control.receive_some()):
                    answer += more
            except trio.BrokenResourceError:
                answer = b""
            if not answer:
                await self.process.wait()
        if timeout.cancelled_caught:
            raise ChildProcessError(f"{self} did not serve within {START_TIMEOUT:g} seconds")
        if not answer:
            raise ChildProcessError(f"{self} ended before it served: {self.end}")
        report = json.loads(answer)
        if "failed" in report:
            kinds = {kind.__name__: kind for kind in FAILURES}
            raise kinds.get(report["kind"], ChildProcessError)(report["failed"])
        routes: int = report["routes"]
        return routes

    async def retire(self, delay: float) -> None:
        """Have it go, as others serve already. Kill it after ``delay`` seconds and its grace period."""
        await self._say(RETIRE)
        with trio.move_on_after(delay + self._grace + MARGIN):
            await self.process.wait()
        self.process.kill()
        await self.process.wait()

    async def finish(self) -> None:
        """Have it go now, within the grace period, and end it if it does not."""
        if self.process.returncode is None:
            if self._has_started:
                await self._say(DRAIN)
            else:
                self.process.kill()  # it waits for its start message, and takes no word before
            with trio.move_on_after(self._grace + MARGIN):
                await self.process.wait()
            self.process.kill()
            await self.process.wait()
        await self._control.aclose()

    async def _say(self, word: bytes) -> None:
        with suppress(trio.BrokenResourceError):  # it has gone already
            await self._control.send_all(word)


@asynccontextmanager
async def open_child(start: StartMessage) -> AsyncIterator[Child]:
    """Run a process of the same Python for as long as the block, which ends by waiting for its end."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            descriptor = theirs.fileno()
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-c", BOOT, start.name, str(descriptor), HOME],
                stdin=subprocess.DEVNULL,
                pass_fds=[descriptor, *start.descriptors],
                # A terminal's signals are for the supervisor, which tells its workers what to do.
                process_group=0,
            )
    except BaseException:
        ours.close()
        # The sockets that it inherits may be closed already, if all of this ends.
        await trio.lowlevel.checkpoint_if_cancelled()
        raise
    child = Child(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)), start.grace)
    try:
        yield child
    finally:
        with trio.CancelScope(shield=True):
            await child.finish()


async def _first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(until: Callable[[], Awaitable[object]]) -> None:
            await until()
            nursery.cancel_scope.cancel()

        for until in waits:
            nursery.start_soon(wait, until)
