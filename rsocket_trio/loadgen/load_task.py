"""One task of a load: makes its requests when they are due, over its own connections, and returns its counts.

A server that stalls for a second holds up every user who comes in that second. A client that waits for an answer before
it asks again counts one slow request and omits most of the harm. So requests are begun when their schedule says so,
whatever became of those before them, and their latency counts from that moment, also if they had to wait because too
many were under way. The schedule is known beforehand: no answer, however late, moves the next request.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from operator import truediv

import attrs
import trio

from rsocket_trio import Channel, Connection, ConnectionLost, Incoming, Payload, Unsupported, open_connection
from rsocket_trio.client.options import ConnectionOptions
from rsocket_trio.errors import RSocketError
from rsocket_trio.loadgen import measures
from rsocket_trio.loadgen.measures import LoadRecorder, Row, kind_of
from rsocket_trio.loadgen.plan import CLOSED, Plan
from rsocket_trio.payload import PayloadLike
from rsocket_trio.terms import Backoff
from rsocket_trio.transports.connect import HeadersLike

logger = logging.getLogger("rsocket_trio.spark")

STOPPING = 1.0
"""Seconds that requests under way get when the load is stopped."""
BURST = 64
"""Requests that are due already and are begun in one go: their frames travel together, and others get their turn."""
WAITING = 500_000
"""Requests of a task that wait for a place, at most: those beyond are dropped at once."""
PAUSE = 0.01
"""Seconds that a client of a closed loop waits after a failure: without it a server that is away would be counted
thousands of times."""
BACKOFF = Backoff(first_delay=0.1, longest_delay=2.0)
FORESEEN = (RSocketError, trio.TooSlowError, ValueError)
"""Errors that prevent a load and that the user can fix."""

DELIVERY = 1.0
"""Seconds between two deliveries of counts, where they are wanted before the end."""

Ready = Callable[[str], Awaitable[tuple[str, float]]]
"""Tells all tasks that this one is ready, or its problem. Return the first problem of any task, or nothing, and when
the schedule begins, on Trio's clock.
"""
Deliver = Callable[[list[Row]], Awaitable[object]]
"""Passes on rows that were counted since the last delivery."""
Request = Callable[[Connection, Payload, Callable[[], object]], Awaitable[int]]
"""Makes a request, calls a function with the first item, and returns how many items came."""


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


async def perform(
    part: Part,
    ready: Ready,
    stopped: Callable[[], Awaitable[None]] | None = None,
    *,
    deliver: Deliver | None = None,
) -> list[Row]:
    """Make a part of the load and return its rows. If one task can't, none does, and each returns a row saying so.

    ``stopped`` returns when the load is to end early. ``deliver`` gets the rows of each second as it passes; only those
    after the last delivery are then returned.
    """
    plan, recorder = part.plan, LoadRecorder(part.plan.warm_up)
    async with trio.open_nursery() as nursery:
        driver: Driver | None = None
        problem = ""
        try:
            connections = await open_connections(plan, nursery)
            driver = Driver(plan, connections, f"{part.seed}/{part.task}", recorder, requests=part.requests)
            if plan.probe:
                await driver.probe()
        except FORESEEN as error:
            problem = described(error)
        problem, start = await ready(problem)
        if driver is None or problem:
            nursery.cancel_scope.cancel()
            return [(0, measures.FAILED, problem, None, 1)]
        if stopped is not None:
            nursery.start_soon(stop_after, stopped, driver)
        if deliver is not None:
            nursery.start_soon(deliver_each_second, recorder, deliver)
        await driver.run(arrivals(part), start)
        nursery.cancel_scope.cancel()
    return recorder.take()


async def stop_after(stopped: Callable[[], Awaitable[None]], driver: Driver) -> None:
    """End the load when ``stopped`` returns."""
    await stopped()
    driver.stop()


async def deliver_each_second(recorder: LoadRecorder, deliver: Deliver) -> None:
    """Deliver what was counted, also when there is nothing: it shows that the task lives."""
    while True:
        await trio.sleep(DELIVERY)
        rows = recorder.take()
        with trio.CancelScope(shield=True):
            # Taken and not delivered, they would be lost when the load ends just now.
            await deliver(rows)


def described(error: Exception) -> str:
    """Return an error as a line, with the name of its class unless it is a ``ValueError``."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


# The schedule


def arrivals(part: Part) -> Iterator[float]:
    """Yield the due times of one task, warm-up included: none for a closed loop, which has no schedule."""
    plan, left = part.plan, part.requests
    for time in due_times(part):
        if time >= plan.warm_up and left is not None:
            if not left:
                return
            left -= 1
        elif left is None and time >= plan.warm_up + plan._length:
            return
        yield time


def due_times(part: Part) -> Iterator[float]:
    """Return due times without an end: at equal distances over all tasks, or as independent users make them."""
    plan = part.plan
    if plan.rate is None:
        return iter(())
    if plan.arrivals == "constant":
        return map(truediv, itertools.count(part.task, plan.tasks), itertools.repeat(plan.rate))
    chance = random.Random(f"{part.seed}/{part.task}")
    distances = map(chance.expovariate, itertools.repeat(plan.rate / plan.tasks))
    return itertools.accumulate(distances)


# The connections


class KeptConnection:
    """A connection that is replaced when it is lost. While there is none, requests fail at once."""

    def __init__(self, uri: str, options: ConnectionOptions[PayloadLike, HeadersLike]) -> None:
        self._uri = uri
        self._options = options
        self._connection: Connection | None = None
        self.lost = ""
        """The reason why the last connection ended; empty while there is one."""

    @property
    def connection(self) -> Connection:
        """Return the connection. Raise ``ConnectionLost`` while there is none."""
        if self._connection is None:
            raise ConnectionLost(f"not connected to {self._uri}")
        return self._connection

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a connection open until cancelled. Started once the first one is made; raise the error if that fails."""
        tries = 0
        while True:
            try:
                async with open_connection(self._uri, **self._options) as connection:
                    with suppress(Unsupported):
                        # A refusal of the SETUP shows here, or with the first request in a dialect without pings.
                        await connection.ping()
                    self._connection, self.lost = connection, ""
                    tries = 0
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    reason = await connection.wait_closed()
            except RSocketError as error:
                if task_status is not trio.TASK_STATUS_IGNORED:
                    raise
                reason = error
            finally:
                self._connection = None
            self.lost = described(reason)
            logger.info("%s: %s", self._uri, reason)
            await trio.sleep(BACKOFF.delay(tries, random.random()))
            tries += 1


async def open_connections(plan: Plan, nursery: trio.Nursery) -> list[KeptConnection]:
    """Open all connections of a task and run them in the nursery. Raise the error of one that cannot be made."""
    options = plan._connection_options()
    connections = [KeptConnection(plan.uri, options) for _ in range(plan.connections)]
    with trio.move_on_after(plan.connect_timeout) as scope:
        for connection in connections:
            await nursery.start(connection.run)
    if scope.cancelled_caught:
        raise ConnectionLost(f"{plan.uri}: no connection within {plan.connect_timeout:g} s")
    return connections


# The requests


class Payloads:
    """The payloads of a plan's requests: the same each time, or of random sizes."""

    def __init__(self, plan: Plan, seed: str) -> None:
        self._chance = random.Random(seed)
        self._sizes = plan.sizes
        self._metadata = plan.metadata
        self._bytes = self._chance.randbytes(max(plan.sizes)) if plan.sizes else b""
        self._same = Payload(plan.data, self._metadata)

    def next(self) -> Payload:
        """Return the payload of the next request."""
        if not self._sizes:
            return self._same
        return Payload(self._bytes[: self._chance.choice(self._sizes)], self._metadata)


def request_of(plan: Plan) -> Request:
    """Return the function that makes the requests of a plan."""
    credit = plan._first_credit if plan.take is None else min(plan._first_credit, plan.take)
    refill = plan.take is None or plan.take > credit

    async def response(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        await connection.request_response(payload, route=plan.route)
        return 1

    async def fnf(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        await connection.fire_and_forget(payload, route=plan.route)
        return 0

    async def stream(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        async with connection.request_stream(
            payload, route=plan.route, initial_request_n=credit, refill=refill
        ) as items:
            return await _read(items, plan.take, first)

    async def channel(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        async with connection.request_channel(
            payload, route=plan.route, initial_request_n=credit, refill=refill
        ) as channel:
            return await _converse(channel, Payload(payload.data), plan, first)

    requests: dict[str, Request] = {"response": response, "stream": stream, "fnf": fnf, "channel": channel}
    return requests[plan.interaction]


async def _read(items: Incoming, take: int | None, first: Callable[[], object]) -> int:
    count = 0
    while batch := await items.receive_batch():
        if not count:
            first()
        count += len(batch)
        if take is not None and count >= take:
            return take
    return count


async def _converse(channel: Channel, payload: Payload, plan: Plan, first: Callable[[], object]) -> int:
    count = 0
    error: RSocketError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, channel, payload, plan.items - 1)
        try:
            count = await _read(channel, plan.take, first)
        except RSocketError as exc:
            # Raised in the nursery it would leave it in a group.
            error = exc
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error
    return count


async def _send(channel: Channel, payload: Payload, number: int) -> None:
    # The reading side gets the error, too; and a peer that cancelled our half may still send items.
    with suppress(RSocketError):
        for _ in range(number):
            await channel.send(payload)
        await channel.send_eof()


class Driver:
    """The requests of one task over its connections."""

    def __init__(
        self,
        plan: Plan,
        connections: list[KeptConnection],
        seed: str,
        recorder: LoadRecorder,
        *,
        requests: int | None = None,
    ) -> None:
        """``requests`` are those that the clients of a closed loop make, after the warm-up; by default any number."""
        self._plan = plan
        self._requests_left = requests
        self._connections = connections
        self._turn = 0
        self._recorder = recorder
        self._request = request_of(plan)
        self._payloads = Payloads(plan, seed)
        self._start = 0.0
        self._busy = 0
        self._stopped = False
        self._waiting: deque[float] = deque()
        self._arriving = trio.CancelScope()
        self._answering = trio.CancelScope()

    async def probe(self) -> None:
        """Make one request that is not counted. Raise the error that it fails with."""
        with trio.move_on_after(self._plan.timeout) as scope:
            await self._request(self._connections[0].connection, self._payloads.next(), int)
        if scope.cancelled_caught:
            raise trio.TooSlowError(f"the first request was not answered within {self._plan.timeout:g} s")

    async def run(self, offsets: Iterator[float], start: float | None = None) -> None:
        """Make the load from ``start`` on, or from now; ``offsets`` say when requests are due, in a closed loop none.

        Return when every request was answered, has failed, or was given up.
        """
        self._start = trio.current_time() if start is None else start
        end = self._start + self._plan.warm_up + self._plan._length
        with self._answering:
            async with trio.open_nursery() as nursery:
                # `stop` cancels this scope; the requests under way then have `STOPPING` seconds.
                with self._arriving:
                    await trio.sleep_until(self._start)
                    if self._plan.arrivals == CLOSED:
                        await self._take_turns(end, nursery)
                    else:
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
            self._recorder.count(offset, measures.DUE)
            self._recorder.took(offset, measures.BEHIND, now - due)
            if self._busy < self._plan._max_in_flight:
                # Counted here, not when the task runs: a burst is begun before any of its tasks gets its turn.
                self._busy += 1
                nursery.start_soon(self._serve, offset)
            elif len(self._waiting) < WAITING:
                self._recorder.count(offset, measures.LATE)
                self._waiting.append(offset)
            else:
                self._recorder.count(offset, measures.DROPPED)

    async def _serve(self, offset: float) -> None:
        """Make a request, and then those that had to wait for a place."""
        try:
            await self._make(offset)
            while self._waiting:
                await self._make(self._waiting.popleft())
        finally:
            self._busy -= 1

    async def _take_turns(self, end: float, nursery: trio.Nursery) -> None:
        """Run the clients of a closed loop until ``end``, or until they have made all their requests.

        Each makes its next request once the last one was answered.
        """
        clients = self._plan._max_in_flight
        over = trio.Event()

        async def client() -> None:
            nonlocal clients
            while not self._stopped and (now := trio.current_time()) < end and self._requests_left != 0:
                if self._requests_left is not None and now >= self._start + self._plan.warm_up:
                    self._requests_left -= 1
                self._recorder.count(now - self._start, measures.DUE)
                if not await self._make(now - self._start):
                    await trio.sleep(PAUSE)
            clients -= 1
            if not clients:
                over.set()

        for _ in range(clients):
            nursery.start_soon(client)
        with trio.move_on_at(end):
            await over.wait()

    async def _make(self, offset: float) -> bool:
        """Make the request that is due at an offset and count its outcome. Return whether it was answered."""
        recorder, due = self._recorder, self._start + offset
        begun = trio.current_time()
        if begun - due >= self._plan.timeout:
            # A user would have given up by now.
            recorder.count(offset, measures.DROPPED)
            await trio.lowlevel.checkpoint()
            return False
        kept = self._connections[self._turn]
        self._turn = (self._turn + 1) % len(self._connections)
        with trio.move_on_after(self._plan.timeout) as scope:
            try:
                items = await self._request(kept.connection, self._payloads.next(), lambda: self._first(offset))
            except RSocketError as error:
                recorder.count(offset, measures.ERROR, kind_of(error))
                # A connection that is gone fails at once, as often as it is asked: let other tasks run.
                await trio.lowlevel.checkpoint()
                return False
        if scope.cancelled_caught:
            recorder.count(offset, measures.ERROR, measures.TIMEOUT)
            return False
        now = trio.current_time()
        recorder.took(offset, measures.LATENCY, now - due)
        recorder.took(offset, measures.SERVICE, now - begun)
        recorder.took(offset, measures.LAG, begun - due)
        recorder.count(offset, measures.OK)
        if offset >= self._plan.warm_up:
            recorder.count(now - self._start, measures.DONE)
        if items:
            recorder.count(offset, measures.ITEMS, number=items)
        return True

    def _first(self, offset: float) -> None:
        self._recorder.took(offset, measures.FIRST_ITEM, trio.current_time() - self._start - offset)

    def _measured(self) -> None:
        """Record how long was measured, less than planned if the load was stopped, and how it stands at the end."""
        elapsed = trio.current_time() - self._start
        seconds = elapsed - self._plan.warm_up
        if self._plan.requests is None:
            seconds = min(seconds, self._plan._length)
        self._recorder.fact(measures.MEASURED, max(round(seconds * measures.NS), 0))
        if all(kept.lost for kept in self._connections):
            self._recorder.fact(measures.LOST, len(self._connections), self._connections[0].lost)

    async def _wait_until_sent(self) -> None:
        """Ping behind the last request and wait: nothing else shows that fire-and-forget requests have arrived."""
        with trio.move_on_after(self._plan.timeout):
            for kept in self._connections:
                # A connection that is lost has nothing more to send.
                with suppress(RSocketError):
                    await kept.connection.ping()
