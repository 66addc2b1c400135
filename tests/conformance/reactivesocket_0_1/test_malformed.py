"""Malformed and unexpected frames of ReactiveSocket 0.1, each with its exact reaction."""

from __future__ import annotations

import pytest

from tests.conformance.old_frames import INVALID_SETUP, REJECTED_SETUP, RS01, UNSUPPORTED_SETUP
from tests.conformance.raw import APPLICATION_ERROR, CANCELED, CONNECTION_ERROR, INVALID, u32
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

W = RS01
REFUSED = setup_err(INVALID_SETUP)
SETUP_FIELDS = bytes.fromhex("0000 0001 00004e20 00015f90")

# fmt: off
FIRST_FRAMES = [
    row("RS01-CON-02", "a first REQUEST_RESPONSE", first, W.ask(2, b"x"), then=REFUSED),
    row("RS01-CON-02", "a first REQUEST_FNF", first, W.forget(2, b"x"), then=REFUSED),
    row("RS01-CON-02", "a first REQUEST_STREAM", first, W.stream(2, 1), then=REFUSED),
    row("RS01-CON-02", "a first REQUEST_SUB", first, W.sub(2, 1), then=REFUSED),
    row("RS01-CON-02", "a first REQUEST_CHANNEL", first, W.channel(2, 1), then=REFUSED),
    row("RS01-CON-02", "a first KEEPALIVE", first, W.keepalive(b"x"), then=REFUSED),
    row("RS01-CON-02", "a first LEASE", first, W.lease(1, 1), then=REFUSED),
    row("RS01-CON-02", "a first METADATA_PUSH", first, W.push(b"x"), then=REFUSED),
    row("RS01-CON-02", "a first METADATA_PUSH without metadata", first, W.frame("METADATA_PUSH"), then=REFUSED),
    row("RS01-CON-02", "a first ERROR", first, W.error(0, CONNECTION_ERROR), then=REFUSED),
    row("RS01-CON-02", "a first RESPONSE", first, W.item(2, b"x"), then=REFUSED),
    row("RS01-CON-02", "a first CANCEL", first, W.cancel(2), then=REFUSED),
    row("RS01-CON-02", "a first REQUEST_N", first, W.request_n(2, 1), then=REFUSED),
    row("RS01-CON-02", "a first EXT", first, W.ext(1), then=REFUSED),
    row("RS01-CON-02 RS01-SETUP-01", "SETUP on a stream", first, W.setup(stream_id=2), then=REFUSED),
    row("RS01-CON-02", "an unknown first type", first, W.frame(0x0E), then=REFUSED),
    row("RS01-CON-02", "an unknown first type with I", first, W.frame(0x0E, "I"), then=REFUSED),
    row("RS01-CON-02", "a first EXT with I", first, W.ext(1, flags="I"), then=REFUSED),
    row("RS01-CON-02", "type 0 first", first, W.frame(0), then=REFUSED),
    row("RS01-CON-02", "SETUP without its fields", first, W.frame("SETUP", "", 0, SETUP_FIELDS[:11]), then=REFUSED),
    row("RS01-CON-02", "SETUP without MIME types", first, W.frame("SETUP", "", 0, SETUP_FIELDS), then=REFUSED),
    row("RS01-CON-02", "SETUP with half a MIME type", first,
        W.frame("SETUP", "", 0, SETUP_FIELDS + b"\x05text"), then=REFUSED),
    row("RS01-CON-02", "SETUP with one MIME type", first,
        W.frame("SETUP", "", 0, SETUP_FIELDS + b"\x01a"), then=REFUSED),
    row("RS01-MD-08", "SETUP with a metadata length beyond its end", first,
        W.frame("SETUP", "M", 0, SETUP_FIELDS + b"\0\0" + u32(9) + b"meta"), then=REFUSED),
    row("RS01-MD-08 RS01-MD-07", "SETUP with a metadata length of 3", first,
        W.frame("SETUP", "M", 0, SETUP_FIELDS + b"\0\0" + u32(3)), then=REFUSED),
    row("RS01-MD-08", "SETUP with M and nothing", first,
        W.frame("SETUP", "M", 0, SETUP_FIELDS + b"\0\0"), then=REFUSED),
    row("RS01-SETUP-10 RS01-CON-17", "version 1.0", first, W.setup(version=(1, 0)), then=REFUSED),
    row("RS01-SETUP-10", "version 0.3", first, W.setup(version=(0, 3)), then=REFUSED),
    row("RS01-SETUP-10", "version 65535.65535", first, W.setup(version=(65535, 65535)), then=REFUSED),
    row("RS01-SETUP-10 DET-05", "version 0.0", first, W.setup(version=(0, 0)), then=IGNORE),
    row("RS01-SETUP-10 DET-05", "version 0.2", first, W.setup(version=(0, 2)), then=IGNORE),
    row("RS01-CON-08", "leases at a server without a policy", first,
        W.setup("L"), then=setup_err(UNSUPPORTED_SETUP)),
    row("RS01-SETUP-05", "MIME types that are nonsense", first,
        W.setup(metadata_mime=b"\xff\x80", data_mime=b"\0\1"), then=IGNORE),
    row("RS01-SETUP-09", "an interval of 0", first, W.setup(keepalive=0), then=IGNORE),
    row("RS01-SETUP-09", "a lifetime of 0", first, W.setup(lifetime=0), then=IGNORE),
    row("RS01-SETUP-09", "the longest times", first,
        W.setup(keepalive=2**32 - 1, lifetime=2**32 - 1), then=IGNORE),
    row("RS01-SETUP-11", "SETUP with I", first, W.setup("I"), then=IGNORE),
    row("RS01-HDR-08", "SETUP with flags without a name", first,
        W.frame("SETUP", 0x0FFF, 0, SETUP_FIELDS + b"\0\0"), then=IGNORE),
]

AT_A_SERVER = [
    # Not understood
    row("RS01-IGN-01 RS01-IGN-02", "an unknown type", served, W.frame(0x0E), then=CONN_ERR),
    row("RS01-IGN-02", "type 0", served, W.frame(0), then=CONN_ERR),
    row("RS01-IGN-02", "an unknown type on a stream", ticking, W.frame(0x22, "", 2), then=CONN_ERR),
    row("RS01-IGN-03", "an unknown type with I", served, W.frame(0x0E, "I"), then=IGNORE),
    row("RS01-IGN-03", "an unknown type with I on a stream", ticking, W.frame(0xFFFE, "I", 2, b"body"), then=IGNORE),
    row("RS01-IGN-02", "an EXT that nobody knows", served, W.ext(7, b"body"), then=CONN_ERR),
    row("RS01-IGN-03", "an EXT that nobody knows, with I", served, W.ext(7, b"body", "I"), then=IGNORE),
    row("RS01-IGN-02", "REQUEST_N without its number", ticking, W.frame("REQUEST_N", "", 2, b"\0\0\1"), then=CONN_ERR),
    row("RS01-IGN-03", "REQUEST_N without its number, with I", ticking,
        W.frame("REQUEST_N", "I", 2, b"\0\0\1"), then=IGNORE),
    row("RS01-IGN-02", "REQUEST_STREAM without its number", served,
        W.frame("REQUEST_STREAM", "", 2, b"\0\0"), then=CONN_ERR),
    row("RS01-IGN-02", "REQUEST_CHANNEL with N and no number", served,
        W.frame("REQUEST_CHANNEL", "N", 2, b"\0"), then=CONN_ERR),
    row("RS01-IGN-02", "ERROR without its code", ticking, W.frame("ERROR", "", 2, b"\0\0\2"), then=CONN_ERR),
    row("RS01-IGN-02", "LEASE without its fields", served, W.frame("LEASE", "", 0, bytes(7)), then=CONN_ERR),
    # Metadata that does not fit
    row("RS01-MD-05 RS01-MD-06", "a request whose metadata goes beyond it", served,
        W.frame("REQUEST_RESPONSE", "M", 2, u32(9) + b"meta"), then=IGNORE),
    row("RS01-MD-05", "a stream whose metadata goes beyond it", served,
        W.frame("REQUEST_STREAM", "M", 2, u32(1) + u32(5)), then=IGNORE),
    row("RS01-MD-06", "a metadata length that only the number's field would make fit", served,
        W.frame("REQUEST_STREAM", "M", 2, u32(1) + u32(8)), then=IGNORE),
    row("RS01-MD-05", "half a metadata length", served, W.frame("REQUEST_FNF", "M", 2, b"\0\0\0"), then=IGNORE),
    row("RS01-MD-05", "the longest metadata length", served,
        W.frame("REQUEST_FNF", "M", 2, b"\x7f\xff\xff\xff"), then=IGNORE),
    row("RS01-MD-07", "a metadata length of 0", served, W.frame("REQUEST_FNF", "M", 2, u32(0)), then=IGNORE),
    row("RS01-MD-07", "a metadata length of 3", served, W.frame("REQUEST_RESPONSE", "M", 2, u32(3)), then=IGNORE),
    row("RS01-MD-09", "CANCEL with metadata beyond it", waiting, W.frame("CANCEL", "M", 2, u32(5)), then=IGNORE),
    row("RS01-MD-07", "a channel's item with a metadata length of 1", talking,
        W.frame("REQUEST_CHANNEL", "M", 2, u32(1)), then=IGNORE),
    row("ALL-RCT-06", "the reserved bit of a metadata length", served,
        W.frame("REQUEST_RESPONSE", "M", 2, b"\x80\0\0\4hi"), then=sends(W.item(2, b"hi", "C", b""))),
    row("RS01-MP-03", "METADATA_PUSH without M", served, W.frame("METADATA_PUSH", "", 0, W.sized(b"x")), then=IGNORE),
    row("RS01-UNX-13 RS01-MP-01", "METADATA_PUSH on a stream", ticking, W.push(b"x", 2), then=IGNORE),
    row("RS01-UNX-13", "METADATA_PUSH on no stream", served, W.push(b"x", 4), then=IGNORE),
    # In the wrong place
    row("RS01-UNX-08 ALL-RCT-07", "REQUEST_RESPONSE on stream 0", served, W.ask(0, b"x"), then=IGNORE),
    row("RS01-UNX-08", "REQUEST_CHANNEL on stream 0", served, W.channel(0, 1, b"x"), then=IGNORE),
    row("ALL-RCT-12 RS01-SID-04", "a request with an odd id", past, W.ask(3, b"x"), then=IGNORE),
    row("ALL-RCT-12", "a subscription with an odd id", past, W.sub(1, 5), then=IGNORE),
    row("ALL-RCT-12", "fire-and-forget with the largest odd id", past, W.forget(2**32 - 1), then=IGNORE),
    row("RS01-SID-06", "a request with the largest id", served, W.ask(2**32 - 2, b"x"),
        then=sends(W.item(2**32 - 2, b"x", "C"))),
    row("RS01-KA-01", "KEEPALIVE on a stream", ticking, W.frame("KEEPALIVE", "R", 2), then=IGNORE),
    row("RS01-KA-08", "KEEPALIVE with M", served, W.frame("KEEPALIVE", "MR", 0, b"x"),
        then=sends(W.keepalive(b"x", ""))),
    row("RS01-UNX-01", "KEEPALIVE that nobody asked for", served, W.keepalive(b"x", ""), then=IGNORE),
    row("RS01-LEASE-01", "LEASE on a stream", ticking, W.frame("LEASE", "", 2, bytes(8)), then=IGNORE),
    row("RS01-UNX-01", "LEASE that nobody agreed to", served, W.lease(0, 0), then=IGNORE),
    row("RS01-UNX-14", "a second SETUP", ticking, W.setup(), then=IGNORE),
    row("RS01-UNX-14", "a second SETUP of another version", served, W.setup(version=(7, 7)), then=IGNORE),
    row("RS01-UNX-14", "SETUP on a stream that is open", ticking, W.setup(stream_id=2), then=IGNORE),
    row("RS01-UNX-15", "INVALID_SETUP", ticking, W.error(0, 0x1, b"no"), then=IGNORE),
    row("RS01-UNX-15", "UNSUPPORTED_SETUP", ticking, W.error(0, 0x2), then=IGNORE),
    row("RS01-UNX-15", "REJECTED_SETUP", ticking, W.error(0, 0x3), then=IGNORE),
    row("RS01-UNX-15 RS01-ERR-08", "a set-up error without a name", ticking, W.error(0, 0xFF), then=IGNORE),
    row("RS01-UNX-18", "CONNECTION_ERROR", ticking, W.error(0, CONNECTION_ERROR, b"bye"), then=CLOSE),
    row("RS01-ERR-06 RS01-ERR-03", "a stream's code on stream 0", ticking, W.error(0, APPLICATION_ERROR), then=CLOSE),
    row("RS01-ERR-08", "what later was CONNECTION_CLOSE", ticking, W.error(0, 0x102), then=CLOSE),
    row("RS01-UNX-09", "a stream's id asked for again", ticking, W.stream(2, 5), then=IGNORE),
    row("RS01-UNX-09", "a stream's id asked for otherwise", ticking, W.ask(2, b"x"), then=IGNORE),
    row("RS01-UNX-09", "a stream's id for a channel", ticking, W.channel(2, 5), then=IGNORE),
    row("RS01-UNX-09", "a request's id asked for again", waiting, W.ask(2, b"x"), then=IGNORE),
    row("RS01-UNX-09", "a request's id, with F", waiting, W.ask(2, b"x", "F"), then=IGNORE),
    row("RS01-UNX-09", "a channel's id for a stream", talking, W.stream(2, 5), then=IGNORE),
    row("RS01-UNX-10", "CANCEL of nothing", served, W.cancel(4), then=IGNORE),
    row("RS01-UNX-10", "CANCEL on stream 0", ticking, W.cancel(0), then=IGNORE),
    row("RS01-UNX-10 ALL-RCT-14", "CANCEL of what is over", past, W.cancel(2), then=IGNORE),
    row("RS01-UNX-11", "ERROR on nothing", served, W.error(4, INVALID), then=IGNORE),
    row("RS01-UNX-11 ALL-RCT-14", "ERROR on what is over", past, W.error(2, INVALID), then=IGNORE),
    row("RS01-UNX-12", "RESPONSE to nothing", served, W.item(4, b"x"), then=IGNORE),
    row("RS01-UNX-12", "RESPONSE on stream 0", served, W.item(0, b"x", "C"), then=IGNORE),
    row("RS01-UNX-12", "RESPONSE to the peer's own stream", ticking, W.item(2, b"x", "C"), then=IGNORE),
    row("RS01-UNX-12", "RESPONSE to the peer's own channel", talking, W.item(2, b"x"), then=IGNORE),
    row("RS01-UNX-08", "REQUEST_N for nothing", served, W.request_n(4, 1), then=IGNORE),
    row("RS01-UNX-08", "REQUEST_N for a request/response", waiting, W.request_n(2, 1), then=IGNORE),
    row("ALL-RCT-08", "REQUEST_N of 0", ticking, W.request_n(2, 0), then=IGNORE),
    row("RS01-STR-02", "a stream with 0 items", served, W.stream(2, 0), W.request_n(2, 1),
        then=sends(W.item(2, b"tick 0"))),
    row("RS01-STR-02", "a subscription with 0 items", served, W.sub(2, 0), W.request_n(2, 1),
        then=sends(W.item(2, b"tick 0"))),
    row("RS01-HDR-08", "a request with flags without a name", served,
        W.frame("REQUEST_RESPONSE", 0x1FFF, 2, b"x"), then=sends(W.item(2, b"x", "C"))),
    # Fragments
    row("RS01-FRAG-04", "RESPONSE amid a request", halfway, W.item(2, b"two"), then=IGNORE),
    row("RS01-FRAG-04", "another request amid a request", halfway, W.stream(2, 1, b"two"), then=IGNORE),
    row("RS01-FRAG-04", "METADATA_PUSH amid a request", halfway, W.push(b"x", 2), then=IGNORE),
    row("RS01-FRAG-04", "KEEPALIVE on the stream amid a request", halfway, W.frame("KEEPALIVE", "", 2), then=IGNORE),
    row("RS01-FRAG-04", "CANCEL amid a request", halfway, W.cancel(2), W.ask(2, b"new"),
        then=sends(W.item(2, b"new", "C"))),
    row("RS01-FRAG-04", "ERROR amid a request", halfway, W.error(2, CANCELED), W.ask(2, b"new"),
        then=sends(W.item(2, b"new", "C"))),
    row("RS01-FRAG-03", "metadata behind data", halfway, W.ask(2, b"two", "F", b"meta"),
        then=stream_err(2, INVALID)),
    row("RS01-FRAG-03 ALL-RCT-14", "what follows a bad fragment", halfway, W.ask(2, b"two", "F", b"meta"),
        W.ask(2, b"three", "F"), W.ask(2, b"four"), then=stream_err(2, INVALID)),
    row("ALL-RCT-10", "two channel items more than were granted", talking,
        *(W.channel(2, None, b"%d" % n) for n in range(6)), then=stream_err(2, INVALID)),
    row("ALL-RCT-10 ALL-RCT-14", "and more still", talking, *(W.channel(2, None, b"%d" % n) for n in range(9)),
        W.channel(2, None, b"", "C"), then=stream_err(2, INVALID)),
]

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


@pytest.mark.parametrize("row", parametrized(FIRST_FRAMES))
async def test_a_first_frame_that_is_no_good_setup_is_refused(autojump_clock: object, row: Row) -> None:
    await react(RS01, row)


@pytest.mark.parametrize("row", parametrized(AT_A_SERVER))
async def test_a_server_reacts_as_its_clause_says(autojump_clock: object, row: Row) -> None:
    await react(RS01, row)


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
