"""Resumption in ReactiveSocket 0.2 where its document says other than that of 1.0, down to the bytes.

What both say alike is in the file on 1.0, and is played in both dialects there.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from rsocket_trio import ConnectionLost, Keepalive
from tests.conformance.raw import (
    CONNECTION_ERROR,
    INVALID_SETUP,
    REJECTED_RESUME,
    REQUEST_CHANNEL,
    RS02,
    C,
    I,
    Log,
    M,
    N,
    S,
    ask,
    forget,
    frame,
    keepalive,
    payload,
    request_n,
    settle,
    sized,
    stream,
    u32,
)
from tests.conformance.resuming import (
    TOKEN,
    begin,
    client,
    come_back,
    cut,
    expect_refused,
    position_of,
    resume,
    resume_ok,
    server,
)

clause = pytest.mark.clause

# Written by hand from the document: SETUP with R and the token "tok", then the frames of one session.
SETUP = bytes.fromhex(
    "00000000 0480"  # stream 0, SETUP, R
    "0000 0002 00004e20 00015f90"  # 0.2, 20 s, 90 s
    "0003 746f6b"
    "03 612f62 03 632f64"
)
ASKED = bytes.fromhex("00000001 1800 00000003 73")  # REQUEST_STREAM 1, 3 items, "s": 11 bytes
RESUMED = bytes.fromhex(
    "00000000 3400"
    "0000 0002"
    "0003 746f6b"
    "0000000000000018"  # two ticks of 12 bytes came
    "0000000000000000"
)
LET_IN = bytes.fromhex("00000000 3800 000000000000000b")
THIRD = bytes.fromhex("00000001 2820 7469636b2032")


@clause("RS02-RSM-07", "RS02-RSM-05", "RS02-RSM-11", "RS02-RES-01", "RS02-RES-02", "RS02-RES-03", "RS02-SETUP-02")
async def test_a_session_as_it_stands_in_the_document(autojump_clock: object) -> None:
    async with server(RS02, Log().responder) as harbour:
        peer = await harbour.peer()
        await peer.send(SETUP, ASKED)
        await peer.expect(payload(1, b"tick 0"), payload(1, b"tick 1"), THIRD)
        await cut(peer)
        peer = await harbour.peer()
        await peer.send(RESUMED)
        await peer.expect(LET_IN, THIRD)


@clause("RS02-RSM-01", "RS02-RSM-16")
@pytest.mark.parametrize("flags", [0, I], ids=["must be understood", "may be ignored"])
async def test_a_resume_is_refused_without_resumption_whatever_its_ignore_flag_says(
    autojump_clock: object, flags: int
) -> None:
    async with server(RS02, Log().responder, None) as harbour:
        asked = resume(RS02)
        await expect_refused(harbour, asked[:4] + (0x3400 | flags).to_bytes(2, "big") + asked[6:])


@clause("RS02-RSM-06")
async def test_every_kind_of_request_counts_and_request_n_is_one(autojump_clock: object) -> None:
    async with server(RS02, Log().responder) as harbour:
        peer = await begin(harbour, RS02)
        await peer.expect_alive()
        total = 0
        for one in (
            ask(1, b"wait"),
            forget(3, b"note"),
            stream(5, 1, b"0"),
            frame(REQUEST_CHANNEL, C, 7, u32(1)),
            request_n(5, 1),
        ):
            await peer.send(one)
            await settle()
            total += len(one)
            await cut(peer)
            peer = await come_back(harbour, RS02, got=0, sent=total)


@clause("RS02-RSM-06", "RS02-MD-04")
async def test_pushed_metadata_does_not_count_with_its_length_either(autojump_clock: object) -> None:
    async with server(RS02, Log().responder) as harbour:
        peer = await begin(harbour, RS02)
        await peer.send(frame(0x0C, M, 0, sized(b"pushed")))
        assert await position_of(peer) == 0


@clause("RS02-KA-04", "RS02-KA-05", "RS02-RSM-21")
async def test_a_clients_keepalives_carry_its_position_from_0_on(autojump_clock: object) -> None:
    async with client(RS02, keepalive=Keepalive(1, 100)) as side:
        await side.peer.expect(keepalive(position=0))
        await side.peer.send(forget(2, b"12345"))
        await side.peer.expect(keepalive(position=11))
        peer = await side.resumed(got=11, sent=0)
        await peer.expect(keepalive(position=11))


@clause("RS02-RSM-03", "RS02-CON-04")
async def test_the_strict_flag_is_of_the_session_and_not_of_the_transport(autojump_clock: object) -> None:
    log = Log()

    @log.responder.setup
    def gate(terms: Any, connection: object) -> None:
        log.seen.append((terms.strict, terms.resume))

    async with server(RS02, log.responder) as harbour:
        peer = await begin(harbour, RS02, flags=S)
        await peer.expect_alive()
        await cut(peer)
        peer = await come_back(harbour, RS02, got=0, sent=0)
        await peer.expect_alive()
    assert log.seen == [(True, True)]


@clause("RS02-SID-07", "RS02-SID-04")
async def test_ids_are_not_used_again_in_the_whole_session(autojump_clock: object) -> None:
    async with client(RS02) as side:
        peer = side.peer
        for turn in range(5):
            number = 2 * turn + 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(side.connection.request_response, b"q")
                await peer.expect(ask(number, b"q"))
                await peer.send(payload(number, b"a", N | C))
            peer = await side.resumed(got=7 * (turn + 1), first=7 * turn, sent=7 * (turn + 1))


@clause("RS02-SID-04", "RS02-SID-07", "RS02-RSM-15")
async def test_an_error_instead_of_an_answer_ends_a_client_for_good(autojump_clock: object) -> None:
    async with client(RS02) as side:
        peer = await side.asked(got=0)
        await peer.send(frame(0x0B, 0, 0, u32(CONNECTION_ERROR) + b"gone"))
        await peer.expect_end()
        with pytest.raises(ConnectionLost, match="gone"):
            await side.connection.request_response(b"q")
        await side.harbour.expect_nobody(100)


@clause("RS02-ERR-04", "RS02-RSM-09", "RS02-RSM-17")
async def test_a_refusal_says_why_in_its_text(autojump_clock: object) -> None:
    async with server(RS02, Log().responder) as harbour:
        assert await expect_refused(harbour, resume(RS02)) == b"unknown resume token"
        peer = await begin(harbour, RS02)
        await peer.expect_alive()
        await cut(peer)
        text = await expect_refused(harbour, resume(RS02, got=7))
        assert b"7" in text
        assert TOKEN not in text


@clause("RS02-RSM-24", "RS02-CON-01")
@pytest.mark.parametrize("stream_id", [1, 2])
async def test_a_resume_has_stream_id_0(autojump_clock: object, stream_id: int) -> None:
    async with server(RS02, Log().responder) as harbour:
        peer = await begin(harbour, RS02)
        await peer.expect_alive()
        await cut(peer)
        other = await harbour.peer()
        await other.send(resume(RS02, stream_id=stream_id))
        await other.expect_failure(INVALID_SETUP)
        peer = await harbour.peer()
        await peer.send(resume(RS02))
        await peer.expect(resume_ok(0))


@clause("RS02-RSM-12", "RS02-RSM-09")
async def test_a_refused_client_closes_without_a_word(autojump_clock: object) -> None:
    async with client(RS02) as side:
        peer = await side.asked(got=0)
        await peer.send(frame(0x0B, 0, 0, u32(REJECTED_RESUME)))
        await peer.expect_end()
        await side.harbour.expect_nobody(100)
