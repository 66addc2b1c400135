"""One task of a load: makes its requests when they are due, over its own connections, and returns its counts.

A server that stalls for a second holds up every user who comes in that second. A client that waits for an answer before
it asks again counts one slow request and omits most of the harm. So requests are begun when their schedule says so,
whatever became of those before them, and their latency counts from that moment, also if they had to wait because too
many were under way. The schedule is known beforehand: no answer, however late, moves the next request.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from operator import truediv

import attrs
import trio

from rsocket_trio import ConnectionLost, Incoming, Payload, Unsupported
from rsocket_trio.client.reconnecting import ReconnectingClient, ReconnectOptions, connect_forever
from rsocket_trio.connection.streams import Channel
from rsocket_trio.errors import RSocketError
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.loadgen.summary import NS, TIMEOUT, LoadRecorder, Row, kind_of
from rsocket_trio.terms import Backoff
from rsocket_trio.tools.exception_groups import nursery_beside

STOPPING = 1.0
"""Seconds that requests under way get when the load is stopped."""
BURST = 64
"""Requests that are due already and are begun in one go: their frames travel together, and others get their turn."""
WAITING = 500_000
"""Requests of a task that wait for a place, at most: those beyond are dropped at once."""
BACKOFF = Backoff(first_delay=0.1, longest_delay=2.0)
FORESEEN = (RSocketError, trio.TooSlowError, ValueError, OSError)
"""Errors that prevent a load and that the user can fix."""

Ready = Callable[[str], Awaitable[tuple[str, float]]]
"""Tells all tasks that this one is ready, or its problem. Return the first problem of any task, or nothing, and when
the schedule begins, on Trio's clock.
"""


class LoadError(RuntimeError):
    """There was no load: the server can't be reached, refuses, or answers the first request with an error."""


@attrs.frozen(kw_only=True)
class Part:
    """The part of one task in a load."""

    plan: Plan
    task: int
    seed: int

    @property
    def requests(self) -> int | None:
        """Return how many of the plan's requests the task makes, ``None`` if the plan has no number."""
        requests = self.plan.requests
        return None if requests is None else len(range(self.task, requests, self.plan.tasks))


async def perform(part: Part, ready: Ready, stopped: Callable[[], Awaitable[None]] | None = None) -> list[Row]:
    """Make a part of the load and return its rows. If one task can't, none does, and each returns a row saying so.

    ``stopped`` returns when the load is to end early.
    """
    plan, recorder = part.plan, LoadRecorder(part.plan.warm_up)
    async with AsyncExitStack() as stack:
        clients: list[ReconnectingClient] = []
        requests = LoadRequests(part, clients, recorder)
        problem = ""
        try:
            options = plan._connection_options()
            for _ in range(plan.connections):
                clients.append(await connected(plan, options, stack))
            if plan.probe:
                await requests.probe()
        except FORESEEN as error:
            problem = described(error)
        problem, start = await ready(problem)
        if problem:
            return [(0, "failed", problem, None, 1)]

        async def stop() -> None:
            if stopped is not None:
                await stopped()
                requests.stop()

        async with nursery_beside(lambda nursery: nursery.cancel_scope.cancel()) as nursery:
            nursery.start_soon(stop)
            await requests.run(start)
    return recorder.rows()


async def connected(plan: Plan, options: ReconnectOptions, stack: AsyncExitStack) -> ReconnectingClient:
    """Return a client that connects anew whenever its connection is lost, until the stack is closed.

    Without a connection its requests fail at once. Raise the error of the first connection.
    """
    states: list[str] = []
    tried = trio.Event()

    def note(state: str) -> None:
        states.append(state)
        if len(states) > 1:
            tried.set()

    client = await stack.enter_async_context(
        connect_forever(plan.uri, wait=False, backoff=BACKOFF, on_state=note, **options)
    )
    with trio.move_on_after(plan.connect_timeout):
        await tried.wait()
        with suppress(Unsupported):
            # A refusal of the SETUP shows here, or with the first request in a dialect without pings.
            await client.ping()
        return client
    raise ConnectionLost(f"{plan.uri}: no connection within {plan.connect_timeout:g} s")


def described(error: Exception) -> str:
    """Return an error as a line, with the name of its class unless it is of a wrong argument or file."""
    return str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"


def arrivals(part: Part) -> Iterator[float]:
    """Generate the due times of one task at a rate, warm-up included: at equal distances over all tasks, or as
    independent users make them.
    """
    plan, left = part.plan, part.requests
    times: Iterator[float]
    if plan.arrivals == "constant":
        times = map(truediv, itertools.count(part.task, plan.tasks), itertools.repeat(plan.rate))
    else:
        chance = random.Random(f"{part.seed}/{part.task}")
        times = itertools.accumulate(map(chance.expovariate, itertools.repeat(plan.rate / plan.tasks)))
    for time in times:
        if time >= plan.warm_up and left is not None:
            if not left:
                return
            left -= 1
        elif left is None and time >= plan.warm_up + plan._length:
            return
        yield time


def payloads(plan: Plan, seed: str) -> Iterator[Payload]:
    """Generate the payloads of a plan's requests: the same each time, or of random sizes."""
    if not plan.sizes:
        yield from itertools.repeat(Payload(plan.data, plan.metadata))
    chance = random.Random(seed)
    content = chance.randbytes(max(plan.sizes))
    while True:
        yield Payload(content[: chance.choice(plan.sizes)], plan.metadata)


async def read(items: Incoming, take: int | None, first: Callable[[], object]) -> int:
    """Receive items, or ``take`` of them, and call a function with the first one. Return how many came."""
    count = 0
    while batch := await items.receive_batch():
        if not count:
            first()
        count += len(batch)
        if take is not None and count >= take:
            return take
    return count


async def send(channel: Channel, payload: Payload, number: int) -> None:
    """Send a payload so many times, and the end."""
    # The reading side gets the error, too; and a peer that cancelled our half may still send items.
    with suppress(RSocketError):
        for _ in range(number):
            await channel.send(payload)
        await channel.send_eof()


class LoadRequests:
    """The requests of one task over its connections."""

    def __init__(self, part: Part, clients: list[ReconnectingClient], recorder: LoadRecorder) -> None:
        """``clients`` is filled before the first request."""
        self._part = part
        self._plan = plan = part.plan
        self._clients = clients
        self._turns = 0
        self._recorder = recorder
        self._payloads = payloads(plan, f"{part.seed}/{part.task}")
        self._credit = plan._first_credit if plan.take is None else min(plan._first_credit, plan.take)
        self._start = 0.0
        self._busy = 0
        self._waiting: deque[float] = deque()
        self._arriving = trio.CancelScope()
        self._answering = trio.CancelScope()

    async def probe(self) -> None:
        """Make one request that is not counted. Raise the error that it fails with."""
        with trio.move_on_after(self._plan.timeout):
            await self._request(self._clients[0], int)
            return
        raise trio.TooSlowError(f"the first request was not answered within {self._plan.timeout:g} s")

    async def run(self, start: float) -> None:
        """Make the load from ``start`` on. Return when every request was answered, has failed, or was given up."""
        plan = self._plan
        self._start = start
        with self._answering:
            async with trio.open_nursery() as nursery:
                # `stop` cancels this scope; the requests under way then have `STOPPING` seconds.
                with self._arriving:
                    await trio.sleep_until(start)
                    await self._arrive(nursery)
                    await trio.sleep_until(start + plan.warm_up + plan._length)
                await self._measured()
            if plan.interaction == "fnf":
                # Nothing else shows that fire-and-forget requests have arrived.
                with trio.move_on_after(plan.timeout):
                    for client in self._clients:
                        with suppress(RSocketError):
                            await client.ping()

    def stop(self) -> None:
        """Begin no more requests; those under way get ``STOPPING`` seconds to be answered."""
        self._waiting.clear()
        self._arriving.cancel()
        self._answering.deadline = min(self._answering.deadline, trio.current_time() + STOPPING)

    async def _arrive(self, nursery: trio.Nursery) -> None:
        now, burst = self._start, 0
        for offset in arrivals(self._part):
            due = self._start + offset
            if due > now or burst == BURST:
                await trio.sleep_until(due)
                now, burst = trio.current_time(), 0
            burst += 1
            self._recorder.count(offset, "due")
            self._recorder.took(offset, "behind", now - due)
            if self._busy < self._plan.in_flight:
                # Counted here, not when the task runs: a burst is begun before any of its tasks gets its turn.
                self._busy += 1
                nursery.start_soon(self._serve, offset)
            elif len(self._waiting) < WAITING:
                self._recorder.count(offset, "late")
                self._waiting.append(offset)
            else:
                self._recorder.count(offset, "dropped")

    async def _serve(self, offset: float) -> None:
        """Make a request, and then those that had to wait for a place."""
        try:
            await self._make(offset)
            while self._waiting:
                await self._make(self._waiting.popleft())
        finally:
            self._busy -= 1

    async def _make(self, offset: float) -> None:
        """Make the request that is due at an offset and count its outcome."""
        recorder, due = self._recorder, self._start + offset
        begun = trio.current_time()
        if begun - due >= self._plan.timeout:
            # A user would have given up by now.
            recorder.count(offset, "dropped")
            await trio.lowlevel.checkpoint()
            return
        client = self._clients[self._turns % len(self._clients)]
        self._turns += 1
        with trio.move_on_after(self._plan.timeout) as scope:
            try:
                items = await self._request(
                    client, lambda: recorder.took(offset, "first_item", trio.current_time() - due)
                )
            except RSocketError as error:
                recorder.count(offset, "error", kind_of(error))
                # A connection that is gone fails at once, as often as it is asked: let other tasks run.
                await trio.lowlevel.checkpoint()
                return
        if scope.cancelled_caught:
            recorder.count(offset, "error", TIMEOUT)
            return
        now = trio.current_time()
        recorder.took(offset, "latency", now - due)
        recorder.took(offset, "service", now - begun)
        recorder.took(offset, "lag", begun - due)
        recorder.count(offset, "ok")
        if offset >= self._plan.warm_up:
            recorder.count(now - self._start, "done")
        if items:
            recorder.count(offset, "items", number=items)

    async def _request(self, client: ReconnectingClient, first: Callable[[], object]) -> int:
        """Make a request, and call a function with the first item. Return how many items came."""
        plan, payload = self._plan, next(self._payloads)
        if plan.interaction == "response":
            await client.request_response(payload, route=plan.route)
            return 1
        if plan.interaction == "fnf":
            await client.fire_and_forget(payload, route=plan.route)
            return 0
        request = client.request_stream if plan.interaction == "stream" else client.request_channel
        refill = plan.take is None or plan.take > self._credit
        async with (
            request(payload, route=plan.route, initial_request_n=self._credit, refill=refill) as items,
            nursery_beside(lambda nursery: nursery.cancel_scope.cancel()) as nursery,
        ):
            if isinstance(items, Channel):
                nursery.start_soon(send, items, Payload(payload.data), plan.items - 1)
            return await read(items, plan.take, first)

    async def _measured(self) -> None:
        """Record how long was measured, less than planned if the load was stopped, and how it stands at the end."""
        plan = self._plan
        seconds = min(trio.current_time() - self._start - plan.warm_up, plan._length)
        self._recorder.fact("measured", max(round(seconds * NS), 0))
        if all(client.connection is None for client in self._clients):
            try:
                await self._clients[0].ping()
            except RSocketError as error:
                self._recorder.fact("lost", len(self._clients), described(error))
