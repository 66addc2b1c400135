"""Malformed and unexpected frames of RSocket 1.0, each with its exact reaction."""

from __future__ import annotations

import pytest

from tests.conformance.raw import (
    APPLICATION_ERROR,
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    INVALID,
    INVALID_SETUP,
    KEEPALIVE,
    PAYLOAD,
    REJECTED_RESUME,
    REJECTED_SETUP,
    RESUME_OK,
    RS10,
    UNSUPPORTED_SETUP,
    C,
    F,
    I,
    M,
    N,
    R,
    ask,
    cancel,
    channel,
    error,
    ext,
    frame,
    lease,
    payload,
    request_n,
    resume,
    setup,
    sized,
    stream,
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
    fresh,
    react,
    row,
    sends,
    setup_err,
    stream_err,
    streaming,
)

INVALID_SETUP_ERR = setup_err(INVALID_SETUP)
TOP = 0x80000000
GOOD_SETUP = setup()
EMPTY_SETUP_FIELDS = bytes.fromhex("0001 0000 00004e20 00015f90")


# fmt: off
AT_A_CLIENT = [
    row("RS10-UNX-17", "SETUP", connected, setup(), then=IGNORE),
    row("RS10-UNX-17", "SETUP before anything else", fresh, setup(), then=IGNORE),
    row("RS10-UNX-17", "SETUP amid a request", asking, setup((7, 7)), then=IGNORE),
    row("RS10-UNX-16", "ERROR INVALID_SETUP after establishment", connected, error(0, INVALID_SETUP), then=IGNORE),
    row("RS10-UNX-16", "ERROR UNSUPPORTED_SETUP after establishment", connected, error(0, UNSUPPORTED_SETUP), then=IGNORE),
    row("RS10-UNX-16", "ERROR REJECTED_SETUP after establishment", connected, error(0, REJECTED_SETUP), then=IGNORE),
    row("RS10-UNX-16", "ERROR REJECTED_RESUME after establishment", connected, error(0, REJECTED_RESUME), then=IGNORE),
    row("RS10-UNX-18", "RESUME", connected, resume(), then=IGNORE),
    row("RS10-UNX-18", "RESUME_OK", connected, frame(RESUME_OK, 0, 0, u64(0)), then=IGNORE),
    row("RS10-UNX-18", "REQUEST_N on an unknown stream", asking, request_n(9, 1), then=IGNORE),
    row("RS10-UNX-18", "REQUEST_N on a stream of ours", streaming, request_n(1, 1), then=IGNORE),
    row("RS10-UNX-18", "REQUEST_N on a request of ours", asking, request_n(1, 1), then=IGNORE),
    row("RS10-UNX-18", "CANCEL of the responder of a stream", streaming, cancel(1), then=IGNORE),
    row("RS10-UNX-18", "CANCEL of the responder of a request", asking, cancel(1), then=IGNORE),
    row("RS10-UNX-10", "CANCEL on an unknown stream", asking, cancel(2), then=IGNORE),
    row("RS10-UNX-11", "ERROR on an unknown stream", asking, error(3, APPLICATION_ERROR), then=IGNORE),
    row("RS10-UNX-12", "PAYLOAD on an unknown stream", asking, payload(3, b"x", N | C), then=IGNORE),
    row("RS10-UNX-12", "PAYLOAD on stream 0", asking, payload(0, b"x", N | C), then=IGNORE),
    row("RS10-UNX-13", "METADATA_PUSH on a stream", asking, RS10.push(b"x", 1), then=IGNORE),
    row("RS10-LEASE-05", "LEASE that was not agreed", asking, lease(1000, 5), then=IGNORE),
    row("RS10-UNX-18", "KEEPALIVE on a stream", asking, frame(KEEPALIVE, R, 1, bytes(8)), then=IGNORE),
    row("ALL-RCT-12", "a request with an id of ours", connected, ask(1, b"x"), then=IGNORE),
    row("ALL-RCT-12", "a request on an id of ours that is open", asking, ask(1, b"x"), then=IGNORE),
    row("ALL-RCT-12", "a request on stream 0", connected, ask(0, b"x"), then=IGNORE),
    row("RS10-IGN-01", "an unknown type", asking, frame(0x2A), then=CONN_ERR),
    row("RS10-IGN-02", "an unknown type with I", asking, frame(0x2A, I), then=IGNORE),
    row("RS10-IGN-01", "an unknown type before anything else", fresh, frame(0x2A), then=CONN_ERR),
    row("ALL-RCT-01", "a PAYLOAD with the reserved bit of the stream id", asking, frame(PAYLOAD, N | C, TOP | 1), then=CONN_ERR),
    row("RS10-MD-02", "an item with metadata too long", streaming, payload(1, b"\x00\x00\x02a", N | M), then=CONN_ERR),
    row("RS10-MD-02", "an item with metadata too long, with I", streaming, payload(1, b"\x00\x00\x02a", N | M | I), then=IGNORE),
    row("RS10-PAY-03", "PAYLOAD with neither C nor N", streaming, payload(1, b"x", 0), then=IGNORE),
    row("RS10-PAY-03", "PAYLOAD with nothing at all", asking, payload(1, b"", 0), then=IGNORE),
    row("ALL-RCT-08", "REQUEST_N for 0 items on our channel", conversing, request_n(1, 0), then=IGNORE),
    row("RS10-UNX-09", "REQUEST_CHANNEL on our own channel", conversing, channel(1, 1), then=IGNORE),
    row("ALL-RCT-10", "two items more than were granted", streaming, *[payload(1, b"x")] * 4, then=sends(cancel(1))),
    row("ALL-RCT-10", "more fragments than were granted", streaming, *[payload(1, b"x")] * 3, payload(1, b"x", N | F), then=sends(cancel(1))),
    row("ALL-RCT-10", "two items more than were granted on our channel", conversing, *[payload(1, b"x")] * 4, then=sends(cancel(1))),
    row("RS10-FRAG-09", "metadata after data", streaming, payload(1, b"x", N | F), payload(1, sized(b"m"), N | M), then=sends(cancel(1))),
    row("RS10-N-01", "REQUEST_STREAM for 0 items", connected, stream(2, 0), then=stream_err(2, INVALID)),
    row("RS10-EXT-02", "EXT of an unknown type", asking, ext(5, b"x"), then=CONN_ERR),
    row("RS10-EXT-02", "EXT of an unknown type with I", asking, ext(5, b"x", flags=I), then=IGNORE),
    row("RS10-ERR-08", "CONNECTION_ERROR", connected, error(0, CONNECTION_ERROR), then=CLOSE),
    row("RS10-ERR-06", "ERROR with a stream's code on stream 0", connected, error(0, REJECTED_SETUP + 0x200), then=CLOSE),
    row("RS10-ERR-09", "CONNECTION_CLOSE with no stream open", connected, error(0, CONNECTION_CLOSE), then=CLOSE),
]
# fmt: on


def named(one: Row) -> str:
    return f"{one.scene.__name__}-{one.what}"


def marked(rows: list[Row]) -> list[object]:
    return [pytest.param(one, id=named(one), marks=pytest.mark.clause(*one.clauses.split())) for one in rows]


@pytest.mark.parametrize("one", marked(AT_A_CLIENT))
async def test_a_client_takes_it_as_the_clause_says(one: Row, autojump_clock: object) -> None:
    await react(RS10, one)


FRAMING = [
    ("a frame of 0 bytes", b"\x00\x00\x00"),
    ("a frame of 5 bytes", b"\x00\x00\x05\x00\x00\x00\x00\x0c"),
]


@pytest.mark.clause("ALL-RCT-05")
@pytest.mark.parametrize(("what", "data"), FRAMING)
async def test_a_length_that_cannot_be_right_ends_an_established_connection(
    what: str, data: bytes, autojump_clock: object
) -> None:
    for scene in (connected, asking):
        async with scene(RS10) as (peer, _):
            await peer.send_bytes(data + b"\x00" * 40)
            await peer.expect_failure(CONNECTION_ERROR)
