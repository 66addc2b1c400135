"""The frame layout of ReactiveSocket 0.0, the original draft: decoders, encoders and their table.

The clauses RS00-... define the place of each field. Flag bits without a name are ignored (RS00-HDR-11). Every frame
has a version: SETUP is read with any, all others only with 0 (RS00-HDR-12).
"""

from __future__ import annotations

import struct
from typing import Final, NoReturn

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.codec import UINT63_MAX, Codec, HeaderLayout, NotUnderstood, Parts, Row, check, sized_at
from rsocket_trio.rsocket.frames import (
    ErrorFrame,
    ExtFrame,
    Frame,
    LeaseFrame,
    MetadataPushFrame,
    RequestNFrame,
    SetupFrame,
)
from rsocket_trio.rsocket.layouts.fields_24 import check_connection, mime_field
from rsocket_trio.rsocket.layouts.fields_32 import (
    EXT,
    EXT_BODY,
    LARGEST_FRAME_32,
    UINT32,
    UINT32_MAX,
    UINT64,
    UINT64_MAX,
    Shape,
    cancel_row,
    counted_request_row,
    decode_metadata_push,
    encode_metadata_push,
    request_row,
    response_row,
)

IGNORE: Final = 0x80
METADATA: Final = 0x40
FOLLOWS: Final = 0x20
LEASE: Final = 0x20
COMPLETE: Final = 0x10
NO_FOLLOWS: Final = 0
"""Requests have no flag for it (RS00-FRAG-02)."""

HEADER: Final = struct.Struct(">HHQ")
BODY: Final = HEADER.size
"""The offset behind a frame's header."""
EXT_HEADER: Final = struct.Struct(">HHI")
TWO_UINT64: Final = struct.Struct(">QQ")
SETUP: Final = 0x0001
STREAM_ERROR: Final = 0x201
"""The code that an ERROR is read with, since it has none (RS00-ERR-01)."""


# The header: version and flags as one word, type, stream id; EXT has no stream id (RS00-HDR-05, RS00-EXT-02)


def split_header(data: bytes) -> tuple[int, int, int]:
    """Return type number, flags and stream id. Above the 16 bits of the type is a version that is not 0."""
    try:
        word, number, stream_id = HEADER.unpack_from(data)
    except struct.error:
        word, number, stream_id = EXT_HEADER.unpack_from(data)
        if number != EXT:
            raise
    if word > 0xFF and number != SETUP:
        # A type of that version: what it is here says nothing.
        return word >> 8 << 16 | number, word & 0xFF, stream_id
    return number, word & 0xFF, stream_id if number != EXT else 0


def header(number: int, flags: int, stream_id: int) -> bytes:
    """Return the twelve bytes that begin a frame of version 0."""
    return HEADER.pack(flags, number, stream_id)


def add_flags(data: bytes, flags: int) -> bytes:
    """Return the frame with more flags set."""
    return data[:1] + bytes([data[1] | flags]) + data[2:]


HEADER_0_0: Final = HeaderLayout(
    minimum=EXT_BODY,
    type_offset=2,
    ignore_flag=IGNORE,
    all_flags=0xFF,
    last_id=UINT64_MAX,
    largest=LARGEST_FRAME_32,
    split=split_header,
    add_flags=add_flags,
    stream_id=slice(4, 12),
    size=BODY,
    flags_end=2,
)


def read_count(number: int) -> int:
    """Return a count of the wire, bounded to 2^63 - 1 (RS00-RQN-02)."""
    return min(number, UINT63_MAX)


SHAPE: Final = Shape(
    header=header,
    body=BODY,
    flags_offset=1,
    last_id=UINT64_MAX,
    count=UINT64,
    last_count=UINT64_MAX,
    read_count=read_count,
    largest_metadata=2**24 - 1,
    last_metadata_type=0xFF,
    metadata_flag=METADATA,
    follows_flag=FOLLOWS,
    complete_flag=COMPLETE,
)


# SETUP: no keepalive terms, so the frame's are read as 0 and left unsaid (RS00-SETUP-02, RS00-SETUP-03)


def decode_setup(stream_id: int, flags: int, data: bytes) -> SetupFrame:
    metadata_mime, offset = sized_at(data, BODY, 1, "metadata MIME type")
    data_mime, offset = sized_at(data, offset, 1, "data MIME type")
    return SetupFrame(
        data[0],
        0,
        0.0,
        0.0,
        metadata_mime.decode("latin-1"),
        data_mime.decode("latin-1"),
        SHAPE.payload_at(data, offset, flags),
        lease=flags & LEASE != 0,
        stream_id=stream_id,
    )


def encode_setup(frame: SetupFrame) -> Parts:
    check_connection("SETUP", frame.stream_id)
    check("SETUP", "major", frame.major, 0, 0xFF)
    check("SETUP", "minor", frame.minor, 0, 0)
    if frame.strict:
        raise LocalProtocolError("SETUP strict: this layout has no such flag")
    if frame.resume_token is not None:
        raise LocalProtocolError(f"SETUP resume_token of {len(frame.resume_token)} bytes: this layout has none")
    flags, metadata = SHAPE.payload_head("SETUP", frame.payload)
    flags |= LEASE if frame.lease else 0
    mime_types = mime_field("metadata_mime", frame.metadata_mime) + mime_field("data_mime", frame.data_mime)
    return HEADER.pack(frame.major << 8 | flags, SETUP, 0) + mime_types + metadata, frame.payload.data


# SETUP_ERROR has a code (RS00-SERR-02), ERROR has none (RS00-ERR-01). The value is the same: stream 0 makes it a
# SETUP_ERROR. An ERROR on stream 0, which has no meaning, is told from it by its code, 0x201.


def decode_setup_error(stream_id: int, flags: int, data: bytes) -> ErrorFrame:
    (code,) = UINT32.unpack_from(data, BODY)
    metadata, metadata_type, offset = SHAPE.metadata_if_any(data, BODY + UINT32.size, flags)
    return ErrorFrame(stream_id, code, data[offset:], metadata, metadata_type)


def encode_setup_error(frame: ErrorFrame) -> Parts:
    check_connection("SETUP_ERROR", frame.stream_id)
    check("SETUP_ERROR", "code", frame.code, 0, UINT32_MAX)
    flags, metadata = SHAPE.optional_metadata("SETUP_ERROR", frame.metadata, frame.metadata_type)
    return header(0x0002, flags, 0) + UINT32.pack(frame.code) + metadata, frame.data


def decode_error(stream_id: int, flags: int, data: bytes) -> ErrorFrame:
    metadata, metadata_type, offset = SHAPE.metadata_if_any(data, BODY, flags)
    return ErrorFrame(stream_id, STREAM_ERROR, data[offset:], metadata, metadata_type)


def encode_error(frame: ErrorFrame) -> Parts:
    if not frame.stream_id:
        return encode_setup_error(frame)
    SHAPE.check_stream("ERROR", frame.stream_id)
    flags, metadata = SHAPE.optional_metadata("ERROR", frame.metadata, frame.metadata_type)
    return header(0x0021, flags, frame.stream_id) + metadata, frame.data


# LEASE: nanoseconds (RS00-LEASE-03)


def decode_lease(stream_id: int, flags: int, data: bytes) -> LeaseFrame:
    time_to_live, number_of_requests = TWO_UINT64.unpack_from(data, BODY)
    metadata, metadata_type, _ = SHAPE.metadata_if_any(data, BODY + TWO_UINT64.size, flags)
    return LeaseFrame(time_to_live, number_of_requests, metadata, stream_id, metadata_type)


def encode_lease(frame: LeaseFrame) -> Parts:
    check_connection("LEASE", frame.stream_id)
    check("LEASE", "time_to_live_ns", frame.time_to_live_ns, 0, UINT64_MAX)
    check("LEASE", "number_of_requests", frame.number_of_requests, 0, UINT64_MAX)
    flags, metadata = SHAPE.optional_metadata("LEASE", frame.metadata, frame.metadata_type)
    return header(0x0003, flags, 0) + TWO_UINT64.pack(frame.time_to_live_ns, frame.number_of_requests) + metadata, b""


# REQUEST_N may have metadata here (RS00-RQN-01)


def decode_request_n(stream_id: int, flags: int, data: bytes) -> RequestNFrame:
    (request_n,) = UINT64.unpack_from(data, BODY)
    metadata, metadata_type, _ = SHAPE.metadata_if_any(data, BODY + UINT64.size, flags)
    return RequestNFrame(stream_id, read_count(request_n), metadata, metadata_type)


def encode_request_n(frame: RequestNFrame) -> Parts:
    SHAPE.check_stream("REQUEST_N", frame.stream_id)
    check("REQUEST_N", "request_n", frame.request_n, 0, UINT64_MAX)
    flags, metadata = SHAPE.optional_metadata("REQUEST_N", frame.metadata, frame.metadata_type)
    return header(0x0015, flags, frame.stream_id) + UINT64.pack(frame.request_n) + metadata, b""


# METADATA_PUSH: for the connection or for a stream (RS00-MP-01, RS00-MP-02)


def decode_push(stream_id: int, flags: int, data: bytes) -> MetadataPushFrame:
    return decode_metadata_push(SHAPE, stream_id, flags, data)


def encode_push(frame: MetadataPushFrame) -> Parts:
    check("METADATA_PUSH", "stream_id", frame.stream_id, 0, UINT64_MAX)
    return encode_metadata_push(SHAPE, 0x0031, frame)


# EXT: content that is the extension's own, metadata included (RS00-EXT-01, RS00-EXT-02)


def decode_ext(stream_id: int, flags: int, data: bytes) -> ExtFrame:
    _, _, ext_type = EXT_HEADER.unpack_from(data)
    return ExtFrame(0, ext_type, data[EXT_BODY:], flags & IGNORE != 0, flags & METADATA != 0)


def encode_ext(frame: ExtFrame) -> Parts:
    check("EXT", "stream_id", frame.stream_id, 0, 0)
    check("EXT", "ext_type", frame.ext_type, 0, UINT32_MAX)
    flags = (IGNORE if frame.ignore else 0) | (METADATA if frame.has_metadata else 0)
    return EXT_HEADER.pack(flags, EXT, frame.ext_type), frame.body


class OriginalCodec(Codec):
    """The codec of the original draft: a version in every frame, and two types for the ERROR of other dialects."""

    def row_of(self, frame: Frame) -> Row:
        """Return the row that encodes a frame. Raise ``LocalProtocolError`` if the layout has none."""
        if isinstance(frame, ErrorFrame) and not frame.stream_id:
            return SETUP_ERROR_ROW
        return super().row_of(frame)

    def _fail_unknown(self, data: bytes, number: int) -> NoReturn:
        if number > 0xFFFF:
            raise NotUnderstood(f"frame of {len(data)} bytes: version {number >> 16}, must be 0") from None
        super()._fail_unknown(data, number)


SETUP_FLAGS: Final = METADATA | LEASE

# RS00-TYP-01; RS00-TYP-03: two drawings name other types, and the table holds
# fmt: off
#                     type    name             value              flags    fixed fields
SETUP_ERROR_ROW = Row(0x0002, "SETUP_ERROR",   ErrorFrame,        METADATA, 4, decode_setup_error, encode_setup_error)
ROWS = (
    Row(SETUP,  "SETUP",         SetupFrame,        SETUP_FLAGS, 0, decode_setup, encode_setup),
    SETUP_ERROR_ROW,
    Row(0x0003, "LEASE",         LeaseFrame,        METADATA,   16, decode_lease, encode_lease),
    request_row(SHAPE, 0x0011, "REQUEST_RESPONSE", Interaction.REQUEST_RESPONSE, NO_FOLLOWS),
    request_row(SHAPE, 0x0012, "REQUEST_FNF", Interaction.FIRE_AND_FORGET, NO_FOLLOWS),
    counted_request_row(SHAPE, 0x0013, "REQUEST_STREAM", Interaction.REQUEST_STREAM, NO_FOLLOWS),
    counted_request_row(SHAPE, 0x0014, "REQUEST_SUB", Interaction.REQUEST_SUBSCRIPTION, NO_FOLLOWS),
    Row(0x0015, "REQUEST_N",     RequestNFrame,     METADATA,    8, decode_request_n, encode_request_n),
    cancel_row(SHAPE, 0x0016),
    response_row(SHAPE, 0x0020),
    # Behind SETUP_ERROR, so that it is the one that ErrorFrame finds: its encoder knows both.
    Row(0x0021, "ERROR",         ErrorFrame,        METADATA,    0, decode_error, encode_error),
    Row(0x0031, "METADATA_PUSH", MetadataPushFrame, METADATA,    0, decode_push, encode_push),
    Row(EXT,    "EXT",           ExtFrame,          METADATA,    0, decode_ext, encode_ext, has_stream_id=False),
)
# fmt: on

CODEC = OriginalCodec(HEADER_0_0, ROWS)
