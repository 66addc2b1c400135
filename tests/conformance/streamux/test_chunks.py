"""Chunks as the document draws them: headers, lengths and ids, in both roles."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio

from rsocket_trio import ConnectionLost, StreamuxOptions
from tests.conformance.raw_streamux import (
    SMALL,
    WIDE,
    Chunk,
    Log,
    Mux,
    asked,
    bare_server,
    client,
    initialize,
    server,
    settle,
)

clause = pytest.mark.clause


# Headers

DRAWINGS = [
    # widths, a request of three bytes by id 5 or the only one, its response, a ping and its ack
    (WIDE, 5, "0D 00 05 00", "0F 00 05 00", "01 00 05 00", "03 00 05 00"),  # 000000 0000000101 00000000000011 r t
    (WIDE, 1023, "0D 00 FF 03", "0F 00 FF 03", "01 00 FF 03", "03 00 FF 03"),
    (SMALL, 5, "0D 28", "0F 28", "01 28", "03 28"),  # 00101 000000011 r t
    (SMALL, 19, "0D 98", "0F 98", "01 98", "03 98"),  # 10011 000000011 r t
    (Mux(0, 6), 0, "0D", "0F", "01", "03"),  # 000011 r t
    (Mux(8, 8), 0xA5, "0D 94 02", "0F 94 02", "01 94 02", "03 94 02"),  # 000000 10100101 00000011 r t
]


@clause("SMX-HDR-01", "SMX-HDR-02", "SMX-HDR-04", "SMX-MSG-07", "SMX-OOB-02", "SMX-FLD-05")
@pytest.mark.parametrize(("mux", "request_id", "request_", "response", "ping", "ack"), DRAWINGS)
async def test_the_drawings_are_spoken_byte_for_byte(
    autojump_clock: object, mux: Mux, request_id: int, request_: str, response: str, ping: str, ack: str
) -> None:
    async with server(Log().responder, mux) as peer:
        await peer.send(bytes.fromhex(request_) + b"abc")
        await peer.expect(bytes.fromhex(response) + b"abc")
        await peer.send(bytes.fromhex(ping))
        await peer.expect(bytes.fromhex(ack))
        # A cancel of the same id, and its ack: neither bit, and the response bit alone.
        number = int.from_bytes(bytes.fromhex(ping), "little") - 1
        await peer.send(number.to_bytes(mux.header_size, "little"))
        await peer.expect((number + 2).to_bytes(mux.header_size, "little"))


@clause("SMX-HDR-02", "SMX-HDR-01", "SMX-NEG-09")
@pytest.mark.parametrize("id_bits", range(30))
async def test_every_pair_of_widths_is_spoken_by_both_roles(autojump_clock: object, id_bits: int) -> None:
    for length_bits in range(1, 31 - id_bits):
        mux = Mux(id_bits, length_bits)
        highest = (1 << id_bits) - 1
        asks = initialize((0, 29, id_bits), (1, 30, length_bits), request=1)
        async with bare_server(Log().responder, mux, streamux=StreamuxOptions(qa=True, max_len=30)) as peer:
            await peer.send(asks, mux.request(highest, b"x"))
            await peer.read(5)
            await peer.expect(mux.response(highest, b"x"))
        options = StreamuxOptions(rec_id=31, rec_len=31, max_len=30)
        answers: list[bytes] = []
        low = initialize((min(id_bits, 15), 29, id_bits), (min(length_bits, 15), 30, length_bits))
        async with client(mux, streamux=options, said=low) as (connection, peer), trio.open_nursery() as nursery:
            nursery.start_soon(asked, connection, b"x", answers)
            request_id = await peer.expect_request(b"x")
            assert 0 <= request_id <= highest
            await peer.send(mux.response(request_id, b"y"))
        assert answers == [b"y"]


UNUSED = [
    (mux, 1 << bit)
    for mux, used in ((WIDE, 26), (Mux(8, 8), 18), (Mux(1, 3), 6))
    for bit in range(used, 8 * mux.header_size)
]


@clause("SMX-HDR-03")
@pytest.mark.parametrize(("mux", "bit"), UNUSED)
@pytest.mark.parametrize("kind", ["request", "response", "ping"])
async def test_an_unused_bit_ends_the_connection(
    autojump_clock: object, caplog: pytest.LogCaptureFixture, mux: Mux, bit: int, kind: str
) -> None:
    chunk = {"request": mux.request(1, b"x"), "response": mux.response(1, b"x"), "ping": mux.ping(1)}[kind]
    number = int.from_bytes(chunk[: mux.header_size], "little") | bit
    spoiled = number.to_bytes(mux.header_size, "little") + chunk[mux.header_size :]
    text = f"chunk header 0x{number:0{2 * mux.header_size}X}: its upper"
    log = Log()
    async with server(log.responder, mux) as peer:
        await peer.send(spoiled)
        await peer.expect_end()
    assert log.seen == []
    assert text in caplog.text
    async with client(mux, log.responder) as (connection, peer):
        await peer.send(spoiled)
        await peer.expect_end()
        with pytest.raises(ConnectionLost, match=text):
            await connection.request_response(b"x")


# Lengths


@clause("SMX-FLD-01", "SMX-FLD-06", "SMX-MSG-06", "SMX-HDR-01")
@pytest.mark.parametrize("length_bits", [1, 2, 6, 9])
@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_a_message_is_cut_at_the_largest_length(autojump_clock: object, length_bits: int, more: int) -> None:
    mux = Mux(4, length_bits)
    size = 3 * mux.most + more
    async with server(Log().responder, mux) as peer:
        for byte in b"large %d" % size:
            await peer.send(mux.request(7, bytes([byte]), last=0))
        await peer.send(mux.ping(7))
        left = size
        while left:
            length = min(left, mux.most)
            left -= length
            await peer.expect(mux.response(7, bytes(length), last=not left))
        await peer.expect_alive()


@clause("SMX-FLD-06", "SMX-MSG-06")
async def test_a_large_request_is_cut_too(autojump_clock: object) -> None:
    mux = Mux(4, 3)
    answers: list[bytes] = []
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"0123456789abcdef", answers)
        chunks = [await peer.receive() for _ in range(3)]
        request_id = chunks[0].id
        assert chunks == [
            Chunk(request_id, 0, 0, b"0123456"),
            Chunk(request_id, 0, 0, b"789abcd"),
            Chunk(request_id, 0, 1, b"ef"),
        ]
        await peer.send(mux.response(request_id, b"a", last=0), mux.response(request_id, b"b"))
    assert answers == [b"ab"]


# Ids


@clause("SMX-FLD-02", "SMX-FLD-04", "SMX-FLD-05")
async def test_ids_go_round_and_never_to_one_in_flight(autojump_clock: object) -> None:
    mux = Mux(3, 6)
    answers: list[bytes] = []
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"long", answers)
        live = await peer.expect_request(b"long")
        seen = []
        for _ in range(30):
            nursery.start_soon(asked, connection, b"short", answers)
            seen.append(await peer.expect_request(b"short"))
            await peer.send(mux.response(seen[-1], b"s"))
        assert set(seen) == set(range(8)) - {live}
        assert all(one != other for one, other in pairwise(seen))
        await peer.send(mux.response(live, b"l"))
    assert answers == [b"s"] * 30 + [b"l"]


@clause("SMX-FLD-04")
async def test_the_first_id_differs_from_session_to_session(autojump_clock: object) -> None:
    mux = Mux(29, 1)
    firsts = set()
    for _ in range(10):
        options = StreamuxOptions(rec_id=31, rec_len=31)
        async with client(mux, streamux=options, said=initialize((15, 29, 29), (1, 1, 1))) as (connection, peer):
            with trio.move_on_after(0.1):
                await connection.request_response(b"x")
            firsts.add(await peer.expect_request(b"x"))
    assert len(firsts) == 10


@clause("SMX-FLD-03")
async def test_both_sides_can_use_one_id_for_messages_of_many_chunks(autojump_clock: object) -> None:
    mux = Mux(0, 6)
    answers: list[bytes] = []
    async with client(mux, Log().responder) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"ours", answers)
        assert await peer.expect_request(b"ours") == 0
        await peer.send(
            mux.request(0, b"the", last=0),
            mux.response(0, b"an", last=0),
            mux.request(0, b"irs"),
            mux.response(0, b"swer"),
        )
        await peer.expect(mux.response(0, b"theirs"))
    assert answers == [b"answer"]


@clause("SMX-FLD-07")
async def test_with_all_ids_in_flight_a_request_waits(autojump_clock: object) -> None:
    mux = Mux(1, 6)
    answers: list[bytes] = []
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        for data in (b"1", b"2", b"3", b"4"):
            nursery.start_soon(asked, connection, data, answers)
            await settle()
        first, second = await peer.expect_request(b"1"), await peer.expect_request(b"2")
        assert {first, second} == {0, 1}
        await peer.expect_silence()
        await peer.send(mux.response(second, b"b"))
        assert await peer.expect_request(b"3") == second
        await peer.expect_silence()
        await peer.send(mux.response(first, b"a"))
        assert await peer.expect_request(b"4") == first
        await peer.send(mux.response(second, b"c"), mux.response(first, b"d"))
    assert answers[:2] == [b"b", b"a"]
    assert set(answers[2:]) == {b"c", b"d"}


@clause("SMX-FLD-07")
async def test_a_request_that_gave_up_waiting_was_never_said(autojump_clock: object) -> None:
    mux = Mux(0, 6)
    answers: list[bytes] = []
    async with client(mux) as (connection, peer), trio.open_nursery() as nursery:
        nursery.start_soon(asked, connection, b"1", answers)
        await peer.expect_request(b"1")
        with trio.move_on_after(1) as scope:
            await connection.request_response(b"2")
        assert scope.cancelled_caught
        await peer.send(mux.response(0, b"a"))
        await peer.expect_silence()
        nursery.start_soon(asked, connection, b"3", answers)
        await peer.expect_request(b"3")
        await peer.send(mux.response(0, b"c"))
    assert answers == [b"a", b"c"]
