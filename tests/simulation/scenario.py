"""A simulated run: both sides do what a plan says, over a network with faults, and a ledger keeps count."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any, Literal, Self

import attrs
import trio

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    Connection,
    ConnectionLost,
    Incoming,
    Lease,
    NegotiationFailed,
    Outgoing,
    Payload,
    Responder,
    ResumeOptions,
    RSocketError,
    Setup,
    current_connection,
    open_connection_over,
    serve,
    serve_stream,
)
from rsocket_trio.errors import SetupError, StreamError
from rsocket_trio.testing import Ledger, SimulatedNetwork, SimulatedStream, Verdict, simulate
from rsocket_trio.transports.base import Transport
from tests.simulation.plans import KEEPALIVE, STREAMUX, Call, Plan, drawn

LONGEST = 100 * KEEPALIVE.max_lifetime
"""Virtual seconds in which everything must have come to its end."""
CONNECTS = 300
LOST = (ConnectionLost, NegotiationFailed)
RESUMING = ResumeOptions(session_seconds=1000.0)
"""Sessions wait for longer than any stall of the network lasts."""
"""A Streamux connection that is cut within the first message never came to terms."""
OVERDRAWN = "no lease for this request"
"""A lease may end at the responder while a request is under way."""
FAILED = b"failed"
HEAD = 4
"""Bytes of a call's number, in front of its first item, and of an item's length, where chunks are no items."""


@attrs.frozen
class Report:
    """What became of a run: everything that was wrong, and the hash of what happened."""

    plan: Plan
    wrong: tuple[str, ...]
    hash: str
    trace: str
    outcomes: dict[str, str]


def run(seed: int, dialect: str, *, resumes: bool = False) -> Report:
    """Run what the seed says; the same seed does the same again. With ``resumes`` no cut may cost anything."""
    return simulate(Scenario(*drawn(seed, dialect, resumes=resumes)).run, seed=seed, longest=2 * LONGEST)


class Scenario:
    """Both sides of a run, and what is known of it by both."""

    def __init__(self, plan: Plan, chance: Random) -> None:
        self.plan = plan
        self.network = SimulatedNetwork(chance, plan.faults)
        self.ledger = Ledger(self.network.trace)
        self.to_come = list(self.plan.calls)
        self.outcomes: dict[str, str] = {}
        self.wrong: list[str] = []
        self.serving = 0
        self.connects = 0
        self.received = 0
        self.received_before = 0

    async def run(self) -> Report:
        before = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.serve, nursery)
            with trio.move_on_after(LONGEST) as patience:
                await self.be_client()
                while self.serving or self.verdict.unfinished:  # noqa: ASYNC110
                    # Servers of half-open connections find out by themselves.
                    await trio.sleep(1)
            if patience.cancelled_caught:
                self.wrong.append(f"not at its end after {LONGEST} s: {self.serving} connections")
            nursery.cancel_scope.cancel()
        left = trio.lowlevel.current_statistics().tasks_living - before
        if left:
            self.wrong.append(f"{left} tasks left")
        self.wrong += str(self.verdict).splitlines() if not self.verdict.is_clean else []
        trace = self.network.trace
        return Report(self.plan, tuple(self.wrong), trace.hash, str(trace), self.outcomes)

    @property
    def verdict(self) -> Verdict:
        return self.ledger.verdict()

    # The two ends

    async def serve(self, nursery: trio.Nursery) -> None:
        listener = self.network.listener()
        if self.plan.resumes:
            # One server for all connections: it is where sessions wait for their clients.
            plan = self.plan
            await serve(
                self.responder(),
                [listener],
                dialects=[plan.dialect],
                fragment_size=plan.fragment_size,
                limits=plan.limits,
                grace=0,
                resume=RESUMING,
            )
        while True:
            nursery.start_soon(self.serve_one, await listener.accept())

    async def serve_one(self, stream: SimulatedStream) -> None:
        plan = self.plan
        options: dict[str, Any] = {"streamux": plan.streamux[1]} if plan.streamux else {}
        self.serving += 1
        try:
            await serve_stream(
                self.responder(),
                self.server_end(stream),
                dialects=[plan.dialect],
                fragment_size=plan.fragment_size,
                limits=plan.limits,
                grace=0,
                **options,
            )
        finally:
            self.serving -= 1

    def server_end(self, stream: SimulatedStream) -> trio.abc.Stream | Transport:
        """What the server is given: here those come in that tamper with frames."""
        return stream

    async def be_client(self) -> None:
        """Connect as often as it takes; a call that was begun is not repeated."""
        while any(call.caller == "client" for call in self.to_come):
            self.connects += 1
            self.received_before = self.received
            if self.connects > CONNECTS:
                self.wrong.append(f"{CONNECTS} connects were not enough")
                return
            try:
                async with self.connected() as connection:
                    await self.call_all(connection, "client")
                    await self.handlers_end(connection)
            except OSError:
                await trio.sleep(1)
            except LOST as error:
                # That the first connect fails is none of resumption's business.
                if not (self.plan.may_lose or self.plan.resumes):
                    self.wrong.append(f"opening failed: {error!r}")
                await trio.sleep(1)
            except SetupError as error:
                if not (self.plan.resumes and self.has_no_session(error)):
                    raise
                await trio.sleep(1)

    async def handlers_end(self, connection: Connection) -> None:
        """Once all callers are done, or have left, no handler goes on."""
        with trio.move_on_after(2 * KEEPALIVE.max_lifetime):
            while self.verdict.unfinished and connection.status == "open":  # noqa: ASYNC110
                await trio.sleep(1)
        # A session that the client left without being heard goes on waiting for it.
        if connection.status == "open" and not self.plan.may_lose and not (self.plan.resumes and self.connects > 1):
            self.wrong += [f"nobody waits for the {name}" for name in self.verdict.unfinished]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        plan = self.plan
        options: dict[str, Any] = {"keepalive": KEEPALIVE, "lease": plan.leases is not None}
        if plan.streamux:
            options = {"streamux": plan.streamux[0]}
        if plan.resumes:
            options["resume"] = RESUMING
        async with open_connection_over(
            self.network.connect if plan.resumes else await self.network.connect(),
            dialect=plan.dialect,
            responder=self.responder(),
            fragment_size=plan.fragment_size,
            limits=plan.limits,
            **options,
        ) as connection:
            yield connection

    # Callers

    async def call_all(self, connection: Connection, caller: Literal["client", "server"]) -> None:
        async with trio.open_nursery() as nursery:
            for call in list(self.to_come):
                if call.caller == caller:
                    nursery.start_soon(self.call, connection, call)

    async def call(self, connection: Connection, call: Call) -> None:
        await trio.sleep(call.begins)
        if connection.status != "open":
            return
        self.to_come.remove(call)
        outcome = "result"
        try:
            with self.ledger.call(call.name), trio.fail_after(trio_deadline(call)):
                await CALLERS[call.kind](self, connection, call)
        except (RSocketError, trio.TooSlowError) as error:
            outcome = self.judged(call, error)
        except BaseExceptionGroup as group:
            told, rest = group.split((RSocketError, trio.TooSlowError))
            if told is not None:
                outcome = " and ".join(sorted({self.judged(call, leaf) for leaf in leaves_of(told)}))
            if rest is not None:
                raise rest from None  # the handler that asks is cancelled
        self.outcomes[call.name] = outcome

    def judged(self, call: Call, error: BaseException) -> str:
        """The name of an error; one that nothing explains is wrong."""
        explained = (
            (isinstance(error, trio.TooSlowError) and call.deadline is not None)
            or (isinstance(error, LOST) and self.plan.may_lose)
            or (isinstance(error, SetupError) and self.plan.resumes and self.has_no_session(error))
            or (isinstance(error, ConnectionLost) and call.caller == "server" and "was not resumed" in error.text)
            or (isinstance(error, StreamError) and self.plan.leases is not None and OVERDRAWN in error.text)
            or (isinstance(error, ApplicationError) and error.text == expected_text(call))
        )
        if not explained:
            self.wrong.append(f"{call.name} raised {error!r}")
        return type(error).__name__

    def has_no_session(self, error: SetupError) -> bool:
        """Whether there was no session to resume: the SETUP was lost or late, or a copy of it was quicker."""
        return self.received == self.received_before or "token is in use" in error.text

    async def ask(self, connection: Connection, call: Call) -> None:
        up = self.ledger.offer(call.name, "up", call.up[0])
        reply = await connection.request_response(head(call) + up)
        if self.plan.streamux and call.fails and reply.data == FAILED:
            return
        self.expect_no_failure(call)
        self.receive(call, "down", reply)
        self.ledger.completed(call.name, "down")

    async def ask_stream(self, connection: Connection, call: Call) -> None:
        up = head(call) + self.ledger.offer(call.name, "up", call.up[0])
        ask = connection.request_subscription if call.kind == "subscription" else connection.request_stream
        route = "push" if call.kind == "push" else None
        async with ask(up, route=route, initial_request_n=call.credit, refill=not call.by_hand) as items:
            await self.read_down(items, call)

    async def ask_channel(self, connection: Connection, call: Call) -> None:
        up = head(call) + self.ledger.offer(call.name, "up", call.up[0])
        opening = connection.request_channel(up, initial_request_n=call.credit, refill=not call.by_hand)
        async with opening as channel, trio.open_nursery() as nursery:
            nursery.start_soon(self.send_up, channel, call)
            await self.read_down(channel, call)
            if call.leaves is not None:
                nursery.cancel_scope.cancel()

    async def ask_chunks(self, connection: Connection, call: Call) -> None:
        if self.plan.dialect != STREAMUX:
            await self.ask_channel(connection, call)
            return
        first = head(call) + framed(self.ledger.offer(call.name, "up", call.up[0]))
        async with connection.request_channel(first) as channel, trio.open_nursery() as nursery:
            nursery.start_soon(self.send_up, channel, call)
            count = 0
            async for item in Items(channel):
                self.ledger.received(call.name, "down", item)
                await trio.sleep(call.reading)
                count += 1
                if count == call.leaves:
                    break
            else:
                self.ledger.completed(call.name, "down")
            if call.leaves is not None:
                nursery.cancel_scope.cancel()

    async def forget(self, connection: Connection, call: Call) -> None:
        up = self.ledger.offer(call.name, "up", call.up[0])
        try:
            await connection.fire_and_forget(head(call) + up)
        except BaseException:
            self.ledger.refused(call.name, "up")
            raise

    async def push_metadata(self, connection: Connection, call: Call) -> None:
        up = self.ledger.offer(call.name, "up", call.up[0])
        try:
            await connection.metadata_push(head(call) + up)
        except BaseException:
            self.ledger.refused(call.name, "up")
            raise

    async def ping(self, connection: Connection, call: Call) -> None:
        await connection.ping()

    async def read_down(self, items: Incoming, call: Call) -> None:
        """Read until the end, or until the reader has had enough; a planned error comes behind all items."""
        count = 0
        if call.leaves == 0:
            return
        try:
            async for item in items:
                self.receive(call, "down", item)
                await trio.sleep(call.reading)
                if call.by_hand:
                    items.request_n(1)
                count += 1
                if count == call.leaves:
                    return
        except ApplicationError as error:
            if error.text == expected_text(call):
                self.ledger.completed(call.name, "down")
            raise
        self.expect_no_failure(call)
        self.ledger.completed(call.name, "down")

    async def send_up(self, channel: Channel, call: Call) -> None:
        if await self.send_all(channel, call, "up", call.up[1:]):
            await channel.send_eof()

    async def send_all(
        self, out: Channel | Outgoing, call: Call, direction: Literal["up", "down"], sizes: tuple[int, ...]
    ) -> bool:
        """Send items at the call's pace; whether they were all wanted."""
        for size in sizes:
            await trio.sleep(call.pace)
            item = self.ledger.offer(call.name, direction, size)
            try:
                await out.send(self.wrapped(call, item))
            except Canceled:
                self.ledger.refused(call.name, direction)
                # The responder returned, or failed, or the other half took this one with it (0.2, Streamux).
                return False
            except BaseException:
                self.ledger.refused(call.name, direction)
                raise
        return True

    def expect_no_failure(self, call: Call) -> None:
        if expected_text(call) is not None and call.returns is None:
            self.wrong.append(f"{call.name} completed, its handler fails")

    # Handlers

    def responder(self) -> Responder:
        """What both sides serve."""
        responder = Responder()
        if self.plan.dialect == STREAMUX:
            if self.plan.whole:
                responder.request_response(self.answer)
            else:
                responder.request_channel(self.converse_in_chunks)
            return responder
        responder.request_response(self.answer)
        responder.request_stream(self.produce)
        responder.request_stream("push")(self.push)
        responder.request_subscription(self.produce)
        responder.request_channel(initial_request_n=self.plan.channel_credit)(self.converse)
        responder.fire_and_forget(self.note)
        responder.metadata_push(self.note_metadata)
        if self.plan.leases is not None:
            responder.lease(partial(grant, *self.plan.leases))
        return responder

    async def answer(self, request: Payload) -> bytes:
        call, item = self.called(request.data)
        with self.ledger.handler(call.name):
            self.ledger.received(call.name, "up", item)
            self.ledger.completed(call.name, "up")
            return await self.answered(call)

    async def answered(self, call: Call) -> bytes:
        if call.number == 0:
            await self.call_all(current_connection(), "server")
        await trio.sleep(call.pace)
        await end(call)
        return self.ledger.offer(call.name, "down", call.down[0])

    async def produce(self, request: Payload) -> AsyncIterator[Payload]:
        call, item = self.called(request.data)
        with self.ledger.handler(call.name):
            self.ledger.received(call.name, "up", item)
            for size in call.down:
                await trio.sleep(call.pace)
                sent = self.ledger.offer(call.name, "down", size)
                try:
                    yield self.wrapped(call, sent)
                except BaseException:
                    self.ledger.refused(call.name, "down")
                    raise
            await end(call)

    async def push(self, request: Payload, out: Outgoing) -> None:
        call, item = self.called(request.data)
        with self.ledger.handler(call.name):
            self.ledger.received(call.name, "up", item)
            await self.send_all(out, call, "down", call.down)
            await end(call)

    async def converse(self, channel: Channel) -> None:
        call, item = self.called(channel.request.data)
        with self.ledger.handler(call.name):
            self.ledger.received(call.name, "up", item)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.send_all, channel, call, "down", call.down)
                count = 0
                async for payload in channel:
                    self.receive(call, "up", payload)
                    await trio.sleep(call.reading)
                    count += 1
                    if count == call.returns:
                        nursery.cancel_scope.cancel()
                        break
                else:
                    self.ledger.completed(call.name, "up")
            await end(call)

    async def converse_in_chunks(self, channel: Channel) -> None:
        data = b""
        async for chunk in channel:
            data += chunk.data
            if len(data) >= HEAD:
                break
        call, rest = self.called(data)
        with self.ledger.handler(call.name):
            if call.kind == "response":
                async for chunk in channel:
                    rest += chunk.data
                self.ledger.received(call.name, "up", rest)
                self.ledger.completed(call.name, "up")
                answer = await self.answered(call)
                if answer:  # an empty chunk is no answer, an empty answer is no chunk
                    await channel.send(answer)
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.send_all, channel, call, "down", call.down)
                count = -1
                async for item in Items(channel, rest):
                    self.ledger.received(call.name, "up", item)
                    await trio.sleep(call.reading)
                    count += 1
                    if count and count == call.returns:
                        nursery.cancel_scope.cancel()
                        break
                else:
                    self.ledger.completed(call.name, "up")
            await end(call)

    async def note(self, request: Payload) -> None:
        call, item = self.called(request.data)
        with self.ledger.handler(call.name):
            self.ledger.received(call.name, "up", item)
            await trio.sleep(call.pace)

    async def note_metadata(self, metadata: bytes) -> None:
        await self.note(Payload(metadata))

    # Items

    def called(self, data: bytes) -> tuple[Call, bytes]:
        return self.plan.calls[int.from_bytes(data[:HEAD], "big")], data[HEAD:]

    def wrapped(self, call: Call, item: bytes) -> Payload:
        if self.plan.dialect == STREAMUX and call.kind == "channel":
            return Payload(framed(item))
        return Payload(item, item[-16:] if call.metadata else None)

    def receive(self, call: Call, direction: Literal["up", "down"], payload: Payload) -> None:
        self.ledger.received(call.name, direction, payload.data)
        self.received += call.caller == "client" and direction == "down"
        has_metadata = call.metadata and call.kind != "response"
        if payload.metadata != (payload.data[-16:] if has_metadata else None):
            self.wrong.append(f"{call.name}: metadata {payload.metadata!r}")


CALLERS = {
    "response": Scenario.ask,
    "stream": Scenario.ask_stream,
    "push": Scenario.ask_stream,
    "subscription": Scenario.ask_stream,
    "channel": Scenario.ask_chunks,
    "forget": Scenario.forget,
    "metadata": Scenario.push_metadata,
    "ping": Scenario.ping,
}


def head(call: Call) -> bytes:
    return call.number.to_bytes(HEAD, "big")


def framed(item: bytes) -> bytes:
    return len(item).to_bytes(HEAD, "big") + item


class Items:
    """The items in chunks whose borders mean nothing. ``data`` is what came of them before."""

    def __init__(self, channel: Channel, data: bytes = b"") -> None:
        self._channel = channel
        self._data = data

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            size = HEAD + int.from_bytes(self._data[:HEAD], "big")
            if HEAD <= size <= len(self._data):
                item, self._data = self._data[HEAD:size], self._data[size:]
                return item
            try:
                self._data += (await anext(self._channel)).data
            except StopAsyncIteration:
                if self._data:
                    raise AssertionError(f"{len(self._data)} bytes of an item at the good end") from None
                raise


async def grant(number_of_requests: int, seconds: float, setup: Setup) -> AsyncIterator[Lease]:
    while True:
        yield Lease(number_of_requests, 2 * seconds)
        await trio.sleep(seconds)


def trio_deadline(call: Call) -> float:
    return float("inf") if call.deadline is None else call.deadline


def expected_text(call: Call) -> str | None:
    """What the error of this call says, if its handler gets as far as failing."""
    if call.fails == "error":
        return f"planned {call.number}"
    if call.fails == "bug":
        return "internal error"
    return "subscription ended" if call.kind == "subscription" else None


async def end(call: Call) -> None:
    """How a handler ends: it fails, or never does, or may return."""
    if call.endless:
        await trio.sleep_forever()
    if call.fails == "error":
        raise ApplicationError(f"planned {call.number}")
    if call.fails == "bug":
        raise ZeroDivisionError(f"planned {call.number}")


def leaves_of(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from leaves_of(one)
        else:
            yield one
