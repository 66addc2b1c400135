"""A program, one side of a storm over Streamux: so many requests of both sides at once, cancels and pings.

``server URI COUNT SEED [PEM]`` prints where it listens, serves one client, and calls it back as often as that calls it.
``client URI COUNT SEED [PEM]`` is that client. Each ends with 0 if every answer was right and nothing is left.
"""

from __future__ import annotations

import math
import os
import random
import ssl
import sys
from functools import partial

import attrs
import trio
import trio.testing

from rsocket_trio import Connection, Payload, Responder, Setup, current_connection, open_connection, serve

DONE = b"done"
PATIENCE = 60.0
PINGS = 100


@attrs.frozen
class Plan:
    """What becomes of one request; both sides know it by the request's number alone.

    ``cancelled`` is after how many seconds its caller gives up, if it does; ``answered`` after how many its handler
    answers, if it does.
    """

    request: bytes
    answer: bytes
    cancelled: float
    answered: float

    @classmethod
    def of(cls, seed: int, number: int) -> Plan:
        chance = random.Random(seed << 32 | number)
        sizes = [0 if chance.random() < 0.5 else chance.randrange(300) for _ in range(2)]
        if chance.random() < 0.005:
            sizes[chance.randrange(2)] = chance.randrange(150_000)
        head = number.to_bytes(4, "big")
        request, answer = head + chance.randbytes(sizes[0]), chance.randbytes(sizes[1])
        if chance.random() < 0.8:
            return cls(request, answer, math.inf, chance.uniform(0, 0.05))
        cancelled = chance.uniform(0, 0.5)
        races = chance.random() < 0.5
        return cls(request, answer, cancelled, cancelled if races else math.inf)


class Side:
    """One side: what it asks, and how it answers what the other one asks.

    With ``gathers`` it answers nothing before all requests that nobody cancels are there at once.
    """

    def __init__(self, count: int, *, theirs: int, ours: int, gathers: bool) -> None:
        self.count = count
        self.seeds = theirs, ours
        self.wrong: list[str] = []
        self.gathered = self.cancelled = self.answered = 0
        self.patient = sum(math.isinf(Plan.of(theirs, number).cancelled) for number in range(count))
        self.gathers = gathers
        self.all_here = trio.Event()
        self.stormed = trio.Event()
        self.report = ""
        self.responder = Responder()
        self.responder.request_response(self.answer)

    async def answer(self, request: Payload) -> bytes:
        if request.data == DONE:
            await self.stormed.wait()
            self.report = self.left(current_connection(), answering=1)
            return b"well done"
        plan = Plan.of(self.seeds[0], int.from_bytes(request.data[:4], "big"))
        if request.data != plan.request:
            self.wrong.append(f"request {request.data[:16].hex()} of {len(request.data)} bytes")
        if math.isinf(plan.cancelled) and self.gathers:
            self.gathered += 1
            if self.gathered == self.patient:
                self.all_here.set()
            await self.all_here.wait()
        else:
            await trio.sleep(plan.answered)
        return plan.answer

    async def storm(self, connection: Connection) -> None:
        """Ask for everything at once, and look whether the answers are right."""
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                for number in range(self.count):
                    nursery.start_soon(self.ask, connection, number)
                for turn in range(PINGS):
                    nursery.start_soon(self.ping, connection, turn / PINGS)
            await connection.ping()  # behind it there is no ack any more that could be on its way
            self.stormed.set()

    async def ask(self, connection: Connection, number: int) -> None:
        plan = Plan.of(self.seeds[1], number)
        with trio.move_on_after(plan.cancelled):
            reply = await connection.request_response(plan.request)
            self.answered += 1
            if reply.data != plan.answer:
                self.wrong.append(f"answer to {number}: {reply.data[:16].hex()} of {len(reply.data)} bytes")
            return
        self.cancelled += 1

    async def ping(self, connection: Connection, after: float) -> None:
        await trio.sleep(after)
        await connection.ping()

    def left(self, connection: Connection, *, answering: int) -> str:
        """Return what is still taken of a connection on which everything was answered; empty if nothing is."""
        table = connection._engine.session.table  # type: ignore[attr-defined]  # it is Streamux's
        counted = len(table.mine), len(table.theirs), table.reassembling
        if counted == (0, answering, 0) and connection._engine.receive_budget.size == 0:
            return ""
        return f"taken: {table.mine}, {table.theirs}, {table.reassembling} bytes to be joined"

    def check(self) -> None:
        assert self.wrong == []
        assert self.report == ""
        assert self.gathered == (self.patient if self.gathers else 0)
        assert self.answered + self.cancelled == self.count
        assert 0 < self.cancelled < self.count / 2


def left_over() -> tuple[int, int]:
    """Tasks and descriptors of this process."""
    return trio.lowlevel.current_statistics().tasks_living, len(os.listdir("/proc/self/fd"))


async def until_nothing_is_left(before: tuple[int, int]) -> None:
    with trio.move_on_after(5):
        while left_over() != before:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert left_over() == before


async def be_server(uri: str, side: Side, ssl_context: ssl.SSLContext | None) -> None:
    async with trio.open_nursery() as nursery:

        @side.responder.setup
        def begin(setup: Setup, connection: Connection) -> None:
            nursery.start_soon(side.storm, connection)

        [bound] = await nursery.start(partial(serve, side.responder, uri, ssl_context=ssl_context))
        await trio.testing.wait_all_tasks_blocked()
        before = left_over()
        print(bound, flush=True)
        await side.stormed.wait()
        await until_nothing_is_left(before)
        nursery.cancel_scope.cancel()
    side.check()


async def be_client(uri: str, side: Side, ssl_context: ssl.SSLContext | None) -> None:
    before = left_over()
    async with open_connection(
        uri, dialect="streamux/1", responder=side.responder, ssl_context=ssl_context
    ) as connection:
        await side.storm(connection)
        reply = await connection.request_response(DONE)
        assert reply.data == b"well done"
        side.report = side.left(connection, answering=0)
    await until_nothing_is_left(before)
    side.check()


def main() -> None:
    role, uri, count, seed, *pem = sys.argv[1:]
    purpose, run = (ssl.Purpose.CLIENT_AUTH, be_server) if role == "server" else (ssl.Purpose.SERVER_AUTH, be_client)
    context = None
    if pem:
        context = ssl.create_default_context(purpose)
        if role == "server":
            context.load_cert_chain(pem[0])
        else:
            context.load_verify_locations(pem[0])
    seeds = 2 * int(seed), 2 * int(seed) + 1
    theirs, ours = seeds if role == "server" else reversed(seeds)
    trio.run(run, uri, Side(int(count), theirs=theirs, ours=ours, gathers=True), context)


if __name__ == "__main__":
    main()
