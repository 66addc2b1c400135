"""The frame layout of ReactiveSocket 0.0, the original draft: its header, its rows and their table.

The clauses RS00-... define the place of each field. Flag bits without a name are ignored (RS00-HDR-11). Every frame
has a version: SETUP is read with any, all others only with 0 (RS00-HDR-12).
"""

from __future__ import annotations

import struct
from typing import Any, Final, NoReturn

from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.codec import (
    MIMES,
    UINT32_MAX,
    UINT63_MAX,
    UINT64_MAX,
    Codec,
    Field,
    NotUnderstood,
    Number,
    Row,
    Values,
    Written,
    absent,
    bit,
    check,
    constant,
    numbers,
    rest,
    uint,
)
from rsocket_trio.rsocket.frames import ErrorFrame, Frame, LeaseFrame, RequestNFrame, SetupFrame
from rsocket_trio.rsocket.layouts.fields_32 import EXT, MAX_FRAME_BYTES_32, WordShape

IGNORE: Final = 0x80
METADATA: Final = 0x40
FOLLOWS: Final = 0x20
LEASE: Final = 0x20
COMPLETE: Final = 0x10

HEADER: Final = struct.Struct(">HHQ")
EXT_HEADER: Final = struct.Struct(">HHI")
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


U64: Final = uint("Q", UINT64_MAX)
COUNT: Final = Number("Q", lambda number: min(number, UINT63_MAX), U64.dump)
"""A number of items, read as 2^63 - 1 at most (RS00-RQN-02)."""
SHAPE: Final = WordShape(
    minimum=EXT_HEADER.size,
    type_offset=2,
    ignore_flag=IGNORE,
    all_flags=0xFF,
    last_id=UINT64_MAX,
    largest=MAX_FRAME_BYTES_32,
    split=split_header,
    stream_id=slice(4, 12),
    size=HEADER.size,
    flags_at=0,
    header=header,
    metadata_flag=METADATA,
    count=COUNT,
    largest_metadata=2**24 - 1,
    last_metadata_type=0xFF,
    follows_flag=FOLLOWS,
    complete_flag=COMPLETE,
)


def read_version(values: Values, data: bytes, offset: int, flags: int) -> int:
    values["major"] = data[0]
    return offset


def write_version(name: str, frame: Any) -> Written:
    check(name, "major", frame.major, 0, 0xFF)
    check(name, "minor", frame.minor, 0, 0)
    return frame.major << 8, b"", b""  # in the word of the flags


# No keepalive terms: the frame's are read as 0 and left unsaid (RS00-SETUP-02, RS00-SETUP-03).
SETUP_FIELDS: Final = (
    Field(read_version, write_version, attributes=("major",)),
    constant(minor=0, keepalive_interval=0.0, max_lifetime=0.0),
    *MIMES,
    SHAPE.payload,
    bit("lease", LEASE),
    absent("strict", "resume_token"),
)

# SETUP_ERROR has a code (RS00-SERR-02), ERROR has none (RS00-ERR-01). The value is the same: stream 0 makes it a
# SETUP_ERROR. An ERROR on stream 0, which has no meaning, is told from it by its code, 0x201.
CODE: Final = numbers(code=uint("I", UINT32_MAX))
SETUP_ERROR_ROW: Final = SHAPE.row(0x0002, "SETUP_ERROR", ErrorFrame, CODE, SHAPE.metadata(), rest("data"))
PLAIN_ERROR_ROW: Final = SHAPE.row(
    *(0x0021, "ERROR", ErrorFrame, constant(code=STREAM_ERROR), SHAPE.metadata(), rest("data")), ids=SHAPE.stream_ids
)


WHOLE: Final = absent("follows", reason="a request of this dialect can't be fragmented")  # RS00-FRAG-02
# Nanoseconds (RS00-LEASE-03).
LEASE_NUMBERS: Final = numbers(time_to_live_ns=U64, number_of_requests=U64)

# RS00-TYP-01; RS00-TYP-03: two drawings name other types, and the table holds
ROWS: Final = (
    SHAPE.row(SETUP, "SETUP", SetupFrame, *SETUP_FIELDS),
    SETUP_ERROR_ROW,
    SHAPE.row(0x0003, "LEASE", LeaseFrame, LEASE_NUMBERS, SHAPE.metadata()),
    SHAPE.request_row(0x0011, "REQUEST_RESPONSE", Interaction.REQUEST_RESPONSE, WHOLE),
    SHAPE.request_row(0x0012, "REQUEST_FNF", Interaction.FIRE_AND_FORGET, WHOLE),
    SHAPE.request_row(0x0013, "REQUEST_STREAM", Interaction.REQUEST_STREAM, WHOLE, counted=True),
    SHAPE.request_row(0x0014, "REQUEST_SUB", Interaction.REQUEST_SUBSCRIPTION, WHOLE, counted=True),
    # It may have metadata here (RS00-RQN-01).
    SHAPE.row(*(0x0015, "REQUEST_N", RequestNFrame, numbers(request_n=COUNT), SHAPE.metadata()), ids=SHAPE.stream_ids),
    SHAPE.cancel_row(0x0016),
    SHAPE.response_row(0x0020),
    PLAIN_ERROR_ROW,
    # For the connection or for a stream (RS00-MP-02).
    SHAPE.push_row(0x0031, UINT64_MAX),
    SHAPE.ext_row(struct.Struct(">HH"), flags_first=True),
)


class OriginalCodec(Codec):
    """The codec of the original draft: a version in every frame, and two types for the ERROR of other dialects."""

    def row_of(self, frame: Frame) -> Row:
        if isinstance(frame, ErrorFrame) and not frame.stream_id:
            return SETUP_ERROR_ROW
        return super().row_of(frame)

    def _fail_unknown(self, data: bytes, number: int) -> NoReturn:
        if number > 0xFFFF:
            raise NotUnderstood(f"frame of {len(data)} bytes: version {number >> 16}, must be 0") from None
        super()._fail_unknown(data, number)


CODEC: Final = OriginalCodec(SHAPE, ROWS)
