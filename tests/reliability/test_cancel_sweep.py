"""A task is cancelled at each of its steps in turn: nothing is left, CANCEL goes out once at most, and all goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    Channel,
    Connection,
    Keepalive,
    Lease,
    Limits,
    Outgoing,
    Payload,
    Rejected,
    Responder,
    RSocketError,
    Setup,
    StreamuxOptions,
    connect_forever,
    current_connection,
    open_connection,
    open_connection_over,
    serve_stream,
)
from tests.client.reconnecting import EXACT, URI, service
from tests.connection import resuming
from tests.connection.pairs import Pair, connected_pair, settle
from tests.connection.streamux_pairs import streamux_pair
from tests.each_row import ALL_CASES
from tests.reliability.cancelling import MOST_STEPS, STRIDE, CancelAtStep, cancelled_once, nothing_is_open
from tests.serving import running_server

Scenario = Callable[[CancelAtStep], Awaitable[None]]
LARGE = bytes(3000)


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

    @responder.request_response("relay")
    async def relay(request: Payload) -> bytes:
        async with current_connection().request_stream(b"5", initial_request_n=2) as items:
            return b"".join([item.data async for item in items])

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


async def failing_requests(connection: Connection) -> None:
    for _ in range(5):
        with pytest.raises(Rejected):
            await connection.request_response(b"x", route="fail")


async def calls_back(connection: Connection) -> None:
    await connection.request_response(b"x", route="back")


async def whole_stream(connection: Connection) -> None:
    async with connection.request_stream(b"20", initial_request_n=4) as items:
        assert len([item async for item in items]) == 20


async def left_stream(connection: Connection) -> None:
    async with connection.request_stream(b"20", route="push", initial_request_n=4) as items:
        async for item in items:
            if item.data == b"5":
                break


async def talk(connection: Connection) -> None:
    async with connection.request_channel() as channel:
        for _ in range(5):
            await channel.send(b"x")
            await anext(channel)
        await channel.send_eof()
        async for _ in channel:
            pass


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


# Over a pair: `act` is what the task does that is cancelled


async def over_pair(
    cancelling: CancelAtStep,
    act: Callable[[Pair], Awaitable[None]],
    *,
    fragment_size: int = 65536,
    outbox_size: int = 10_000,
    lease: bool = False,
    ends: bool = False,
) -> None:
    limits = Limits(outbox_size=outbox_size)
    options: dict[str, Any] = {"lease": lease, "fragment_size": fragment_size, "keepalive": Keepalive(1000, 10_000)}
    async with connected_pair(responder(), responder(), limits=limits, **options) as pair:
        await cancelling.run(act, pair)
        pair.client_wire.release()
        await settle()
        await trio.sleep(0.5)
        nothing_is_open(pair.client, pair.server)
        cancelled_once(pair.client_said)
        cancelled_once(pair.server_said)
        if not ends or pair.client.status == "open":
            for one in (pair.client, pair.server):
                assert (await one.request_response(b"alive", route="inline")).data == b"alive"


async def by_client(act: Callable[[Connection], Awaitable[None]], pair: Pair) -> None:
    await act(pair.client)


async def fragments_out(pair: Pair) -> None:
    assert (await pair.client.request_response(LARGE)).data == LARGE


async def servers_stream(pair: Pair) -> None:
    async with pair.server.request_stream(b"20", initial_request_n=3) as items:
        assert len([item async for item in items]) == 20


async def request_in_a_handler(pair: Pair) -> None:
    assert (await pair.client.request_response(b"?", route="relay")).data == b"01234"


async def a_full_outbox(pair: Pair) -> None:
    pair.client_wire.hold()

    async def release() -> None:
        await trio.sleep(1)
        pair.client_wire.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(release)
        for _ in range(4):
            await pair.client.fire_and_forget(bytes(6000))


async def beyond_the_lease(pair: Pair) -> None:
    for _ in range(5):
        await pair.client.request_response(b"x")


async def the_servers_drain(pair: Pair) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one_request, pair.client)
        await trio.sleep(0.05)
        await pair.server.drain(grace=1, announce=True)


# Streamux


async def over_streamux(
    cancelling: CancelAtStep, act: Callable[[Connection], Awaitable[None]], *, chunks: bool
) -> None:
    requests = StreamuxOptions(requests="chunks" if chunks else "whole")
    served = responder() if not chunks else chunk_responder()
    async with streamux_pair(served, client=requests, server=requests) as pair:
        await cancelling.run(act, pair.client)
        await settle()
        await trio.sleep(0.5)
        nothing_is_open(pair.client, pair.server)
        with trio.fail_after(10):
            await pair.client.ping()
            await act(pair.client)


def chunk_responder() -> Responder:
    responder = Responder()

    @responder.request_channel
    async def echo(channel: Channel) -> None:
        async for item in channel:
            await channel.send(item)

    return responder


async def a_whole_request(connection: Connection) -> None:
    assert (await connection.request_response(LARGE)).data == LARGE


async def a_chunked_request(connection: Connection) -> None:
    async with connection.request_channel() as channel:
        for _ in range(4):
            await channel.send(b"x")
            await anext(channel)
        await channel.send_eof()
        async for _ in channel:
            pass


# Resumption: the network breaks while the task works


async def over_a_cut(cancelling: CancelAtStep, act: Callable[[Connection], Awaitable[None]], *, down: bool) -> None:
    async with resuming.pair(responder(), client_responder=responder()) as pair:

        async def cut() -> None:
            await trio.sleep(0.05)
            pair.network.down = down
            pair.network.link.cut()
            await trio.sleep(1)
            pair.network.down = False

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut)
            await cancelling.run(act, pair.client)
        with trio.fail_after(60):
            while pair.client.status != "open":  # noqa: ASYNC110  # a state that nobody announces
                await trio.sleep(0.1)
            for one in (pair.client, pair.server):
                assert (await one.request_response(b"alive")).data == b"alive"
        await settle()
        session = pair.client._engine.session
        assert session.is_quiet
        assert pair.server._engine.session.is_quiet
        pair.stop_serving()


async def requests_over_a_cut(connection: Connection) -> None:
    for _ in range(3):
        assert (await connection.request_response(b"x")).data == b"x"


# What opens and ends connections is cancelled itself


async def opening(cancelling: CancelAtStep) -> None:
    async with service() as running:

        async def open_and_ask() -> None:
            async with open_connection(URI, keepalive=Keepalive(1000, 10_000)) as connection:
                await connection.request_response(b"x")

        await cancelling.run(open_and_ask)
        await settle()
        assert not running.server.connections
        await open_and_ask()


async def connecting_for_ever(cancelling: CancelAtStep) -> None:
    async with service() as running:

        async def ask_twice() -> None:
            async with connect_forever(URI, backoff=EXACT) as client:
                await client.request_response(b"x")
                running.cut()
                await client.connected()
                await trio.sleep(0.5)
                await client.request_response(b"y")

        await cancelling.run(ask_twice)
        await settle()
        assert not running.server.connections
        async with open_connection(URI) as connection:
            await connection.request_response(b"x")


async def opening_what_resumes(cancelling: CancelAtStep) -> None:
    network = resuming.Network([300, 200])
    async with running_server(responder(), network, resume=resuming.OPTIONS, grace=0):

        async def open_and_ask() -> None:
            async with open_connection_over(network.connect, resume=resuming.OPTIONS) as connection:
                for _ in range(4):
                    assert (await connection.request_response(bytes(50))).data == bytes(50)

        await cancelling.run(open_and_ask)
        await open_and_ask()


async def serving(cancelling: CancelAtStep) -> None:
    """The server's side goes: whoever waits for it is told, and nothing of it stays."""
    ours, theirs = trio.testing.memory_stream_pair()
    outcomes: list[str] = []

    async def ask() -> None:
        try:
            async with open_connection_over(ours) as connection:
                await talk(connection)
                outcomes.append("served")
        except RSocketError as error:
            outcomes.append(type(error).__name__)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await cancelling.run(partial(serve_stream, grace=0), responder(), theirs)
        await trio.aclose_forcefully(theirs)
    assert len(outcomes) == 1
    assert outcomes[0] in {"served", "ConnectionLost", "ConnectionClosed", "Canceled", "Drained"}


CALLS: tuple[Callable[[Connection], Awaitable[None]], ...] = (
    one_request,
    failing_requests,
    calls_back,
    whole_stream,
    left_stream,
    talk,
    wait_for_credit,
    forget,
    pings_and_pushes,
    many_at_once,
)
"""What a client does over a pair, with leases and without."""


# fmt: off
OTHERS: dict[str, Scenario] = {
    "fragments out":          partial(over_pair, act=fragments_out, fragment_size=100),
    "the server's stream":    partial(over_pair, act=servers_stream),
    "request in a handler":   partial(over_pair, act=request_in_a_handler),
    "a full outbox":          partial(over_pair, act=a_full_outbox),
    "beyond the lease":       partial(over_pair, act=beyond_the_lease, lease=True),
    "the server's drain":     partial(over_pair, act=the_servers_drain, ends=True),
    "Streamux, whole":        partial(over_streamux, act=a_whole_request, chunks=False),
    "Streamux, chunks":       partial(over_streamux, act=a_chunked_request, chunks=True),
    "requests over a cut":    partial(over_a_cut, act=requests_over_a_cut, down=False),
    "channel while suspended": partial(over_a_cut, act=talk, down=True),
    "opening":                opening,
    "connect_forever":        connecting_for_ever,
    "opening what resumes":   opening_what_resumes,
    "serving":                serving,
}
# fmt: on


def rows() -> list[tuple[str, bool, Scenario]]:
    """Each scenario, cancelled before its steps and after them; of calls with leases and without, each pair of both."""
    found: list[tuple[str, bool, Scenario]] = []
    for before in (True, False):
        found += [
            (name, before, scenario)
            for number, (name, scenario) in enumerate(OTHERS.items())
            if ALL_CASES or number % 2 == before
        ]
        for lease in (False, True):
            if ALL_CASES or lease is before:
                scenario = partial(over_pair, outbox_size=150_000, lease=lease)
                name = "leased" if lease else "free"
                found += [
                    (f"{act.__name__} {name}", before, partial(scenario, act=partial(by_client, act))) for act in CALLS
                ]
    return found


@pytest.mark.parametrize(
    ("before", "scenario"),
    [
        pytest.param(before, scenario, id=f"{name} {'before' if before else 'after'}")
        for name, before, scenario in rows()
    ],
)
async def test_a_task_may_be_cancelled_at_each_of_its_steps(
    scenario: Scenario, before: bool, autojump_clock: MockClock
) -> None:
    for step in range(0, MOST_STEPS, STRIDE):
        cancelling = CancelAtStep(step, before=before)
        await scenario(cancelling)
        if not cancelling.scope.cancel_called:
            break
    else:
        raise AssertionError(f"more than {MOST_STEPS} steps")
    assert step >= 2
