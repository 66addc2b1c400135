"""One side of a storm over Streamux: so many requests of both sides at once, cancels and pings."""

from __future__ import annotations

import math
import random

import attrs
import trio

from rsocket_trio import Connection, Payload, Responder, current_connection

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
    """One side: what it asks, and how it answers what the other one asks."""

    def __init__(self, count: int, *, theirs: int, ours: int) -> None:
        self.count = count
        self.seeds = theirs, ours
        self.wrong: list[str] = []
        self.cancelled = self.answered = 0
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
        assert self.answered + self.cancelled == self.count
        assert 0 < self.cancelled < self.count / 2
