"""The main program of a worker process: prepares what the start message names, and does it until it is told to go.

The supervisor starts it by ``open_child`` with the number of a descriptor: one end of a socket pair. The start message
and the words ``DRAIN`` and ``RETIRE`` come in over it, and the answers go out.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import BinaryIO

import trio

from rsocket_trio.server.processes.messages import DRAIN, MARGIN, RETIRE, Prepare, Work, receive_start
from rsocket_trio.server.signals import Stop, collecting_rarely

logger = logging.getLogger("rsocket_trio")


class SupervisorLink:
    """The supervisor, as a worker sees it: one thread listens to it, whatever the worker itself is busy with."""

    def __init__(self, control: socket.socket, words: BinaryIO, grace: float) -> None:
        self._control = control
        self._words = words
        self._grace = grace
        self._lock = threading.Lock()
        self._on_retire: Callable[[], object] | None = None
        self._on_drain: Callable[[], object] | None = None
        threading.Thread(target=self._listen, name="supervisor", daemon=True).start()

    def obey(self, on_retire: Callable[[], object], on_drain: Callable[[], object]) -> None:
        """Call these, from the listening thread, on the supervisor's words. Before this any word ends the process."""
        with self._lock:
            self._on_retire, self._on_drain = on_retire, on_drain

    def report(self, answer: Mapping[str, str | int]) -> None:
        with suppress(OSError):  # it is gone, which the thread sees as well
            self._control.sendall(json.dumps(answer).encode() + b"\n")

    def _listen(self) -> None:
        drains = False
        while word := self._next_word():
            with self._lock:
                act = self._on_retire if word == RETIRE else self._on_drain
            if act is None:
                # Nothing is served yet, and the main thread may be in an import that takes long.
                os._exit(0)
            drains = drains or word == DRAIN
            act()
        # The supervisor is gone. If it had ordered a drain, it was killed while it waited: do not drain on.
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
            return self._words.read(1)
        except OSError:
            return b""


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    words = control.makefile("rb")
    start = receive_start(words)
    if start is None:
        sys.exit(1)
    sys.path[:] = start.path
    for descriptor in start.descriptors:
        # A process that a handler starts must not keep the port.
        os.set_inheritable(descriptor, False)
    supervisor = SupervisorLink(control, words, start.grace)
    try:
        prepare: Prepare = pickle.loads(start.run)
        routes, work = prepare(start.inherited)
    except Exception as error:
        # The imported modules may raise any exception.
        supervisor.report(failure(error))
        sys.exit(1)
    signal.signal(signal.SIGHUP, _leave_hangup)
    failures: list[Exception] = []
    with Stop() as stop, collecting_rarely():
        # A signal to this one process lets it drain; the supervisor starts a successor.
        trio.run(stop.run, partial(_work, work, routes, supervisor, failures.append))
    if failures:
        supervisor.report(failure(failures[0]))
        sys.exit(1)


def failure(error: Exception) -> dict[str, str]:
    """Return the answer that tells the supervisor why a worker can't serve."""
    for kind in (ValueError, TypeError, ImportError, OSError):
        if isinstance(error, kind):
            return {"failed": str(error), "kind": kind.__name__}
    return {"failed": f"{type(error).__name__}: {error}", "kind": ""}


async def _work(work: Work, routes: int, supervisor: SupervisorLink, on_failure: Callable[[Exception], object]) -> None:
    """Serve until told to go; report an error that kept it from starting."""
    retiring = trio.Event()
    token = trio.lowlevel.current_trio_token()
    async with trio.open_nursery() as nursery:

        def soon(action: Callable[[], object]) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(action)

        supervisor.obey(partial(soon, retiring.set), partial(soon, nursery.cancel_scope.cancel))
        try:
            await nursery.start(partial(work, retiring=retiring))
        except Exception as error:
            on_failure(error)
            nursery.cancel_scope.cancel()
        else:
            supervisor.report({"routes": routes})


def _leave_hangup(number: int, frame: FrameType | None) -> None:
    """Do nothing at a SIGHUP, which is for the supervisor. Processes that a handler starts don't inherit this."""
