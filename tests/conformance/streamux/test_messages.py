"""What makes a message of chunks: termination, empty messages, interleaving, and responses in any order."""

from __future__ import annotations

import pytest
import trio

from rsocket_trio import Channel, Responder
from tests.conformance.raw_streamux import (
    BULK,
    SMALL,
    Log,
    Mux,
    Talk,
    asked,
    client,
    server,
    settle,
    widths,
)

clause = pytest.mark.clause


@widths
@clause("SMX-MSG-01")
async def test_an_empty_termination_completes_what_came_before(autojump_clock: object, mux: Mux) -> None:
    log = Log()
    async with server(log.responder, mux) as peer:
        if mux.id_bits:
            await peer.send(mux.request(0, b"ab", last=0), mux.request(1, b"x", last=0), mux.request(0, b"c", last=0))
            await peer.send(mux.ping(0))
            await peer.expect(mux.response(0, b"abc"))
            await peer.send(mux.ping(1))
            await peer.expect(mux.response(1, b"x"))
        await peer.send(mux.request(0, b"d", last=0), mux.ping(0))
        await peer.expect(mux.response(0, b"d"))
    assert log.seen[-1] == b"d"


@widths
@clause("SMX-MSG-01", "SMX-FLD-06")
async def test_a_response_can_end_with_an_empty_termination(autojump_clock: object, mux: Mux) -> None:
    answers: list[bytes] = []
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"q", answers)
        request_id = await peer.expect_request(b"q")
        await peer.send(mux.response(request_id, b"an", last=0), mux.response(request_id, b"swer", last=0))
        await settle()
        assert answers == [], "half a response was taken for a whole one"
        await peer.send(mux.ping_ack(request_id))
    assert answers == [b"answer"]


@widths
@clause("SMX-MSG-01", "SMX-FLD-06")
async def test_a_channel_ends_its_message_with_an_empty_termination(autojump_clock: object, mux: Mux) -> None:
    async with client(mux) as (connection, peer), connection.request_channel(b"a") as channel:
        await channel.send(b"b")
        request_id = await peer.expect_request(b"a", last=0)
        await peer.expect(mux.request(request_id, b"b", last=0))
        await channel.send_eof()
        await peer.expect(mux.ping(request_id))
        await peer.send(mux.response(request_id, b"c", last=0), mux.ping_ack(request_id))
        assert [item.data async for item in channel] == [b"c"]


@clause("SMX-MSG-01", "SMX-MSG-03", "SMX-FLD-06")
async def test_a_handler_of_chunks_hears_each_and_ends_with_an_empty_termination(autojump_clock: object) -> None:
    talk = Talk()
    async with server(talk.responder) as peer:
        await peer.send(SMALL.request(5, b"a", last=0))
        await peer.expect(SMALL.response(5, b"<a>", last=0))
        await peer.send(SMALL.request(5, b"b", last=0))
        await peer.expect(SMALL.response(5, b"<b>", last=0))
        await peer.send(SMALL.ping(5))
        await peer.expect(SMALL.ping_ack(5))
        assert talk.seen == [b"a", b"b", "complete"]
        # With its last chunk a message is complete, without a chunk more.
        await peer.send(SMALL.request(5, b"c"))
        await peer.expect(SMALL.response(5, b"<c>", last=0), SMALL.ping_ack(5))


@widths
@clause("SMX-MSG-02", "SMX-MSG-03")
async def test_an_empty_message_is_a_ping_or_an_empty_response(autojump_clock: object, mux: Mux) -> None:
    log = Log()
    async with server(log.responder, mux) as peer:
        await peer.send(mux.ping(0))
        await peer.expect(mux.ping_ack(0))
        assert log.seen == []
        await peer.send(mux.request(0, b"nothing"))
        await peer.expect(mux.ping_ack(0))
        assert log.seen == [b"nothing"]
    answers: list[bytes] = []
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"q", answers)
        await peer.send(mux.ping_ack(await peer.expect_request(b"q")))
    assert answers == [b""]


@clause("SMX-MSG-04")
async def test_an_empty_request_is_refused_before_it_is_said(autojump_clock: object) -> None:
    async with client() as (connection, peer):
        with pytest.raises(ValueError, match="empty request can't be said in streamux/1: it would be a ping"):
            await connection.request_response(b"")
        async with connection.request_channel() as channel:
            with pytest.raises(ValueError, match="empty request can't be said in streamux/1: it would be a ping"):
                await channel.send_eof()
        await peer.expect_silence()
        with trio.move_on_after(1):
            await connection.request_response(b"x")
        await peer.expect_request(b"x")


@clause("SMX-MSG-05")
async def test_an_empty_chunk_that_is_not_the_last_is_refused_before_it_is_said(autojump_clock: object) -> None:
    responder = Responder()
    refused = []

    @responder.request_channel
    async def talk(channel: Channel) -> None:
        with pytest.raises(ValueError, match="empty chunk can't be said in streamux/1: it would be a cancel"):
            await channel.send(b"")
        refused.append(True)
        await channel.send(b"x")

    async with client() as (connection, peer), connection.request_channel(b"a") as channel:
        with pytest.raises(ValueError, match="empty chunk can't be said in streamux/1: it would be a cancel"):
            await channel.send(b"")
        await channel.send(b"b")
        request_id = await peer.expect_request(b"a", last=0)
        await peer.expect(SMALL.request(request_id, b"b", last=0))
    async with server(responder) as peer:
        await peer.send(SMALL.request(1, b"a", last=0))
        await peer.expect(SMALL.response(1, b"x", last=0), SMALL.ping_ack(1))
    assert refused == [True]


@clause("SMX-MSG-05")
async def test_an_empty_chunk_amid_a_message_is_a_cancel(autojump_clock: object) -> None:
    log = Log()
    async with server(log.responder) as peer:
        await peer.send(SMALL.request(4, b"half", last=0), SMALL.cancel(4))
        await peer.expect(SMALL.cancel_ack(4))
        # The id is free, so this is a new message.
        await peer.send(SMALL.request(4, b"whole"))
        await peer.expect(SMALL.response(4, b"whole"))
    assert log.seen == [b"whole"]


@clause("SMX-MSG-06")
async def test_the_interleaved_messages_of_the_document_come_whole(autojump_clock: object) -> None:
    order = [(10, 0), (11, 0), (12, 0), (11, 0), (10, 1), (11, 0), (12, 1), (11, 1)]
    async with server(Log().responder) as peer:
        for number, (request_id, last) in enumerate(order):
            await peer.send(SMALL.request(request_id, b"%d" % number, last))
        await peer.expect_in_any_order(
            SMALL.response(10, b"04"), SMALL.response(11, b"1357"), SMALL.response(12, b"26")
        )


@clause("SMX-MSG-06")
async def test_large_messages_interleave_and_each_stays_in_order(autojump_clock: object) -> None:
    mux = BULK
    answers: list[bytes] = []
    said = [bytes([letter]) * mux.most + bytes([letter + 1]) * mux.most + bytes([letter + 2]) for letter in (1, 11, 21)]
    async with client(mux, slow=True) as (connection, peer), trio.open_nursery() as nursery:
        for data in said:
            nursery.start_soon(asked, connection, data, answers)
        await settle()
        messages: dict[int, bytes] = {}
        order = []
        for _ in range(9):
            got = await peer.receive()
            messages[got.id] = messages.get(got.id, b"") + got.data
            order.append(got.id)
            assert got.last == (len(messages[got.id]) > 2 * mux.most)
        assert sorted(messages.values()) == sorted(said)
        # The first chunk may have left before there was another message.
        assert len(set(order[1:4])) == 3, "one message held up the others"
        await peer.send(*(mux.response(request_id, b"x") for request_id in messages))
    assert answers == [b"x"] * 3


@clause("SMX-MSG-08")
async def test_responses_come_in_whatever_order(autojump_clock: object) -> None:
    answers: list[bytes] = []
    async with client() as (connection, peer), trio.open_nursery() as nursery:
        ids = []
        for data in (b"1", b"2", b"3"):
            nursery.start_soon(asked, connection, data, answers)
            ids.append(await peer.expect_request(data))
        for request_id, data in ((ids[2], b"c"), (ids[0], b"a"), (ids[1], b"b")):
            await peer.send(SMALL.response(request_id, data))
            await settle()
    assert answers == [b"c", b"a", b"b"]


@clause("SMX-MSG-08")
async def test_a_request_that_waits_holds_up_no_other(autojump_clock: object) -> None:
    async with server(Log().responder) as peer:
        await peer.send(SMALL.request(1, b"wait"), SMALL.request(2, b"quick"))
        await peer.expect(SMALL.response(2, b"quick"))
