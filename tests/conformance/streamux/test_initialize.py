"""The initialize messages on the wire: who says what before what, quick init, and what comes of a failure."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from rsocket_trio import (
    Connection,
    NegotiationFailed,
    Responder,
    Setup,
    StreamuxOptions,
    open_connection_over,
)
from rsocket_trio.transports.memory import memory_pair
from tests.conformance.raw_streamux import (
    CLIENT_SAYS,
    SERVER_SAYS,
    SMALL,
    Log,
    Mux,
    RawMux,
    bare_server,
    client,
    fails_to_open,
    initialize,
    server,
    settle,
    widths,
)

clause = pytest.mark.clause
ID, LENGTH = (0, 29, 14), (1, 24, 16)


# The first message


@clause("SMX-INI-01", "SMX-INI-03", "SMX-INI-04", "SMX-INI-06")
async def test_a_server_says_its_initialize_message_once_and_first(autojump_clock: object) -> None:
    async with bare_server(Log().responder) as peer:
        await peer.expect(SERVER_SAYS)
        await peer.send(SMALL.says, SMALL.request(3, b"hi"))
        await peer.expect(SMALL.response(3, b"hi"))
        await peer.expect_alive()


@clause("SMX-INI-01", "SMX-INI-03", "SMX-INI-04", "SMX-INI-06")
async def test_a_client_says_its_initialize_message_once_and_first(autojump_clock: object) -> None:
    async with client() as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(connection.request_response, b"hi")
        await peer.send(SMALL.response(await peer.expect_request(b"hi"), b"hello"))
        await peer.expect_silence()


@clause("SMX-INI-02", "SMX-INI-01")
async def test_a_client_says_nothing_else_before_the_server_spoke(autojump_clock: object) -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    peer = RawMux(ours, SMALL)

    async def ask() -> None:
        async with open_connection_over(theirs, dialect="streamux/1") as connection:
            assert (await connection.request_response(b"hi")).data == b"hello"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await peer.expect(CLIENT_SAYS)
        await peer.expect_silence(9)
        await peer.send(SMALL.says)
        await peer.send(SMALL.response(await peer.expect_request(b"hi"), b"hello"))
    await ours.aclose()


@clause("SMX-INI-02", "SMX-INI-01")
async def test_a_server_says_nothing_else_before_the_client_spoke(autojump_clock: object) -> None:
    responder = Responder()

    @responder.setup
    async def calls_back(setup: Setup, connection: Connection) -> None:
        await connection.request_response(b"who are you?")

    async with bare_server(responder) as peer:
        await peer.expect(SERVER_SAYS)
        await peer.expect_silence(9)
        await peer.send(SMALL.says)
        await peer.send(SMALL.response(await peer.expect_request(b"who are you?"), b"me"))
        await peer.expect_alive()


@clause("SMX-GEN-01", "SMX-INI-01")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 100])
async def test_a_session_can_be_cut_anywhere(autojump_clock: object, size: int) -> None:
    said = SMALL.says + SMALL.request(1, b"one") + SMALL.request(2, b"tw", last=0) + SMALL.request(2, b"o")
    async with bare_server(Log().responder) as peer:
        await peer.expect(SERVER_SAYS)
        for start in range(0, len(said), size):
            await peer.send(said[start : start + size])
            await settle()
        await peer.expect_in_any_order(SMALL.response(1, b"one"), SMALL.response(2, b"two"))


@clause("SMX-GEN-01")
async def test_a_transport_of_messages_is_a_byte_stream_too(autojump_clock: object) -> None:
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:

        async def serve_raw() -> None:
            await ours.send([bytes([byte]) for byte in SMALL.says])
            heard = b""
            while len(heard) < 9:
                heard += b"".join(await ours.receive())
            assert heard[:5] == CLIENT_SAYS
            request_id, *rest = SMALL.parsed(heard[5:7])
            assert (rest, heard[7:]) == ([2, 0, 1], b"hi")
            await ours.send([bytes([byte]) for byte in SMALL.response(request_id, b"hello")])

        nursery.start_soon(serve_raw)
        async with open_connection_over(theirs, dialect="streamux/1") as connection:
            assert (await connection.request_response(b"hi")).data == b"hello"
        ours.close()


@widths
@clause("SMX-GEN-02", "SMX-FLD-03")
async def test_both_sides_request_and_respond_at_once(autojump_clock: object, mux: Mux) -> None:
    async with client(mux, Log().responder) as (connection, peer), trio.open_nursery() as nursery:

        async def ask() -> None:
            assert (await connection.request_response(b"ours")).data == b"answer"

        nursery.start_soon(ask)
        request_id = await peer.expect_request(b"ours")
        await peer.send(mux.request(request_id, b"theirs"))
        await peer.expect(mux.response(request_id, b"theirs"))
        await peer.send(mux.response(request_id, b"answer"))


# A negotiation that fails

REFUSED = {
    "version of 0: must be 1 to 255": initialize(ID, LENGTH, version=0),
    "version 1 against 2": initialize(ID, LENGTH, version=2),
    "version 1 against 255": initialize(ID, LENGTH, version=255),
    "reserved of 1: must be 0 to 0": initialize(ID, LENGTH, reserved=1),
    "reserved of 2: must be 0 to 0": initialize(ID, LENGTH, reserved=2),
    "reserved of 3: must be 0 to 0": initialize(ID, LENGTH, reserved=3),
    "max_id of 30: must be 0 to 29": initialize((0, 30, 14), LENGTH),
    "max_id of 31: must be 0 to 29": initialize((0, 31, 14), LENGTH),
    "rec_id of 30: must be 0 to 29, or 31": initialize((0, 29, 30), LENGTH),
    "min_len of 0: must be 1 to 15": initialize(ID, (0, 24, 16)),
    "max_len of 0: must be 1 to 30": initialize(ID, (1, 0, 31)),
    "max_len of 31: must be 1 to 30": initialize(ID, (1, 31, 16)),
    "rec_len of 0: must be 1 to 30, or 31": initialize(ID, (1, 24, 0)),
    "max_id of 3 is below min_id of 4": initialize((4, 3, 31), LENGTH),
    "max_len of 3 is below min_len of 4": initialize(ID, (4, 3, 31)),
    "rec_id of 3: outside of its own 4 to 8": initialize((4, 8, 3), LENGTH),
    "rec_id of 9: outside of its own 4 to 8": initialize((4, 8, 9), LENGTH),
    "rec_len of 3: outside of its own 4 to 8": initialize(ID, (4, 8, 3)),
    "rec_len of 9: outside of its own 4 to 8": initialize(ID, (4, 8, 9)),
    "qr and qa are both set": initialize(ID, LENGTH, request=1, allow=1),
    "rec_id of 31: a quick init": initialize((0, 29, 31), LENGTH, request=1),
    "rec_len of 31: a quick init": initialize(ID, (1, 24, 31), request=1),
}
refused = pytest.mark.parametrize(("text", "says"), REFUSED.items(), ids=list(REFUSED))


@refused
@clause("SMX-NEG-02", "SMX-INI-09", "SMX-INI-05")
async def test_what_no_peer_may_offer_fails_at_a_client(autojump_clock: object, text: str, says: bytes) -> None:
    error, heard, took = await fails_to_open(says)
    assert isinstance(error, NegotiationFailed)
    assert text in str(error)
    assert heard == CLIENT_SAYS
    assert took < 5


@refused
@clause("SMX-NEG-02", "SMX-QI-06", "SMX-INI-09", "SMX-INI-05")
async def test_what_no_peer_may_offer_fails_at_a_server(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, text: str, says: bytes
) -> None:
    caplog.set_level(logging.INFO, "rsocket_trio")
    log = Log()
    async with bare_server(log.responder) as peer:
        await peer.send(says, SMALL.request(1, b"too early"))
        await peer.expect(SERVER_SAYS)
        await peer.expect_end()
    assert log.seen == []
    assert text in caplog.text


@clause("SMX-NEG-02", "SMX-NEG-04")
async def test_ranges_that_do_not_meet_fail_on_both_sides(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "rsocket_trio")
    options = StreamuxOptions(min_id=6, max_id=8, rec_id=8)
    says = initialize((10, 15, 10), (1, 24, 16))
    error, _, _ = await fails_to_open(says, streamux=options)
    assert "min_id of 10 against max_id of 8" in str(error)
    async with bare_server(Log().responder, streamux=options) as peer:
        await peer.send(says)
        await peer.read(5)
        await peer.expect_end()
    assert "min_id of 10 against max_id of 8" in caplog.text


# A session without bits for ids


@clause("SMX-NEG-08", "SMX-FLD-07")
async def test_without_id_bits_one_message_is_in_flight(autojump_clock: object) -> None:
    mux = Mux(0, 6)
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        answers = []

        async def ask(data: bytes) -> None:
            answers.append((await connection.request_response(data)).data)

        for data in (b"first", b"second"):
            nursery.start_soon(ask, data)
            await settle()
        for data in (b"first", b"second"):
            assert await peer.expect_request(data) == 0
            await peer.expect_silence()
            await peer.send(mux.response(0, data.upper()))
        await settle()
    assert answers == [b"FIRST", b"SECOND"]


@clause("SMX-NEG-02", "SMX-NEG-09")
@pytest.mark.parametrize("pair", [(0, 1), (3, 3), (4, 3), (7, 7), (8, 7), (14, 8), (14, 9), (14, 16)])
async def test_what_was_negotiated_sizes_the_headers(autojump_clock: object, pair: tuple[int, int]) -> None:
    mux = Mux(*pair)
    async with server(Log().responder, mux) as peer:
        await peer.send(mux.request(0, b"x"))
        await peer.expect(mux.response(0, b"x"))
        await peer.expect_alive()
