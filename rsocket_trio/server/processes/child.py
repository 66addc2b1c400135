"""One worker, as its supervisor sees it: started, ready, told to go, gone."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from rsocket_trio.server.processes.messages import DRAIN, MARGIN, RETIRE, Orders

START_SECONDS = 60.0
"""How long a worker may take until it serves."""
HOME = str(Path(__file__).parents[3])
BOOT = "import sys; sys.path.append(sys.argv[3]); from rsocket_trio.server.processes.worker import main; main()"
"""What a worker runs: this library, wherever it is; the orders say where to find everything else."""
FAILURES = (ValueError, TypeError, ImportError, OSError)
"""What may keep a worker from serving; ``ChildProcessError`` is one of the last."""


class Child:
    """A worker process. ``started`` is when it was."""

    def __init__(self, process: trio.Process, control: trio.SocketStream, grace: float) -> None:
        self.process = process
        self.started = trio.current_time()
        self._control = control
        self._grace = grace
        self._has_orders = False

    def __str__(self) -> str:
        return f"worker {self.process.pid}"

    @property
    def end(self) -> str:
        """How it ended."""
        code = self.process.returncode
        assert code is not None
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    async def begin(self, orders: bytes) -> None:
        """Wait until it serves.

        Raises what kept it from that, by its kind; ``ChildProcessError`` where it just ended or takes too long.
        """
        answer = b""
        with trio.move_on_after(START_SECONDS) as patience:
            try:
                await self._control.send_all(orders)
                self._has_orders = True
                while not answer.endswith(b"\n") and (more := await self._control.receive_some()):
                    answer += more
            except trio.BrokenResourceError:
                answer = b""
            if not answer:
                await self.process.wait()
        if patience.cancelled_caught:
            raise ChildProcessError(f"{self} did not serve within {START_SECONDS:g} seconds")
        if not answer:
            raise ChildProcessError(f"{self} ended before it served: {self.end}")
        told = json.loads(answer)
        if "failed" in told:
            kinds = {kind.__name__: kind for kind in FAILURES}
            raise kinds.get(told["kind"], ChildProcessError)(told["failed"])

    async def retire(self, linger: float) -> None:
        """Have it go, others being there already, and end it if it does not."""
        await self._say(RETIRE)
        with trio.move_on_after(linger + self._grace + MARGIN):
            await self.process.wait()
        self.process.kill()
        await self.process.wait()

    async def finish(self) -> None:
        """Have it go now, within the grace period, and end it if it does not."""
        if self.process.returncode is None:
            if self._has_orders:
                await self._say(DRAIN)
            else:
                self.process.kill()  # it waits for its orders, and takes no word before
            with trio.move_on_after(self._grace + MARGIN):
                await self.process.wait()
            self.process.kill()
            await self.process.wait()
        await self._control.aclose()

    async def _say(self, word: bytes) -> None:
        try:
            await self._control.send_all(word)
        except trio.BrokenResourceError:
            return  # it has gone already


@asynccontextmanager
async def open_child(orders: Orders) -> AsyncIterator[Child]:
    """A process of the same Python for as long as the block, which ends by waiting for its end."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            descriptor = theirs.fileno()
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-c", BOOT, orders.name, str(descriptor), HOME],
                stdin=subprocess.DEVNULL,
                pass_fds=[descriptor, *orders.descriptors],
                # A terminal's signals are for the supervisor, which tells its workers what to do.
                process_group=0,
            )
    except BaseException:
        ours.close()
        raise
    child = Child(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)), orders.grace)
    try:
        yield child
    finally:
        with trio.CancelScope(shield=True):
            await child.finish()
