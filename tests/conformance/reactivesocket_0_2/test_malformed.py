"""Malformed and unexpected frames of ReactiveSocket 0.2, each with its exact reaction."""

from __future__ import annotations

import pytest

from tests.conformance.raw import (
    CONNECTION_CLOSE,
    CONNECTION_ERROR,
    INVALID,
    INVALID_SETUP,
    PAYLOAD,
    REJECTED_RESUME,
    RS02,
    C,
    F,
    I,
    M,
    N,
    ask,
    cancel,
    error,
    frame,
    payload,
    resume,
    setup,
    stream,
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
ENDED_BY_PEER = CLOSE
TOP = 0x80000000
OURS = (0, 2)
GOOD_SETUP = setup(OURS)


# fmt: off
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


@pytest.mark.parametrize("one", marked(AT_A_CLIENT))
async def test_a_client_takes_it_as_the_clause_says(one: Row, autojump_clock: object) -> None:
    await react(RS02, one)


@pytest.mark.clause("ALL-RCT-05")
@pytest.mark.parametrize("data", [b"\x00\x00\x00", b"\x00\x00\x05\x00\x00\x00\x00\x0c"], ids=["0 bytes", "5 bytes"])
async def test_a_length_that_cannot_be_right_ends_the_connection(data: bytes, autojump_clock: object) -> None:
    async with connected(RS02) as (peer, _):
        await peer.send_bytes(data)
        await peer.expect_failure(CONNECTION_ERROR)
