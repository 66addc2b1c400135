"""Fragments: what is cut on the way out and joined on the way in."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio import Channel, Limits, Payload, Responder, RSocketError
from tests.conformance.raw import (
    INVALID,
    PAYLOAD,
    REQUEST_CHANNEL,
    REQUEST_RESPONSE,
    REQUEST_STREAM,
    C,
    F,
    Log,
    M,
    N,
    Raw,
    Wire,
    ask,
    both,
    cancel,
    channel,
    client,
    error,
    forget,
    parsed,
    payload,
    server,
    settle,
    sized,
    stream,
)

clause = pytest.mark.clause


def joined(frames: list[Raw]) -> tuple[bytes | None, bytes]:
    """Metadata and data of these fragments, by hand; metadata must end before data begins."""
    metadata, data = None, b""
    for one in frames:
        body = one.body[4:] if one.type in (REQUEST_STREAM, REQUEST_CHANNEL) else one.body
        if one.flags & M:
            assert data == b"", "metadata after data"
            size = int.from_bytes(body[:3], "big")
            metadata = (metadata or b"") + body[3 : 3 + size]
            body = body[3 + size :]
        data += body
    return metadata, data


PAYLOADS = [
    Payload(b"d" * 100),
    Payload(b"d" * 1000, b"m" * 300),
    Payload(b"", b"m" * 300),
    Payload(b"d" * 200, b""),
    Payload(b"d", b"m" * 51),
    Payload(b"d" * 48),
]


@both
@clause("RS10-FRAG-01", "RS10-FRAG-03", "RS10-FRAG-04", "RS10-FRAG-06", "RS02-FRAG-01", "RS02-FRAG-02", "RS02-FRAG-03")
@pytest.mark.parametrize("sent", PAYLOADS, ids=lambda sent: f"{len(sent.data)}-{sent.metadata and len(sent.metadata)}")
async def test_a_large_request_leaves_in_fragments(autojump_clock: object, wire: Wire, sent: Payload) -> None:
    async with client(wire, fragment_size=64) as (connection, peer), connection.request_stream(sent) as _:
        frames = [await peer.receive()]
        while frames[-1].flags & F:
            frames.append(await peer.receive())
        assert frames[0].type == REQUEST_STREAM
        assert all(one.type == PAYLOAD and one.flags & (N | C) == N for one in frames[1:])
        assert all(len(one.body) + 6 <= 64 for one in frames)
        assert all(one.body for one in frames[1:])
        assert joined(frames) == (sent.metadata, sent.data)


@both
@clause("RS10-FRAG-02", "RS10-FRAG-06", "RS02-FRAG-04", "RS10-FRAG-01")
async def test_an_item_in_fragments_takes_one_credit_and_completes_with_the_last(
    autojump_clock: object, wire: Wire
) -> None:
    responder = Responder()

    @responder.request_response
    async def large(request: Payload) -> bytes:
        return b"d" * 200

    @responder.request_channel
    async def many(channel: Channel) -> None:
        for _ in range(3):
            await channel.send(b"d" * 200)

    async with server(wire, responder, fragment_size=64) as peer:
        await peer.send(ask(1))
        frames = [await peer.receive() for _ in range(4)]
        assert [one.flags for one in frames] == [N | F, N | F, N | F, N | C]
        assert joined(frames) == (None, b"d" * 200)
        await peer.send(channel(3, 2, b"", C))
        for _ in range(2):
            frames = [await peer.receive() for _ in range(4)]
            assert [one.flags for one in frames] == [N | F, N | F, N | F, N]
        await peer.expect_silence(5)


@both
@clause("RS10-FRAG-01", "RS10-FRAG-03", "RS10-FRAG-04", "RS10-FRAG-07", "RS02-FRAG-01", "RS02-FRAG-03")
async def test_requests_in_fragments_are_joined_and_may_interleave(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    async with server(wire, log.responder) as peer:
        await peer.send(
            ask(1, sized(b"me") + b"", M | F),
            forget(3, b"f1 ", F),
            stream(5, 1, b"s1 ", F),
            payload(1, sized(b"ta") + b"da", M | F),
            payload(3, b"f2"),
            payload(5, b"s2", 0),
            payload(1, b"ta", N),
        )
        got = {await peer.receive(), await peer.receive()}
        assert got == {parsed(payload(1, sized(b"meta") + b"data", M | N | C)), parsed(payload(5, b"tick 0"))}
        assert set(log.seen) == {("request", b"data", b"meta"), ("note", b"f1 f2", None), ("stream", b"s1 s2", None)}


@both
@clause("RS10-FRAG-06", "RS10-FRAG-02", "RS10-FRAG-07", "RS10-UNX-07", "RS02-FRAG-01")
async def test_items_in_fragments_are_joined_and_take_one_credit_each(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer):
        async with connection.request_stream(b"s", initial_request_n=2, refill=False) as items:
            await peer.receive()
            await peer.send(
                payload(1, sized(b"m") + b"", N | F | M),
                payload(1, b"a", F),
                payload(1, b"b", N | F),
                payload(1, b"c", 0),
                payload(1, b"d", N | F),
                payload(1, b"", N | F),
                payload(1, b"e", N | C),
            )
            assert [item async for item in items] == [Payload(b"abc", b"m"), Payload(b"de")]
        await peer.expect_alive()


@both
@clause("RS10-UNX-07", "RS02-FRAG-04")
async def test_an_item_with_follows_and_complete_follows_nothing(autojump_clock: object, wire: Wire) -> None:
    async with client(wire) as (connection, peer), connection.request_stream(b"s") as items:
        await peer.receive()
        await peer.send(payload(1, b"a", N | F), payload(1, b"b", N | F | C), payload(1, b"c"))
        assert [item.data async for item in items] == [b"ab"]
        await peer.expect_alive()


@both
@clause("RS10-FRAG-05")
async def test_a_cancel_amid_fragments_drops_them(autojump_clock: object, wire: Wire) -> None:
    log = Log()
    limits = Limits(reassembly_size=100)
    async with server(wire, log.responder, limits=limits) as peer:
        for ending in (cancel, lambda stream_id: error(stream_id, INVALID)):
            for opening in (ask(1, b"x" * 90, F), forget(1, b"x" * 90, F), stream(1, 1, b"x" * 90, F)):
                await peer.send(opening, ending(1), payload(1, b"late"))
                await peer.expect_alive()
        await peer.send(ask(1, b"one"))
        await peer.expect(payload(1, b"one", N | C))
        assert log.seen == [("request", b"one", None)]


@both
@clause("RS10-FRAG-05", "RS10-SEQ-02")
async def test_a_caller_that_leaves_amid_its_own_fragments_sends_cancel_and_no_more_of_them(
    autojump_clock: object, wire: Wire
) -> None:
    async with client(wire, fragment_size=64) as (connection, peer):
        with trio.move_on_after(1):
            await connection.request_response(b"x" * 1000)
        frames = [await peer.receive()]
        while frames[-1].flags & F:
            frames.append(await peer.receive())
        assert frames[0].type == REQUEST_RESPONSE
        await peer.expect(cancel(1))


@both
@clause("RS10-FRAG-05", "ALL-RCT-14")
async def test_leaving_a_stream_amid_an_item_in_fragments_drops_it(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, limits=Limits(reassembly_size=100)) as (connection, peer):
        for number in (1, 3, 5):
            async with connection.request_stream(b"s"):
                await peer.receive()
                await peer.send(payload(number, b"x" * 90, N | F))
                await settle()
            await peer.expect(cancel(number))
            await peer.send(payload(number, b"late"))
        await peer.expect_alive()


@both
@clause("RS10-FRAG-08", "RS10-UNX-06", "RS02-UNX-04")
async def test_a_payload_above_the_limit_ends_its_stream_and_its_rest_is_skipped(
    autojump_clock: object, wire: Wire
) -> None:
    log = Log()
    async with server(wire, log.responder, limits=Limits(payload_size=200)) as peer:
        await peer.send(ask(1, b"x" * 100, F), payload(1, b"y" * 100))
        await peer.receive()
        await peer.send(ask(3, b"x" * 100, F), payload(3, b"y" * 100, N | F), payload(3, b"z", N | F))
        await peer.expect_error(3, INVALID)
        await peer.send(payload(3, b"z" * 1000, N | F), payload(3, b"z"), forget(5, b"x" * 201, F), payload(5, b"x"))
        await peer.expect_alive()
        assert len(log.seen) == 1


@both
@clause("RS10-FRAG-08", "RS10-UNX-06", "RS02-UNX-04")
async def test_an_item_above_the_limit_is_cancelled_and_its_rest_is_skipped(autojump_clock: object, wire: Wire) -> None:
    async with client(wire, limits=Limits(payload_size=200)) as (connection, peer):
        async with connection.request_stream(b"s") as items:
            await peer.receive()
            await peer.send(payload(1, b"ok"), payload(1, b"x" * 150, N | F), payload(1, b"x" * 150, N | F))
            await peer.expect(cancel(1))
            await peer.send(payload(1, b"x" * 150, N | F), payload(1, b"x", N | C))
            assert (await anext(items)).data == b"ok"
            with pytest.raises(RSocketError, match="200"):
                await anext(items)
        await peer.expect_alive()


@both
@clause("RS10-FRAG-08", "RS10-UNX-06")
async def test_tiny_fragments_without_end_are_refused(autojump_clock: object, wire: Wire) -> None:
    async with server(wire, Log().responder, limits=Limits(tiny_fragments=10)) as peer:
        await peer.send(ask(1, b"", F), *[payload(1, b"", N | F)] * 9, payload(1, b"end"))
        await peer.expect(payload(1, b"end", N | C))
        await peer.send(ask(3, b"", F), *[payload(3, b"", N | F)] * 10)
        await peer.expect_error(3, INVALID)
        await peer.send(payload(3, b"end"))
        await peer.expect_alive()
