"""Binds the addresses, keeps the wanted number of workers running, and replaces all of them on SIGHUP.

The workers accept from the same sockets, so a replacement refuses no connection.
"""

from __future__ import annotations

import logging
import signal
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import trio

from rsocket_trio.server.processes.child import FAILURES, open_child
from rsocket_trio.server.processes.messages import RETIRE_DELAY, Orders, Run, check_workers, encode_run
from rsocket_trio.server.processes.restart_backoff import Patience
from rsocket_trio.transports.listen import open_listeners
from rsocket_trio.transports.schemes import parse_uri

logger = logging.getLogger("rsocket_trio")


async def serve_in_processes(
    name: str,
    uris: Iterable[str],
    run: Run,
    *,
    workers: int,
    grace: float,
    make_context: Callable[[], ssl.SSLContext | None],
    unix_mode: int | None = None,
    resumes: bool = False,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Have so many processes serve the named responder on all URIs, until cancelled.

    Each process imports the responder and calls ``run``. The addresses are bound here, once; the workers accept from
    the same sockets, so no client that connects is lost with one of them. Reports the bound URIs once all workers
    serve.

    In the main thread SIGHUP starts new workers, and then lets the old ones finish. A worker that dies is replaced.

    Raises the error that keeps the first workers from serving, and ``ChildProcessError`` when workers die again and
    again.
    """
    wanted = list(uris)
    check_workers(workers, name, [parse_uri(uri).scheme for uri in wanted], resumes=resumes)
    encoded = encode_run(run)
    listeners = await open_listeners(wanted, ssl_context=make_context(), unix_mode=unix_mode)
    async with AsyncExitStack() as stack:
        for listener in listeners:
            stack.push_async_callback(listener.aclose)
        orders = Orders(name, tuple(listener.to_inherit() for listener in listeners), grace, encoded)
        try:
            async with _hangups() as hangups, trio.open_nursery() as nursery:
                retired = await _start_generation(nursery, orders, workers)
                task_status.started([listener.uri for listener in listeners])
                async for _ in hangups:
                    retired = await _succeed(retired, partial(_start_generation, nursery, orders, workers))
        except BaseExceptionGroup as group:
            error = _only_reason(group)
            raise error from error.__cause__


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
            with trio.CancelScope(shield=True):
                await _all_heard()
            signal.signal(signal.SIGHUP, signal.SIG_DFL if before is None else before)
    else:
        nobody, hangups_of_nobody = trio.open_memory_channel[int](0)
        with nobody, hangups_of_nobody:
            yield hangups_of_nobody


async def _all_heard() -> None:
    """Wait until Trio has passed on all signals that it caught: one that finds its receiver gone is raised anew."""
    heard = trio.Event()
    trio.lowlevel.current_trio_token().run_sync_soon(heard.set)
    await heard.wait()


async def _succeed(retired: trio.Event, start: Callable[[], Awaitable[trio.Event]]) -> trio.Event:
    """Put new workers in the place of the old ones, if they can be started."""
    logger.info("new workers are started")
    try:
        successor = await start()
    except FAILURES as error:
        why = str(error)
    else:
        retired.set()
        logger.info("new workers serve, the old ones finish")
        return successor
    logger.error("new workers could not be started, the old ones go on: %s", why)
    return retired


def _only_reason(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return a group's only exception, or the first if all are ``ChildProcessError``; else the group."""
    alike = group.split(ChildProcessError)[1] is None
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and (alike or len(error.exceptions) == 1):
        error = error.exceptions[0]
    return error


async def _start_generation(nursery: trio.Nursery, orders: Orders, workers: int) -> trio.Event:
    """Start so many workers, and wait until all of them serve. Setting the returned event retires them."""
    retired = trio.Event()
    slot = Slot(orders, Patience(), retired)
    failures: list[Exception] = []

    async def fill() -> None:
        try:
            await nursery.start(slot.keep)
        except FAILURES as error:
            failures.append(error)
            starting.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as starting:
            for _ in range(workers):
                starting.start_soon(fill)
    except BaseException:
        retired.set()
        raise
    if failures:
        retired.set()
        raise failures[0]
    return retired


@attrs.define
class Slot:
    """Keeps one worker running, by replacement, until its generation is retired."""

    orders: Orders
    patience: Patience
    retired: trio.Event

    async def keep(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a worker running. The first one must start, the next ones may fail at that for a while."""
        encoded = self.orders.encode()
        served = False
        while not self.retired.is_set():
            started = trio.current_time()
            async with open_child(self.orders) as child:
                try:
                    await child.begin(encoded)
                except FAILURES as error:
                    if not served:
                        raise
                    why = f"a new worker could not be started: {error}"
                else:
                    if not served:
                        served = True
                        task_status.started()
                    await _first_of(child.process.wait, self.retired.wait)
                    if child.process.returncode is None:
                        await child.retire(RETIRE_DELAY)
                        return
                    why = f"{child} ended: {child.end}"
            if not self.retired.is_set():
                await self._pause(why, trio.current_time() - started)

    async def _pause(self, why: str, lived: float) -> None:
        pause = self.patience.after(lived)
        if pause is None:
            raise ChildProcessError(f"workers end again and again: {why}")
        logger.error("%s; the next one is started in %g seconds", why, pause)
        await _first_of(partial(trio.sleep, pause), self.retired.wait)


async def _first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Wait until one of these returns."""
    async with trio.open_nursery() as nursery:

        async def wait(one: Callable[[], Awaitable[object]]) -> None:
            await one()
            nursery.cancel_scope.cancel()

        for one in waits:
            nursery.start_soon(wait, one)
