"""The same requests do the same in every dialect over every transport, as far as the dialect has words for them."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio import (
    ApplicationError,
    Connection,
    MetadataPush,
    Payload,
    RSocketError,
    open_connection,
)
from rsocket_trio.rsocket.dialects import DIALECTS
from tests.conformance.every_dialect.worlds import (
    CHANNEL,
    ENTRIES,
    LACKS,
    STREAM_PUSH,
    SUBSCRIPTION,
    TYPED_METADATA,
    Seen,
    World,
    application,
    worlds,
)

OPAQUE = "application/octet-stream"
MIB = bytes(range(256)) * 4096
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
