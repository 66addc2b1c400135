"""The extension draft: each frame that it draws itself, in good and bad order, with its exact reaction."""

from __future__ import annotations

import pytest

from tests.conformance.draft_frames import (
    BROKER_ID,
    KEEPALIVE_ID,
    LEASE_ID,
    RESUME_ID,
    RSX,
    D,
    X,
    Y,
    beat,
    entry,
    ext_block,
    keepalives,
    permits,
    request,
    setup,
    setup_ok,
    strategies,
)
from tests.conformance.raw import (
    EXT,
    INVALID,
    INVALID_SETUP,
    PAYLOAD,
    REJECTED,
    REJECTED_RESUME,
    REQUEST_CHANNEL,
    REQUEST_FNF,
    REQUEST_RESPONSE,
    REQUEST_STREAM,
    SETUP,
    UNSUPPORTED_SETUP,
    C,
    F,
    I,
    M,
    N,
    ask,
    frame,
    keepalive,
    lease,
    payload,
    resume,
    u32,
    u64,
)
from tests.conformance.rsocket_1_0.test_malformed import AT_A_CLIENT as RS10_AT_A_CLIENT
from tests.conformance.rsocket_1_0.test_malformed import AT_A_SERVER as RS10_AT_A_SERVER
from tests.conformance.scenes import (
    CONN_ERR,
    IGNORE,
    Row,
    connected,
    first,
    fresh,
    halfway,
    react,
    row,
    sends,
    served,
    setup_err,
    stream_err,
    streaming,
    ticking,
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
FIRST_FRAMES = [
    row("RSX-SETUP-02 RSX-FLG-01 RSX-GAP-02", "SETUP with nothing but its fields", first, setup(), CHECK, then=sends(ACCEPTED)),
    row("RSX-SETUP-02 RSX-GAP-06", "SETUP with keepalive, metadata and data", first, setup(keepalives(), metadata=b"m", data=b"d"), CHECK, then=sends(ACCEPTED)),
    row("RSX-KA-01", "keepalive that may not be ignored", first, setup(keepalives(ignore=False)), CHECK, then=sends(ACCEPTED)),
    row("RSX-MIME-01 RSX-GAP-08", "MIME types as text", first, setup(data_mime=b"\x03a/b", metadata_mime=b"\x03c/d"), CHECK, then=sends(ACCEPTED)),
    row("RSX-MIME-02", "no metadata MIME type", first, setup(metadata_mime=b"\x00"), CHECK, then=sends(ACCEPTED)),
    row("RSX-MIME-04", "MIME numbers that nobody knows", first, setup(data_mime=b"\xe6", metadata_mime=b"\xe7"), CHECK, then=sends(ACCEPTED)),
    row("RSX-MIME-03", "no data MIME type", first, setup(data_mime=b"\x00"), then=setup_err(INVALID_SETUP)),
    row("RSX-GAP-16", "version 2.1", first, setup(version=(2, 1)), then=setup_err(INVALID_SETUP)),
    row("RSX-SETUP-01", "SETUP on a stream", first, setup(stream_id=1), then=setup_err(INVALID_SETUP)),
    row("RSX-SETUP-02", "SETUP that ends in its version", first, frame(SETUP, 0, 0, b"\x86\x86\x00\x02\x00"), then=setup_err(INVALID_SETUP)),
    row("RSX-SETUP-02 RSX-FLG-05", "SETUP without fields, with X", first, frame(SETUP, X), then=setup_err(INVALID_SETUP)),
    row("RSX-MIME-01", "MIME text that runs past the frame", first, frame(SETUP, 0, 0, b"\x86\x7fa"), then=setup_err(INVALID_SETUP)),
    row("RSX-TLV-06", "an unknown entry that may be ignored", first, setup(SKIPPED, keepalives()), CHECK, then=sends(ACCEPTED)),
    row("RSX-TLV-07 RSX-GAP-18", "an unknown entry", first, setup(keepalives(), UNKNOWN), then=setup_err(UNSUPPORTED_SETUP)),
    row("RSX-TLV-07 RSX-TLV-09", "an application's entry that may not be ignored", first, setup(entry("x.app")), then=setup_err(UNSUPPORTED_SETUP)),
    row("RSX-TLV-09", "an application's entry", first, setup(TEXT), CHECK, then=sends(ACCEPTED)),
    row("RSX-TLV-08 RSX-GAP-03", "X without a block", first, frame(SETUP, X, 0, b"\x86\x86\x00\x02\x00\x00"), then=setup_err(INVALID_SETUP)),
    row("RSX-TLV-08", "a block cut short", first, setup(CUT), then=setup_err(INVALID_SETUP)),
    row("RSX-TLV-08", "keepalive a byte too short", first, setup(SHORT), then=setup_err(INVALID_SETUP)),
    row("RSX-TLV-08", "keepalive with a surplus", first, setup(entry(KEEPALIVE_ID, u32(20_000) + u32(90_000) + b"more", ignore=True)), CHECK, then=sends(ACCEPTED)),
    row("RSX-TLV-08 RSX-GAP-06", "F without a further entry", first, setup(b"\xd5\xc0\x00\x00\x00"), then=setup_err(INVALID_SETUP)),
    row("RSX-TLV-04", "the well-known id 00", first, setup(entry(0x00, ignore=True)), then=setup_err(INVALID_SETUP)),
    row("RSX-TLV-04", "the well-known id 7f", first, setup(entry(0x7F, ignore=True)), then=setup_err(INVALID_SETUP)),
    row("RSX-TLV-04", "a text id without text", first, setup(b"\x00\x40\x00\x00\x00"), then=setup_err(INVALID_SETUP)),
    row("RSX-TLV-05", "the same extension twice", first, setup(keepalives(), keepalives()), then=setup_err(INVALID_SETUP)),
    row("RSX-TLV-03", "the spare bit of an entry", first, setup(entry(KEEPALIVE_ID, bytes(3) + b"\x10" + bytes(3) + b"\x20", ignore=True, spare=0x10)), CHECK, then=sends(ACCEPTED)),
    row("RSX-TLV-10 RSX-TLV-07", "the broker's entry in another form", first, setup(entry(BROKER_ID, nibble=2)), then=setup_err(UNSUPPORTED_SETUP)),
    row("RSX-SETUP-04", "an entry asks for an answer, and SETUP does not", first, setup(keepalives(ack=True)), then=setup_err(INVALID_SETUP)),
    row("RSX-KA-02", "interval 0", first, setup(keepalives(0)), then=setup_err(INVALID_SETUP)),
    row("RSX-KA-02", "lifetime 0", first, setup(keepalives(500, 0)), then=setup_err(INVALID_SETUP)),
    row("RSX-LEASE-01 RSX-TLV-08", "no strategy", first, setup(strategies(), ack=True), then=setup_err(INVALID_SETUP)),
    row("RSX-LEASE-06", "leases without the wish for an answer", first, setup(strategies(0, ack=False)), then=setup_err(INVALID_SETUP)),
    row("RSX-OK-02 RSX-GAP-18", "leases that nobody grants", first, setup(strategies(0), ack=True), then=setup_err(UNSUPPORTED_SETUP)),
    row("RSX-RES-01 RSX-RES-04", "a resumable session or none", first, setup(entry(RESUME_ID, TOKEN, ack=True), ack=True), then=setup_err(UNSUPPORTED_SETUP)),
    row("RSX-RES-02 RSX-RES-08", "a session to go on with", first, setup(entry(RESUME_ID, TOKEN + u64(7), ack=True, nibble=1), ack=True), then=setup_err(REJECTED_RESUME)),
    row("RSX-GAP-11", "RESUME", first, resume((2, 0)), then=setup_err(REJECTED_RESUME)),
    row("RSX-OK-03", "SETUP_OK", first, setup_ok(), then=setup_err(INVALID_SETUP)),
    row("RSX-TLV-07 RS10-CON-02", "a request with an unknown entry", first, request(REQUEST_RESPONSE, 1, UNKNOWN), then=setup_err(INVALID_SETUP)),
]

AT_A_SERVER = [
    row("RSX-REQ-01 RSX-FLG-03 RSX-GAP-04", "a request with an entry", served, request(REQUEST_RESPONSE, 1, TEXT, data=b"x"), then=sends(payload(1, b"x", N | C))),
    row("RSX-TLV-06", "a request with an unknown entry that may be ignored", served, request(REQUEST_RESPONSE, 1, SKIPPED, data=b"x"), then=sends(payload(1, b"x", N | C))),
    row("RSX-TLV-07", "a request with an unknown entry", served, request(REQUEST_RESPONSE, 1, UNKNOWN), then=stream_err(1, REJECTED)),
    row("RSX-TLV-07", "a stream with an unknown entry", served, request(REQUEST_STREAM, 1, UNKNOWN, n=1), then=stream_err(1, REJECTED)),
    row("RSX-TLV-07", "a channel with an unknown entry, and an item", served, request(REQUEST_CHANNEL, 1, UNKNOWN, n=1), payload(1), then=stream_err(1, REJECTED)),
    row("RSX-TLV-07", "a fire-and-forget with an unknown entry", served, request(REQUEST_FNF, 1, UNKNOWN), then=IGNORE),
    row("RSX-TLV-07 ALL-RCT-12", "a request with an unknown entry and an id of ours", served, request(REQUEST_RESPONSE, 2, UNKNOWN), then=IGNORE),
    row("RSX-TLV-07 RS10-UNX-09", "a request with an unknown entry on a stream in use", ticking, request(REQUEST_STREAM, 1, UNKNOWN, n=1), then=IGNORE),
    row("RSX-TLV-08", "a request with a malformed block", served, request(REQUEST_RESPONSE, 1, CUT), then=stream_err(1, INVALID)),
    row("RSX-TLV-08", "a fire-and-forget with a malformed block", served, request(REQUEST_FNF, 1, CUT), then=IGNORE),
    row("RSX-TLV-05", "a request with an extension twice", served, request(REQUEST_RESPONSE, 1, TEXT, TEXT), then=stream_err(1, INVALID)),
    row("RSX-TLV-04", "a request with a reserved id", served, request(REQUEST_RESPONSE, 1, entry(0, ignore=True)), then=stream_err(1, INVALID)),
    row("RSX-TLV-10", "keepalive on a request", served, request(REQUEST_RESPONSE, 1, entry(KEEPALIVE_ID)), then=stream_err(1, REJECTED)),
    row("RSX-TLV-10", "keepalive on a request, to be ignored", served, request(REQUEST_RESPONSE, 1, entry(KEEPALIVE_ID, ignore=True), data=b"x"), then=sends(payload(1, b"x", N | C))),
    row("RSX-FLG-05", "a request with X and a metadata length that does not fit is no frame to ignore", served, frame(REQUEST_RESPONSE, X | M, 1, entry(0x55, ignore=True) + b"\x00\x00\x09"), then=CONN_ERR),
    row("RSX-LEASE-05", "complexity 0", served, request(REQUEST_RESPONSE, 1, entry(LEASE_ID, u32(0))), then=stream_err(1, INVALID)),
    row("RSX-LEASE-05", "complexity where no leases were agreed", served, request(REQUEST_RESPONSE, 1, entry(LEASE_ID, u32(9)), data=b"x"), then=sends(payload(1, b"x", N | C))),
    row("RSX-RES-06", "a resumable stream where no resumption was granted", served, request(REQUEST_RESPONSE, 1, entry(RESUME_ID, nibble=1), data=b"x"), then=sends(payload(1, b"x", N | C))),
    row("RSX-BRK-03", "an address", served, request(REQUEST_RESPONSE, 1, entry(BROKER_ID, ORIGIN + NO_TAGS, nibble=1), data=b"x"), then=sends(payload(1, b"x", N | C))),
    row("RSX-BRK-03", "an encrypted shard's address", served, request(REQUEST_RESPONSE, 1, entry(BROKER_ID, ORIGIN + NO_TAGS, nibble=12), data=b"x"), then=sends(payload(1, b"x", N | C))),
    row("RSX-BRK-03", "an address of no kind", served, request(REQUEST_RESPONSE, 1, entry(BROKER_ID, ORIGIN + NO_TAGS, nibble=8)), then=stream_err(1, REJECTED)),
    row("RSX-BRK-03", "an address of two kinds", served, request(REQUEST_STREAM, 1, entry(BROKER_ID, ORIGIN + NO_TAGS, nibble=3), n=1), then=stream_err(1, REJECTED)),
    row("RSX-BRK-03", "a fire-and-forget's address of no kind", served, request(REQUEST_FNF, 1, entry(BROKER_ID, ORIGIN + NO_TAGS)), then=IGNORE),
    row("RSX-BRK-04 RSX-TLV-08", "an address whose tags are cut short", served, request(REQUEST_RESPONSE, 1, entry(BROKER_ID, ORIGIN + NO_TAGS[:3], nibble=1)), then=stream_err(1, INVALID)),
    row("RSX-OK-03", "SETUP_OK at a server", served, setup_ok(), then=IGNORE),
    row("RSX-OK-03", "SETUP_OK with an entry at a server", served, setup_ok(keepalives()), then=IGNORE),
    row("RSX-OTH-02 RSX-GAP-11", "KEEPALIVE", served, keepalive(b"data"), then=sends(keepalive(b"data", respond=False))),
    row("RSX-GAP-11", "RESUME_OK", served, frame(0x0E, 0, 0, u64(0)), then=IGNORE),
    row("RSX-GAP-11 RSX-LEASE-04", "LEASE where no leases were agreed", served, lease(1000, 1), then=IGNORE),
    row("RSX-LEASE-04", "permits where no leases were agreed", served, permits(1000, 1), then=IGNORE),
    row("RSX-RES-05", "a resume position where no resumption was granted", served, ext_block(entry(RESUME_ID, u64(9))), then=IGNORE),
    row("RSX-KA-04 RSX-KA-05", "a beat", served, beat(b"data"), then=sends(beat(b"data", respond=False))),
    row("RSX-KA-04", "a beat without a length", served, ext_block(entry(KEEPALIVE_ID, nibble=1)), then=sends(beat(respond=False))),
    row("RSX-KA-05", "an answer to no beat", served, beat(respond=False), then=IGNORE),
    row("RSX-EXT-02", "a beat and permits", served, ext_block(entry(KEEPALIVE_ID, b"p", ignore=True, nibble=1), entry(LEASE_ID, b"\x80" + bytes(8))), then=sends(beat(b"p", respond=False))),
    row("RSX-EXT-02", "a beat with metadata", served, ext_block(entry(KEEPALIVE_ID, nibble=1), flags=M, metadata=b"m"), then=sends(beat(respond=False))),
    row("RSX-EXT-02 ALL-RCT-07", "a beat on a stream", served, ext_block(entry(KEEPALIVE_ID, nibble=1), stream_id=1), then=IGNORE),
    row("RSX-EXT-02 RSX-TLV-08", "an EXT of type 1 without an entry", served, ext_block(), then=CONN_ERR),
    row("RSX-EXT-02 RSX-TLV-08", "an EXT of type 1 without an entry, with I", served, ext_block(flags=I), then=IGNORE),
    row("RSX-TLV-07", "an EXT with an unknown entry", served, ext_block(UNKNOWN), then=CONN_ERR),
    row("RSX-TLV-07", "an EXT with an unknown entry, with I", served, ext_block(UNKNOWN, flags=I), then=IGNORE),
    row("RSX-TLV-06", "an EXT with an unknown entry that may be ignored", served, ext_block(SKIPPED), then=IGNORE),
    row("RSX-TLV-08", "an EXT with a malformed block", served, ext_block(CUT), then=CONN_ERR),
    row("RSX-TLV-08", "an EXT with a malformed block, with I", served, ext_block(CUT, flags=I), then=IGNORE),
    row("RSX-TLV-10", "an EXT with the broker's entry in a form that is for others", served, ext_block(entry(BROKER_ID, nibble=3)), then=CONN_ERR),
    row("RSX-EXT-03", "an EXT of another type", served, frame(EXT, 0, 0, u32(7)), then=CONN_ERR),
    row("RSX-EXT-03", "an EXT of another type, with I", served, frame(EXT, I, 0, u32(7)), then=IGNORE),
    row("RSX-PAY-02", "an item without N and C", ticking, payload(1, b"x", 0), then=IGNORE),
    row("RSX-FLG-06", "the spare bit of PAYLOAD", halfway, payload(1, b"two", N | I), then=sends(payload(1, b"one two", N | C))),
    row("RSX-MIME-06", "a data MIME type in a later fragment", halfway, payload(1, b"\x85two", N | D), then=stream_err(1, INVALID)),
    row("RSX-MIME-06", "a metadata MIME type in a later fragment, and the rest", halfway, payload(1, b"\x85two", N | F | Y), payload(1, b"rest"), then=stream_err(1, INVALID)),
    row("RSX-MIME-01 RSX-PAY-01", "a MIME text that runs past an item", ticking, payload(1, b"\x03a", N | D), then=CONN_ERR),
    row("RSX-MIME-05 RSX-REQ-01", "a request with MIME types", served, ask(1, b"\x85\x03c/dx", D | Y), then=sends(payload(1, b"\x85\x03c/dx", N | C | D | Y))),
    row("RSX-MIME-02 RSX-MIME-05", "a request with an empty MIME type", served, ask(1, b"\x00x", D), then=sends(payload(1, b"\x00x", N | C | D))),
]

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


SAME_AS_1_0 = [one for one in RS10_AT_A_SERVER + RS10_AT_A_CLIENT if not any(map(is_drawn_anew, one.frames))]


@pytest.mark.parametrize("one", marked(FIRST_FRAMES))
async def test_a_server_answers_its_first_frame(one: Row, autojump_clock: object) -> None:
    await react(RSX, one)


@pytest.mark.parametrize("one", marked(AT_A_SERVER))
async def test_a_server_takes_it_as_the_clause_says(one: Row, autojump_clock: object) -> None:
    await react(RSX, one)


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
    assert len(SAME_AS_1_0) > 140
