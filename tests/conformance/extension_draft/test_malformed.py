"""The extension draft: each frame that it draws itself, in good and bad order, with its exact reaction."""

from __future__ import annotations

import pytest

from tests.conformance.draft_frames import (
    BROKER_ID,
    KEEPALIVE_ID,
    RESUME_ID,
    RSX,
    D,
    X,
    Y,
    beat,
    entry,
    ext_block,
    permits,
    request,
    setup,
    setup_ok,
)
from tests.conformance.raw import (
    EXT,
    INVALID,
    PAYLOAD,
    REJECTED,
    REQUEST_CHANNEL,
    REQUEST_FNF,
    REQUEST_RESPONSE,
    REQUEST_STREAM,
    SETUP,
    UNSUPPORTED_SETUP,
    F,
    I,
    N,
    frame,
    keepalive,
    payload,
    resume,
    u32,
    u64,
)
from tests.conformance.rsocket_1_0.test_malformed import AT_A_CLIENT as RS10_AT_A_CLIENT
from tests.conformance.scenes import (
    CONN_ERR,
    IGNORE,
    Row,
    connected,
    first,
    fresh,
    react,
    row,
    sends,
    stream_err,
    streaming,
)

UNKNOWN = entry(0x55)
SKIPPED = entry(0x55, b"whatever", ignore=True)
TEXT = entry("x.app", b"text", ignore=True)
CUT = b"\x81\x40\x00\x00\x09" + bytes(8)
SHORT = entry(KEEPALIVE_ID, bytes(7), ignore=True)
ORIGIN = bytes(16)
NO_TAGS = b"\x80\x00\x80\x00"
TOKEN = b"\x00\x05token"
ACCEPTED = keepalive(b"up?", respond=False)
CHECK = keepalive(b"up?")

# fmt: off


AT_A_CLIENT = [
    row("RSX-OK-03 RSX-SETUP-03", "SETUP_OK that nobody asked for", fresh, setup_ok(), then=IGNORE),
    row("RSX-OK-03", "SETUP_OK that is late", connected, setup_ok(), then=IGNORE),
    row("RSX-OTH-02 RSX-GAP-11", "KEEPALIVE", connected, keepalive(b"data"), then=sends(keepalive(b"data", respond=False))),
    row("RSX-KA-05", "a beat", connected, beat(b"data"), then=sends(beat(b"data", respond=False))),
    row("RSX-GAP-11", "RESUME", connected, resume((2, 0)), then=IGNORE),
    row("RSX-GAP-11", "RESUME_OK", connected, frame(0x0E, 0, 0, u64(0)), then=IGNORE),
    row("RSX-TLV-07", "an EXT with an unknown entry", connected, ext_block(UNKNOWN), then=CONN_ERR),
    row("RSX-TLV-07", "an EXT with an unknown entry, with I", connected, ext_block(UNKNOWN, flags=I), then=IGNORE),
    row("RSX-TLV-08", "an EXT with a malformed block", connected, ext_block(CUT), then=CONN_ERR),
    row("RSX-TLV-07", "a request with an unknown entry", connected, request(REQUEST_RESPONSE, 2, UNKNOWN), then=stream_err(2, REJECTED)),
    row("RSX-TLV-08", "a request with a malformed block", connected, request(REQUEST_RESPONSE, 2, CUT), then=stream_err(2, INVALID)),
    row("RSX-BRK-03", "an address of no kind", connected, request(REQUEST_RESPONSE, 2, entry(BROKER_ID, ORIGIN + NO_TAGS)), then=stream_err(2, REJECTED)),
    row("RSX-EXT-03", "an EXT of another type", connected, frame(EXT, 0, 0, u32(7)), then=CONN_ERR),
    row("RSX-LEASE-04", "permits where no leases were agreed", connected, permits(1000, 1), then=IGNORE),
    row("RSX-PAY-02", "an item without N and C", streaming, payload(1, b"x", 0), then=IGNORE),
    row("RSX-MIME-06", "a MIME type in a later fragment cancels a stream of ours", streaming, payload(1, b"x", N | F), payload(1, b"\x85y", N | D), then=sends(frame(0x09, 0, 1))),
]
# fmt: on

MARKED_OTHERWISE = (SETUP, REQUEST_RESPONSE, REQUEST_FNF, REQUEST_STREAM, REQUEST_CHANNEL, PAYLOAD)


def named(one: Row | Row) -> str:
    return f"{one.scene.__name__}-{one.what}"


def marked(rows: list[Row]) -> list[object]:
    return [pytest.param(one, id=named(one), marks=pytest.mark.clause(*one.clauses.split())) for one in rows]


def is_drawn_anew(data: bytes) -> bool:
    """Return whether a frame of 1.0 has flags that are others here: X for I, D and Y for spare ones."""
    return data[4] >> 2 in MARKED_OTHERWISE and int.from_bytes(data[4:6], "big") & (X | D | Y) != 0


SAME_AS_1_0 = [one for one in RS10_AT_A_CLIENT if not any(map(is_drawn_anew, one.frames))]


@pytest.mark.parametrize("one", marked(AT_A_CLIENT))
async def test_a_client_takes_it_as_the_clause_says(one: Row, autojump_clock: object) -> None:
    await react(RSX, one)


@pytest.mark.clause("RSX-GEN-02", "RSX-GAP-01", "RSX-OTH-01")
@pytest.mark.parametrize("one", SAME_AS_1_0, ids=named)
async def test_everything_else_is_as_in_1_0(one: Row, autojump_clock: object) -> None:
    await react(RSX, one)


@pytest.mark.clause("RSX-TLV-07", "RSX-GAP-18")
async def test_the_refusal_names_the_extension(autojump_clock: object) -> None:
    for refused, name in ((UNKNOWN, b"0x55"), (entry("x.app"), b"x.app"), (entry(RESUME_ID, TOKEN), b"resume")):
        async with first(RSX) as (peer, _):
            await peer.send(setup(refused))
            assert name in await peer.expect_failure(UNSUPPORTED_SETUP)


def test_most_rows_of_1_0_hold() -> None:
    assert len(SAME_AS_1_0) > 40
