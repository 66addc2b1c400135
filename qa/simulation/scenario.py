"""A simulated run: both sides do what a plan says, over a network with faults, and a checker keeps count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import attrs
import trio

from qa.simulation.books import LOST, Books
from qa.simulation.callers import Callers
from qa.simulation.handlers import Handlers
from qa.simulation.plans import KEEPALIVE, Plan, drawn
from rsocket_trio import Connection, ResumeOptions, open_connection_over, serve, serve_stream
from rsocket_trio.errors import SetupError
from rsocket_trio.testing import SimulatedNetwork, SimulatedStream, Verdict, simulate
from rsocket_trio.transports.base import Transport

LONGEST = 100 * KEEPALIVE.max_lifetime
"""Virtual seconds in which everything must have come to its end."""
CONNECTS = 300
RESUMING = ResumeOptions(session_seconds=1000.0)
"""Sessions wait for longer than any stall of the network lasts."""


@attrs.frozen
class Report:
    """The result of a run: everything that was wrong, and a hash of the events."""

    plan: Plan
    wrong: tuple[str, ...]
    hash: str
    trace: str
    outcomes: dict[str, str]


def run(seed: int, dialect: str, *, resumes: bool = False) -> Report:
    """Run what the seed says; the same seed does the same again. With ``resumes`` no cut may cost anything."""
    return simulate(Scenario(*drawn(seed, dialect, resumes=resumes)).run, seed=seed, longest=2 * LONGEST)


class Scenario:
    """Both sides of a run, and their records."""

    def __init__(self, plan: Plan, chance: Random) -> None:
        self.plan = plan
        self.network = SimulatedNetwork(chance, plan.faults)
        self.books = Books(plan, self.network.trace)
        self.callers = Callers(self.books)
        self.handlers = Handlers(self.books, self.callers)
        self.serving = 0
        self.connects = 0

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
                self.books.wrong.append(f"not at its end after {LONGEST} s: {self.serving} connections")
            nursery.cancel_scope.cancel()
        left = trio.lowlevel.current_statistics().tasks_living - before
        if left:
            self.books.wrong.append(f"{left} tasks left")
        self.books.wrong += str(self.verdict).splitlines() if not self.verdict.is_clean else []
        trace = self.network.trace
        return Report(self.plan, tuple(self.books.wrong), trace.hash, str(trace), self.books.outcomes)

    @property
    def verdict(self) -> Verdict:
        return self.books.checker.verdict()

    # The two ends

    async def serve(self, nursery: trio.Nursery) -> None:
        listener = self.network.listener()
        if self.plan.resumes:
            # One server for all connections: it is where sessions wait for their clients.
            plan = self.plan
            await serve(
                self.handlers.responder(),
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
                self.handlers.responder(),
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
        """Return the transports of the server: those that tamper with frames come in here."""
        return stream

    async def be_client(self) -> None:
        """Connect as often as it takes; a call that was begun is not repeated."""
        while any(call.caller == "client" for call in self.books.to_come):
            self.connects += 1
            self.books.received_before = self.books.received
            if self.connects > CONNECTS:
                self.books.wrong.append(f"{CONNECTS} connects were not enough")
                return
            try:
                async with self.connected() as connection:
                    await self.callers.call_all(connection, "client")
                    await self.handlers_end(connection)
            except OSError:
                await trio.sleep(1)
            except LOST as error:
                # That the first connect fails is none of resumption's business.
                if not (self.plan.may_lose or self.plan.resumes):
                    self.books.wrong.append(f"opening failed: {error!r}")
                await trio.sleep(1)
            except SetupError as error:
                if not (self.plan.resumes and self.books.has_no_session(error)):
                    raise
                await trio.sleep(1)

    async def handlers_end(self, connection: Connection) -> None:
        """Once all callers are done, or have left, no handler goes on."""
        with trio.move_on_after(2 * KEEPALIVE.max_lifetime):
            while self.verdict.unfinished and connection.status == "open":  # noqa: ASYNC110
                await trio.sleep(1)
        # A session that the client left without being heard goes on waiting for it.
        if connection.status == "open" and not self.plan.may_lose and not (self.plan.resumes and self.connects > 1):
            self.books.wrong += [f"nobody waits for the {name}" for name in self.verdict.unfinished]

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
            responder=self.handlers.responder(),
            fragment_size=plan.fragment_size,
            limits=plan.limits,
            **options,
        ) as connection:
            yield connection
