"""The extension draft once it is set up: keepalive, leases and their costs, entries of applications, MIME types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from rsocket_trio import (
    Connection,
    Keepalive,
    Lease,
    LocalProtocolError,
    Payload,
    Rejected,
    Responder,
    current_connection,
)
from rsocket_trio.connection.entries import current_request_entries
from rsocket_trio.rsocket.extensions.broker import Address, BrokerInfo, RouteAdd, RouteJoin
from rsocket_trio.rsocket.extensions.payloads import Complexity
from rsocket_trio.rsocket.frames import BROKER, KEEPALIVE, Entry
from tests.conformance.draft_frames import (
    BROKER_ID,
    LEASE_ID,
    RSX,
    D,
    Y,
    asking_client,
    beat,
    entry,
    ext_block,
    keepalives,
    permits,
    request,
    selected,
    setup,
    setup_ok,
    strategies,
)
from tests.conformance.raw import (
    CONNECTION_ERROR,
    INVALID,
    PAYLOAD,
    REJECTED,
    REQUEST_CHANNEL,
    REQUEST_FNF,
    REQUEST_RESPONSE,
    REQUEST_STREAM,
    C,
    F,
    Log,
    M,
    N,
    ask,
    bare_server,
    cancel,
    client,
    frame,
    lease,
    payload,
    request_n,
    server,
    settle,
    sized,
    u32,
)

clause = pytest.mark.clause
ORIGIN = bytes(range(16))
TEXT = entry("x.app", b"text", ignore=True)
FOREVER = 2**31 - 1


# Keepalive


@clause("RSX-KA-05")
async def test_a_client_beats_every_interval_and_counts_any_frame_as_life(autojump_clock: object) -> None:
    async with client(RSX, keepalive=Keepalive(10, 24)) as (connection, peer):
        for _ in range(4):
            await peer.expect_silence(9)
            await peer.expect(beat())
            await peer.send(beat(respond=False))
        for _ in range(2):
            await peer.expect_silence(9)
            await peer.expect(beat())
        assert await peer.expect_failure(CONNECTION_ERROR) == b"no frame came for 24 s"
        await trio.sleep(2)
        assert connection.status == "closed"


@clause("RSX-KA-05", "RSX-KA-04")
async def test_a_ping_is_a_beat_and_its_answer_counts_in_order(autojump_clock: object) -> None:
    async with client(RSX) as (connection, peer), trio.open_nursery() as nursery:
        took: list[float] = []

        async def ping() -> None:
            took.append(await connection.ping())

        nursery.start_soon(ping)
        await peer.expect(beat())
        await trio.sleep(3)
        await peer.send(beat(b"whatever", respond=False))
        await settle()
        assert took == [3]


@clause("RSX-KA-05")
async def test_a_server_never_beats_and_takes_the_clients_silence_for_death(autojump_clock: object) -> None:
    async with bare_server(RSX, Log().responder) as peer:
        await peer.send(setup(keepalives(500, 5000)))
        await peer.expect_silence(4)
        await peer.send(beat())
        await peer.expect(beat(respond=False))
        await peer.expect_silence(4)
        await peer.expect_failure(CONNECTION_ERROR)


@clause("RSX-KA-06")
async def test_without_keepalive_silence_kills_nothing(autojump_clock: object) -> None:
    async with bare_server(RSX, Log().responder) as peer:
        await peer.send(setup())
        await peer.expect_silence(100_000)
        await peer.expect_alive()
        await peer.send(beat(b"?"))
        await peer.expect(beat(b"?", respond=False))


# Leases


def leasing(*leases: Lease) -> Log:
    log = Log()

    @log.responder.lease
    async def policy(terms: object) -> AsyncIterator[Lease]:
        for one in leases:
            yield one
            await trio.sleep(1)

    return log


def costly(stream_id: int, permits: int) -> bytes:
    return request(REQUEST_RESPONSE, stream_id, entry(LEASE_ID, u32(permits)), data=b"x")


def answer(stream_id: int) -> bytes:
    return payload(stream_id, b"x", N | C)


@clause("RSX-LEASE-04", "RSX-LEASE-05", "RSX-LEASE-06")
async def test_a_server_holds_requests_to_its_lease_and_their_cost(autojump_clock: object) -> None:
    log = leasing(Lease(5, 10), Lease(3, 0.5))
    async with bare_server(RSX, log.responder) as peer:
        await peer.send(setup(strategies(0), ack=True))
        await peer.expect(setup_ok(selected(0)), permits(10_000, 5))
        await peer.send(costly(1, 3))
        await peer.expect(answer(1))
        await peer.send(costly(3, 3))
        await peer.expect_error(3, REJECTED)
        await peer.send(costly(5, 2))
        await peer.expect(answer(5))
        await peer.send(ask(7, b"x"))
        await peer.expect_error(7, REJECTED)
        await peer.expect(permits(500, 3))  # it overrides
        await peer.send(ask(9, b"x"))
        await peer.expect(answer(9))
        await trio.sleep(0.6)
        await peer.send(ask(11, b"x"))
        await peer.expect_error(11, REJECTED)


@clause("RSX-LEASE-05")
async def test_the_cost_of_a_request_in_pieces_stands_on_its_first(autojump_clock: object) -> None:
    async with bare_server(RSX, leasing(Lease(4, 10)).responder) as peer:
        await peer.send(setup(strategies(0), ack=True))
        await peer.expect(setup_ok(selected(0)), permits(10_000, 4))
        first = request(REQUEST_RESPONSE, 1, entry(LEASE_ID, u32(4)), data=b"x", flags=F)
        await peer.send(first, payload(1, b"y"), ask(3, b"x"))
        await peer.expect_in_any_order(
            payload(1, b"xy", N | C), frame(0x0B, 0, 3, u32(REJECTED) + b"no lease for this request")
        )


@clause("RSX-LEASE-06", "RSX-LEASE-04", "RSX-LEASE-05", "RSX-GAP-11")
@pytest.mark.parametrize("grant", [permits, lease], ids=["EXT", "LEASE"])
async def test_a_client_waits_for_as_many_permits_as_its_requests_cost(grant: Any, autojump_clock: object) -> None:
    async with asking_client(lease=True) as (peer, outcome), trio.open_nursery() as nursery:
        await peer.send(setup_ok(selected(0)))
        await settle()
        [connection] = outcome
        assert isinstance(connection, Connection)
        nursery.start_soon(call, connection, b"dear", 3)
        await settle()
        nursery.start_soon(call, connection, b"cheap", 1)
        await peer.expect_silence(1)
        await peer.send(grant(1000, 2))
        await peer.expect_silence(0.5)  # who waits longest goes first
        await peer.send(grant(1000, 3))
        await peer.expect(request(REQUEST_RESPONSE, 1, entry(LEASE_ID, u32(3)), data=b"dear"))
        await peer.expect_silence(2)
        assert connection.lease == Lease(0, 0)
        await peer.send(grant(1000, 1))
        await peer.expect(request(REQUEST_RESPONSE, 3, entry(LEASE_ID, u32(1)), data=b"cheap"))
        nursery.cancel_scope.cancel()


async def call(connection: Connection, data: bytes, cost: int) -> None:
    await connection.request_response(data, entries=[Complexity(cost)])


@clause("RSX-LEASE-06", "RSX-LEASE-03")
async def test_a_server_waits_for_permits_of_the_client(autojump_clock: object) -> None:
    log = leasing(Lease(1, 10))

    @log.responder.request_response("back")
    async def back(asked: object) -> bytes:
        await current_connection().fire_and_forget(b"back")
        return b"done"

    @log.responder.fire_and_forget("call me")
    async def call_me(asked: object) -> None:
        await current_connection().fire_and_forget(b"back")

    async with bare_server(RSX, log.responder) as peer:
        await peer.send(setup(strategies(0), ack=True, metadata_mime=b"\xfe"))
        await peer.expect(setup_ok(selected(0)), permits(10_000, 1))
        await peer.send(frame(REQUEST_FNF, M, 1, sized(b"\x07call me")))
        await peer.expect_silence(5)
        await peer.send(permits(1000, 1))
        await peer.expect(frame(REQUEST_FNF, 0, 2, b"back"))


@clause("RSX-LEASE-04", "RSX-LEASE-02")
async def test_permits_of_a_strategy_that_was_not_selected_mean_nothing(autojump_clock: object) -> None:
    async with asking_client(lease=True) as (peer, outcome):
        await peer.send(setup_ok(selected(0)), permits(1000, 5, strategy=1))
        await settle()
        [connection] = outcome
        assert connection.lease == Lease(0, 0)  # type: ignore[attr-defined]


@clause("RSX-LEASE-06")
async def test_a_clients_own_policy_begins_with_the_answer(autojump_clock: object) -> None:
    async with asking_client(leasing(Lease(7, 1)).responder, lease=True) as (peer, _):
        await peer.expect_silence(1)
        await peer.send(setup_ok(selected(0)))
        await peer.expect(permits(1000, 7))


# Entries of applications and brokers


def listening() -> tuple[Responder, list[object]]:
    responder = Responder()
    seen: list[object] = []

    @responder.extension_entry("x.app")
    def app(point: str, content: Any) -> None:
        seen.append((point, content.payload, content.nibble))
        if content.payload == b"reject":
            raise Rejected("not this")
        if content.payload == b"fail":
            raise ZeroDivisionError

    @responder.extension_entry(BROKER)
    def broker(point: str, content: object) -> None:
        seen.append((point, content))

    @responder.request_response
    async def echo(asked: Payload) -> Payload:
        seen.append([one.ext for one in current_request_entries()])
        return asked

    @responder.request_stream
    async def items(asked: Payload) -> AsyncIterator[bytes]:
        yield repr([one.ext for one in current_request_entries()]).encode()

    @responder.request_channel
    async def talk(channel: Any) -> None:
        await channel.send(repr([one.ext for one in current_request_entries()]))

    @responder.fire_and_forget
    def forget(asked: Payload) -> None:
        seen.append([one.ext for one in current_request_entries()])

    return responder, seen


@clause("RSX-BRK-05", "RSX-BRK-01", "RSX-BRK-02", "RSX-BRK-03", "RSX-BRK-04")
async def test_what_a_broker_says_reaches_the_hook(autojump_clock: object) -> None:
    responder, seen = listening()
    tags = b"\x01k\x01v"
    join = ORIGIN + b"\x04shop" + tags
    async with bare_server(RSX, responder) as peer:
        await peer.send(
            setup(entry(BROKER_ID, join, nibble=1)),
            ext_block(entry(BROKER_ID, ORIGIN + bytes(7) + b"\x09" + tags)),
            ext_block(entry(BROKER_ID, join, nibble=1)),
            ext_block(entry(BROKER_ID, ORIGIN + ORIGIN + bytes(7) + b"\x09" + b"\x04shop" + tags, nibble=2)),
            request(REQUEST_RESPONSE, 1, entry(BROKER_ID, ORIGIN + tags + b"\x80\x00", nibble=2), data=b"x"),
        )
        await peer.expect(answer(1))
    pairs = (("k", b"v"),)
    assert seen == [
        ("SETUP", RouteJoin(ORIGIN, "shop", pairs)),
        ("EXT", BrokerInfo(ORIGIN, 9, pairs)),
        ("EXT", RouteJoin(ORIGIN, "shop", pairs)),
        ("EXT", RouteAdd(ORIGIN, ORIGIN, 9, "shop", pairs)),
        ("REQUEST", Address(ORIGIN, pairs, multicast=True)),
        [BROKER],
    ]


@clause("RSX-TLV-09", "RSX-GAP-04")
async def test_an_applications_entries_are_seen_at_each_point(autojump_clock: object) -> None:
    responder, seen = listening()
    unknown = entry("x.other", b"?", ignore=True)
    async with server(RSX, responder) as peer:
        await peer.send(ext_block(entry("x.app", b"e", ignore=True, nibble=5)))
        await peer.send(request(REQUEST_RESPONSE, 1, TEXT, unknown, data=b"x"))
        await peer.expect(answer(1))
        await peer.send(request(REQUEST_STREAM, 3, TEXT, n=1))
        await peer.expect(payload(3, b"['x.app']"), payload(3, flags=C))
        await peer.send(request(REQUEST_CHANNEL, 5, unknown, n=1, flags=C))
        await peer.expect(payload(5, b"['x.other']"), payload(5, flags=C))
        await peer.send(request(REQUEST_FNF, 7, TEXT))
        await settle()
        await peer.send(ask(9, b"x"))
        await peer.expect(answer(9))
    text = ("REQUEST", b"text", 0)
    assert seen == [("EXT", b"e", 5), text, ["x.app", "x.other"], text, text, ["x.app"], []]


@clause("RSX-TLV-09")
async def test_entries_of_a_request_in_pieces_come_with_it_whole(autojump_clock: object) -> None:
    responder, seen = listening()
    async with server(RSX, responder) as peer:
        await peer.send(request(REQUEST_RESPONSE, 1, TEXT, data=b"x", flags=F))
        await settle()
        assert seen == []
        await peer.send(payload(1, b"y"))
        await peer.expect(payload(1, b"xy", N | C))
    assert seen == [("REQUEST", b"text", 0), ["x.app"]]


async def test_a_hook_may_refuse_a_request(autojump_clock: object) -> None:
    responder, seen = listening()
    async with server(RSX, responder) as peer:
        await peer.send(request(REQUEST_RESPONSE, 1, entry("x.app", b"reject", ignore=True)))
        assert await peer.expect_error(1, REJECTED) == b"not this"
        await peer.send(request(REQUEST_RESPONSE, 3, entry("x.app", b"fail", ignore=True)))
        assert await peer.expect_error(3, 0x201) == b"internal error"
        await peer.send(request(REQUEST_FNF, 5, entry("x.app", b"reject", ignore=True)))
        await peer.send(request(REQUEST_FNF, 7, entry("x.app", b"fail", ignore=True)))
        await peer.send(ext_block(entry("x.app", b"fail", ignore=True)))
        await peer.expect_alive()
    assert not [one for one in seen if isinstance(one, list)]


@clause("RSX-TLV-09", "RSX-REQ-01", "RSX-REQ-02", "RSX-EXT-02", "RSX-BRK-03", "RSX-GAP-04")
async def test_a_client_sends_entries_with_every_request_and_by_themselves(autojump_clock: object) -> None:
    app = Entry("x.app", payload=b"text")
    async with client(RSX) as (connection, peer), trio.open_nursery() as nursery:

        async def respond() -> None:
            entries = [app, Address(ORIGIN, unicast=True)]
            await connection.request_response(b"x", entries=entries)

        nursery.start_soon(respond)
        address = entry(BROKER_ID, ORIGIN + b"\x80\x00\x80\x00", nibble=1)
        await peer.expect(request(REQUEST_RESPONSE, 1, TEXT, address, data=b"x"))
        await connection.fire_and_forget(b"f", entries=[app])
        await peer.expect(request(REQUEST_FNF, 3, TEXT, data=b"f"))
        async with connection.request_stream(b"s", entries=[app], initial_request_n=2):
            await peer.expect(request(REQUEST_STREAM, 5, TEXT, n=2, data=b"s"))
        await peer.expect(cancel(5))
        async with connection.request_channel(b"c", entries=[app], initial_request_n=2):
            await peer.expect(request(REQUEST_CHANNEL, 7, TEXT, n=2, data=b"c"))
        await peer.receive()
        await connection.send_entries([app])
        await peer.expect(ext_block(TEXT, flags=0x200))
        await connection.send_entries([RouteJoin(ORIGIN, "shop")], ignore=False)
        await peer.expect(ext_block(entry(BROKER_ID, ORIGIN + b"\x04shop\x80\x00", nibble=1)))
        nursery.cancel_scope.cancel()


async def test_what_no_entry_can_say_is_refused_before_anything_is_sent(autojump_clock: object) -> None:
    async with client(RSX) as (connection, peer):
        for wrong in (Entry(KEEPALIVE), Address(ORIGIN), Complexity(0), b"text", Entry(0x55)):
            with pytest.raises(LocalProtocolError):
                await connection.request_response(entries=[wrong])
        with pytest.raises(LocalProtocolError, match="type 1 has extension entries"):
            await connection.send_extension(1, b"raw")
        await peer.expect_silence(1)
        await peer.expect_alive()


def test_an_extension_has_one_hook_and_some_have_none() -> None:
    responder = Responder()
    responder.extension_entry("x.app")(lambda point, content: None)
    with pytest.raises(ValueError, match=r"'x.app' has a handler already"):
        responder.extension_entry("x.app")(lambda point, content: None)
    for taken in (KEEPALIVE, 0x02, 0x03, 0x00, 0x7F, ""):
        with pytest.raises(ValueError, match="is not an application's"):
            responder.extension_entry(taken)
    with pytest.raises(TypeError, match=r"plain function \(point, content\)"):
        responder.extension_entry("x.two")(lambda content: None)  # type: ignore[type-var]


# MIME types of payloads


@clause("RSX-MIME-05", "RSX-MIME-01", "RSX-MIME-04", "RSX-PAY-01", "RSX-GAP-09", "RSX-GAP-10")
async def test_a_payload_brings_its_mime_types(autojump_clock: object) -> None:
    log = Log()

    @log.responder.request_channel("types")
    async def types(channel: Any) -> None:
        log.seen.append((channel.request.data_mime, channel.request.metadata_mime))
        async for item in channel:
            log.seen.append((item.data, item.data_mime, item.metadata_mime))
        await channel.send(Payload(b"ours", b"m", data_mime="e/f", metadata_mime=0x66))

    async with bare_server(RSX, log.responder) as peer:
        await peer.send(setup(metadata_mime=b"\xfe"))
        body = u32(2) + b"\x85" + sized(b"\x05types")
        await peer.send(frame(REQUEST_CHANNEL, M | D, 1, body))
        await peer.expect(request_n(1, 256))
        await peer.send(payload(1, b"\x03a/b\xe6x", N | D | Y), payload(1, b"y"), frame(PAYLOAD, N | Y, 1, b"\x00z"))
        await peer.send(payload(1, flags=C))
        await peer.expect(frame(PAYLOAD, N | D | Y | M, 1, b"\x03e/f\xe6" + sized(b"m") + b"ours"))
    assert log.seen == [(5, None), (b"x", "a/b", 0x66), (b"y", None, None), (b"z", None, "")]


@clause("RSX-MIME-05")
async def test_only_the_first_fragment_carries_mime_types(autojump_clock: object) -> None:
    async with server(RSX, Log().responder, fragment_size=64) as peer:
        await peer.send(ask(1, b"\x03a/b" + b"x" * 20, F | D), payload(1, b"x" * 80))
        first = await peer.receive()
        assert (first.flags, first.body[:4], len(first.body)) == (N | F | D, b"\x03a/b", 58)
        second = await peer.receive()
        assert (second.flags, second.body) == (N | C, b"x" * 46)
        whole = b"\x05z/xyz" + b"\x7f" + b"t" * 127
        await peer.send(frame(REQUEST_RESPONSE, D | Y, 3, whole + b"small"))
        # Types that fit into no fragment stand on the first one all the same.
        got = await peer.receive()
        assert (got.flags & (D | Y), got.body[: len(whole)]) == (D | Y, whole)
        data = got.body[len(whole) :]
        while not got.flags & C:
            got = await peer.receive()
            assert not got.flags & (D | Y)
            data += got.body
        assert data == b"small"


@clause("RSX-MIME-05")
async def test_a_request_in_pieces_keeps_its_types_and_entries(autojump_clock: object) -> None:
    async with client(RSX, fragment_size=64) as (connection, peer):
        await connection.fire_and_forget(Payload(b"d" * 100, data_mime=5), entries=[Entry("x.app", payload=b"text")])
        first = await peer.receive()
        assert (first.type, first.flags, len(first.body)) == (REQUEST_FNF, 0x200 | F | D, 58)
        assert first.body.startswith(b"\x85" + TEXT)
        sent = 58 - 1 - len(TEXT)
        await peer.expect(payload(1, b"d" * (100 - sent), N))


@clause("RSX-MIME-05")
async def test_metadata_is_read_by_its_own_type(autojump_clock: object) -> None:
    log = Log()

    @log.responder.request_response("a")
    def routed(asked: Payload) -> bytes:
        return b"routed"

    async with server(RSX, log.responder) as peer:
        await peer.send(frame(REQUEST_RESPONSE, M | Y, 1, b"\xfe" + sized(b"\x01a")))
        await peer.expect(payload(1, b"routed", N | C))
        await peer.send(frame(REQUEST_RESPONSE, M | Y, 3, b"\xff" + sized(b"\x01a")))
        await peer.expect_error(3, INVALID)
        await peer.send(frame(REQUEST_RESPONSE, M | Y, 5, b"\x00" + sized(b"\x01a") + b"x"))
        await peer.expect(frame(PAYLOAD, N | C | M | Y, 5, b"\x00" + sized(b"\x01a") + b"x"))


async def test_a_route_is_written_in_the_payloads_own_type(autojump_clock: object) -> None:
    async with client(RSX) as (connection, peer):
        await connection.fire_and_forget(Payload(b"x", metadata_mime="message/x.rsocket.routing.v0"), route="a")
        mime = b"\x1cmessage/x.rsocket.routing.v0"
        await peer.expect(frame(REQUEST_FNF, M | Y, 1, mime + sized(b"\x01a") + b"x"))


async def test_items_with_types_reach_the_reader(autojump_clock: object) -> None:
    async with client(RSX) as (connection, peer), connection.request_stream(initial_request_n=9) as items:
        await peer.receive()
        await peer.send(payload(1, b"\x85x", N | D), payload(1, b"\x85y", N | F | D), payload(1, b"z", N | C))
        assert [item async for item in items] == [Payload(b"x", data_mime=5), Payload(b"yz", data_mime=5)]
