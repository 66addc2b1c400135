"""Makes the requests of a load task: when they are due, or in a closed loop after the answer before.

A server that stalls for a second holds up every user who comes in that second. A client that waits for an answer before
it asks again counts one slow request and omits most of the harm. So requests are begun when their schedule says so,
whatever became of those before them, and their latency counts from that moment, also if they had to wait because too
many were under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import trio

from rsocket_trio.errors import RSocketError
from rsocket_trio.loadgen import recording
from rsocket_trio.loadgen.lines import Line
from rsocket_trio.loadgen.plan import CLOSED, Plan
from rsocket_trio.loadgen.recording import Recorder, kind_of
from rsocket_trio.loadgen.requests import Payloads, request_of

STOPPING = 1.0
"""Seconds that requests under way get when the load is stopped."""
BURST = 64
"""Requests that are due already and are begun in one go: their frames travel together, and others get their turn."""
PAUSE = 0.01
"""Seconds that a client of a closed loop waits after a failure: without it a server that is away would be counted
thousands of times."""


class Driver:
    """The requests of one task over its connections."""

    def __init__(self, plan: Plan, lines: list[Line], payloads: Payloads, recorder: Recorder) -> None:
        self._plan = plan
        self._lines = lines
        self._turn = 0
        self._payloads = payloads
        self._recorder = recorder
        self._request = request_of(plan)
        self._start = 0.0
        self._busy = 0
        self._stopped = False
        self._waiting: deque[float] = deque()
        self._arriving = trio.CancelScope()
        self._answering = trio.CancelScope()

    async def probe(self) -> None:
        """Make one request that is not counted. Raise the error that it fails with."""
        with trio.move_on_after(self._plan.timeout) as scope:
            await self._request(self._lines[0].connection, self._payloads.next(), int)
        if scope.cancelled_caught:
            raise trio.TooSlowError(f"the first request was not answered within {self._plan.timeout:g} s")

    async def run(self, offsets: Iterator[float]) -> None:
        """Make the load, from now on; ``offsets`` say when requests are due, and are empty in a closed loop.

        Returns when every request was answered, has failed, or was given up.
        """
        self._start = trio.current_time()
        end = self._start + self._plan.warm_up + self._plan.seconds
        with self._answering:
            async with trio.open_nursery() as nursery:
                if self._plan.arrivals == CLOSED:
                    for _ in range(self._plan.bound):
                        nursery.start_soon(self._ask_again_and_again, end)
                with self._arriving:
                    await self._arrive(offsets, nursery)
                    await trio.sleep_until(end)
                self._measured()
            if self._plan.interaction == "fnf":
                await self._wait_until_sent()

    def stop(self) -> None:
        """Begin no more requests; those under way get ``STOPPING`` seconds to be answered."""
        self._stopped = True
        self._waiting.clear()
        self._arriving.cancel()
        self._answering.deadline = min(self._answering.deadline, trio.current_time() + STOPPING)

    async def _arrive(self, offsets: Iterator[float], nursery: trio.Nursery) -> None:
        now, burst = self._start, 0
        for offset in offsets:
            due = self._start + offset
            if due > now or burst == BURST:
                await trio.sleep_until(due)
                now, burst = trio.current_time(), 0
            burst += 1
            self._recorder.count(offset, recording.DUE)
            if self._busy < self._plan.bound:
                self._busy += 1
                nursery.start_soon(self._serve, offset)
            else:
                self._recorder.count(offset, recording.LATE)
                self._waiting.append(offset)

    async def _serve(self, offset: float) -> None:
        """Make a request, and then those that had to wait for a place."""
        try:
            await self._make(offset)
            while self._waiting:
                await self._make(self._waiting.popleft())
        finally:
            self._busy -= 1

    async def _ask_again_and_again(self, end: float) -> None:
        """Run one client of a closed loop: it makes its next request once the last one was answered."""
        while (now := trio.current_time()) < end and not self._stopped:
            self._recorder.count(now - self._start, recording.DUE)
            if not await self._make(now - self._start):
                await trio.sleep(PAUSE)

    async def _make(self, offset: float) -> bool:
        """Make the request that is due at an offset and count its outcome. Return whether it was answered."""
        recorder, due = self._recorder, self._start + offset
        begun = trio.current_time()
        if begun - due >= self._plan.timeout:
            # A user would have given up by now.
            recorder.count(offset, recording.DROPPED)
            await trio.lowlevel.checkpoint()
            return False
        line = self._lines[self._turn]
        self._turn = (self._turn + 1) % len(self._lines)
        with trio.move_on_after(self._plan.timeout) as scope:
            try:
                items = await self._request(line.connection, self._payloads.next(), lambda: self._first(offset))
            except RSocketError as error:
                recorder.count(offset, recording.ERROR, kind_of(error))
                # A connection that is gone fails at once, as often as it is asked: let other tasks run.
                await trio.lowlevel.checkpoint()
                return False
        if scope.cancelled_caught:
            recorder.count(offset, recording.ERROR, recording.TIMEOUT)
            return False
        now = trio.current_time()
        recorder.took(offset, recording.LATENCY, now - due)
        recorder.took(offset, recording.SERVICE, now - begun)
        recorder.took(offset, recording.LAG, begun - due)
        recorder.count(offset, recording.OK)
        if offset >= self._plan.warm_up:
            recorder.count(now - self._start, recording.DONE)
        if items:
            recorder.count(offset, recording.ITEMS, number=items)
        return True

    def _first(self, offset: float) -> None:
        self._recorder.took(offset, recording.FIRST_ITEM, trio.current_time() - self._start - offset)

    def _measured(self) -> None:
        """Record how long was measured: less than planned if the load was stopped."""
        seconds = min(trio.current_time() - self._start - self._plan.warm_up, self._plan.seconds)
        self._recorder.fact(recording.MEASURED, max(round(seconds * recording.NS), 0))

    async def _wait_until_sent(self) -> None:
        """Ping behind the last request and wait: nothing else shows that fire-and-forget requests have arrived."""
        with trio.move_on_after(self._plan.timeout):
            for line in self._lines:
                try:
                    await line.connection.ping()
                except RSocketError:
                    # A connection that is lost has nothing more to send.
                    continue
