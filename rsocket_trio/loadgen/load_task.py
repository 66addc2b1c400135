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
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import attrs
import trio

from rsocket_trio import Channel, Connection, ConnectionLost, Incoming, Payload, Unsupported, open_connection
from rsocket_trio.client.options import ConnectionOptions
from rsocket_trio.errors import RSocketError
from rsocket_trio.loadgen import measures
from rsocket_trio.loadgen.measures import Recorder, Row, kind_of
from rsocket_trio.loadgen.mix import CLOSED, Share
from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.loadgen.stages import Stage, constant, poisson, random_times
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
SCHEDSTAT = "/proc/thread-self/schedstat"
"""The file in which Linux reports how long a thread ran and waited for a processor, in nanoseconds."""

AllGather = Callable[[str], Awaitable[list[str]]]
"""Sends a text to all tasks and returns the texts of all of them, once each has sent its own."""
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
    all_gather: AllGather,
    stopped: Callable[[], Awaitable[None]] | None = None,
    *,
    begins: Callable[[], float] = trio.current_time,
    deliver: Deliver | None = None,
) -> list[Row]:
    """Make a part of the load and return its rows. If one task can't, none does, and each returns a row saying so.

    ``stopped`` returns when the load is to end early. ``begins`` is called when all tasks are ready, and returns the
    time on Trio's clock at which the schedule begins. ``deliver`` gets the rows of each second as it passes; only those
    after the last delivery are then returned.
    """
    plan, recorder = part.plan, Recorder(part.plan.warm_up)
    async with trio.open_nursery() as nursery:
        driver: Driver | None = None
        problem = ""
        try:
            driver = await prepared(part, recorder, nursery)
        except FORESEEN as error:
            problem = described(error)
        problems = [said for said in await all_gather(problem) if said]
        if driver is None or problems:
            nursery.cancel_scope.cancel()
            return [(0, measures.FAILED, problems[0], None, 1)]
        if stopped is not None:
            nursery.start_soon(stop_when_told, driver, stopped)
        if deliver is not None:
            nursery.start_soon(deliver_each_second, recorder, deliver)
        start = begins()
        recorder.fact(measures.BEGAN, time.time_ns() + round((start - trio.current_time()) * measures.NS))
        await driver.run(arrivals(plan, part.task, part.seed), start)
        nursery.cancel_scope.cancel()
    return recorder.take()


async def prepared(part: Part, recorder: Recorder, nursery: trio.Nursery) -> Driver:
    """Open the connections and check them with a probe. Raise the error of one that does not work."""
    connections = await open_connections(part.plan, nursery)
    driver = Driver(part.plan, connections, f"{part.seed}/{part.task}", recorder, requests=part.requests)
    if part.plan.probe:
        await driver.probe()
    return driver


async def stop_when_told(driver: Driver, stopped: Callable[[], Awaitable[None]]) -> None:
    """End the load when ``stopped`` returns."""
    await stopped()
    driver.stop()


async def deliver_each_second(recorder: Recorder, deliver: Deliver) -> None:
    """Deliver what was counted, also when there is nothing: it shows that the task lives."""
    while True:
        await trio.sleep(DELIVERY)
        rows = recorder.take()
        with trio.CancelScope(shield=True):
            # Taken and not delivered, they would be lost when the load ends just now.
            await deliver(rows)


def seconds_wanted() -> float:
    """Return the seconds that this thread has run or waited for a processor, since it was started.

    Where the system does not tell the waiting, those that it has run.
    """
    try:
        with open(SCHEDSTAT, encoding="ascii") as file:
            running, waiting, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return time.thread_time()
    return (running + waiting) / measures.NS


def described(error: Exception) -> str:
    """Return an error as a line, with the name of its class unless it is a ``ValueError``."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


# The schedule


def arrivals(plan: Plan, task: int, seed: int) -> Iterator[float]:
    """Return the due times of one task, warm-up included: none for a closed loop, which has no schedule."""
    rate, requests = plan.rate, plan.requests
    if rate is None or requests is None:
        return scheduled(plan, plan._schedule, task, seed)
    warm_up = (Stage(rate, plan.warm_up),) if plan.warm_up else ()
    numbers = range(task, requests, plan.tasks)
    if plan.arrivals == "constant":
        offsets: Iterator[float] = (number / rate for number in numbers)
    else:
        offsets = random_times(len(numbers), requests / rate, f"{seed}/{task}/requests")
    return itertools.chain(scheduled(plan, warm_up, task, seed), (plan.warm_up + offset for offset in offsets))


def scheduled(plan: Plan, stages: tuple[Stage, ...], task: int, seed: int) -> Iterator[float]:
    """Return the due times of one task within stages."""
    if plan.arrivals == "constant":
        return constant(stages, plan.tasks, task)
    return poisson(stages, plan.tasks, f"{seed}/{task}")


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
                    await _wait_for_refusal(connection)
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


async def _wait_for_refusal(connection: Connection) -> None:
    """Wait for the answer to a ping: a refusal of the SETUP shows here."""
    try:
        await connection.ping()
    except Unsupported:
        # The dialect has no ping: there the first request shows a refusal.
        return


# The requests


class Payloads:
    """The payloads of a share's requests: the same each time, or of random sizes."""

    def __init__(self, share: Share, metadata: bytes | None, seed: str) -> None:
        self._chance = random.Random(seed)
        self._sizes = share.sizes
        self._metadata = metadata
        self._bytes = self._chance.randbytes(max(share.sizes)) if share.sizes else b""
        self._same = Payload(share.data, metadata)

    def next(self) -> Payload:
        """Return the payload of the next request."""
        if not self._sizes:
            return self._same
        return Payload(self._bytes[: self._chance.choice(self._sizes)], self._metadata)


@attrs.frozen(eq=False)
class Kind:
    """One kind of request of a task: its name in the counts, how it is made, and what it carries."""

    name: str
    make: Request
    payloads: Payloads


def kinds_of(plan: Plan, seed: str) -> list[Kind]:
    """Return the kinds of requests of a plan, with payloads from a seed."""
    return [
        Kind(
            share.name,
            request_of(share, plan._first_credit),
            Payloads(share, plan._request_metadata, f"{seed}/{share.name}" if share.name else seed),
        )
        for share in plan.shares
    ]


def request_of(share: Share, credit: int) -> Request:
    """Return the function that makes the requests of a share, with so much initial credit for streams."""
    if share.take is not None:
        credit = min(credit, share.take)
    refill = share.take is None or share.take > credit

    async def response(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        await connection.request_response(payload, route=share.route)
        return 1

    async def fnf(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        await connection.fire_and_forget(payload, route=share.route)
        return 0

    async def stream(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        async with connection.request_stream(
            payload, route=share.route, initial_request_n=credit, refill=refill
        ) as items:
            return await _read(items, share.take, first)

    async def channel(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        async with connection.request_channel(
            payload, route=share.route, initial_request_n=credit, refill=refill
        ) as channel:
            return await _converse(channel, Payload(payload.data), share, first)

    found: dict[str, Request] = {"response": response, "stream": stream, "fnf": fnf, "channel": channel}
    return found[share.interaction]


async def _read(items: Incoming, take: int | None, first: Callable[[], object]) -> int:
    count = 0
    while batch := await items.receive_batch():
        if not count:
            first()
        count += len(batch)
        if take is not None and count >= take:
            return take
    return count


async def _converse(channel: Channel, payload: Payload, share: Share, first: Callable[[], object]) -> int:
    count = 0
    error: RSocketError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, channel, payload, share.items - 1)
        try:
            count = await _read(channel, share.take, first)
        except RSocketError as exc:
            # Raised in the nursery it would leave it in a group.
            error = exc
        nursery.cancel_scope.cancel()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    return count


async def _send(channel: Channel, payload: Payload, number: int) -> None:
    try:
        for _ in range(number):
            await channel.send(payload)
        await channel.send_eof()
    except RSocketError:
        # The reading side gets the error, too; and a peer that cancelled our half may still send items.
        return


class Driver:
    """The requests of one task over its connections."""

    def __init__(
        self,
        plan: Plan,
        connections: list[KeptConnection],
        seed: str,
        recorder: Recorder,
        *,
        requests: int | None = None,
    ) -> None:
        """``requests`` are those that the clients of a closed loop make, after the warm-up; by default any number."""
        self._plan = plan
        self._requests_left = requests
        self._connections = connections
        self._turn = 0
        self._recorder = recorder
        self._kinds = kinds_of(plan, seed)
        self._weights = list(itertools.accumulate(share.weight for share in plan.shares))
        self._chance = random.Random(f"{seed}/mix")
        self._start = 0.0
        self._wanted = 0.0
        self._busy = 0
        self._stopped = False
        self._waiting: deque[tuple[float, Kind]] = deque()
        self._arriving = trio.CancelScope()
        self._answering = trio.CancelScope()

    async def probe(self) -> None:
        """Make one request of each kind that is not counted. Raise the error that it fails with."""
        for kind in self._kinds:
            with trio.move_on_after(self._plan.timeout) as scope:
                await kind.make(self._connections[0].connection, kind.payloads.next(), int)
            if scope.cancelled_caught:
                which = f" of {kind.name}" if kind.name else ""
                raise trio.TooSlowError(f"the first request{which} was not answered within {self._plan.timeout:g} s")

    async def run(self, offsets: Iterator[float], start: float | None = None) -> None:
        """Make the load from ``start`` on, or from now.

        ``offsets`` say when requests are due; a closed loop has none.

        Return when every request was answered, has failed, or was given up.
        """
        self._start = trio.current_time() if start is None else start
        end = self._start + self._plan.warm_up + self._plan.seconds
        with self._answering:
            async with trio.open_nursery() as nursery:
                # `stop` cancels this scope; the requests under way then have `STOPPING` seconds.
                with self._arriving:
                    await trio.sleep_until(self._start)
                    self._wanted = seconds_wanted()
                    if self._plan.arrivals == CLOSED:
                        await self._take_turns(end, nursery)
                    else:
                        await self._arrive(offsets, nursery)
                        await trio.sleep_until(end)
                self._measured()
            if any(share.interaction == "fnf" for share in self._plan.shares):
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
            kind = self._draw()
            self._recorder.count(offset, measures.DUE, kind.name)
            self._recorder.took(offset, measures.BEHIND, now - due, kind.name)
            if self._busy < self._plan.bound:
                # Counted here, not when the task runs: a burst is begun before any of its tasks gets its turn.
                self._busy += 1
                nursery.start_soon(self._serve, offset, kind)
            elif len(self._waiting) < WAITING:
                self._recorder.count(offset, measures.LATE, kind.name)
                self._waiting.append((offset, kind))
            else:
                self._recorder.count(offset, measures.DROPPED, kind.name)

    def _draw(self) -> Kind:
        """Return the kind of the next request, at random by weight."""
        if len(self._kinds) == 1:
            return self._kinds[0]
        return self._chance.choices(self._kinds, cum_weights=self._weights)[0]

    async def _serve(self, offset: float, kind: Kind) -> None:
        """Make a request, and then those that had to wait for a place."""
        try:
            await self._make(offset, kind)
            while self._waiting:
                await self._make(*self._waiting.popleft())
        finally:
            self._busy -= 1

    async def _take_turns(self, end: float, nursery: trio.Nursery) -> None:
        """Run the clients of a closed loop until ``end``, or until they have made all their requests."""
        clients = self._plan.bound
        over = trio.Event()

        async def client() -> None:
            nonlocal clients
            await self._ask_again_and_again(end)
            clients -= 1
            if not clients:
                over.set()

        for _ in range(clients):
            nursery.start_soon(client)
        with trio.move_on_at(end):
            await over.wait()

    def _has_turn(self, now: float, end: float) -> bool:
        """Return whether a client of a closed loop makes another request, which is then counted as made."""
        if self._stopped or now >= end or self._requests_left == 0:
            return False
        if self._requests_left is not None and now >= self._start + self._plan.warm_up:
            self._requests_left -= 1
        return True

    async def _ask_again_and_again(self, end: float) -> None:
        """Run one client of a closed loop: it makes its next request once the last one was answered."""
        while self._has_turn(now := trio.current_time(), end):
            kind = self._draw()
            self._recorder.count(now - self._start, measures.DUE, kind.name)
            if not await self._make(now - self._start, kind):
                await trio.sleep(PAUSE)

    async def _make(self, offset: float, kind: Kind) -> bool:
        """Make the request of a kind that is due at an offset and count its outcome. Return whether it was answered."""
        recorder, due, name = self._recorder, self._start + offset, kind.name
        begun = trio.current_time()
        if begun - due >= self._plan.timeout:
            # A user would have given up by now.
            recorder.count(offset, measures.DROPPED, name)
            await trio.lowlevel.checkpoint()
            return False
        kept = self._connections[self._turn]
        self._turn = (self._turn + 1) % len(self._connections)
        with trio.move_on_after(self._plan.timeout) as scope:
            try:
                items = await kind.make(kept.connection, kind.payloads.next(), lambda: self._first(offset, name))
            except RSocketError as error:
                recorder.count(offset, measures.ERROR, measures.of_share(name, kind_of(error)))
                # A connection that is gone fails at once, as often as it is asked: let other tasks run.
                await trio.lowlevel.checkpoint()
                return False
        if scope.cancelled_caught:
            recorder.count(offset, measures.ERROR, measures.of_share(name, measures.TIMEOUT))
            return False
        now = trio.current_time()
        recorder.took(offset, measures.LATENCY, now - due, name)
        recorder.took(offset, measures.SERVICE, now - begun, name)
        recorder.took(offset, measures.LAG, begun - due, name)
        recorder.count(offset, measures.OK, name)
        if offset >= self._plan.warm_up:
            recorder.count(now - self._start, measures.DONE, name)
        if items:
            recorder.count(offset, measures.ITEMS, name, items)
        return True

    def _first(self, offset: float, name: str) -> None:
        self._recorder.took(offset, measures.FIRST_ITEM, trio.current_time() - self._start - offset, name)

    def _measured(self) -> None:
        """Record how long was measured, less than planned if the load was stopped, and how it stands at the end."""
        elapsed = trio.current_time() - self._start
        seconds = min(elapsed - self._plan.warm_up, self._plan.seconds)
        self._recorder.fact(measures.MEASURED, max(round(seconds * measures.NS), 0))
        if elapsed > 0:
            busy = min((seconds_wanted() - self._wanted) / elapsed, 1.0)
            self._recorder.fact(measures.BUSY, round(busy * 1e6))
        if all(kept.lost for kept in self._connections):
            self._recorder.fact(measures.LOST, len(self._connections), self._connections[0].lost)

    async def _wait_until_sent(self) -> None:
        """Ping behind the last request and wait: nothing else shows that fire-and-forget requests have arrived."""
        with trio.move_on_after(self._plan.timeout):
            for kept in self._connections:
                try:
                    await kept.connection.ping()
                except RSocketError:
                    # A connection that is lost has nothing more to send.
                    continue
