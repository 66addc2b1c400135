"""Malformed and unexpected frames of RSocket 1.0, each with its exact reaction."""

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
    REQUEST_CHANNEL,
    REQUEST_FNF,
    REQUEST_N,
    REQUEST_RESPONSE,
    REQUEST_STREAM,
    RESUME,
    RESUME_OK,
    RS10,
    SETUP,
    UNSUPPORTED_SETUP,
    C,
    F,
    I,
    L,
    M,
    N,
    R,
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
TOP = 0x80000000
GOOD_SETUP = setup()
EMPTY_SETUP_FIELDS = bytes.fromhex("0001 0000 00004e20 00015f90")


# fmt: off
FIRST_FRAMES = [
    row("RS10-CON-02", "a first REQUEST_RESPONSE", first, ask(1, b"x"), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first REQUEST_FNF", first, forget(1, b"x"), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first REQUEST_STREAM", first, stream(1, 1), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first REQUEST_CHANNEL", first, channel(1, 1), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first KEEPALIVE", first, keepalive(b"x"), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first LEASE", first, lease(1000, 1), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first METADATA_PUSH", first, RS10.push(b"x"), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first ERROR", first, error(0, CONNECTION_ERROR), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first PAYLOAD", first, payload(1, b"x"), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first CANCEL", first, cancel(1), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first REQUEST_N", first, request_n(1, 1), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first EXT", first, ext(1), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "a first RESUME_OK", first, frame(RESUME_OK, 0, 0, u64(0)), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "SETUP on a stream", first, setup(stream_id=1), then=INVALID_SETUP_ERR),
    row("RS10-CON-02", "RESUME on a stream", first, resume(stream_id=1), then=INVALID_SETUP_ERR),
    row("RS10-CON-03", "a first frame of an unknown type", first, frame(0x20), then=INVALID_SETUP_ERR),
    row("RS10-CON-03", "a first frame of an unknown type, with I", first, frame(0x20, I), then=INVALID_SETUP_ERR),
    row("RS10-CON-03", "a first EXT with I", first, ext(1, flags=I), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "a first frame of type 0", first, frame(0), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP without its fields", first, frame(SETUP), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP without its fields, with I", first, frame(SETUP, I), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP a byte short of its times", first, frame(SETUP, 0, 0, EMPTY_SETUP_FIELDS[:-1]), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP without MIME types", first, frame(SETUP, 0, 0, EMPTY_SETUP_FIELDS), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP with a metadata MIME type cut short", first, frame(SETUP, 0, 0, EMPTY_SETUP_FIELDS + b"\x05ab"), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP without a data MIME type", first, frame(SETUP, 0, 0, EMPTY_SETUP_FIELDS + b"\x01a"), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP with a data MIME type cut short", first, frame(SETUP, 0, 0, EMPTY_SETUP_FIELDS + b"\x01a\xffb"), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP with a resume token cut short", first, frame(SETUP, R, 0, EMPTY_SETUP_FIELDS + b"\xff\xff\x01a\x01b"), then=INVALID_SETUP_ERR),
    row("ALL-RCT-04", "SETUP with the reserved bit of the stream id", first, setup(stream_id=TOP), then=INVALID_SETUP_ERR),
    row("RS10-MD-03", "SETUP with metadata longer than the frame", first, GOOD_SETUP[:4] + b"\x05\x00" + GOOD_SETUP[6:] + b"\x00\x00\x05abcd", then=INVALID_SETUP_ERR),
    row("RS10-MD-03", "SETUP with M and two bytes left", first, GOOD_SETUP[:4] + b"\x05\x00" + GOOD_SETUP[6:] + b"\x00\x00", then=INVALID_SETUP_ERR),
    row("RS10-MD-03", "SETUP with I and metadata longer than the frame", first, GOOD_SETUP[:4] + b"\x07\x00" + GOOD_SETUP[6:] + b"\xff\xff\xff", then=INVALID_SETUP_ERR),
    row("RS10-SETUP-04", "SETUP with a keepalive time of 0", first, setup(keepalive=0), then=INVALID_SETUP_ERR),
    row("RS10-SETUP-04", "SETUP with a lifetime of 0", first, setup(lifetime=0), then=INVALID_SETUP_ERR),
    row("RS10-SETUP-04", "SETUP with only the reserved bit of a lifetime", first, setup(lifetime=TOP), then=INVALID_SETUP_ERR),
    row("RS10-SETUP-08", "SETUP of version 0.2", first, setup((0, 2)), then=INVALID_SETUP_ERR),
    row("RS10-SETUP-08", "SETUP of version 1.1", first, setup((1, 1)), then=INVALID_SETUP_ERR),
    row("RS10-SETUP-08", "SETUP of version 2.0", first, setup((2, 0)), then=INVALID_SETUP_ERR),
    row("RS10-SETUP-08", "SETUP of version 65535.65535", first, setup((65535, 65535)), then=INVALID_SETUP_ERR),
    row("RS10-SETUP-09", "SETUP with L where no leases are granted", first, setup(flags=L), then=setup_err(UNSUPPORTED_SETUP)),
    row("RS10-SETUP-07", "SETUP with a resume token", first, setup(token=b"t"), then=setup_err(REJECTED_SETUP)),
    row("RS10-SETUP-06", "SETUP with an empty resume token", first, setup(token=b""), then=setup_err(REJECTED_SETUP)),
    row("RS10-RSM-17", "RESUME", first, resume(), then=setup_err(REJECTED_RESUME)),
    row("RS10-RSM-17", "RESUME of another version", first, resume((0, 2)), then=setup_err(REJECTED_RESUME)),
    row("ALL-RCT-04", "RESUME cut short", first, resume()[:-1], then=INVALID_SETUP_ERR),
    row("RS10-HDR-04", "SETUP with spare flags", first, setup(flags=0x03F), then=sends()),
    row("RS10-SETUP-01", "SETUP with I", first, setup(flags=I), then=sends()),
    row("RS10-SETUP-05", "SETUP with MIME types that are no text", first, setup(metadata_mime=b"\x00\xff", data_mime=b""), then=sends()),
]
AT_A_SERVER = [
    row("RS10-IGN-01 ALL-RCT-03", "an unknown type", served, frame(0x20), then=CONN_ERR),
    row("RS10-IGN-01", "the reserved type 0", served, frame(0), then=CONN_ERR),
    row("RS10-IGN-01", "type 0x3E", served, frame(0x3E, 0, 1), then=CONN_ERR),
    row("RS10-IGN-02", "an unknown type with I", served, frame(0x20, I), then=IGNORE),
    row("RS10-IGN-02", "an unknown type with I on a stream", ticking, frame(0x20, I, 1, b"x"), then=IGNORE),
    row("RS10-IGN-02", "type 0 with I", served, frame(0, I), then=IGNORE),
    row("ALL-RCT-01", "KEEPALIVE without a position", served, frame(KEEPALIVE, R), then=CONN_ERR),
    row("ALL-RCT-02", "KEEPALIVE without a position, with I", served, frame(KEEPALIVE, R | I), then=IGNORE),
    row("ALL-RCT-01", "KEEPALIVE with 7 bytes of position", served, frame(KEEPALIVE, R, 0, bytes(7)), then=CONN_ERR),
    row("ALL-RCT-01", "LEASE of 7 bytes", served, frame(LEASE, 0, 0, bytes(7)), then=CONN_ERR),
    row("ALL-RCT-02", "LEASE of 7 bytes, with I", served, frame(LEASE, I, 0, bytes(7)), then=IGNORE),
    row("ALL-RCT-01", "REQUEST_STREAM without a count", served, frame(REQUEST_STREAM, 0, 1, bytes(3)), then=CONN_ERR),
    row("ALL-RCT-02", "REQUEST_STREAM without a count, with I", served, frame(REQUEST_STREAM, I, 1, bytes(3)), then=IGNORE),
    row("ALL-RCT-01", "REQUEST_CHANNEL without a count", served, frame(REQUEST_CHANNEL, 0, 1), then=CONN_ERR),
    row("ALL-RCT-01", "REQUEST_N without a number", ticking, frame(REQUEST_N, 0, 1), then=CONN_ERR),
    row("ALL-RCT-02", "REQUEST_N without a number, with I", ticking, frame(REQUEST_N, I, 1), then=IGNORE),
    row("ALL-RCT-01", "ERROR without a code", served, frame(ERROR, 0, 1, bytes(3)), then=CONN_ERR),
    row("ALL-RCT-02", "ERROR without a code, with I", waiting, frame(ERROR, I, 1), then=IGNORE),
    row("ALL-RCT-01", "EXT without a type", served, frame(EXT, 0, 0, bytes(3)), then=CONN_ERR),
    row("ALL-RCT-01", "SETUP without fields once more", served, frame(SETUP), then=CONN_ERR),
    row("ALL-RCT-02", "SETUP without fields once more, with I", served, frame(SETUP, I), then=IGNORE),
    row("ALL-RCT-01", "RESUME_OK cut short", served, frame(RESUME_OK, 0, 0, bytes(7)), then=CONN_ERR),
    row("ALL-RCT-01", "RESUME with a token longer than the frame", served, frame(RESUME, 0, 0, b"\x00\x01\x00\x00\xff\xff"), then=CONN_ERR),
    row("ALL-RCT-01", "a request with the reserved bit of the stream id", served, ask(TOP | 1), then=CONN_ERR),
    row("ALL-RCT-01", "a KEEPALIVE with the reserved bit of the stream id", served, frame(KEEPALIVE, R, TOP, bytes(8)), then=CONN_ERR),
    row("ALL-RCT-02", "a request with the reserved bit of the stream id, with I", served, ask(TOP | 1, flags=I), then=IGNORE),
    row("ALL-RCT-02", "CANCEL with the reserved bit of the stream id, with I", ticking, frame(CANCEL, I, TOP | 1), then=IGNORE),
    row("RS10-MD-02", "a request with metadata a byte too long", served, ask(1, b"\x00\x00\x05abcd", M), then=CONN_ERR),
    row("RS10-MD-02", "a request with metadata a byte too long, with I", served, ask(1, b"\x00\x00\x05abcd", M | I), then=IGNORE),
    row("RS10-MD-02", "a request with metadata of 16 MiB announced", served, ask(1, b"\xff\xff\xff", M), then=CONN_ERR),
    row("RS10-MD-03", "a request with M and two bytes left", served, ask(1, b"\x00\x00", M), then=CONN_ERR),
    row("RS10-MD-03", "a request with M and nothing left", served, ask(1, b"", M), then=CONN_ERR),
    row("RS10-MD-03", "a request with M and nothing left, with I", served, ask(1, b"", M | I), then=IGNORE),
    row("RS10-MD-02", "a fire-and-forget with metadata too long", served, forget(1, b"\x00\x00\x01", M), then=CONN_ERR),
    row("RS10-MD-02", "a stream with metadata too long", served, stream(1, 1, b"\x00\x00\x01", M), then=CONN_ERR),
    row("RS10-MD-02", "a channel with metadata too long", served, channel(1, 1, b"\x00\x00\x01", M), then=CONN_ERR),
    row("RS10-MD-02", "an item with metadata too long", talking, payload(1, b"\x00\x00\x02a", N | M), then=CONN_ERR),
    row("RS10-MD-02", "an item with metadata too long, with I", talking, payload(1, b"\x00\x00\x02a", N | M | I), then=IGNORE),
    row("RS10-MD-05", "a request with empty metadata", served, ask(1, b"\x00\x00\x00x", M), then=sends(payload(1, b"\x00\x00\x00x", N | C | M))),
    row("RS10-N-01", "REQUEST_STREAM for 0 items", served, stream(1, 0), then=stream_err(1, INVALID)),
    row("RS10-N-01", "REQUEST_CHANNEL for 0 items", served, channel(1, 0), then=stream_err(1, INVALID)),
    row("RS10-N-01", "REQUEST_STREAM with only the reserved bit of the count", served, stream(1, TOP), then=stream_err(1, INVALID)),
    row("ALL-RCT-08", "REQUEST_N for 0 items", ticking, request_n(1, 0), then=IGNORE),
    row("ALL-RCT-08", "REQUEST_N with only the reserved bit", ticking, request_n(1, TOP), then=IGNORE),
    row("ALL-RCT-12", "a request on stream 0", served, ask(0, b"x"), then=IGNORE),
    row("ALL-RCT-12", "a stream on stream 0", served, stream(0, 1), then=IGNORE),
    row("ALL-RCT-12", "a request with an id of ours", served, ask(2, b"x"), then=IGNORE),
    row("ALL-RCT-12", "a fire-and-forget with an id of ours", served, forget(2, b"x"), then=IGNORE),
    row("ALL-RCT-12", "a channel with an id of ours", served, channel(2, 1), then=IGNORE),
    row("RS10-UNX-09", "a request on an id in use", ticking, ask(1, b"x"), then=IGNORE),
    row("RS10-UNX-09", "a stream on an id in use", ticking, stream(1, 5), then=IGNORE),
    row("RS10-UNX-09", "a fire-and-forget on an id in use", waiting, forget(1, b"x"), then=IGNORE),
    row("RS10-UNX-09", "a channel on an id in use", talking, channel(1, 5, b"x"), then=IGNORE),
    row("RS10-UNX-09", "a request of 0 items on an id in use", ticking, stream(1, 0), then=IGNORE),
    row("RS10-UNX-09", "a request on an id that waits for fragments", halfway, ask(1, b"x"), then=IGNORE),
    row("RS10-UNX-09", "a request with F on an id that waits for fragments", halfway, ask(1, b"x", F), then=IGNORE),
    row("RS10-UNX-09", "another type on an id that waits for fragments", halfway, stream(1, 3, b"x"), then=IGNORE),
    row("RS10-UNX-10", "CANCEL on an unknown stream", served, cancel(7), then=IGNORE),
    row("RS10-UNX-10", "CANCEL on stream 0", ticking, cancel(0), then=IGNORE),
    row("RS10-UNX-10", "CANCEL on an id of ours that is not open", served, cancel(2), then=IGNORE),
    row("RS10-UNX-11", "ERROR on an unknown stream", served, error(7, APPLICATION_ERROR, b"x"), then=IGNORE),
    row("RS10-UNX-12", "PAYLOAD on an unknown stream", served, payload(7, b"x", N | C), then=IGNORE),
    row("RS10-UNX-12", "PAYLOAD on stream 0", ticking, payload(0, b"x"), then=IGNORE),
    row("RS10-UNX-12", "a fragment on an unknown stream", served, payload(7, b"x", N | F), payload(7, b"x"), then=IGNORE),
    row("RS10-UNX-13", "METADATA_PUSH on a stream", ticking, RS10.push(b"x", 1), then=IGNORE),
    row("RS10-UNX-14", "a second SETUP", ticking, setup(), then=IGNORE),
    row("RS10-UNX-14", "a second SETUP of another version", served, setup((9, 9), keepalive=0), then=IGNORE),
    row("RS10-UNX-14", "a second SETUP with a lifetime of 1 ms", served, setup(lifetime=1), then=IGNORE),
    row("RS10-UNX-15", "ERROR INVALID_SETUP", ticking, error(0, INVALID_SETUP), then=IGNORE),
    row("RS10-UNX-15", "ERROR UNSUPPORTED_SETUP", served, error(0, UNSUPPORTED_SETUP), then=IGNORE),
    row("RS10-UNX-15", "ERROR REJECTED_SETUP", served, error(0, REJECTED_SETUP), then=IGNORE),
    row("RS10-UNX-15", "ERROR REJECTED_RESUME", served, error(0, REJECTED_RESUME), then=IGNORE),
    row("RS10-UNX-18", "REQUEST_N on an unknown stream", served, request_n(7, 1), then=IGNORE),
    row("RS10-UNX-18", "REQUEST_N on stream 0", ticking, request_n(0, 1), then=IGNORE),
    row("RS10-UNX-18", "RESUME_OK", served, frame(RESUME_OK, 0, 0, u64(0)), then=IGNORE),
    row("RS10-UNX-18", "KEEPALIVE on a stream", ticking, frame(KEEPALIVE, R, 1, bytes(8)), then=IGNORE),
    row("RS10-UNX-18", "LEASE on a stream", ticking, frame(LEASE, 0, 1, u32(1000) + u32(1)), then=IGNORE),
    row("RS10-UNX-18", "KEEPALIVE without R that nobody asked for", served, keepalive(respond=False), then=IGNORE),
    row("RS10-LEASE-05", "LEASE that was not agreed", served, lease(1000, 5), then=IGNORE),
    row("RS10-RSM-20", "RESUME after SETUP", served, resume(), then=CONN_ERR),
    row("ALL-RCT-07", "SETUP on a stream", ticking, setup(stream_id=1), then=IGNORE),
    row("ALL-RCT-07", "RESUME on a stream", ticking, resume(stream_id=1), then=IGNORE),
    row("ALL-RCT-14", "an item for a stream that is over", past, payload(1, b"x"), then=IGNORE),
    row("ALL-RCT-14", "COMPLETE for a stream that is over", past, payload(1, b"", C), then=IGNORE),
    row("ALL-RCT-14", "ERROR for a stream that is over", past, error(1, CANCELED), then=IGNORE),
    row("ALL-RCT-14", "CANCEL for a stream that is over", past, cancel(1), then=IGNORE),
    row("ALL-RCT-14", "credit for a stream that is over", past, request_n(1, 9), then=IGNORE),
    row("RS10-PAY-03", "PAYLOAD with neither C nor N", talking, payload(1, b"x", 0), then=IGNORE),
    row("RS10-UNX-18", "an item of the requester of a stream", ticking, payload(1, b"x"), then=IGNORE),
    row("RS10-UNX-18", "an item of the requester of a request", waiting, payload(1, b"x", N | C), then=IGNORE),
    row("RS10-UNX-18", "COMPLETE of the requester of a stream", ticking, payload(1, b"", C), then=IGNORE),
    row("RS10-UNX-18", "credit for a request/response", waiting, request_n(1, 9), then=IGNORE),
    row("RS10-EXT-02", "EXT of an unknown type", served, ext(5, b"x"), then=CONN_ERR),
    row("RS10-EXT-02", "EXT of an unknown type with I", served, ext(5, b"x", flags=I), then=IGNORE),
    row("RS10-EXT-02", "EXT of type 0", served, ext(0), then=CONN_ERR),
    row("RS10-EXT-02", "EXT of an unknown type on a stream, with I", ticking, ext(5, b"x", flags=I, stream_id=1), then=IGNORE),
    row("RS10-EXT-02", "EXT of an unknown type on a stream", ticking, ext(5, b"x", stream_id=1), then=CONN_ERR),
    row("RS10-ERR-06", "ERROR with an unknown code on stream 0", ticking, error(0, 0xFFFFFFFE), then=CLOSE),
    row("RS10-ERR-06", "ERROR with a stream's code on stream 0", served, error(0, APPLICATION_ERROR), then=CLOSE),
    row("RS10-ERR-06", "ERROR of code 0 on stream 0", served, error(0, 0), then=CLOSE),
    row("RS10-ERR-08", "CONNECTION_ERROR", ticking, error(0, CONNECTION_ERROR, b"x"), then=CLOSE),
    row("RS10-ERR-09", "CONNECTION_CLOSE with no stream open", served, error(0, CONNECTION_CLOSE), then=CLOSE),
    row("RS10-CAN-01", "bytes after CANCEL", waiting, frame(CANCEL, M, 1, b"\xff\xff"), then=sends()),
    row("RS10-UNX-08", "KEEPALIVE with all spare flags", served, keepalive(b"d", flags=0x37F), then=sends(keepalive(b"d", respond=False))),
    row("RS10-UNX-08", "REQUEST_N with all flags", ticking, frame(REQUEST_N, 0x3FF, 1, u32(1)), then=sends(payload(1, b"tick 1"))),
    row("RS10-UNX-08", "a request with spare flags", served, ask(1, b"x", 0x07F), then=sends(payload(1, b"x", N | C))),
    row("RS10-UNX-08", "REQUEST_STREAM with spare flags", served, stream(1, 1, b"1", 0x07F), then=sends(payload(1, b"tick 0"), payload(1, b"", C))),
    row("ALL-RCT-06", "REQUEST_N with the reserved bit", ticking, request_n(1, TOP | 1), then=sends(payload(1, b"tick 1"))),
    row("ALL-RCT-06", "KEEPALIVE with the reserved bit of its position", served, keepalive(b"d", position=1 << 63), then=sends(keepalive(b"d", respond=False))),
    row("ALL-RCT-11", "bytes after REQUEST_N", ticking, request_n(1, 1) + b"more", then=sends(payload(1, b"tick 1"))),
    row("ALL-RCT-10", "two items more than were granted", talking, *[payload(1, b"x")] * 6, then=stream_err(1, INVALID)),
    row("RS10-FRAG-09", "metadata after data", halfway, payload(1, sized(b"late") + b"x", N | M), then=stream_err(1, INVALID)),
]
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


@pytest.mark.parametrize("one", marked(FIRST_FRAMES))
async def test_a_server_answers_its_first_frame(one: Row, autojump_clock: object) -> None:
    await react(RS10, one)


@pytest.mark.parametrize("one", marked(AT_A_SERVER))
async def test_a_server_takes_it_as_the_clause_says(one: Row, autojump_clock: object) -> None:
    await react(RS10, one)


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
    for scene in (served, ticking, connected, asking):
        async with scene(RS10) as (peer, _):
            await peer.send_bytes(data + b"\x00" * 40)
            await peer.expect_failure(CONNECTION_ERROR)


@pytest.mark.clause("ALL-RCT-05")
@pytest.mark.parametrize(("what", "data"), FRAMING)
async def test_a_first_length_that_cannot_be_right_is_an_invalid_setup(
    what: str, data: bytes, autojump_clock: object
) -> None:
    async with first(RS10) as (peer, _):
        await peer.send_bytes(data)
        await peer.expect_failure(INVALID_SETUP)


def test_there_are_enough_rows() -> None:
    rows = FIRST_FRAMES + AT_A_SERVER + AT_A_CLIENT
    assert len(rows) >= 100
    assert len({named(one) for one in rows}) == len(rows)
    assert {one.frames[0][4] >> 2 for one in rows} >= {*range(1, 15), EXT, REQUEST_FNF, REQUEST_RESPONSE, METADATA_PUSH}
