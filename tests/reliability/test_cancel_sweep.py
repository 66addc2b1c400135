"""A task is cancelled at each of its steps in turn: nothing is left, CANCEL goes out once at most, and all goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    Channel,
    Connection,
    Lease,
    Limits,
    Outgoing,
    Payload,
    Rejected,
    Responder,
    Setup,
    current_connection,
)
from tests.connection.pairs import connected_pair, settle
from tests.reliability.cancelling import MOST_STEPS, CancelAtStep, cancelled_once, nothing_is_open


def responder() -> Responder:
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        await trio.sleep(0.1)
        return request

    @responder.request_response("inline")
    def inline(request: Payload) -> Payload:
        return request

    @responder.request_response("fail")
    async def fail(request: Payload) -> Payload:
        raise Rejected("no")

    @responder.request_response("back")
    async def back(request: Payload) -> Payload:
        return await current_connection().request_response(request, route="inline")

    @responder.request_stream
    async def count(request: Payload) -> AsyncIterator[bytes]:
        for number in range(int(request.data)):
            yield b"%d" % number

    @responder.request_stream("push")
    async def push(request: Payload, out: Outgoing) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(int(request.data)):
                nursery.start_soon(out.send, b"%d" % number)

    @responder.request_channel
    async def chat(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)

    @responder.request_channel("deaf", initial_request_n=1, refill=False)
    async def deaf(channel: Channel) -> None:
        await trio.sleep(2)
        channel.request_n(10)
        async for _ in channel:
            pass

    @responder.fire_and_forget
    async def note(request: Payload) -> None:
        await trio.sleep(0.1)

    @responder.lease
    async def policy(setup: Setup) -> AsyncIterator[Lease]:
        while True:
            yield Lease(3, 1)
            await trio.sleep(2)

    return responder


async def one_request(connection: Connection) -> None:
    await connection.request_response(b"x")


async def inline_requests(connection: Connection) -> None:
    for _ in range(5):
        await connection.request_response(b"x", route="inline")


async def failing_requests(connection: Connection) -> None:
    for _ in range(5):
        with pytest.raises(Rejected):
            await connection.request_response(b"x", route="fail")


async def calls_back(connection: Connection) -> None:
    await connection.request_response(b"x", route="back")


async def large_request(connection: Connection) -> None:
    await connection.request_response(bytes(1_000_000))


async def whole_stream(connection: Connection) -> None:
    async with connection.request_stream(b"20", initial_request_n=4) as items:
        assert len([item async for item in items]) == 20


async def left_stream(connection: Connection) -> None:
    async with connection.request_stream(b"20", route="push", initial_request_n=4) as items:
        async for item in items:
            if item.data == b"5":
                break


async def manual_credit(connection: Connection) -> None:
    async with connection.request_stream(b"5", initial_request_n=1, refill=False) as items:
        async for _ in items:
            items.request_n(1)


async def talk(connection: Connection) -> None:
    async with connection.request_channel() as channel:
        for _ in range(5):
            await channel.send(b"x")
            await anext(channel)
        await channel.send_eof()
        async for _ in channel:
            pass


async def talk_in_two_tasks(connection: Connection) -> None:
    async def send(channel: Channel) -> None:
        for _ in range(10):
            await channel.send(b"x")
        await channel.send_eof()

    async with connection.request_channel(initial_request_n=2) as channel, trio.open_nursery() as nursery:
        nursery.start_soon(send, channel)
        assert len([item async for item in channel]) == 10


async def wait_for_credit(connection: Connection) -> None:
    async with connection.request_channel(route="deaf") as channel:
        for _ in range(5):
            await channel.send(b"x")


async def forget(connection: Connection) -> None:
    for _ in range(5):
        await connection.fire_and_forget(bytes(100_000))


async def pings_and_pushes(connection: Connection) -> None:
    for _ in range(5):
        await connection.ping()
        await connection.metadata_push(b"x")


async def many_at_once(connection: Connection) -> None:
    async with trio.open_nursery() as nursery:
        for scenario in (one_request, whole_stream, talk, calls_back, left_stream):
            nursery.start_soon(scenario, connection)


Scenario = Callable[[Connection], Awaitable[None]]
SCENARIOS: list[Scenario] = [
    one_request,
    inline_requests,
    failing_requests,
    calls_back,
    large_request,
    whole_stream,
    left_stream,
    manual_credit,
    talk,
    talk_in_two_tasks,
    wait_for_credit,
    forget,
    pings_and_pushes,
    many_at_once,
]


@pytest.mark.parametrize("lease", [False, True], ids=["free", "leased"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_task_may_be_cancelled_at_each_of_its_steps(
    scenario: Scenario, before: bool, lease: bool, autojump_clock: MockClock
) -> None:
    for step in range(MOST_STEPS):
        cancelling = CancelAtStep(step, before=before)
        async with connected_pair(responder(), responder(), lease=lease, limits=Limits(outbox_size=150_000)) as pair:
            await cancelling.run(scenario, pair.client)
            await settle()
            await trio.sleep(0.5)
            nothing_is_open(pair.client, pair.server)
            cancelled_once(pair.client_said)
            assert (await pair.client.request_response(b"alive", route="inline")).data == b"alive"
            assert (await pair.server.request_response(b"alive", route="inline")).data == b"alive"
        if not cancelling.scope.cancel_called:
            break
    else:
        raise AssertionError(f"more than {MOST_STEPS} steps")
    assert step >= 2
