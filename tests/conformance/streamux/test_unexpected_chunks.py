"""Chunks that nothing explains, and what ends inside of something: reported, refused or lost, but never a message."""

from __future__ import annotations

import logging

import pytest
import trio

from rsocket_trio import ConnectionLost, StreamuxOptions
from tests.conformance.raw_streamux import SMALL, WIDE, Log, Mux, RawMux, Talk, client, server, settle

clause = pytest.mark.clause
REPORTS = StreamuxOptions(spurious="report")

TO_NOTHING = {
    "a response": (SMALL.response(9, b"x"), "response to request id 9, which is not in flight"),
    "a part of one": (SMALL.response(9, b"x", last=0), "response to request id 9, which is not in flight"),
    "an empty one": (SMALL.ping_ack(9), "response to request id 9, which is not in flight"),
    "a cancel ack": (SMALL.cancel_ack(9), "cancel ack for request id 9, which was not canceled"),
}
to_nothing = pytest.mark.parametrize(("chunk", "text"), TO_NOTHING.values(), ids=list(TO_NOTHING))


# What nothing explains


@to_nothing
@clause("SMX-SPU-03")
async def test_what_answers_nothing_ends_a_server(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, chunk: bytes, text: str
) -> None:
    log = Log()
    async with server(log.responder) as peer:
        await peer.send(SMALL.request(1, b"wait"))
        await settle()
        await peer.send(chunk, SMALL.request(2, b"too late"))
        await peer.expect_end()
    assert log.seen == [b"wait", "cancelled"]
    assert text in caplog.text


@to_nothing
@clause("SMX-SPU-03")
async def test_what_answers_nothing_ends_a_client(autojump_clock: object, chunk: bytes, text: str) -> None:
    async with client() as (connection, peer):
        await peer.send(chunk)
        await peer.expect_end()
        with pytest.raises(ConnectionLost, match=text):
            await connection.request_response(b"x")


@to_nothing
@clause("SMX-SPU-03")
@pytest.mark.parametrize("step", [1, 100])
async def test_what_answers_nothing_can_be_reported_and_ignored(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, chunk: bytes, text: str, step: int
) -> None:
    async def say(peer: RawMux) -> None:
        for start in range(0, len(chunk), step):
            await peer.send(chunk[start : start + step])
            await settle()

    async with server(Log().responder, streamux=REPORTS) as peer:
        await say(peer)
        await say(peer)
        await peer.expect_alive()
    assert text in caplog.text
    async with client(streamux=REPORTS) as (connection, peer):
        await say(peer)
        await say(peer)
        await peer.expect_alive()
        assert connection.faults.peer_faults == 2


LIVE = {
    "a cancel ack": (SMALL.cancel_ack, "cancel ack for request id {}, which was not canceled"),
    "data for a ping": (lambda one: SMALL.response(one, b"pong!"), "response of 5 bytes to the ping of id {}"),
    "a cancel ack for a ping": (SMALL.cancel_ack, "cancel ack for request id {}, which was not"),
}


@clause("SMX-SPU-03", "SMX-OOB-02", "SMX-OOB-04")
@pytest.mark.parametrize("name", LIVE)
@pytest.mark.parametrize("step", [1, 100])
async def test_an_answer_that_does_not_fit_ends_a_client(autojump_clock: object, name: str, step: int) -> None:
    make, text = LIVE[name]
    async with client() as (connection, peer), trio.open_nursery() as nursery:
        told: list[str] = []

        async def call() -> None:
            with pytest.raises(ConnectionLost) as caught:
                await (connection.ping() if "ping" in name else connection.request_response(b"q"))
            told.append(str(caught.value))

        nursery.start_soon(call)
        request_id = (await peer.receive()).id
        chunk = make(request_id)
        for start in range(0, len(chunk), step):
            await peer.send(chunk[start : start + step])
            await settle()
        await peer.expect_end()
    assert len(told) == 1
    assert text.format(request_id) in told[0]


@clause("SMX-SPU-03", "SMX-OOB-04")
@pytest.mark.parametrize("name", LIVE)
async def test_an_answer_that_does_not_fit_can_be_reported_and_changes_nothing(
    autojump_clock: object, name: str
) -> None:
    async with client(streamux=REPORTS) as (connection, peer), trio.open_nursery() as nursery:
        answers: list[object] = []

        async def call() -> None:
            answers.append(await (connection.ping() if "ping" in name else connection.request_response(b"q")))

        nursery.start_soon(call)
        request_id = (await peer.receive()).id
        await peer.send(LIVE[name][0](request_id))
        await settle()
        assert answers == []
        assert connection.faults.peer_faults == 1
        await peer.send(SMALL.ping_ack(request_id))
    assert len(answers) == 1


@clause("SMX-SPU-03")
async def test_a_response_to_a_request_that_has_not_left_answers_nothing(autojump_clock: object) -> None:
    mux = Mux(1, 16)
    told: list[str] = []
    async with client(mux, slow=True) as (connection, peer), trio.open_nursery() as nursery:

        async def ask(data: bytes) -> None:
            with pytest.raises(ConnectionLost) as caught:
                await connection.request_response(data)
            told.append(str(caught.value))

        nursery.start_soon(ask, bytes(mux.most))
        first = mux.parsed(await peer.read(mux.header_size))[0]
        nursery.start_soon(ask, b"waits")
        await settle()
        await peer.send(mux.response(1 - first, b"guessed"))
    assert len(told) == 2
    assert f"response to request id {1 - first}, which is not in flight" in told[1]


TWICE = {
    "a request": SMALL.request(1, b"again"),
    "a part of one": SMALL.request(1, b"again", last=0),
    "an empty one": SMALL.ping(1),
}
twice = pytest.mark.parametrize("chunk", TWICE.values(), ids=list(TWICE))


@twice
@clause("SMX-SPU-04")
async def test_a_request_on_a_live_id_ends_the_connection(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, chunk: bytes
) -> None:
    log = Log()
    async with server(log.responder) as peer:
        await peer.send(SMALL.request(1, b"wait"), chunk)
        await peer.expect_end()
    assert b"again" not in log.seen
    assert "request chunk on id 1, whose request is complete and not answered yet" in caplog.text


@twice
@clause("SMX-SPU-04")
@pytest.mark.parametrize("step", [1, 100])
async def test_a_request_on_a_live_id_can_be_reported_and_ignored(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, chunk: bytes, step: int
) -> None:
    log = Log()
    async with server(log.responder, streamux=REPORTS) as peer:
        await peer.send(SMALL.request(1, b"wait"))
        for start in range(0, len(chunk), step):
            await peer.send(chunk[start : start + step])
            await settle()
        await peer.expect_alive(2)
        assert log.seen == [b"wait"]
        await peer.send(SMALL.cancel(1))
        await peer.expect(SMALL.cancel_ack(1))
        await peer.send(SMALL.request(1, b"new"))
        await peer.expect(SMALL.response(1, b"new"))
    assert "request chunk on id 1" in caplog.text


# The end inside of something


CUTS = [
    (SMALL, 1, "inside a chunk header: 1 of 2 bytes came"),
    *((WIDE, cut, f"inside a chunk header: {cut} of 4 bytes came") for cut in (1, 2, 3)),
    *((SMALL, 2 + cut, f"inside a chunk of request id {{}}: {cut} of 5 bytes came") for cut in range(5)),
]


@clause("SMX-SPU-05")
@pytest.mark.parametrize(("mux", "cut", "text"), CUTS)
@pytest.mark.parametrize("before", [False, True], ids=["first chunk", "second chunk"])
async def test_the_end_inside_a_request_runs_nothing(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, mux: Mux, cut: int, text: str, before: bool
) -> None:
    caplog.set_level(logging.INFO, "rsocket_trio")
    log = Log()
    async with server(log.responder, mux) as peer:
        await peer.send(mux.request(3, b"before", last=0) if before else b"", mux.request(3, b"whole")[:cut])
        await settle()
        await peer.say_no_more()
        await peer.expect_end()
    assert log.seen == []
    assert text.format(3) in caplog.text


@clause("SMX-SPU-05")
@pytest.mark.parametrize("cut", range(7))
async def test_a_handler_of_chunks_gets_no_part_of_one(autojump_clock: object, cut: int) -> None:
    talk = Talk()
    async with server(talk.responder) as peer:
        await peer.send(SMALL.request(3, b"before", last=0), SMALL.request(3, b"whole")[:cut])
        await peer.expect(SMALL.response(3, b"<before>", last=0))
        await peer.say_no_more()
        await peer.expect_end()
    assert talk.seen == [b"before", "Cancelled"]


@clause("SMX-SPU-05")
@pytest.mark.parametrize(("mux", "cut", "text"), CUTS)
@pytest.mark.parametrize("before", [False, True], ids=["first chunk", "second chunk"])
async def test_the_end_inside_a_response_is_no_answer(
    autojump_clock: object, mux: Mux, cut: int, text: str, before: bool
) -> None:
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        told: list[str] = []

        async def ask() -> None:
            with pytest.raises(ConnectionLost) as caught:
                await connection.request_response(b"q")
            told.append(str(caught.value))

        nursery.start_soon(ask)
        request_id = await peer.expect_request(b"q")
        part = mux.response(request_id, b"before", last=0) if before else b""
        await peer.send(part, mux.response(request_id, b"whole")[:cut])
        await peer.say_no_more()
    assert len(told) == 1
    assert text.format(request_id) in told[0]


@clause("SMX-SPU-05")
@pytest.mark.parametrize("cut", range(7))
async def test_a_reader_of_chunks_gets_no_part_of_one_and_no_end(autojump_clock: object, cut: int) -> None:
    async with client() as (connection, peer), connection.request_channel(b"a") as channel:
        request_id = await peer.expect_request(b"a", last=0)
        await peer.send(SMALL.response(request_id, b"before", last=0), SMALL.response(request_id, b"whole")[:cut])
        await peer.say_no_more()
        assert (await anext(channel)).data == b"before"
        with pytest.raises(ConnectionLost):
            await anext(channel)


@clause("SMX-SPU-05")
async def test_half_a_chunk_whose_rest_does_not_come_is_left_after_a_while(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log()
    async with server(log.responder) as peer:
        await peer.expect_silence(1000)
        await peer.send(SMALL.request(3, b"whole")[:4])
        await peer.expect_silence(80)
        with trio.fail_after(40):
            assert await peer.stream.receive_some() == b""
    assert log.seen == []
    assert "half a frame came" in caplog.text
    async with client() as (connection, peer):
        await peer.send(SMALL.request(3, b"whole")[:1])
        await trio.sleep(120)
        with pytest.raises(ConnectionLost, match="the peer stalled for 90 s"):
            await connection.request_response(b"x")
