"""Malformed and unexpected frames of ReactiveSocket 0.1, each with its exact reaction."""

from __future__ import annotations

import pytest

from tests.conformance.old_frames import INVALID_SETUP, REJECTED_SETUP, RS01, UNSUPPORTED_SETUP
from tests.conformance.raw import APPLICATION_ERROR, CONNECTION_ERROR, u32
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
    streaming,
)

W = RS01
REFUSED = setup_err(INVALID_SETUP)
SETUP_FIELDS = bytes.fromhex("0000 0001 00004e20 00015f90")

# fmt: off


AT_A_CLIENT = [
    row("RS01-UNX-17", "SETUP", fresh, W.setup(), then=IGNORE),
    row("RS01-UNX-17", "SETUP on a stream of the client's", asking, W.setup(stream_id=2), then=IGNORE),
    row("RS01-IGN-02", "an unknown type", fresh, W.frame(0x0E), then=CONN_ERR),
    row("RS01-IGN-03", "an unknown type with I", asking, W.frame(0x0E, "I"), then=IGNORE),
    row("RS01-UNX-16", "INVALID_SETUP after acceptance", connected, W.error(0, 0x1), then=IGNORE),
    row("RS01-UNX-16", "REJECTED_SETUP after acceptance", connected, W.error(0, 0x3), then=IGNORE),
    row("RS01-UNX-16", "a set-up error without a name after acceptance", connected, W.error(0, 0x22), then=IGNORE),
    row("RS01-CON-14", "REJECTED_SETUP", fresh, W.error(0, 0x3), then=CLOSE),
    row("RS01-UNX-18", "CONNECTION_ERROR", asking, W.error(0, CONNECTION_ERROR), then=CLOSE),
    row("RS01-UNX-13", "METADATA_PUSH on a stream", streaming, W.push(b"x", 2), then=IGNORE),
    row("RS01-MP-03", "METADATA_PUSH without M", fresh, W.frame("METADATA_PUSH"), then=IGNORE),
    row("ALL-RCT-12", "a request with an even id", fresh, W.ask(4, b"x"), then=IGNORE),
    row("ALL-RCT-12", "a request with the id of a stream of the client's", asking, W.ask(2, b"x"), then=IGNORE),
    row("ALL-RCT-12", "a channel on a channel of the client's", conversing, W.channel(2, 9, b"x"), then=IGNORE),
    row("RS01-UNX-12", "RESPONSE to nothing", fresh, W.item(2, b"x"), then=IGNORE),
    row("RS01-UNX-10", "CANCEL of the client's stream", streaming, W.cancel(2), then=IGNORE),
    row("RS01-UNX-10 RS01-SEQ-12", "CANCEL of the client's channel", conversing, W.cancel(2), then=IGNORE),
    row("RS01-UNX-08", "REQUEST_N for a stream of the client's", streaming, W.request_n(2, 5), then=IGNORE),
    row("RS01-MD-05", "RESPONSE with metadata beyond it", asking,
        W.frame("RESPONSE", "MC", 2, u32(9) + b"x"), then=IGNORE),
    row("RS01-MD-07", "RESPONSE with a metadata length of 3", streaming, W.frame("RESPONSE", "M", 2, u32(3)),
        then=IGNORE),
    row("RS01-MD-05", "ERROR with metadata beyond it", streaming,
        W.frame("ERROR", "M", 2, u32(APPLICATION_ERROR) + u32(6) + b"x"), then=IGNORE),
    row("RS01-IGN-02", "ERROR without its code", streaming, W.frame("ERROR", "", 2, b"\0"), then=CONN_ERR),
    row("ALL-RCT-10", "two items more than were granted", streaming,
        *(W.item(2, b"%d" % n) for n in range(4)), then=sends(W.cancel(2))),
    row("RS01-FRAG-03", "metadata behind data", streaming,
        W.item(2, b"one", "F"), W.item(2, b"two", "", b"meta"), then=sends(W.cancel(2))),
    row("RS01-UNX-01", "LEASE that nobody agreed to", fresh, W.lease(1, 1), then=IGNORE),
    row("RS01-KA-05", "KEEPALIVE", fresh, W.keepalive(b"x"), then=sends(W.keepalive(b"x", ""))),
]
# fmt: on


def parametrized(rows: list[Row]) -> list[object]:
    return [
        pytest.param(one, id=one.what.replace(" ", "-"), marks=pytest.mark.clause(*one.clauses.split())) for one in rows
    ]


@pytest.mark.parametrize("row", parametrized(AT_A_CLIENT))
async def test_a_client_reacts_as_its_clause_says(autojump_clock: object, row: Row) -> None:
    await react(RS01, row)


@pytest.mark.clause("RS01-CON-17")
def test_the_refusals_have_the_codes_of_the_table() -> None:
    assert {name: RS01.refusal(name)[8:12] for name in (INVALID_SETUP, UNSUPPORTED_SETUP, REJECTED_SETUP)} == {
        INVALID_SETUP: u32(1),
        UNSUPPORTED_SETUP: u32(2),
        REJECTED_SETUP: u32(3),
    }
