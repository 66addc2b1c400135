"""What does a worker process do? It imports the responder, serves the sockets that it was given, and goes when told.

Started by ``open_child`` with the responder's name and a descriptor: one end of a pair of sockets, over which orders
and words come, and the answers go.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from rsocket_trio.server.processes.import_responder import find_responder
from rsocket_trio.server.processes.messages import DRAIN, MARGIN, RETIRE, decode_run, receive_orders
from rsocket_trio.server.stopping import Stop

logger = logging.getLogger("rsocket_trio")


class Superior:
    """The supervisor, as a worker sees it: one thread listens to it, whatever the worker itself is busy with."""

    def __init__(self, control: socket.socket, grace: float) -> None:
        self._control = control
        self._grace = grace
        self._lock = threading.Lock()
        self._on_retire: Callable[[], object] | None = None
        self._on_drain: Callable[[], object] | None = None
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()

    def obey(self, on_retire: Callable[[], object], on_drain: Callable[[], object]) -> None:
        """From now on these are called, from another thread, for what the supervisor says. Before, it ends all."""
        with self._lock:
            self._on_retire, self._on_drain = on_retire, on_drain

    def report(self, answer: dict[str, str]) -> None:
        """Tell the supervisor how the start went."""
        try:
            self._control.sendall(json.dumps(answer).encode() + b"\n")
        except OSError:
            return  # it is gone, which the thread sees as well

    def _listen(self) -> None:
        drains = False
        while word := self._next_word():
            with self._lock:
                act = self._on_retire if word == RETIRE else self._on_drain
            if act is None:
                os._exit(0)
            drains = drains or word == DRAIN
            act()
        # The supervisor is gone. Had it said to drain, then somebody was not willing to wait for that.
        with self._lock:
            act = self._on_drain
        if drains or act is None:
            os._exit(1)
        logger.error("the supervisor is gone: worker %d drains and goes", os.getpid())
        act()
        time.sleep(min(self._grace + MARGIN, threading.TIMEOUT_MAX))
        os._exit(1)

    def _next_word(self) -> bytes:
        try:
            return self._control.recv(1)
        except OSError:
            return b""


def main() -> None:
    """Be a worker, to the end."""
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    orders = receive_orders(control)
    if orders is None:
        sys.exit(1)
    sys.path[:] = orders.path
    for descriptor in orders.descriptors:
        # A process that a handler starts must not keep the port.
        os.set_inheritable(descriptor, False)
    superior = Superior(control, orders.grace)
    try:
        work = partial(decode_run(orders.run), find_responder(orders.name), orders.inherited)
    except Exception as error:
        # Whatever the modules that are imported here may raise.
        superior.report(failure(error))
        sys.exit(1)
    failures: list[Exception] = []
    with Stop() as stop:
        # Whoever ends this one process lets it finish; a successor comes.
        trio.run(stop.run, partial(_work, work, superior, failures.append))
    if failures:
        superior.report(failure(failures[0]))
        sys.exit(1)


def failure(error: Exception) -> dict[str, str]:
    """What the supervisor is told of a worker that can't serve."""
    for kind in (ValueError, TypeError, ImportError, OSError):
        if isinstance(error, kind):
            return {"failed": str(error), "kind": kind.__name__}
    return {"failed": f"{type(error).__name__}: {error}", "kind": ""}


async def _work(work: Callable[..., Any], superior: Superior, on_failure: Callable[[Exception], object]) -> None:
    """Serve until told to go; tell why that could not even begin."""
    retiring = trio.Event()
    token = trio.lowlevel.current_trio_token()
    async with trio.open_nursery() as nursery:

        def soon(action: Callable[[], object]) -> None:
            try:
                token.run_sync_soon(action)
            except trio.RunFinishedError:
                return

        superior.obey(partial(soon, retiring.set), partial(soon, nursery.cancel_scope.cancel))
        nursery.start_soon(_leave_hangups)
        try:
            await nursery.start(_work_and_leave, work, retiring, nursery.cancel_scope)
        except Exception as error:
            on_failure(error)
            nursery.cancel_scope.cancel()
        else:
            superior.report({})


async def _work_and_leave(
    work: Callable[..., Any], retiring: trio.Event, scope: trio.CancelScope, task_status: trio.TaskStatus[Any]
) -> None:
    await work(retiring=retiring, task_status=task_status)
    scope.cancel()


async def _leave_hangups() -> None:
    """SIGHUP is the supervisor's business."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        async for _ in signals:
            continue
