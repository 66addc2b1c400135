"""Messages, chunks and requests above the limits, in both roles: what is refused, and that the others go on."""

from __future__ import annotations

import tracemalloc

import pytest
import trio

from rsocket_trio import Connection, ConnectionLost, Invalid, Limits, RemoteProtocolError, StreamuxOptions
from rsocket_trio.errors import StreamError
from tests.conformance.raw_streamux import SMALL, Log, Mux, Talk, asked, client, server, settle

clause = pytest.mark.clause
TEN = Limits(payload_size=10)
LARGER = {
    "one chunk": [b"elevenbytes"],
    "the last of many": [b"1234", b"5678", b"9AB"],
    "one of many": [b"1234", b"5678", b"9AB", b"rest", b"more"],
    "an empty end": [b"1234", b"5678", b"9AB", b""],
}
larger = pytest.mark.parametrize("pieces", LARGER.values(), ids=list(LARGER))


def request(request_id: int, pieces: list[bytes]) -> list[bytes]:
    return [SMALL.request(request_id, piece, number == len(pieces)) for number, piece in enumerate(pieces, 1)]


def response(request_id: int, pieces: list[bytes]) -> list[bytes]:
    return [SMALL.response(request_id, piece, number == len(pieces)) for number, piece in enumerate(pieces, 1)]


async def refused(connection: Connection, told: list[str]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        await connection.request_response(b"q")
    told.append(str(caught.value))


# Messages


@larger
@clause("SMX-MSG-10")
async def test_a_request_above_the_limit_is_refused_and_the_others_go_on(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, pieces: list[bytes]
) -> None:
    log = Log()
    async with server(log.responder, limits=TEN) as peer:
        for chunk in request(1, pieces):
            await peer.send(chunk)
            await settle()
        # There is no word for a refusal: it stays unanswered until its requester cancels.
        await peer.expect_alive(2)
        await peer.send(SMALL.request(3, b"0123456789"))
        await peer.expect(SMALL.response(3, b"0123456789"))
        await peer.send(SMALL.cancel(1))
        await peer.expect(SMALL.cancel_ack(1))
        await peer.send(SMALL.request(1, b"smaller"))
        await peer.expect(SMALL.response(1, b"smaller"))
    assert log.seen == [b"0123456789", b"smaller"]
    assert "message of more than 10 bytes on id 1" in caplog.text


@larger
@clause("SMX-MSG-10")
async def test_an_application_that_has_a_word_for_it_answers_a_request_above_the_limit(
    autojump_clock: object, pieces: list[bytes]
) -> None:
    refusals: list[StreamError] = []

    def say(error: StreamError) -> bytes:
        refusals.append(error)
        return b"too large"

    log = Log()
    async with server(log.responder, limits=TEN, streamux=StreamuxOptions(encode_error=say)) as peer:
        await peer.send(*request(1, pieces))
        await peer.expect(SMALL.response(1, b"too large"))
        await peer.expect_alive(2)
        await peer.send(SMALL.request(1, b"smaller"))
        await peer.expect(SMALL.response(1, b"smaller"))
    assert [type(error) for error in refusals] == [Invalid]
    assert "message of more than 10 bytes on id 1" in str(refusals[0])
    assert log.seen == [b"smaller"]


@larger
@clause("SMX-MSG-10", "SMX-CAN-02")
async def test_a_response_above_the_limit_fails_its_call_and_no_other(
    autojump_clock: object, pieces: list[bytes]
) -> None:
    answers: list[bytes] = []
    told: list[str] = []
    async with client(limits=TEN) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(refused, connection, told)
        request_id = await peer.expect_request(b"q")
        fits = 1 if len(pieces) == 1 else 3
        await peer.send(*response(request_id, pieces)[:fits])
        if len(pieces) > 3:
            await peer.expect(SMALL.cancel(request_id))
            # What is still on its way is discarded.
            await peer.send(*response(request_id, pieces)[fits:], SMALL.cancel_ack(request_id))
        await settle()
        assert told == [f"message of more than 10 bytes on id {request_id}"]
        nursery.start_soon(asked, connection, b"q", answers)
        await peer.send(*response(await peer.expect_request(b"q"), [b"01234", b"56789"]))
    assert answers == [b"0123456789"]


@clause("SMX-MSG-10")
async def test_chunks_that_are_read_as_they_come_are_no_message_to_limit(autojump_clock: object) -> None:
    talk = Talk()
    async with server(talk.responder, limits=TEN) as peer:
        for number in range(5):
            await peer.send(SMALL.request(1, b"number %d" % number, last=0))
            await peer.expect(SMALL.response(1, b"<number %d>" % number, last=0))


@clause("SMX-MSG-10")
async def test_unfinished_requests_are_bounded_together(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(payload_size=10, reassembly_size=15)
    log = Log()
    async with server(log.responder, limits=limits) as peer:
        await peer.send(SMALL.request(1, b"12345678", last=0), SMALL.request(2, b"1234567", last=0))
        await peer.send(SMALL.request(3, b"x", last=0))
        await peer.expect_alive(4)
        await peer.send(SMALL.request(1, b"9"))
        await peer.expect_alive(4)
        await peer.send(SMALL.request(2, b"8"), SMALL.request(3, b"y"))
        await peer.expect(SMALL.response(2, b"12345678"))
        await peer.expect_alive(4)
    assert log.seen == [b"12345678"]
    assert "more than 15 bytes in unfinished messages" in caplog.text


@clause("SMX-MSG-10")
async def test_unfinished_responses_are_bounded_together(autojump_clock: object) -> None:
    limits = Limits(payload_size=10, reassembly_size=15)
    answers: list[bytes] = []
    told: list[str] = []
    async with client(limits=limits) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"q", answers)
        first = await peer.expect_request(b"q")
        nursery.start_soon(refused, connection, told)
        second = await peer.expect_request(b"q")
        await peer.send(SMALL.response(first, b"12345678", last=0), SMALL.response(second, b"12345678", last=0))
        await peer.expect(SMALL.cancel(second))
        assert told == ["more than 15 bytes in unfinished messages"]
        await peer.send(SMALL.response(first, b"9"))
    assert answers == [b"123456789"]


# Chunks


@clause("SMX-MSG-10", "SMX-FLD-01")
@pytest.mark.parametrize("response_", [0, 1], ids=["request", "response"])
async def test_a_chunk_above_the_limit_ends_the_session_by_its_header(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, response_: int
) -> None:
    limits = Limits(frame_size=100)
    text = "chunk of 101 bytes on request id {}, limit 100"
    log = Log()
    if not response_:
        async with server(log.responder, limits=limits) as peer:
            await peer.send(SMALL.request(1, bytes(100)))
            await peer.expect(SMALL.response(1, bytes(100)))
            await peer.send(SMALL.header(2, 101, 0, 1))
            await peer.expect_end()
        assert log.seen == [bytes(100)]
        assert text.format(2) in caplog.text
        return
    async with client(limits=limits) as (connection, peer), trio.open_nursery() as nursery:
        answers: list[bytes] = []
        nursery.start_soon(asked, connection, b"q", answers)
        await peer.send(SMALL.response(await peer.expect_request(b"q"), bytes(100)))
        await settle()
        assert answers == [bytes(100)]
        await peer.send(SMALL.header(3, 101, 1, 1))
        await peer.expect_end()
        with pytest.raises(ConnectionLost, match=text.format(3)):
            await connection.request_response(b"q")


@clause("SMX-MSG-10")
@pytest.mark.parametrize("kind", ["whole messages", "chunks"])
async def test_an_announced_length_is_a_number_and_no_memory(autojump_clock: object, kind: str) -> None:
    mux = Mux(4, 24)
    responder = Log().responder if kind == "whole messages" else Talk().responder
    async with server(responder, mux) as peer:
        tracemalloc.start()
        try:
            await peer.send(mux.header(1, mux.most, 0, 1))
            for _ in range(100):
                await peer.send(b"x" * 10)
                await settle()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 1_000_000


# Requests


@clause("SMX-MSG-10")
@pytest.mark.parametrize("kind", ["whole messages", "chunks", "unfinished messages"])
async def test_one_request_too_many_ends_the_session(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    log, talk = Log(), Talk()
    last = int(kind == "whole messages")
    async with server((talk if kind == "chunks" else log).responder, limits=Limits(streams=3)) as peer:
        for request_id in (1, 2, 3):
            await peer.send(SMALL.request(request_id, b"wait", last))
        await peer.send(SMALL.ping(4), SMALL.cancel(5))
        await settle()
        got = {await peer.receive() for _ in range(5 if kind == "chunks" else 2)}
        assert {SMALL.chunk(SMALL.ping_ack(4)), SMALL.chunk(SMALL.cancel_ack(5))} <= got
        await peer.send(SMALL.request(4, b"quick", last))
        await peer.expect_end()
    assert b"quick" not in log.seen + talk.seen
    assert "request id 4 is one too many: 3 requests are open already" in caplog.text


@clause("SMX-MSG-10")
async def test_as_many_requests_as_the_limit_go_on_for_ever(autojump_clock: object) -> None:
    async with server(Log().responder, limits=Limits(streams=3)) as peer:
        await peer.send(SMALL.request(1, b"wait"), SMALL.request(2, b"wait"))
        for number in range(100):
            request_id = 3 + number % 29
            await peer.send(SMALL.request(request_id, b"quick"))
            await peer.expect(SMALL.response(request_id, b"quick"))
        await peer.send(SMALL.cancel(1))
        await peer.expect(SMALL.cancel_ack(1))
        await settle()
        await peer.send(SMALL.request(1, b"wait"))
        await peer.expect_alive(4)
