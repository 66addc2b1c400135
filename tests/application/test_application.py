"""The same application does the same in every dialect over every transport, as far as the dialect has words for it."""

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
    MetadataPush,
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
from rsocket_trio.rsocket.dialects import DIALECTS
from rsocket_trio.rsocket.extension_payloads import Complexity
from tests.application.worlds import (
    CHANNEL,
    CLOSE,
    CODES,
    ENTRIES,
    FAILURES,
    LACKS,
    PING,
    STREAM_PUSH,
    STRICT,
    SUBSCRIPTION,
    TYPED_METADATA,
    Seen,
    World,
    application,
    gated,
    worlds,
)

OPAQUE = "application/octet-stream"
MIB = bytes(range(256)) * 4096
SETUP_AND_REQUEST = 2
"""Frames of a client that sent nothing else."""
everywhere = worlds()
clause = pytest.mark.clause


def test_every_dialect_says_what_it_lacks() -> None:
    assert set(DIALECTS) <= set(LACKS)


# Request/response


@everywhere
@clause("RS00-SEQ-01", "RS01-SEQ-01", "RS02-SEQ-01", "RS10-SEQ-01", "RSX-GEN-02")
async def test_a_request_is_answered(world: World) -> None:
    async with world.connected(application(Seen())) as connection:
        assert (await connection.request_response("Ada", route="greet")).text == "hello, Ada"
        assert connection.dialect == world.dialect


@everywhere
@clause("RS01-GEN-04", "RS02-GEN-04")
async def test_data_and_metadata_come_back_as_they_were_sent(world: World) -> None:
    async with world.connected(application(Seen()), metadata_mime=OPAQUE) as connection:
        for payload in (Payload(), Payload(b"\0"), Payload(b"", b""), Payload(b"data", b"meta"), Payload(b"", b"meta")):
            assert await connection.request_response(payload) == payload


@everywhere
async def test_a_mebibyte_goes_there_and_back(world: World) -> None:
    async with world.connected(application(Seen())) as connection:
        assert (await connection.request_response(MIB)).data == MIB


@everywhere
@clause("RS00-FRAG-01", "RS01-FRAG-01", "RS02-FRAG-01", "RS10-FRAG-01")
async def test_what_is_larger_than_a_fragment_arrives_whole(world: World) -> None:
    payload = Payload(MIB[:9000], MIB[300:1000])
    async with world.connected(
        application(Seen()), metadata_mime=OPAQUE, fragment_size=256, server={"fragment_size": 256}
    ) as connection:
        assert await connection.request_response(payload) == payload


@everywhere
async def test_many_requests_at_once_get_their_own_answers(world: World) -> None:
    answers: dict[int, str] = {}

    async def ask(connection: Connection, number: int) -> None:
        answers[number] = (await connection.request_response(str(number), route="greet")).text

    async with world.connected(application(Seen())) as connection, trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(ask, connection, number)

    assert answers == {number: f"hello, {number}" for number in range(100)}


# Streams


@everywhere
@clause("RS00-SEQ-06", "RS00-SEQ-08", "RS01-SEQ-06", "RS02-SEQ-01", "RS10-SEQ-04")
async def test_a_stream_gives_its_items_in_order_and_ends(world: World) -> None:
    async with (
        world.connected(application(Seen())) as connection,
        connection.request_stream(b"1000", route="count") as items,
    ):
        assert [int(item.data) async for item in items] == list(range(1000))


@everywhere
async def test_a_stream_of_no_items_ends(world: World) -> None:
    async with (
        world.connected(application(Seen())) as connection,
        connection.request_stream(b"0", route="count") as items,
    ):
        assert [item async for item in items] == []


@everywhere
async def test_items_that_are_pushed_carry_their_metadata(world: World) -> None:
    async with (
        world.connected(application(Seen())) as connection,
        connection.request_stream("abc", route="push") as items,
    ):
        assert [(item.text, item.metadata) async for item in items] == [
            ("a", b"meta a"),
            ("b", b"meta b"),
            ("c", b"meta c"),
        ]


@everywhere
async def test_a_stream_flows_with_a_credit_of_one(world: World) -> None:
    async with (
        world.connected(application(Seen())) as connection,
        connection.request_stream(b"20", route="count", initial_request_n=1) as items,
    ):
        assert [int(item.data) async for item in items] == list(range(20))


@everywhere
@clause("RS00-SEQ-13", "RS00-SEQ-07", "RS01-FLOW-01", "RS01-SEQ-08", "RS02-FLOW-01", "RS10-FLOW-01", "RS10-FLOW-02")
async def test_no_item_is_sent_without_credit(world: World) -> None:
    seen = Seen()
    async with (
        world.connected(application(seen)) as connection,
        connection.request_stream(b"100", route="count", initial_request_n=2, refill=False) as items,
    ):
        assert [int((await anext(items)).data) for _ in range(2)] == [0, 1]
        await connection.request_response(b"whoever could send has sent")
        assert seen.sent == 2
        items.request_n(3)
        assert [int((await anext(items)).data) for _ in range(3)] == [2, 3, 4]
        await connection.request_response(b"whoever could send has sent")
        assert seen.sent == 5


@everywhere
async def test_a_stream_carries_items_of_a_mebibyte(world: World) -> None:
    async with (
        world.connected(application(Seen())) as connection,
        connection.request_stream(str(len(MIB)), route="big", initial_request_n=2) as items,
    ):
        assert [item.data async for item in items] == [bytes([number]) * len(MIB) for number in range(3)]


@everywhere
@clause("RS10-FRAG-02")
async def test_items_in_fragments_arrive_whole_and_cost_one_credit_each(world: World) -> None:
    async with (
        world.connected(application(Seen()), server={"fragment_size": 128}) as connection,
        connection.request_stream(b"5000", route="big", initial_request_n=3, refill=False) as items,
    ):
        assert [item.data async for item in items] == [bytes([number]) * 5000 for number in range(3)]


# Subscriptions


@worlds(having=SUBSCRIPTION)
@clause("RS00-SEQ-09", "RS01-SEQ-07", "RS01-GEN-03")
async def test_a_subscription_goes_on_until_its_reader_leaves(world: World) -> None:
    seen = Seen()
    async with world.connected(application(seen)) as connection:
        async with connection.request_subscription(route="prices", initial_request_n=4) as items:
            assert [int((await anext(items)).data) for _ in range(50)] == list(range(50))
        await seen.wait_for("prices ended")


@worlds(having=SUBSCRIPTION)
@clause("RS00-SEQ-09", "RS01-SEQ-07")
async def test_a_subscription_whose_handler_returns_ends_with_an_error(world: World) -> None:
    async with (
        world.connected(application(Seen())) as connection,
        connection.request_subscription(b"2", route="prices") as items,
    ):
        assert [int((await anext(items)).data) for _ in range(2)] == [0, 1]
        with pytest.raises(ApplicationError, match="subscription ended"):
            await anext(items)


# Channels


@worlds(having=CHANNEL)
@clause("RS01-GEN-03", "RS10-SEQ-06")
async def test_a_channel_goes_both_ways_until_both_halves_are_complete(world: World) -> None:
    seen = Seen()
    async with (
        world.connected(application(seen)) as connection,
        connection.request_channel(b"first", route="shout") as channel,
    ):
        for word in (b"second", b"third"):
            await channel.send(word)
        await channel.send_eof()
        assert [item.data async for item in channel] == [b"FIRST", b"SECOND", b"THIRD"]
        await seen.wait_for("shout ended")


@worlds(having=CHANNEL)
async def test_a_channel_carries_a_mebibyte_both_ways_with_a_credit_of_one(world: World) -> None:
    async with (
        world.connected(application(Seen())) as connection,
        connection.request_channel(route="three", initial_request_n=1) as channel,
    ):
        for number in range(3):
            await channel.send(MIB[number:])
            assert (await anext(channel)).data == MIB[number:]
        assert [item async for item in channel] == []


@worlds(having=CHANNEL)
async def test_a_channel_whose_handler_returns_takes_nothing_more(world: World) -> None:
    async with (
        world.connected(application(Seen())) as connection,
        connection.request_channel(route="three") as channel,
    ):
        for number in range(3):
            await channel.send(str(number))
        assert [item.data async for item in channel] == [b"0", b"1", b"2"]
        await channel.wait_send_closed()
        with pytest.raises(RSocketError):
            await channel.send(b"more")
        assert (await connection.request_response(b"alive")).data == b"alive"


@worlds(having=CHANNEL)
async def test_leaving_a_channel_early_cancels_its_handler(world: World) -> None:
    seen = Seen()
    async with world.connected(application(seen)) as connection:
        with trio.CancelScope() as scope:
            async with connection.request_channel(route="listen") as channel:
                await channel.send(b"x")
                await seen.wait_for("heard")
                scope.cancel()
                await trio.lowlevel.checkpoint()
        await seen.wait_for("listen ended")


# Fire-and-forget, metadata push


@everywhere
async def test_what_is_forgotten_is_heard_all_the_same(world: World) -> None:
    seen = Seen()
    async with world.connected(application(seen)) as connection:
        await connection.fire_and_forget(b"small", route="note")
        await connection.fire_and_forget(MIB, route="note")
        await seen.wait_for(("note", b"small"), ("note", MIB))


@everywhere
async def test_what_is_forgotten_right_before_leaving_still_arrives(world: World) -> None:
    seen = Seen()
    async with world.served(application(seen)) as uri:
        async with open_connection(uri, dialect=world.dialect, **world.trust) as connection:
            await connection.fire_and_forget(b"last words", route="note")
        await seen.wait_for(("note", b"last words"))


@everywhere
@clause("RS01-GEN-04", "RS02-GEN-04")
async def test_metadata_is_pushed_to_the_whole_connection(world: World) -> None:
    seen = Seen()
    async with world.connected(application(seen)) as connection:
        await connection.metadata_push(b"news")
        await connection.metadata_push(b"")
        await connection.request_response(b"pushes are in order with the rest")
        await seen.wait_for("pushed")
        assert seen.pushes == [b"news", b""]


@worlds(having=STREAM_PUSH)
@clause("RS00-MP-02", "RS00-MP-03")
async def test_metadata_pushed_onto_a_stream_keeps_its_place_among_the_items(world: World) -> None:
    async with (
        world.connected(application(Seen())) as connection,
        connection.request_stream(route="news between", pushes=True) as items,
    ):
        assert [item async for item in items] == [Payload(b"one"), MetadataPush(b"news", 7), Payload(b"two")]


@worlds(having=TYPED_METADATA)
@clause("RS00-MD-04")
async def test_the_type_of_metadata_passes_unchanged(world: World) -> None:
    payload = Payload(b"data", b"meta", metadata_type=0xA5)
    async with world.connected(application(Seen()), metadata_mime=OPAQUE) as connection:
        assert await connection.request_response(payload) == payload


@worlds(having=ENTRIES)
@clause("RSX-MIME-05", "RSX-GAP-10")
async def test_a_payload_has_mime_types_of_its_own(world: World) -> None:
    payload = Payload(b"{}", b"meta", data_mime="application/json", metadata_mime=0x05)
    async with world.connected(application(Seen()), metadata_mime=OPAQUE) as connection:
        assert await connection.request_response(payload) == payload
        assert await connection.request_response(b"plain") == Payload(b"plain")


# Cancels


@everywhere
@clause("RS00-SEQ-03", "RS01-SEQ-03", "RS10-SEQ-01")
async def test_a_deadline_of_the_caller_cancels_the_handler(world: World) -> None:
    seen = Seen()
    async with world.connected(application(seen)) as connection:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_when, seen, "hanging", scope)
                await connection.request_response(route="hang")
        await seen.wait_for("hang ended")
        assert (await connection.request_response(b"alive")).data == b"alive"


@everywhere
@clause("RS00-SEQ-08", "RS01-SEQ-06", "RS10-SEQ-04")
async def test_leaving_a_stream_cancels_its_handler(world: World) -> None:
    seen = Seen()
    async with world.connected(application(seen)) as connection:
        async with connection.request_stream(route="endless", initial_request_n=3) as items:
            assert (await anext(items)).data == b"more"
        await seen.wait_for("endless ended")
        assert (await connection.request_response(b"alive")).data == b"alive"


@everywhere
async def test_a_server_that_leaves_a_stream_of_the_clients_cancels_its_handler(world: World) -> None:
    at_client = Seen()
    async with world.connected(application(Seen()), application(at_client)) as connection:
        assert (await connection.request_response(route="leave back")).data == b"more"
        await at_client.wait_for("endless ended")


@everywhere
async def test_leaving_the_connection_cancels_what_runs(world: World) -> None:
    seen = Seen()
    async with world.served(application(seen)) as uri:
        async with (
            open_connection(uri, dialect=world.dialect, **world.trust) as connection,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(lambda: connection.request_response(route="hang"))
            await seen.wait_for("hanging")
            nursery.cancel_scope.cancel()
        await seen.wait_for("hang ended")


async def cancel_when(seen: Seen, event: str, scope: trio.CancelScope) -> None:
    await seen.wait_for(event)
    scope.cancel()


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
            await ask_until_refused(connection)
    assert answers == [b"finished"]


async def ask_until_refused(connection: Connection) -> None:
    """A server hears that it is to stop when it comes to it: until then it answers."""
    while True:
        await connection.request_response(b"anyone there?")


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
            await ask_until_refused(connection)
