"""Errors, leases, signs of life, the beginning and the end are the same in every dialect over every transport."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Keepalive,
    Lease,
    Limits,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    RSocketError,
    Unsupported,
    UnsupportedSetup,
    open_connection,
)
from rsocket_trio.errors import StreamError
from rsocket_trio.rsocket.extensions.payloads import Complexity
from tests.conformance.every_dialect.worlds import (
    CHANNEL,
    CLOSE,
    CODES,
    ENTRIES,
    FAILURES,
    PING,
    STREAM_PUSH,
    STRICT,
    SUBSCRIPTION,
    Seen,
    World,
    application,
    gated,
    worlds,
)

SETUP_AND_REQUEST = 2
"""Frames of a client that sent nothing else."""
everywhere = worlds()
clause = pytest.mark.clause


# Errors


@everywhere
@clause("RS00-ERR-02", "RS01-ERR-05", "RS02-ERR-05", "RS10-ERR-05", "RS10-ERR-10")
async def test_an_error_says_at_the_caller_what_the_handler_said(world: World) -> None:
    async with world.connected(application(Seen())) as connection:
        for failure, make in FAILURES.items():
            said = make()
            assert isinstance(said, StreamError)
            wanted = (ApplicationError, 0x201, said.text) if world.lacks(CODES) else (type(said), said.code, said.text)
            with pytest.raises(StreamError) as caught:
                await connection.request_response(failure, route="fail")
            assert (type(caught.value), caught.value.code, caught.value.text) == wanted
            async with connection.request_stream(failure, route="two and fail") as items:
                assert [(await anext(items)).data for _ in range(2)] == [b"one", b"two"]
                with pytest.raises(StreamError) as caught:
                    await anext(items)
            assert (type(caught.value), caught.value.code, caught.value.text) == wanted
            del caught


@everywhere
async def test_an_unknown_route_is_refused_with_its_name(world: World) -> None:
    async with world.connected(application(Seen())) as connection:
        with pytest.raises(ApplicationError if world.lacks(CODES) else Rejected, match="'nowhere'"):
            await connection.request_response(route="nowhere")


@everywhere
async def test_a_bug_in_a_handler_tells_the_caller_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async with world.connected(application(Seen())) as connection:
        with pytest.raises(ApplicationError, match=r"^internal error$"):
            await connection.request_response("no such key", route="fail")
    assert [record.exc_info is not None for record in caplog.records if record.levelname == "ERROR"] == [True]
    caplog.clear()


# Leases


@everywhere
@clause(
    "RS00-CON-04",
    "RS00-CON-05",
    "RS00-LEASE-04",
    "RS01-CON-05",
    "RS01-CON-06",
    "RS01-LS-01",
    "RS02-CON-02",
    "RS10-CON-06",
    "RS10-CON-07",
    "RS10-LS-01",
)
async def test_a_request_beyond_the_lease_waits_for_the_next_one(world: World) -> None:
    seen = Seen()
    async with world.connected(application(seen, leases=[Lease(2, 60), Lease(5, 60)]), lease=True) as connection:
        for _ in range(2):
            await connection.request_response(b"within")
        assert connection.lease is not None
        assert connection.lease.number_of_requests == 0
        with trio.move_on_after(0.02) as waited:
            await connection.request_response(b"beyond")
        assert waited.cancelled_caught
        seen.go.set()
        assert (await connection.request_response(b"again")).data == b"again"


@everywhere
@clause("RS00-CON-06", "RS01-CON-13", "RS01-LEASE-02", "RS10-CON-11")
async def test_a_server_may_ask_a_client_that_leases(world: World) -> None:
    async with world.connected(
        application(Seen(), leases=[Lease(5, 60)]), application(Seen()), lease=True
    ) as connection:
        assert (await connection.request_response(b"Ada", route="ask back")).text == "hello, Ada"


@everywhere
@clause("RS10-SETUP-09")
async def test_a_server_without_leases_refuses_a_client_that_wants_them(world: World) -> None:
    async with world.served(application(Seen())) as uri:
        with pytest.raises(UnsupportedSetup):
            await ask_once(world, uri, lease=True)


async def ask_once(world: World, uri: str, **options: Any) -> None:
    """A refusal shows in the first call, or before the block where the client waits for an answer to its SETUP."""
    async with open_connection(uri, dialect=world.dialect, **world.trust, **options) as connection:
        await connection.request_response(b"x")


# Keepalive and ping


@worlds(having=PING)
async def test_a_ping_goes_there_and_back(world: World) -> None:
    async with world.connected(application(Seen())) as connection:
        assert 0 <= await connection.ping() < 15


@worlds(having=PING)
async def test_an_idle_client_says_that_it_lives(world: World) -> None:
    async with world.overheard(application(Seen()), keepalive=Keepalive(0.01, 60)) as (connection, wire):
        await wire.wait_for(1 + 3)
        assert connection.status == "open"
        assert (await connection.request_response(b"alive")).data == b"alive"


@worlds(lacking=PING)
async def test_where_there_is_no_keepalive_an_idle_client_says_nothing(world: World) -> None:
    async with world.overheard(application(Seen()), keepalive=Keepalive(0.001, 0.02)) as (connection, wire):
        await trio.sleep(0.05)
        assert len(wire.frames) == 1
        assert (await connection.request_response(b"alive")).data == b"alive"


# Calling back


@everywhere
@clause("RS00-GEN-01", "RS01-GEN-03", "RS01-CON-07", "RS10-GEN-03", "RS10-CON-08")
async def test_a_handler_asks_the_client_back(world: World) -> None:
    async with world.connected(application(Seen()), application(Seen())) as connection:
        assert (await connection.request_response(b"Ada", route="ask back")).text == "hello, Ada"
        assert (await connection.request_response(b"5", route="watch back")).text == "0 1 2 3 4"


@everywhere
@clause("RS00-GEN-01", "RS00-SID-04")
async def test_both_sides_ask_at_the_same_time(world: World) -> None:
    answers: list[str] = []

    async def ask(connection: Connection, number: int) -> None:
        answers.append((await connection.request_response(str(number), route="ask back")).text)

    async with world.connected(application(Seen()), application(Seen())) as connection, trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(ask, connection, number)

    assert sorted(answers) == sorted(f"hello, {number}" for number in range(20))


@everywhere
async def test_a_client_that_serves_nothing_refuses(world: World) -> None:
    async with world.connected(application(Seen())) as connection:
        with pytest.raises(StreamError, match="no request_response handler for route 'greet'"):
            await connection.request_response(b"Ada", route="ask back")


# The beginning


@everywhere
@clause("RS00-SETUP-07")
async def test_the_setup_tells_the_server_whom_it_serves(world: World) -> None:
    seen = Seen()
    async with world.connected(gated(seen), setup=b"friend", data_mime="a/b", metadata_mime="c/d") as connection:
        assert (await connection.request_response(b"x")).data == b"x"
    assert seen.events == [(world.dialect, b"friend", "a/b", "c/d")]


@everywhere
@clause("RS00-CON-07", "RS00-CON-08", "RS01-CON-08", "RS02-CON-03", "RS10-CON-09")
async def test_a_setup_that_the_application_refuses_raises_its_reason_in_every_call(world: World) -> None:
    async with world.connected(gated(Seen()), setup=b"foe") as connection:
        for _ in range(2):
            with pytest.raises(RejectedSetup, match="say friend and enter"):
                await connection.request_response(b"x")


@everywhere
async def test_a_setup_above_its_limit_is_refused(world: World) -> None:
    options = {"limits": Limits(setup_size=100)}
    async with world.connected(application(Seen()), server=options, setup=bytes(100)) as connection:
        with pytest.raises(RSocketError, match="100"):
            await connection.request_response(b"x")


# The end


@everywhere
@clause("RS02-ERR-07", "RS10-ERR-09")
async def test_a_server_that_is_cancelled_lets_what_is_open_finish(world: World) -> None:
    seen = Seen()
    answers: list[bytes] = []

    async def ask(connection: Connection) -> None:
        answers.append((await connection.request_response(route="finish")).data)

    async with (
        world.stoppable(application(seen)) as (uri, stop),
        open_connection(uri, dialect=world.dialect, **world.trust) as connection,
    ):
        async with trio.open_nursery() as asking:
            asking.start_soon(ask, connection)
            await seen.wait_for("waiting")
            stop.cancel()
            with pytest.raises(ApplicationError if world.lacks(CODES) else Rejected):
                await ask_until_refused(connection)
            seen.go.set()
        with pytest.raises((ConnectionClosed, ConnectionLost)):
            await ask_until_over(connection)
    assert answers == [b"finished"]


async def ask_until_refused(connection: Connection) -> None:
    """A server hears that it is to stop when it comes to it: until then it answers."""
    while True:
        await connection.request_response(b"anyone there?")


async def ask_until_over(connection: Connection) -> None:
    """A request that crosses the end of a drain is refused, and one behind it is not even sent."""
    while True:
        try:
            await connection.request_response(b"anyone there?")
        except (Rejected, ApplicationError) as refused:
            if isinstance(refused, ConnectionClosed):
                raise


@everywhere
async def test_a_client_drains_before_it_leaves(world: World) -> None:
    seen = Seen()
    async with world.connected(application(seen)) as connection:
        async with (
            connection.request_stream(b"100", route="count", initial_request_n=100) as items,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(connection.drain)
            assert [int(item.data) async for item in items] == list(range(100))
        with pytest.raises(ConnectionClosed):
            await connection.request_response(b"x")
        assert connection.status == "closed"


@everywhere
@clause("RS02-SEQ-05", "RS10-SEQ-13")
async def test_a_lost_connection_raises_in_every_call_that_waits(world: World) -> None:
    seen = Seen()
    caught: list[type[Exception]] = []

    async def ask(connection: Connection) -> None:
        try:
            await connection.request_response(route="hang")
        except ConnectionLost:
            caught.append(ConnectionLost)

    async with world.overheard(application(seen)) as (connection, wire):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, connection)
            await seen.wait_for("hanging")
            await wire.aclose()
        assert caught == [ConnectionLost] * 3
        await seen.wait_for("hang ended")


# What a dialect lacks


@worlds(lacking=SUBSCRIPTION)
async def test_a_subscription_that_the_dialect_lacks_is_refused_before_a_byte_is_sent(world: World) -> None:
    async with world.overheard(application(Seen())) as (connection, wire):
        with pytest.raises(Unsupported, match=f"{world.dialect} has no request_subscription"):
            async with connection.request_subscription(route="prices"):
                raise AssertionError
        assert (await connection.request_response(b"alive")).data == b"alive"
        assert len(wire.frames) == SETUP_AND_REQUEST


@worlds(lacking=CHANNEL)
async def test_a_channel_that_the_dialect_lacks_is_refused_before_a_byte_is_sent(world: World) -> None:
    async with world.overheard(application(Seen())) as (connection, wire):
        with pytest.raises(Unsupported, match=f"{world.dialect} has no request_channel"):
            async with connection.request_channel(route="shout"):
                raise AssertionError
        assert (await connection.request_response(b"alive")).data == b"alive"
        assert len(wire.frames) == SETUP_AND_REQUEST


@worlds(lacking=PING)
async def test_a_ping_that_the_dialect_lacks_is_refused_before_a_byte_is_sent(world: World) -> None:
    async with world.overheard(application(Seen())) as (connection, wire):
        with pytest.raises(Unsupported, match=f"{world.dialect} has no ping"):
            await connection.ping()
        assert (await connection.request_response(b"alive")).data == b"alive"
        assert len(wire.frames) == SETUP_AND_REQUEST


@worlds(lacking=STREAM_PUSH)
async def test_a_push_onto_a_stream_that_the_dialect_lacks_is_refused_before_a_byte_is_sent(world: World) -> None:
    async with world.overheard(application(Seen())) as (connection, wire):
        async with connection.request_stream(b"1", route="count") as items:
            with pytest.raises(Unsupported, match=f"{world.dialect} has no metadata push on streams"):
                await items.metadata_push(b"news")
            assert [item.data async for item in items] == [b"0"]
        assert len(wire.frames) == SETUP_AND_REQUEST


@worlds(lacking=ENTRIES)
async def test_extension_entries_that_the_dialect_lacks_are_refused_before_a_byte_is_sent(world: World) -> None:
    async with world.overheard(application(Seen())) as (connection, wire):
        with pytest.raises(Unsupported, match=f"{world.dialect} has no extension entries"):
            await connection.request_response(b"x", entries=[Complexity(3)])
        with pytest.raises(Unsupported, match=f"{world.dialect} has no extension entries"):
            await connection.send_entries([Complexity(3)])
        assert (await connection.request_response(b"alive")).data == b"alive"
        assert len(wire.frames) == SETUP_AND_REQUEST


@worlds(having=ENTRIES)
async def test_extension_entries_travel_with_a_request(world: World) -> None:
    async with world.connected(application(Seen())) as connection:
        assert (await connection.request_response(b"x", entries=[Complexity(3)])).data == b"x"


@worlds(lacking=STRICT)
async def test_strictness_that_the_dialect_lacks_is_refused_before_anything_is_dialled(world: World) -> None:
    connection = open_connection(world.address, dialect=world.dialect, strict=True, **world.trust)
    with pytest.raises(Unsupported, match="has no strict flag"):
        await connection.__aenter__()


@worlds(having=STRICT)
async def test_strictness_reaches_the_server(world: World) -> None:
    responder = Responder()
    strict: list[bool] = []

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    @responder.setup
    def gate(setup: object, connection: Connection) -> None:
        strict.append(connection.setup.strict)

    async with world.connected(responder, strict=True) as connection:
        await connection.request_response(b"x")
    assert strict == [True]


@worlds(having=CLOSE)
async def test_a_client_hears_that_the_server_closed_in_good_order(world: World) -> None:
    async with (
        world.stoppable(application(Seen())) as (uri, stop),
        open_connection(uri, dialect=world.dialect, **world.trust) as connection,
    ):
        await connection.request_response(b"x")
        stop.cancel()
        with pytest.raises(ConnectionClosed):
            await ask_until_over(connection)
