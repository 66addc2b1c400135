"""Two things that happen at the same moment, in every order that Trio may choose, and what may come of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import attrs
import trio
import trio.testing

from rsocket_trio import (
    Channel,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Drained,
    Lease,
    Limits,
    Payload,
    Rejected,
    Responder,
    ResumeOptions,
    RSocketError,
    Setup,
)
from rsocket_trio.testing import Faults, SimulatedNetwork, connected_pair, simulate
from tests.connection.pairs import silent

MOMENT = 1.0
"""The moment at which it happens, in seconds from the start of the call."""
SOON = 0.01
"""Seconds: a part of a moment."""
RESUME = ResumeOptions(first_delay=0.0, jitter=0.0, session_seconds=20)
MOST_STEPS = 16
"""Steps by which either of the two may come later: about what an answer takes from its handler to its caller."""


async def moment(chance: Random) -> None:
    """Wait for the moment, and then a few steps more or less."""
    await trio.sleep(MOMENT)
    for _ in range(chance.randrange(MOST_STEPS)):
        await trio.lowlevel.checkpoint()


@attrs.frozen
class Sides:
    """Both connections, and the chance that steps are drawn from. ``seen`` is what handlers tell of."""

    client: Connection
    server: Connection
    network: SimulatedNetwork
    chance: Random
    seen: list[str]

    async def moment(self) -> None:
        """Wait for the moment."""
        await moment(self.chance)

    @asynccontextmanager
    async def left_at_the_moment(self) -> AsyncIterator[None]:
        """A block that is cancelled at the moment."""

        async def leave() -> None:
            await self.moment()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            yield
            nursery.cancel_scope.cancel()


@attrs.frozen
class Race:
    """``run`` returns what came of it, one of ``outcomes``; all of them turn up. ``ends`` if the connection does."""

    name: str
    run: Callable[[Sides], Awaitable[str]]
    outcomes: frozenset[str]
    ends: bool = False
    options: dict[str, Any] = attrs.field(factory=dict)
    faults: Faults = attrs.field(factory=Faults)


def play(race: Race, schedule: int) -> str:
    """Play one schedule of a race and return its result. Raise ``AssertionError`` if something is left."""
    return simulate(_play, race, schedule, seed=schedule)


async def _play(race: Race, schedule: int) -> str:
    network = SimulatedNetwork(schedule, race.faults)
    seen: list[str] = []
    before = trio.lowlevel.current_statistics().tasks_living
    served = responder(seen, network.random)
    pair = connected_pair(served, client_responder=responder(seen, network.random), network=network, **race.options)
    async with pair as (client, server):
        outcome = await race.run(Sides(client, server, network, network.random, seen))
        await trio.sleep(5)
        assert seen.count("begin") == seen.count("end")
        if not race.ends:
            for one in (client, server):
                assert (await one.request_response(b"alive")).data == b"alive"
                await trio.testing.wait_all_tasks_blocked()
                assert one._engine.session.is_quiet
                assert one._engine.session.outbox.size == 0
                assert one._engine.receive_budget.size == 0
                assert one.faults.peer_faults == 0
    assert trio.lowlevel.current_statistics().tasks_living == before
    return outcome


def responder(seen: list[str], chance: Random) -> Responder:
    """Handlers that do what they do at the moment."""
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    @responder.request_response("answer")
    async def answer(request: Payload) -> bytes:
        seen.append("begin")
        try:
            await moment(chance)
            return bytes(1000)
        finally:
            seen.append("end")

    @responder.request_response("reject")
    async def reject(request: Payload) -> bytes:
        await moment(chance)
        raise Rejected("no")

    @responder.request_response("bug")
    async def bug(request: Payload) -> bytes:
        await moment(chance)
        raise ZeroDivisionError

    @responder.request_stream("item")
    async def item(request: Payload) -> AsyncIterator[bytes]:
        seen.append("begin")
        try:
            await moment(chance)
            yield b"item"
            await trio.sleep_forever()
        finally:
            seen.append("end")

    @responder.request_stream("end")
    async def end(request: Payload) -> AsyncIterator[bytes]:
        yield b"item"
        await moment(chance)

    @responder.request_stream("flood")
    async def flood(request: Payload) -> AsyncIterator[bytes]:
        while True:
            yield bytes(500)

    @responder.request_channel("part")
    async def part(channel: Channel) -> None:
        await moment(chance)

    @responder.request_channel("listen")
    async def listen(channel: Channel) -> None:
        seen.extend([item.text async for item in channel])

    @responder.lease
    async def lease(setup: Setup) -> AsyncIterator[Lease]:
        while True:
            yield Lease(2, MOMENT)
            await trio.sleep(MOMENT)

    return responder


# What is raced


async def item_or_cancel(sides: Sides) -> str:
    outcome = "cancelled"
    async with sides.left_at_the_moment(), sides.client.request_stream(route="item") as items:
        async for _ in items:
            outcome = "item"
            break
    return outcome


async def complete_or_cancel(sides: Sides) -> str:
    outcomes = ["cancelled"]
    async with sides.left_at_the_moment(), sides.client.request_stream(route="end") as items:
        outcomes.append(f"{len([item async for item in items])} item")
    return outcomes[-1]


async def answer_or_cancel(sides: Sides, route: str = "answer") -> str:
    outcomes = ["cancelled"]
    async with sides.left_at_the_moment():
        outcomes.append(await outcome_of(sides.client, route))
    return outcomes[-1]


async def deadline_or_answer(sides: Sides) -> str:
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:

            async def expire() -> None:
                await sides.moment()
                scope.deadline = trio.current_time()

            nursery.start_soon(expire)
            return await outcome_of(sides.client, "answer")
    return "deadline"


async def cancel_or_cancel(sides: Sides) -> str:
    """The handler returns, which cancels what it would receive, while the requester leaves."""
    outcomes = ["left"]
    async with sides.left_at_the_moment(), sides.client.request_channel(route="part") as channel:
        async for _ in channel:
            pass
        outcomes.append("completed")
    return outcomes[-1]


async def credit_or_cancel(sides: Sides) -> str:
    count = 0
    opening = sides.client.request_stream(route="flood", initial_request_n=1, refill=False)
    async with sides.left_at_the_moment(), opening as items, trio.open_nursery() as nursery:

        async def grant() -> None:
            await sides.moment()
            items.request_n(1)

        nursery.start_soon(grant)
        async for _ in items:
            count += 1
    return f"{count} items"


async def drain_or_request(sides: Sides, *, drains_client: bool = False) -> str:
    """A side drains while a task of the client's asks."""
    outcome = ""

    async def ask() -> None:
        nonlocal outcome
        await sides.moment()
        outcome = await outcome_of(sides.client, None)

    async def drain() -> None:
        await sides.moment()
        await (sides.client if drains_client else sides.server).drain()

    async with trio.open_nursery() as nursery:
        if not drains_client:
            nursery.start_soon(outcome_of, sides.client, "answer")  # what the server waits for, or not
        nursery.start_soon(ask)
        nursery.start_soon(drain)
    return outcome


async def lease_or_request(sides: Sides) -> str:
    """Requests are made when the lease expires and the next one comes."""
    before = trio.current_time()
    outcomes = []

    async def ask() -> None:
        await sides.moment()
        outcomes.append(await outcome_of(sides.client, None))

    async with trio.open_nursery() as nursery:
        for _ in range(sides.chance.randint(2, 3)):
            nursery.start_soon(ask)
    waited = "at once" if trio.current_time() - before < 2 * MOMENT else "later"
    return f"{' '.join(sorted(set(outcomes)))} {waited}"


async def halves_end(sides: Sides) -> str:
    """Both sides complete their half."""
    async with sides.client.request_channel(route="listen") as channel, trio.open_nursery() as nursery:

        async def talk(channel: Channel) -> None:
            await channel.send(b"word")
            await sides.moment()
            await channel.send_eof()

        nursery.start_soon(talk, channel)
        async with sides.client.request_channel(route="part") as other:
            await sides.moment()
            await other.send_eof()
            seen = [item async for item in other]
        seen += [item async for item in channel]
    return f"{len(seen)} items, {sides.seen}"


async def full_or_close(sides: Sides) -> str:
    """Handlers wait for room that nobody makes, then somebody reads while the server closes."""
    outcome = ""

    async def close() -> None:
        await sides.moment()
        await sides.server.drain(grace=0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(close)
        try:
            async with sides.client.request_stream(route="flood") as items:
                await sides.moment()
                async for _ in items:
                    pass
        except RSocketError as error:
            outcome = type(error).__name__
    return outcome


async def death_or_request(sides: Sides) -> str:
    """The server falls silent; a request is made when the client finds out."""
    sides.network.vanish()
    try:
        await trio.sleep(3 * MOMENT - MOMENT)
        await sides.moment()
        await sides.client.request_response(b"x")
    except ConnectionLost:
        return f"lost after {trio.current_time()} s"
    return "answered"


async def death_or_resume(sides: Sides) -> str:
    """Both sides take each other for dead while an answer is under way: it comes, once, now or after the resumption."""
    states: list[str] = []
    sides.client.on_state(states.append)
    outcome = await outcome_of(sides.client, "answer")
    when = "after a resumption" if states else "in time"
    assert sides.seen == ["begin", "end"]
    assert await outcome_of(sides.client, None) == "1 bytes"
    return f"{outcome} {when}"


async def cut_and_close(sides: Sides, *, leaves: bool = False) -> str:
    """The connection is cut, and the client comes back while the server closes, or leaves when it is about to."""
    outcome = ""

    async def ask() -> None:
        nonlocal outcome
        outcome = await outcome_of(sides.client, "answer")

    async def cut() -> None:
        await sides.moment()
        sides.network.cut()

    async def close() -> None:
        await sides.moment()
        await (sides.client if leaves else sides.server).drain(grace=0)

    async with trio.open_nursery() as nursery:
        for task in (ask, cut, close):
            nursery.start_soon(task)
    return outcome


async def outcome_of(connection: Connection, route: str | None) -> str:
    try:
        return f"{len((await connection.request_response(b'?', route=route)).data)} bytes"
    except Drained:
        return "Drained"
    except (ConnectionClosed, ConnectionLost):
        return "closed"
    except RSocketError as error:
        return type(error).__name__


# fmt: off
RACES = (
    Race("item / cancel",                 item_or_cancel,     frozenset({"item", "cancelled"})),
    Race("complete / cancel",             complete_or_cancel, frozenset({"1 item", "cancelled"})),
    Race("error / cancel",                partial(answer_or_cancel, route="reject"),
         frozenset({"Rejected", "cancelled"})),
    Race("cancel / cancel",               cancel_or_cancel,   frozenset({"completed", "left"})),
    Race("credit / cancel",               credit_or_cancel,   frozenset({"1 items", "2 items"})),
    Race("close / request",               partial(drain_or_request, drains_client=True),
         frozenset({"1 bytes", "closed"}), ends=True),
    Race("lease expiry / request",        lease_or_request,   frozenset({"1 bytes at once", "1 bytes later"}),
         options={"lease": True}),
    Race("last fragment / cancel",        answer_or_cancel,   frozenset({"1000 bytes", "cancelled"}),
         options={"fragment_size": 100}, faults=Faults(split=(50, 150))),
    Race("two halves end",                halves_end,         frozenset({"0 items, ['word']"})),
    Race("handler raises / peer cancels", partial(answer_or_cancel, route="bug"),
         frozenset({"ApplicationError", "cancelled"})),
    Race("outbox full / close",           full_or_close,      frozenset({"Canceled"}), ends=True,
         options={"limits": Limits(outbox_size=2000)}, faults=Faults(buffer=(64, 64), delay=(0.01, 0.01))),
    Race("deadline / answer",             deadline_or_answer, frozenset({"1000 bytes", "deadline"})),
    Race("drain / request",               drain_or_request,   frozenset({"1 bytes", "Drained"}), ends=True),
    Race("keepalive death / request",     death_or_request,   frozenset({"lost after 3.0 s"}), ends=True,
         options={"keepalive": silent(3 * MOMENT)}),
    Race("keepalive death / resume",      death_or_resume,
         frozenset({"1000 bytes in time", "1000 bytes after a resumption"}), ends=True,
         options={"resume": RESUME, "keepalive": silent(MOMENT + SOON)},
         faults=Faults(delay=(0.0, SOON))),
    Race("resume / close",                cut_and_close,      frozenset({"1000 bytes", "Canceled", "RejectedResume"}),
         ends=True, options={"resume": RESUME}),
    Race("resume / leave",                partial(cut_and_close, leaves=True),
         frozenset({"1000 bytes", "closed"}), ends=True,
         options={"resume": RESUME}),
)
# fmt: on
