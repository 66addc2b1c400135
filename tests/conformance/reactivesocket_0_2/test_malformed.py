"""Malformed and unexpected frames of ReactiveSocket 0.2, each with its exact reaction."""

from __future__ import annotations

import pytest

from tests.conformance.raw import (
    APPLICATION_ERROR,
    CANCEL,
    CANCELED,
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    ERROR,
    EXT,
    INVALID,
    INVALID_SETUP,
    KEEPALIVE,
    LEASE,
    METADATA_PUSH,
    PAYLOAD,
    REJECTED_RESUME,
    REJECTED_SETUP,
    REQUEST_N,
    REQUEST_STREAM,
    RESUME_OK,
    RS02,
    SETUP,
    UNSUPPORTED_SETUP,
    C,
    F,
    I,
    L,
    M,
    N,
    R,
    S,
    ask,
    cancel,
    channel,
    error,
    ext,
    forget,
    frame,
    keepalive,
    lease,
    payload,
    request_n,
    resume,
    setup,
    sized,
    stream,
    u32,
    u64,
)
from tests.conformance.scenes import (
    CLOSE,
    CONN_ERR,
    IGNORE,
    Row,
    asking,
    connected,
    conversing,
    first,
    fresh,
    halfway,
    past,
    react,
    row,
    sends,
    served,
    setup_err,
    stream_err,
    streaming,
    talking,
    ticking,
    waiting,
)

INVALID_SETUP_ERR = setup_err(INVALID_SETUP)
ENDED_BY_PEER = CLOSE
TOP = 0x80000000
OURS = (0, 2)
GOOD_SETUP = setup(OURS)


# fmt: off
FIRST_FRAMES = [
    row("RS02-CON-01", "a first request", first, ask(1, b"x"), then=INVALID_SETUP_ERR),
    row("RS02-CON-01", "a first KEEPALIVE", first, keepalive(), then=INVALID_SETUP_ERR),
    row("RS02-CON-01", "a first LEASE", first, lease(1, 1), then=INVALID_SETUP_ERR),
    row("RS02-CON-01", "a first CONNECTION_ERROR", first, error(0, CONNECTION_ERROR), then=INVALID_SETUP_ERR),
    row("RS02-CON-01", "a first METADATA_PUSH", first, RS02.push(b"x"), then=INVALID_SETUP_ERR),
    row("RS02-CON-01", "a first RESUME_OK", first, frame(RESUME_OK, 0, 0, u64(0)), then=INVALID_SETUP_ERR),
    row("RS02-CON-01", "SETUP on a stream", first, setup(OURS, stream_id=1), then=INVALID_SETUP_ERR),
    row("RS02-CON-01", "RESUME on a stream", first, resume(OURS, stream_id=3), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "a first frame of an unknown type, with I", first, frame(0x20, I), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP without its fields", first, frame(SETUP), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP a byte short of its data MIME type", first, GOOD_SETUP[:-1], then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP with the reserved bit of the stream id", first, setup(OURS, stream_id=TOP), then=INVALID_SETUP_ERR),
    row("RS02-MD-03", "SETUP with metadata longer than the frame", first, GOOD_SETUP[:4] + b"\x05\x00" + GOOD_SETUP[6:] + b"\x00\x00\x05abcd", then=INVALID_SETUP_ERR),
    row("RS02-MD-03", "SETUP with M and two bytes left", first, GOOD_SETUP[:4] + b"\x05\x00" + GOOD_SETUP[6:] + b"\x00\x00", then=INVALID_SETUP_ERR),
    row("RS02-SETUP-04", "SETUP with a keepalive time of 0", first, setup(OURS, keepalive=0), then=INVALID_SETUP_ERR),
    row("RS02-SETUP-04", "SETUP with a lifetime of 0", first, setup(OURS, lifetime=0), then=INVALID_SETUP_ERR),
    row("RS02-CON-07", "SETUP of version 1.0", first, setup((1, 0)), then=INVALID_SETUP_ERR),
    row("RS02-CON-07", "SETUP of version 0.1", first, setup((0, 1)), then=INVALID_SETUP_ERR),
    row("RS02-CON-07", "SETUP of version 0.3", first, setup((0, 3)), then=INVALID_SETUP_ERR),
    row("RS02-SETUP-07", "SETUP with a resume token", first, setup(OURS, token=b"t"), then=setup_err(REJECTED_SETUP)),
    row("RS02-CON-02", "SETUP with L where no leases are granted", first, setup(OURS, flags=L), then=setup_err(UNSUPPORTED_SETUP)),
    row("RS02-RSM-16", "RESUME", first, resume(OURS), then=setup_err(REJECTED_RESUME)),
    row("RS02-RSM-24", "RESUME of another version", first, resume((1, 0)), then=setup_err(REJECTED_RESUME)),
    row("RS02-SETUP-03", "SETUP with S and spare flags", first, setup(OURS, flags=S | 0x01F), then=sends()),
    row("RS02-SETUP-05", "SETUP with MIME types that are no text", first, setup(OURS, metadata_mime=b"\xff\x00", data_mime=b""), then=sends()),
]
AT_A_SERVER = [
    row("RS02-IGN-01 ALL-RCT-03", "an unknown type", served, frame(0x20), then=CONN_ERR),
    row("RS02-IGN-01", "the reserved type 0", served, frame(0), then=CONN_ERR),
    row("RS02-IGN-02", "an unknown type with I", ticking, frame(0x20, I, 1), then=IGNORE),
    row("ALL-RCT-01", "KEEPALIVE without a position", served, frame(KEEPALIVE, R), then=CONN_ERR),
    row("ALL-RCT-02", "KEEPALIVE without a position, with I", served, frame(KEEPALIVE, R | I), then=IGNORE),
    row("ALL-RCT-01", "LEASE of 7 bytes", served, frame(LEASE, 0, 0, bytes(7)), then=CONN_ERR),
    row("ALL-RCT-01", "REQUEST_STREAM without a count", served, frame(REQUEST_STREAM, 0, 1, bytes(3)), then=CONN_ERR),
    row("ALL-RCT-01", "REQUEST_N without a number", ticking, frame(REQUEST_N, 0, 1), then=CONN_ERR),
    row("ALL-RCT-01", "ERROR without a code", served, frame(ERROR, 0, 1, bytes(3)), then=CONN_ERR),
    row("ALL-RCT-01", "EXT without a type", served, frame(EXT, 0, 0, bytes(3)), then=CONN_ERR),
    row("ALL-RCT-01", "a request with the reserved bit of the stream id", served, ask(TOP | 1), then=CONN_ERR),
    row("ALL-RCT-02", "a request with the reserved bit of the stream id, with I", served, ask(TOP | 1, flags=I), then=IGNORE),
    row("RS02-MD-02", "a request with metadata a byte too long", served, ask(1, b"\x00\x00\x05abcd", M), then=IGNORE),
    row("RS02-MD-02", "a request with metadata too long, with I", served, ask(1, b"\x00\x00\x05abcd", M | I), then=IGNORE),
    row("RS02-MD-03", "a request with M and two bytes left", served, ask(1, b"\x00\x00", M), then=IGNORE),
    row("RS02-MD-03", "a request with M and nothing left", served, ask(1, b"", M), then=IGNORE),
    row("RS02-MD-02", "a fire-and-forget with metadata too long", served, forget(1, b"\x00\x00\x01", M), then=IGNORE),
    row("RS02-MD-02", "a stream with metadata too long", served, stream(1, 1, b"\x00\x00\x01", M), then=IGNORE),
    row("RS02-MD-02", "a channel with metadata too long", served, channel(1, 1, b"\x00\x00\x01", M), then=IGNORE),
    row("RS02-MD-02", "an item with metadata too long", talking, payload(1, b"\x00\x00\x02a", N | M), then=IGNORE),
    row("RS02-MD-02", "ERROR with metadata too long", waiting, frame(ERROR, M, 1, u32(INVALID) + b"\x00\x00\x01"), then=IGNORE),
    row("RS02-MD-02", "CANCEL with metadata too long", ticking, frame(CANCEL, M, 1, b"\x00\x00\x01"), then=IGNORE),
    row("RS02-MD-02", "METADATA_PUSH with metadata too long", served, frame(METADATA_PUSH, M, 0, b"\x00\x00\x01"), then=IGNORE),
    row("RS02-MD-04", "METADATA_PUSH without its flag", served, frame(METADATA_PUSH, 0, 0, b"x"), then=IGNORE),
    row("RS02-CAN-01", "CANCEL with metadata", waiting, frame(CANCEL, M, 1, sized(b"why")), then=sends()),
    row("RS02-MD-05", "a request with empty metadata", served, ask(1, b"\x00\x00\x00x", M), then=sends(payload(1, b"\x00\x00\x00x", N | C | M))),
    row("RS02-N-01", "REQUEST_STREAM for 0 items", served, stream(1, 0), then=stream_err(1, INVALID)),
    row("RS02-N-01", "REQUEST_CHANNEL for 0 items", served, channel(1, 0), then=stream_err(1, INVALID)),
    row("RS02-N-01", "REQUEST_N for 0 items", ticking, request_n(1, 0), then=IGNORE),
    row("ALL-RCT-12", "a request on stream 0", served, ask(0, b"x"), then=IGNORE),
    row("ALL-RCT-12", "a request with an id of ours", past, ask(2, b"x"), then=IGNORE),
    row("RS02-UNX-05", "a request on an id in use", ticking, ask(1, b"x"), then=IGNORE),
    row("RS02-UNX-05", "a stream on an id in use", ticking, stream(1, 5), then=IGNORE),
    row("RS02-CH-04", "a second REQUEST_CHANNEL", talking, channel(1, 5, b"x"), then=IGNORE),
    row("RS02-UNX-05", "another type on an id that waits for fragments", halfway, forget(1, b"x"), then=IGNORE),
    row("RS02-UNX-05", "CANCEL on an unknown stream", served, cancel(7), then=IGNORE),
    row("RS02-UNX-05", "CANCEL on stream 0", ticking, cancel(0), then=IGNORE),
    row("RS02-UNX-05", "PAYLOAD on an unknown stream", served, payload(7, b"x"), then=IGNORE),
    row("RS02-UNX-05", "PAYLOAD on stream 0", ticking, payload(0, b"x"), then=IGNORE),
    row("RS02-UNX-05", "ERROR on an unknown stream", served, error(7, APPLICATION_ERROR), then=IGNORE),
    row("RS02-UNX-05", "METADATA_PUSH on a stream", ticking, RS02.push(b"x", 1), then=IGNORE),
    row("RS02-UNX-05", "a second SETUP", ticking, setup(OURS, lifetime=1), then=IGNORE),
    row("RS02-UNX-05", "INVALID_SETUP", served, error(0, INVALID_SETUP), then=IGNORE),
    row("RS02-UNX-05", "UNSUPPORTED_SETUP", ticking, error(0, UNSUPPORTED_SETUP), then=IGNORE),
    row("RS02-UNX-05", "REJECTED_SETUP", served, error(0, REJECTED_SETUP), then=IGNORE),
    row("RS02-UNX-05", "REJECTED_RESUME", served, error(0, REJECTED_RESUME), then=IGNORE),
    row("RS02-UNX-05", "REQUEST_N on an unknown stream", served, request_n(7, 1), then=IGNORE),
    row("RS02-UNX-05", "RESUME_OK", served, frame(RESUME_OK, 0, 0, u64(0)), then=IGNORE),
    row("RS02-UNX-05", "LEASE that was not agreed", served, lease(1000, 5), then=IGNORE),
    row("RS02-UNX-05", "KEEPALIVE on a stream", ticking, frame(KEEPALIVE, R, 1, bytes(8)), then=IGNORE),
    row("RS02-RSM-19", "RESUME after SETUP", served, resume(OURS), then=CONN_ERR),
    row("ALL-RCT-14", "an item for a stream that is over", past, payload(1, b"x"), then=IGNORE),
    row("ALL-RCT-14", "CANCEL for a stream that is over", past, cancel(1), then=IGNORE),
    row("ALL-RCT-14", "ERROR for a stream that is over", past, error(1, CANCELED), then=IGNORE),
    row("RS02-EXT-01", "EXT of an unknown type", served, ext(5), then=CONN_ERR),
    row("RS02-EXT-01", "EXT of an unknown type with I", served, ext(5, flags=I), then=IGNORE),
    row("RS02-PAY-03", "an item of a channel with no flags", talking, payload(1, b"back", 0), then=sends(payload(1, b"back"))),
    row("RS02-PAY-03", "nothing at all on a channel", talking, payload(1, b"", 0), then=IGNORE),
    row("RS02-HDR-04", "KEEPALIVE with all spare flags", served, keepalive(b"d", flags=0x37F), then=sends(keepalive(b"d", respond=False))),
    row("RS02-HDR-04", "REQUEST_N with all flags", ticking, frame(REQUEST_N, 0x3FF, 1, u32(1)), then=sends(payload(1, b"tick 1"))),
    row("ALL-RCT-06", "REQUEST_N with the reserved bit", ticking, request_n(1, TOP | 1), then=sends(payload(1, b"tick 1"))),
    row("ALL-RCT-11", "bytes after REQUEST_N", ticking, request_n(1, 1) + b"more", then=sends(payload(1, b"tick 1"))),
    row("ALL-RCT-10", "two items more than were granted", talking, *[payload(1, b"x")] * 6, then=stream_err(1, INVALID)),
    row("RS02-ERR-06", "CONNECTION_ERROR", ticking, error(0, CONNECTION_ERROR), then=ENDED_BY_PEER),
    row("RS02-ERR-06", "an unknown code on stream 0", served, error(0, 0xFFFFFFFE), then=ENDED_BY_PEER),
    row("RS02-ERR-01", "CONNECTION_ERROR with metadata", served, frame(ERROR, M, 0, u32(CONNECTION_ERROR) + sized(b"m") + b"x"), then=ENDED_BY_PEER),
    row("RS02-ERR-07", "CONNECTION_CLOSE with no stream open", served, error(0, CONNECTION_CLOSE), then=ENDED_BY_PEER),
]
AT_A_CLIENT = [
    row("RS02-UNX-06", "SETUP", asking, setup(OURS), then=IGNORE),
    row("RS02-UNX-06", "SETUP before anything else", fresh, setup(OURS), then=IGNORE),
    row("RS02-UNX-05", "INVALID_SETUP after establishment", connected, error(0, INVALID_SETUP), then=IGNORE),
    row("RS02-UNX-05", "REJECTED_RESUME after establishment", connected, error(0, REJECTED_RESUME), then=IGNORE),
    row("RS02-UNX-05", "RESUME", connected, resume(OURS), then=IGNORE),
    row("RS02-UNX-05", "CANCEL of the responder of our channel", conversing, cancel(1), then=IGNORE),
    row("RS02-UNX-05", "CANCEL of the responder of our stream", streaming, cancel(1), then=IGNORE),
    row("RS02-UNX-05", "PAYLOAD on an unknown stream", asking, payload(3, b"x", N | C), then=IGNORE),
    row("RS02-MD-02", "an item with metadata too long", streaming, payload(1, b"\x00\x00\x02a", N | M), then=IGNORE),
    row("RS02-MD-02", "an answer with metadata too long", asking, payload(1, b"\x00\x00\x02a", N | C | M), then=IGNORE),
    row("RS02-IGN-01", "an unknown type", asking, frame(0x2A), then=CONN_ERR),
    row("RS02-IGN-02", "an unknown type with I", asking, frame(0x2A, I), then=IGNORE),
    row("RS02-PAY-03", "nothing at all on a stream", streaming, payload(1, b"", 0), then=IGNORE),
    row("ALL-RCT-01", "PAYLOAD with the reserved bit of the stream id", asking, frame(PAYLOAD, N | C, TOP | 1), then=CONN_ERR),
    row("ALL-RCT-10", "two items more than were granted", streaming, *[payload(1, b"x")] * 4, then=sends(cancel(1))),
    row("ALL-RCT-10", "a surplus in fragments", streaming, *[payload(1, b"x")] * 3, payload(1, b"x", F), then=sends(cancel(1))),
    row("ALL-RCT-12", "a request with an id of ours", connected, ask(1, b"x"), then=IGNORE),
    row("RS02-N-01", "REQUEST_STREAM for 0 items", connected, stream(2, 0), then=stream_err(2, INVALID)),
    row("RS02-ERR-07", "CONNECTION_CLOSE with no stream open", connected, error(0, CONNECTION_CLOSE), then=ENDED_BY_PEER),
]
# fmt: on


def marked(rows: list[Row]) -> list[object]:
    return [
        pytest.param(one, id=f"{one.scene.__name__}-{one.what}", marks=pytest.mark.clause(*one.clauses.split()))
        for one in rows
    ]


@pytest.mark.parametrize("one", marked(FIRST_FRAMES))
async def test_a_server_answers_its_first_frame(one: Row, autojump_clock: object) -> None:
    await react(RS02, one)


@pytest.mark.parametrize("one", marked(AT_A_SERVER))
async def test_a_server_takes_it_as_the_clause_says(one: Row, autojump_clock: object) -> None:
    await react(RS02, one)


@pytest.mark.parametrize("one", marked(AT_A_CLIENT))
async def test_a_client_takes_it_as_the_clause_says(one: Row, autojump_clock: object) -> None:
    await react(RS02, one)


@pytest.mark.clause("ALL-RCT-05")
@pytest.mark.parametrize("data", [b"\x00\x00\x00", b"\x00\x00\x05\x00\x00\x00\x00\x0c"], ids=["0 bytes", "5 bytes"])
async def test_a_length_that_cannot_be_right_ends_the_connection(data: bytes, autojump_clock: object) -> None:
    for scene, code in ((served, CONNECTION_ERROR), (connected, CONNECTION_ERROR), (first, INVALID_SETUP)):
        async with scene(RS02) as (peer, _):
            await peer.send_bytes(data)
            await peer.expect_failure(code)


def test_there_are_enough_rows() -> None:
    assert len(FIRST_FRAMES + AT_A_SERVER + AT_A_CLIENT) >= 60
