"""Runs one worker process of a load: its part comes in through stdin, its counts go out through stdout."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable

import trio

from rsocket_trio.loadgen import measures
from rsocket_trio.loadgen.load_messages import DONE, READY, ROWS, START, Part, encode, receive
from rsocket_trio.loadgen.load_task import perform

STDIN, STDOUT, STDERR = 0, 1, 2


def main() -> None:
    """Make the part of a load that comes through stdin. The second argument is the level of the log."""
    logging.basicConfig(level=int(sys.argv[2]))
    words, counts = os.dup(STDIN), os.dup(STDOUT)
    # What handlers of warnings or libraries print is not ours to send.
    os.dup2(STDERR, STDOUT)
    trio.run(work, trio.lowlevel.FdStream(words), trio.lowlevel.FdStream(counts))


async def work(words: trio.abc.ReceiveStream, counts: trio.abc.SendStream) -> None:
    """Make a part of a load that comes in, and send its counts; end at once when nobody is there to take them."""
    async with words, counts:
        part = await receive(words)
        if not isinstance(part, Part):
            return
        async with trio.open_nursery() as nursery:
            told = Told()
            nursery.start_soon(told.listen, words, nursery.cancel_scope)
            try:
                await make(part, told, counts)
            except* trio.BrokenResourceError:
                # The one that started us is gone.
                pass
            nursery.cancel_scope.cancel()


async def make(part: Part, told: Told, counts: trio.abc.SendStream) -> None:
    """Make the part and send its counts. Raise ``BrokenResourceError`` if nobody takes them."""
    turn = trio.Lock()

    async def send(kind: str, content: object = None) -> None:
        async with turn:
            await counts.send_all(encode((kind, content)))

    async def all_gather(said: str) -> list[str]:
        # What lives by now lives to the end: the collector need not hold up requests to look at it.
        gc.collect()
        gc.freeze()
        await send(READY, said)
        await told.started.wait()
        return [said]

    async def deliver(rows: list[measures.Row]) -> None:
        await send(ROWS, rows)

    stopped: Callable[[], Awaitable[None]] = told.stopped.wait
    await send(ROWS, await perform(part, all_gather, stopped, begins=told.begins, deliver=deliver))
    await send(DONE)


class Told:
    """The start and stop messages that a worker has received."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.stopped = trio.Event()
        self._start_ns = 0

    async def listen(self, words: trio.abc.ReceiveStream, everything: trio.CancelScope) -> None:
        """Take words until the one that started us is gone; then cancel everything: nobody waits for counts."""
        while (message := await receive(words)) is not None:
            assert isinstance(message, tuple)
            if message[0] == START:
                self._start_ns = message[1]
                self.started.set()
            else:
                self.stopped.set()
        everything.cancel()

    def begins(self) -> float:
        """Return the start on Trio's clock: both clocks are monotonic and of this machine, one moved by a constant."""
        return trio.current_time() + (self._start_ns - time.monotonic_ns()) / measures.NS
