"""Malformed and unexpected frames of ReactiveSocket 0.0, each with its exact reaction."""

from __future__ import annotations

import pytest

from tests.conformance.old_frames import INVALID_SETUP, REJECTED_SETUP, RS00
from tests.conformance.raw import u32
from tests.conformance.scenes import (
    CLOSE,
    CONN_ERR,
    IGNORE,
    Row,
    asking,
    connected,
    fresh,
    react,
    row,
    sends,
    setup_err,
    streaming,
)

W = RS00
REFUSED = setup_err(INVALID_SETUP)
TOP = 2**64 - 1

# fmt: off


AT_A_CLIENT = [
    row("RS00-CON-11", "SETUP", fresh, W.setup(), then=IGNORE),
    row("RS00-CON-11", "SETUP on a stream of the client's", asking, W.setup(stream_id=2), then=IGNORE),
    row("RS00-HDR-10", "an unknown type", fresh, W.frame(0x04), then=CONN_ERR),
    row("RS00-HDR-09", "an unknown type with I", asking, W.frame(0x04, "I"), then=IGNORE),
    row("RS00-HDR-12", "RESPONSE of version 1", asking, W.frame("RESPONSE", "C", 2, version=1), then=CONN_ERR),
    row("RS00-CON-11", "INVALID_SETUP after acceptance", connected, W.refusal(INVALID_SETUP), then=IGNORE),
    row("RS00-CON-11", "REJECTED_SETUP after acceptance", connected, W.refusal(REJECTED_SETUP), then=IGNORE),
    row("RS00-CON-11", "SETUP_ERROR of any code after acceptance", connected, W.refusal(0x7777), then=IGNORE),
    row("RS00-CON-08", "REJECTED_SETUP", fresh, W.refusal(REJECTED_SETUP), then=CLOSE),
    row("RS00-CON-08", "SETUP_ERROR of any code", fresh, W.refusal(0x7777), then=CLOSE),
    row("ALL-RCT-07", "ERROR on stream 0", asking, W.error(0), then=IGNORE),
    row("RS00-SERR-01 ALL-RCT-07", "SETUP_ERROR on a stream of the client's", asking,
        W.refusal(REJECTED_SETUP, stream_id=2), then=IGNORE),
    row("RS00-MP-05", "METADATA_PUSH without M", streaming, W.frame("METADATA_PUSH", "", 2), then=IGNORE),
    row("RS00-MP-02", "METADATA_PUSH that nobody asked for", streaming, W.push(b"x", 2), then=IGNORE),
    row("RS00-SID-04", "a request with the id of a request of the client's", asking, W.ask(2, b"x"),
        then=sends(W.item(2, b"x", "C"))),
    row("RS00-SID-04", "CANCEL of the client's request", asking, W.cancel(2), then=IGNORE),
    row("RS00-SID-04", "REQUEST_N for a stream of the client's", streaming, W.request_n(2, 5), then=IGNORE),
    row("RS00-UNX-01", "RESPONSE to nothing", fresh, W.item(2, b"x"), then=IGNORE),
    row("RS00-MD-08", "RESPONSE with metadata beyond it", asking,
        W.frame("RESPONSE", "MC", 2, u32(9) + b"x"), then=IGNORE),
    row("RS00-MD-08", "ERROR with metadata beyond it", streaming, W.frame("ERROR", "M", 2, u32(6) + b"x"), then=IGNORE),
    row("ALL-RCT-10", "two items more than were granted", streaming,
        *(W.item(2, b"%d" % n) for n in range(4)), then=sends(W.cancel(2))),
    row("RS00-FRAG-02", "metadata behind data", streaming,
        W.item(2, b"one", "F"), W.item(2, b"two", "", b"meta"), then=sends(W.cancel(2))),
    row("RS00-UNX-01", "LEASE that nobody agreed to", fresh, W.lease(1, 1), then=IGNORE),
]
# fmt: on


def parametrized(rows: list[Row]) -> list[object]:
    return [
        pytest.param(one, id=one.what.replace(" ", "-"), marks=pytest.mark.clause(*one.clauses.split())) for one in rows
    ]


@pytest.mark.parametrize("row", parametrized(AT_A_CLIENT))
async def test_a_client_reacts_as_its_clause_says(autojump_clock: object, row: Row) -> None:
    await react(RS00, row)
