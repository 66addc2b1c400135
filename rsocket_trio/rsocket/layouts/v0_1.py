"""The frame layout of ReactiveSocket 0.1: a decoder and an encoder for every type, and their table.

The clauses RS01-... define the place of each field. Spare bits are ignored (RS01-HDR-08). Items of a
channel's requester are REQUEST_CHANNEL frames, which read as requests: the stream decides their meaning.
"""

from __future__ import annotations

import struct
from typing import Final

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.codec import Codec, HeaderLayout, Parts, Row, check, sized_at
from rsocket_trio.rsocket.frames import (
    ErrorFrame,
    ExtFrame,
    KeepaliveFrame,
    LeaseFrame,
    MetadataPushFrame,
    RequestFrame,
    RequestNFrame,
    SetupFrame,
)
from rsocket_trio.rsocket.layouts.fields_24 import NS_PER_MS, check_connection, mime_field, refuse_metadata
from rsocket_trio.rsocket.layouts.fields_32 import (
    EXT,
    EXT_BODY,
    LARGEST_FRAME_32,
    UINT32,
    UINT32_MAX,
    Shape,
    cancel_row,
    counted_request_row,
    decode_metadata_push,
    encode_metadata_push,
    request_row,
    response_row,
)

IGNORE: Final = 0x8000
METADATA: Final = 0x4000
FOLLOWS: Final = 0x2000
LEASE: Final = 0x2000
RESPOND: Final = 0x2000
COMPLETE: Final = 0x1000
STRICT: Final = 0x1000
INITIAL_N: Final = 0x0800
LOW_LEASE: Final = 0x0020
LOW_STRICT: Final = 0x0010

HEADER: Final = struct.Struct(">HHI")
BODY: Final = HEADER.size
"""The offset behind a frame's header."""
TWO_UINT32: Final = struct.Struct(">II")
SETUP_FIELDS: Final = struct.Struct(">HHII")
NUL: Final = b"\0"


# The header: type, flags, stream id (RS01-HDR-05)


def split_header(data: bytes) -> tuple[int, int, int]:
    """Return type number, flags and stream id."""
    number, flags, stream_id = HEADER.unpack_from(data)
    return number, flags, stream_id if number != EXT else 0


def add_flags(data: bytes, flags: int) -> bytes:
    """Return the frame with more flags set."""
    number, old, stream_id = HEADER.unpack_from(data)
    return HEADER.pack(number, old | flags, stream_id) + data[BODY:]


HEADER_0_1: Final = HeaderLayout(
    minimum=BODY,
    type_offset=0,
    ignore_flag=IGNORE,
    all_flags=0xFFFF,
    last_id=UINT32_MAX,  # RS01-HDR-09
    largest=LARGEST_FRAME_32,
    split=split_header,
    add_flags=add_flags,
    stream_id=slice(4, 8),
    flags_end=4,
)

SHAPE: Final = Shape(
    header=HEADER.pack,
    body=BODY,
    flags_offset=2,
    last_id=UINT32_MAX,
    count=UINT32,
    last_count=UINT32_MAX,
    read_count=int,
    largest_metadata=2**31 - 1,
    last_metadata_type=0,
    metadata_flag=METADATA,
    follows_flag=FOLLOWS,
    complete_flag=COMPLETE,
)


# Text may or may not end with NUL (RS01-SETUP-07, RS01-ERR-02): one is taken off. None is sent, except behind text that
# itself ends with one, which its receiver would take for the terminator.


def without_terminator(text: bytes) -> bytes:
    """Return text without its terminator."""
    return text.removesuffix(NUL)


def terminated_if_needed(text: bytes) -> bytes:
    """Return text with a NUL behind it if it ends with one, and unchanged otherwise."""
    return text + NUL if text.endswith(NUL) else text


# SETUP (RS01-SETUP-02, RS01-SETUP-03)


def decode_setup(stream_id: int, flags: int, data: bytes) -> SetupFrame:
    major, minor, interval, lifetime = SETUP_FIELDS.unpack_from(data, BODY)
    metadata_mime, offset = sized_at(data, BODY + SETUP_FIELDS.size, 1, "metadata MIME type")
    data_mime, offset = sized_at(data, offset, 1, "data MIME type")
    return SetupFrame(
        major,
        minor,
        interval / 1000,
        lifetime / 1000,
        # Not to be interpreted (RS01-SETUP-05): Latin-1 keeps every byte, ASCII or not.
        without_terminator(metadata_mime).decode("latin-1"),
        without_terminator(data_mime).decode("latin-1"),
        SHAPE.payload_at(data, offset, flags),
        lease=flags & LEASE != 0,
        strict=flags & STRICT != 0,
        stream_id=stream_id,
    )


def encode_setup(frame: SetupFrame) -> Parts:
    check_connection("SETUP", frame.stream_id)
    check("SETUP", "major", frame.major, 0, 0xFFFF)
    check("SETUP", "minor", frame.minor, 0, 0xFFFF)
    if frame.resume_token is not None:
        raise LocalProtocolError(f"SETUP resume_token of {len(frame.resume_token)} bytes: this layout has none")
    flags, metadata = SHAPE.payload_head("SETUP", frame.payload)
    flags |= (LEASE if frame.lease else 0) | (STRICT if frame.strict else 0)
    fields = SETUP_FIELDS.pack(
        frame.major,
        frame.minor,
        milliseconds("keepalive_interval", frame.keepalive_interval),
        milliseconds("max_lifetime", frame.max_lifetime),
    )
    mime_types = text_field("metadata_mime", frame.metadata_mime) + text_field("data_mime", frame.data_mime)
    return HEADER.pack(0x0001, flags, 0) + fields + mime_types + metadata, frame.payload.data


def milliseconds(field: str, seconds: float) -> int:
    """Return a time of SETUP in milliseconds. 0 is allowed (RS01-SETUP-09), so nothing else is rounded to it."""
    # NaN and infinity have no milliseconds to check: the comparison refuses them.
    if not 0 <= seconds * 1000 <= UINT32_MAX:
        raise LocalProtocolError(f"SETUP {field} {seconds}: must be from 0 to {UINT32_MAX / 1000} seconds")
    return max(round(seconds * 1000), 1 if seconds else 0)


def text_field(field: str, mime: str) -> bytes:
    """Return a MIME type of SETUP behind its length, which counts a terminator."""
    return mime_field(field, mime + "\0" if mime.endswith("\0") else mime)


# LEASE (RS01-LEASE-03): milliseconds; part milliseconds are cut off, and 0 in either stops all requests (RS01-LEASE-05)


def decode_lease(stream_id: int, flags: int, data: bytes) -> LeaseFrame:
    time_to_live, number_of_requests = TWO_UINT32.unpack_from(data, BODY)
    metadata, _, _ = SHAPE.metadata_if_any(data, BODY + TWO_UINT32.size, flags)
    return LeaseFrame(time_to_live * NS_PER_MS, number_of_requests, metadata, stream_id)


def encode_lease(frame: LeaseFrame) -> Parts:
    check_connection("LEASE", frame.stream_id)
    check("LEASE", "time_to_live_ns", frame.time_to_live_ns, 0, UINT32_MAX * NS_PER_MS)
    check("LEASE", "number_of_requests", frame.number_of_requests, 0, UINT32_MAX)
    flags, metadata = SHAPE.optional_metadata("LEASE", frame.metadata, 0)
    fields = TWO_UINT32.pack(frame.time_to_live_ns // NS_PER_MS, frame.number_of_requests)
    return HEADER.pack(0x0002, flags, 0) + fields + metadata, b""


# KEEPALIVE: data and nothing else, whatever M says (RS01-KA-08)


def decode_keepalive(stream_id: int, flags: int, data: bytes) -> KeepaliveFrame:
    return KeepaliveFrame(flags & RESPOND != 0, 0, data[BODY:], stream_id)


def encode_keepalive(frame: KeepaliveFrame) -> Parts:
    check_connection("KEEPALIVE", frame.stream_id)
    check("KEEPALIVE", "last_received_position", frame.last_received_position, 0, 0)
    return HEADER.pack(0x0003, RESPOND if frame.respond else 0, 0), frame.data


# REQUEST_CHANNEL: the count stands there only if N says so (RS01-CH-01, RS01-CH-02)


def decode_channel(stream_id: int, flags: int, data: bytes) -> RequestFrame:
    initial_n, offset = None, BODY
    if flags & INITIAL_N:
        (initial_n,) = UINT32.unpack_from(data, BODY)
        offset += UINT32.size
    return channel_frame(stream_id, flags, data, initial_n, offset)


def encode_channel(frame: RequestFrame) -> Parts:
    if frame.initial_n is None:
        return channel_parts(frame, 0, b"")
    check("REQUEST_CHANNEL", "initial_n", frame.initial_n, 0, UINT32_MAX)
    return channel_parts(frame, INITIAL_N, UINT32.pack(frame.initial_n))


def channel_frame(stream_id: int, flags: int, data: bytes, initial_n: int | None, offset: int) -> RequestFrame:
    """Return the REQUEST_CHANNEL whose payload begins at ``offset``."""
    payload = SHAPE.payload_at(data, offset, flags)
    channel = Interaction.REQUEST_CHANNEL
    return RequestFrame(stream_id, channel, payload, initial_n, flags & FOLLOWS != 0, flags & COMPLETE != 0)


def channel_parts(frame: RequestFrame, n_flag: int, count: bytes) -> Parts:
    """Encode a REQUEST_CHANNEL with these bytes as its count."""
    SHAPE.check_stream("REQUEST_CHANNEL", frame.stream_id)
    flags, metadata = SHAPE.payload_head("REQUEST_CHANNEL", frame.payload)
    flags |= n_flag | (FOLLOWS if frame.follows else 0) | (COMPLETE if frame.complete else 0)
    return HEADER.pack(0x0008, flags, frame.stream_id) + count + metadata, frame.payload.data


# REQUEST_N has no metadata (RS01-RQN-01)


def decode_request_n(stream_id: int, flags: int, data: bytes) -> RequestNFrame:
    (request_n,) = UINT32.unpack_from(data, BODY)
    return RequestNFrame(stream_id, request_n)


def encode_request_n(frame: RequestNFrame) -> Parts:
    SHAPE.check_stream("REQUEST_N", frame.stream_id)
    check("REQUEST_N", "request_n", frame.request_n, 0, UINT32_MAX)
    refuse_metadata("REQUEST_N", frame.metadata)
    return HEADER.pack(0x0009, 0, frame.stream_id) + UINT32.pack(frame.request_n), b""


# ERROR (RS01-ERR-01)


def decode_error(stream_id: int, flags: int, data: bytes) -> ErrorFrame:
    (code,) = UINT32.unpack_from(data, BODY)
    metadata, _, offset = SHAPE.metadata_if_any(data, BODY + UINT32.size, flags)
    return ErrorFrame(stream_id, code, without_terminator(data[offset:]), metadata)


def encode_error(frame: ErrorFrame) -> Parts:
    check("ERROR", "stream_id", frame.stream_id, 0, UINT32_MAX)
    check("ERROR", "code", frame.code, 0, UINT32_MAX)
    flags, metadata = SHAPE.optional_metadata("ERROR", frame.metadata, 0)
    head = HEADER.pack(0x000C, flags, frame.stream_id) + UINT32.pack(frame.code) + metadata
    return head, terminated_if_needed(frame.data)


# METADATA_PUSH (RS01-MP-01, RS01-MP-02)


def decode_push(stream_id: int, flags: int, data: bytes) -> MetadataPushFrame:
    return decode_metadata_push(SHAPE, stream_id, flags, data)


def encode_push(frame: MetadataPushFrame) -> Parts:
    check_connection("METADATA_PUSH", frame.stream_id)
    return encode_metadata_push(SHAPE, 0x000D, frame)


# EXT: no stream id, and content that is the extension's own, metadata included (RS01-EXT-01)


def decode_ext(stream_id: int, flags: int, data: bytes) -> ExtFrame:
    _, _, ext_type = HEADER.unpack_from(data)
    return ExtFrame(0, ext_type, data[EXT_BODY:], flags & IGNORE != 0, flags & METADATA != 0)


def encode_ext(frame: ExtFrame) -> Parts:
    check("EXT", "stream_id", frame.stream_id, 0, 0)
    check("EXT", "ext_type", frame.ext_type, 0, UINT32_MAX)
    flags = (IGNORE if frame.ignore else 0) | (METADATA if frame.has_metadata else 0)
    return HEADER.pack(EXT, flags, frame.ext_type), frame.body


SETUP_FLAGS: Final = METADATA | LEASE | STRICT
CHANNEL_FLAGS: Final = METADATA | FOLLOWS | COMPLETE | INITIAL_N

# RS01-TYP-01
# fmt: off
#                  type    name               value              flags    fixed fields
SETUP_ROW    = Row(0x0001, "SETUP",           SetupFrame,        SETUP_FLAGS, 12, decode_setup, encode_setup)
CHANNEL_ROW  = Row(0x0008, "REQUEST_CHANNEL", RequestFrame,      CHANNEL_FLAGS, 4, decode_channel, encode_channel,
                   Interaction.REQUEST_CHANNEL)
ROWS = (
    SETUP_ROW,
    Row(0x0002, "LEASE",         LeaseFrame,        METADATA, 8, decode_lease, encode_lease),
    Row(0x0003, "KEEPALIVE",     KeepaliveFrame,    RESPOND,  0, decode_keepalive, encode_keepalive),
    request_row(SHAPE, 0x0004, "REQUEST_RESPONSE", Interaction.REQUEST_RESPONSE, FOLLOWS),
    request_row(SHAPE, 0x0005, "REQUEST_FNF", Interaction.FIRE_AND_FORGET, FOLLOWS),
    counted_request_row(SHAPE, 0x0006, "REQUEST_STREAM", Interaction.REQUEST_STREAM, FOLLOWS),
    counted_request_row(SHAPE, 0x0007, "REQUEST_SUB", Interaction.REQUEST_SUBSCRIPTION, FOLLOWS),
    CHANNEL_ROW,
    Row(0x0009, "REQUEST_N",     RequestNFrame,     0,        4, decode_request_n, encode_request_n),
    cancel_row(SHAPE, 0x000A),
    response_row(SHAPE, 0x000B),
    Row(0x000C, "ERROR",         ErrorFrame,        METADATA, 4, decode_error, encode_error),
    Row(0x000D, "METADATA_PUSH", MetadataPushFrame, METADATA, 0, decode_push, encode_push),
    Row(EXT,    "EXT",           ExtFrame,          METADATA, 0, decode_ext, encode_ext, has_stream_id=False),
)
# fmt: on

CODEC = Codec(HEADER_0_1, ROWS)
