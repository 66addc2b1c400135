"""Malformed and unexpected frames of ReactiveSocket 0.0, each with its exact reaction."""

from __future__ import annotations

import pytest

from tests.conformance.old_frames import INVALID_SETUP, REJECTED_SETUP, RS00, UNSUPPORTED_SETUP
from tests.conformance.raw import u32, u64
from tests.conformance.scenes import (
    CLOSE,
    CONN_ERR,
    IGNORE,
    Row,
    asking,
    connected,
    first,
    fresh,
    past,
    react,
    row,
    sends,
    served,
    setup_err,
    streaming,
    ticking,
    waiting,
)

W = RS00
REFUSED = setup_err(INVALID_SETUP)
TOP = 2**64 - 1

# fmt: off
FIRST_FRAMES = [
    row("RS00-CON-10", "a first REQUEST_RESPONSE", first, W.ask(2, b"x"), then=REFUSED),
    row("RS00-CON-10", "a first REQUEST_FNF", first, W.forget(2, b"x"), then=REFUSED),
    row("RS00-CON-10", "a first REQUEST_STREAM", first, W.stream(2, 1), then=REFUSED),
    row("RS00-CON-10", "a first REQUEST_SUB", first, W.sub(2, 1), then=REFUSED),
    row("RS00-CON-10", "a first LEASE", first, W.lease(1, 1), then=REFUSED),
    row("RS00-CON-10", "a first METADATA_PUSH", first, W.push(b"x"), then=REFUSED),
    row("RS00-CON-10", "a first METADATA_PUSH without metadata", first, W.frame("METADATA_PUSH"), then=REFUSED),
    row("RS00-CON-10", "a first SETUP_ERROR", first, W.refusal(INVALID_SETUP), then=REFUSED),
    row("RS00-CON-10", "a first ERROR", first, W.error(2), then=REFUSED),
    row("RS00-CON-10", "a first ERROR on stream 0", first, W.error(0), then=REFUSED),
    row("RS00-CON-10", "a first RESPONSE", first, W.item(2, b"x"), then=REFUSED),
    row("RS00-CON-10", "a first CANCEL", first, W.cancel(2), then=REFUSED),
    row("RS00-CON-10", "a first REQUEST_N", first, W.request_n(2, 1), then=REFUSED),
    row("RS00-CON-10", "a first EXT", first, W.ext(1), then=REFUSED),
    row("RS00-CON-10 ALL-RCT-04", "a first EXT with I", first, W.ext(1, flags="I"), then=REFUSED),
    row("RS00-SETUP-01 RS00-CON-10", "SETUP on stream 1", first, W.setup(stream_id=1), then=REFUSED),
    row("RS00-SETUP-01", "SETUP on stream 2^63", first, W.setup(stream_id=2**63), then=REFUSED),
    row("RS00-HDR-10", "an unknown first type", first, W.frame(0x04), then=REFUSED),
    row("ALL-RCT-04", "an unknown first type with I", first, W.frame(0x04, "I"), then=REFUSED),
    row("RS00-HDR-10", "type 0 first", first, W.frame(0), then=REFUSED),
    row("RS00-HDR-12 RS00-SERR-04", "SETUP of version 1", first, W.setup(version=(1, 0)), then=REFUSED),
    row("RS00-HDR-12", "SETUP of version 255", first, W.setup(version=(255, 0)), then=REFUSED),
    row("RS00-HDR-12", "SETUP of version 1 with I", first, W.setup("I", version=(1, 0)), then=REFUSED),
    row("RS00-HDR-12", "another first frame of version 1", first, W.frame("CANCEL", "", 2, version=1), then=REFUSED),
    row("RS00-HDR-10", "SETUP without MIME types", first, W.frame("SETUP"), then=REFUSED),
    row("RS00-HDR-10", "SETUP with half a MIME type", first, W.frame("SETUP", "", 0, b"\x05text"), then=REFUSED),
    row("RS00-HDR-10", "SETUP with one MIME type", first, W.frame("SETUP", "", 0, b"\x01a"), then=REFUSED),
    row("RS00-HDR-10", "SETUP with half a second MIME type", first,
        W.frame("SETUP", "", 0, b"\x01a\x02b"), then=REFUSED),
    row("RS00-MD-08", "SETUP with a metadata length beyond its end", first,
        W.frame("SETUP", "M", 0, b"\0\0" + u32(9) + b"meta"), then=REFUSED),
    row("RS00-MD-08", "SETUP with a metadata length of 3", first,
        W.frame("SETUP", "M", 0, b"\0\0" + u32(3)), then=REFUSED),
    row("RS00-MD-08", "SETUP with M and nothing", first, W.frame("SETUP", "M", 0, b"\0\0"), then=REFUSED),
    row("RS00-SERR-04 RS00-CON-07", "leases at a server without a policy", first,
        W.setup("L"), then=setup_err(UNSUPPORTED_SETUP)),
    row("RS00-HDR-11", "SETUP with flags without a name", first, W.frame("SETUP", 0x1F, 0, b"\0\0"), then=IGNORE),
    row("RS00-HDR-11", "SETUP with I", first, W.setup("I"), then=IGNORE),
    row("RS00-SETUP-05", "MIME types that are nonsense", first,
        W.setup(metadata_mime=b"\xff\x80", data_mime=b"\0\1"), then=IGNORE),
    row("RS00-SETUP-04", "MIME types as long as they can be", first,
        W.setup(metadata_mime=b"m" * 255, data_mime=b"d" * 255), then=IGNORE),
]

AT_A_SERVER = [
    # Not understood
    row("RS00-HDR-10", "an unknown type", served, W.frame(0x04), then=CONN_ERR),
    row("RS00-HDR-10", "a channel of 0.1", served, W.frame(0x08, "", 2, b"x"), then=CONN_ERR),
    row("RS00-HDR-10", "type 0", served, W.frame(0), then=CONN_ERR),
    row("RS00-HDR-10", "an unknown type on a stream", ticking, W.frame(0x22, "", 2), then=CONN_ERR),
    row("RS00-HDR-09", "an unknown type with I", served, W.frame(0x04, "I"), then=IGNORE),
    row("RS00-HDR-09", "an unknown type with I on a stream", ticking, W.frame(0xFFFE, "I", 2, b"x"), then=IGNORE),
    row("RS00-HDR-12", "CANCEL of version 1", waiting, W.frame("CANCEL", "", 2, version=1), then=CONN_ERR),
    row("RS00-HDR-12", "CANCEL of version 1 with I", waiting, W.frame("CANCEL", "I", 2, version=1), then=IGNORE),
    row("RS00-EXT-03", "an EXT that nobody knows", served, W.ext(7, b"body"), then=CONN_ERR),
    row("RS00-EXT-03", "an EXT that nobody knows, with I", served, W.ext(7, b"body", "I"), then=IGNORE),
    row("RS00-EXT-02 RS00-EXT-03", "the smallest EXT, with I", ticking, W.ext(TOP & 0xFFFFFFFF, b"", "I"), then=IGNORE),
    row("RS00-EXT-03", "EXT with M and no metadata, with I", served, W.ext(7, b"", "IM"), then=IGNORE),
    row("RS00-HDR-10", "REQUEST_N with a number of 32 bits", ticking, W.frame("REQUEST_N", "", 2, u32(1)), then=CONN_ERR),
    row("RS00-HDR-09", "the same with I", ticking, W.frame("REQUEST_N", "I", 2, u32(1)), then=IGNORE),
    row("RS00-HDR-10", "REQUEST_STREAM with half a number", served,
        W.frame("REQUEST_STREAM", "", 2, bytes(7)), then=CONN_ERR),
    row("RS00-HDR-10", "LEASE without its number", served, W.frame("LEASE", "", 0, u64(1)), then=CONN_ERR),
    row("RS00-HDR-10", "SETUP_ERROR without its code", served, W.frame("SETUP_ERROR", "", 0, b"\0\0\1"), then=CONN_ERR),
    row("RS00-HDR-13", "a frame without a whole header", served, W.cancel(2)[:11], then=CONN_ERR),
    row("RS00-HDR-13", "a frame of eight bytes", served, W.cancel(2)[:8], then=CONN_ERR),
    row("RS00-HDR-13", "a frame of four bytes", served, W.cancel(2)[:4], then=CONN_ERR),
    row("RS00-HDR-13", "EXT without its type", served, W.ext(1, b"", "I")[:7], then=CONN_ERR),
    row("RS00-HDR-13", "an empty frame", served, b"", then=CONN_ERR),
    # Metadata that does not fit
    row("RS00-MD-08", "a request whose metadata goes beyond it", served,
        W.frame("REQUEST_RESPONSE", "M", 2, u32(9) + b"meta"), then=IGNORE),
    row("RS00-MD-08", "a stream whose metadata goes beyond it", served,
        W.frame("REQUEST_STREAM", "M", 2, u64(1) + u32(5)), then=IGNORE),
    row("RS00-MD-08", "half a metadata header", served, W.frame("REQUEST_FNF", "M", 2, b"\0\0\0"), then=IGNORE),
    row("RS00-MD-08", "the longest metadata length", served,
        W.frame("REQUEST_FNF", "M", 2, b"\0\xff\xff\xff"), then=IGNORE),
    row("RS00-MD-08", "a metadata length of 0", served, W.frame("REQUEST_FNF", "M", 2, u32(0)), then=IGNORE),
    row("RS00-MD-08", "a metadata length of 3, whatever its type", served,
        W.frame("REQUEST_RESPONSE", "M", 2, b"\xff\0\0\3"), then=IGNORE),
    row("RS00-MD-09 RS00-MD-08", "CANCEL with metadata beyond it", waiting,
        W.frame("CANCEL", "M", 2, u32(5)), then=IGNORE),
    row("RS00-MD-09 RS00-MD-08", "REQUEST_N with metadata beyond it", ticking,
        W.frame("REQUEST_N", "M", 2, u64(5) + u32(5)), then=IGNORE),
    row("RS00-MP-05", "METADATA_PUSH without M", served, W.frame("METADATA_PUSH", "", 0, W.sized(b"x")), then=IGNORE),
    row("RS00-MP-05", "METADATA_PUSH without M on a stream", ticking,
        W.frame("METADATA_PUSH", "", 2, W.sized(b"x")), then=IGNORE),
    row("RS00-MP-04", "METADATA_PUSH on no stream", served, W.push(b"x", 4), then=IGNORE),
    row("RS00-MP-04", "METADATA_PUSH on what is over", past, W.push(b"x", 2), then=IGNORE),
    row("RS00-MP-02 RS00-UNX-01", "METADATA_PUSH on a stream", ticking, W.push(b"x", 2), then=IGNORE),
    row("RS00-MP-02", "METADATA_PUSH on a request/response", waiting, W.push(b"x", 2), then=IGNORE),
    # In the wrong place
    row("RS00-UNX-01 ALL-RCT-07", "REQUEST_RESPONSE on stream 0", served, W.ask(0, b"x"), then=IGNORE),
    row("RS00-UNX-01", "REQUEST_SUB on stream 0", served, W.sub(0, 1, b"x"), then=IGNORE),
    row("RS00-SID-04", "a request with an odd id", served, W.ask(3, b"x"), then=sends(W.item(3, b"x", "C"))),
    row("RS00-SID-01", "a request with the largest id", served, W.ask(TOP, b"x"), then=sends(W.item(TOP, b"x", "C"))),
    row("RS00-LEASE-01", "LEASE on a stream", ticking, W.frame("LEASE", "", 2, bytes(16)), then=IGNORE),
    row("RS00-UNX-01", "LEASE that nobody agreed to", served, W.lease(0, 0), then=IGNORE),
    row("RS00-CON-11", "a second SETUP", ticking, W.setup(), then=IGNORE),
    row("RS00-CON-11", "a second SETUP of another version", served, W.setup(version=(7, 0)), then=IGNORE),
    row("RS00-CON-11", "SETUP on a stream that is open", ticking, W.setup(stream_id=2), then=IGNORE),
    row("RS00-CON-11", "INVALID_SETUP", ticking, W.refusal(INVALID_SETUP), then=IGNORE),
    row("RS00-CON-11", "UNSUPPORTED_SETUP", ticking, W.refusal(UNSUPPORTED_SETUP), then=IGNORE),
    row("RS00-CON-11", "REJECTED_SETUP", ticking, W.refusal(REJECTED_SETUP), then=IGNORE),
    row("RS00-CON-11", "SETUP_ERROR with a reserved code", ticking, W.refusal(0xFFFF), then=IGNORE),
    row("RS00-CON-11", "SETUP_ERROR with a code of later drafts", ticking, W.refusal(0x101), then=IGNORE),
    row("RS00-CON-11", "SETUP_ERROR with 0x102", ticking, W.refusal(0x102), then=IGNORE),
    row("RS00-SERR-01 ALL-RCT-07", "SETUP_ERROR on a stream", ticking,
        W.refusal(INVALID_SETUP, stream_id=2), then=IGNORE),
    row("ALL-RCT-07", "ERROR on stream 0", ticking, W.error(0, text=b"no"), then=IGNORE),
    row("RS00-ERR-02", "ERROR on the client's own stream", ticking, W.error(2), then=IGNORE),
    row("RS00-UNX-01", "a stream's id asked for again", ticking, W.stream(2, 5), then=IGNORE),
    row("RS00-UNX-01", "a stream's id asked for otherwise", ticking, W.ask(2, b"x"), then=IGNORE),
    row("RS00-UNX-01", "a request's id asked for again", waiting, W.ask(2, b"x"), then=IGNORE),
    row("RS00-FRAG-02", "a request's id with what would be F", waiting, W.ask(2, b"x", "F"), then=IGNORE),
    row("RS00-FRAG-02 RS00-HDR-11", "a request with what would be F", served, W.ask(2, b"x", "F"),
        then=sends(W.item(2, b"x", "C"))),
    row("RS00-HDR-11", "a request with flags without a name", served,
        W.frame("REQUEST_RESPONSE", 0x3F, 2, b"x"), then=sends(W.item(2, b"x", "C"))),
    row("RS00-UNX-01", "CANCEL of nothing", served, W.cancel(4), then=IGNORE),
    row("RS00-UNX-01", "CANCEL on stream 0", ticking, W.cancel(0), then=IGNORE),
    row("RS00-UNX-01 ALL-RCT-14", "CANCEL of what is over", past, W.cancel(2), then=IGNORE),
    row("RS00-UNX-01", "ERROR on nothing", served, W.error(4), then=IGNORE),
    row("RS00-UNX-01", "RESPONSE to nothing", served, W.item(4, b"x"), then=IGNORE),
    row("RS00-UNX-01", "RESPONSE on stream 0", served, W.item(0, b"x", "C"), then=IGNORE),
    row("RS00-TYP-02", "RESPONSE to the peer's own stream", ticking, W.item(2, b"x", "C"), then=IGNORE),
    row("RS00-UNX-01", "REQUEST_N for nothing", served, W.request_n(4, 1), then=IGNORE),
    row("RS00-UNX-01", "REQUEST_N for a request/response", waiting, W.request_n(2, 1), then=IGNORE),
    row("ALL-RCT-08", "REQUEST_N of 0", ticking, W.request_n(2, 0), then=IGNORE),
    row("RS00-RQN-03", "a stream with 0 items", served, W.stream(2, 0), W.request_n(2, 1),
        then=sends(W.item(2, b"tick 0"))),
    row("RS00-RQN-03", "a subscription with 0 items", served, W.sub(2, 0), W.request_n(2, 1),
        then=sends(W.item(2, b"tick 0"))),
    row("RS00-RQN-02", "a stream with the largest number", served, W.stream(2, TOP, b"2"),
        then=sends(W.item(2, b"tick 0"), W.item(2, b"tick 1"), W.done(2))),
    row("RS00-RQN-02 ALL-RCT-09", "the largest number twice", served, W.stream(2, TOP, b"1"), W.request_n(2, TOP),
        then=sends(W.item(2, b"tick 0"), W.done(2))),
    row("RS00-RQN-01", "REQUEST_N with metadata", ticking, W.frame("REQUEST_N", "M", 2, u64(1) + W.sized(b"m", 0xA5)),
        then=sends(W.item(2, b"tick 1"))),
    row("RS00-SEQ-05", "fire-and-forget that cannot be read", served, W.frame("REQUEST_FNF", "M", 2), then=IGNORE),
]

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


@pytest.mark.parametrize("row", parametrized(FIRST_FRAMES))
async def test_a_first_frame_that_is_no_good_setup_is_refused(autojump_clock: object, row: Row) -> None:
    await react(RS00, row)


@pytest.mark.parametrize("row", parametrized(AT_A_SERVER))
async def test_a_server_reacts_as_its_clause_says(autojump_clock: object, row: Row) -> None:
    await react(RS00, row)


@pytest.mark.parametrize("row", parametrized(AT_A_CLIENT))
async def test_a_client_reacts_as_its_clause_says(autojump_clock: object, row: Row) -> None:
    await react(RS00, row)
