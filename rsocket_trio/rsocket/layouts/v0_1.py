"""The frame layout of ReactiveSocket 0.1: its header, its rows and their table, and rows for peers that deviate.

The clauses RS01-... define the place of each field. Spare bits are ignored (RS01-HDR-08). Items of a
channel's requester are REQUEST_CHANNEL frames, which read as requests: the stream decides their meaning.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, Final

import attrs

from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.codec import (
    NOTHING,
    UINT32_MAX,
    Codec,
    Field,
    Row,
    Values,
    Written,
    absent,
    always,
    bit,
    check,
    mime,
    ns_in_ms,
    numbers,
    rest,
    seconds_in_ms,
    uint,
)
from rsocket_trio.rsocket.frames import ErrorFrame, KeepaliveFrame, LeaseFrame, RequestFrame, RequestNFrame, SetupFrame
from rsocket_trio.rsocket.layouts.fields_32 import EXT, MAX_FRAME_BYTES_32, UINT32, WordShape

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


# The header: type, flags, stream id (RS01-HDR-05)


def split_header(data: bytes) -> tuple[int, int, int]:
    """Return type number, flags and stream id."""
    number, flags, stream_id = HEADER.unpack_from(data)
    return number, flags, stream_id if number != EXT else 0


U16, U32 = uint("H", 0xFFFF), uint("I", UINT32_MAX)
SHAPE: Final = WordShape(
    minimum=BODY,
    type_offset=0,
    ignore_flag=IGNORE,
    all_flags=0xFFFF,
    last_id=UINT32_MAX,  # RS01-HDR-09
    largest=MAX_FRAME_BYTES_32,
    split=split_header,
    stream_id=slice(4, 8),
    flags_at=2,
    header=HEADER.pack,
    metadata_flag=METADATA,
    count=U32,
    largest_metadata=2**31 - 1,
    follows_flag=FOLLOWS,
    complete_flag=COMPLETE,
)

# SETUP (RS01-SETUP-02, RS01-SETUP-03). Its text may or may not end with NUL (RS01-SETUP-07).

TIME: Final = seconds_in_ms(UINT32_MAX, zero=True)  # RS01-SETUP-09
VERSION_0_0: Final = attrs.evolve(U16, dump=lambda name, attribute, number: 0)
"""A number of the version that is written as 0 in every frame."""


def setup_row(quirks: frozenset[str] = frozenset()) -> Row:
    """Return the row of SETUP with these quirks."""
    low = "low_setup_flags" in quirks
    version = VERSION_0_0 if "version_0_0" in quirks else U16
    return SHAPE.row(
        *(0x0001, "SETUP", SetupFrame),
        numbers(major=version, minor=version, keepalive_interval=TIME, max_lifetime=TIME),
        mime("metadata_mime", "metadata MIME type", terminated=True),
        mime("data_mime", "data MIME type", terminated=True),
        SHAPE.payload,
        bit("lease", LEASE | LOW_LEASE if low else LEASE),
        bit("strict", STRICT | LOW_STRICT if low else STRICT),
        absent("resume_token"),
    )


def channel_count(*, has_slot: bool) -> Field:
    """Return the count of REQUEST_CHANNEL, which stands there only if N says so (RS01-CH-01, RS01-CH-02).

    With ``has_slot`` it is there even if N is clear, and 0 then means none; a body below 4 bytes has no room for it.
    """

    def read(values: Values, data: bytes, offset: int, flags: int) -> int:
        if len(data) < offset + UINT32.size if has_slot else not flags & INITIAL_N:
            return offset
        (initial_n,) = UINT32.unpack_from(data, offset)
        values["initial_n"] = initial_n if flags & INITIAL_N else initial_n or None
        return offset + UINT32.size

    def write(name: str, frame: Any) -> Written:
        if frame.initial_n is None:
            return (0, UINT32.pack(0), b"") if has_slot else NOTHING
        return INITIAL_N, UINT32.pack(check(name, "initial_n", frame.initial_n, 0, UINT32_MAX)), b""

    return Field(read, write, flags=INITIAL_N, attributes=("initial_n",))


def channel_row(quirks: frozenset[str] = frozenset()) -> Row:
    """Return the row of REQUEST_CHANNEL with these quirks."""
    count = channel_count(has_slot="channel_slot" in quirks)
    row = SHAPE.row(
        *(0x0008, "REQUEST_CHANNEL", RequestFrame, count, SHAPE.payload),
        *(FOLLOWING, bit("complete", COMPLETE)),
        ids=SHAPE.stream_ids,
        interaction=Interaction.REQUEST_CHANNEL,
    )
    return attrs.evolve(row, fixed=UINT32.size)


FOLLOWING: Final = bit("follows", FOLLOWS)
# Part milliseconds are cut off, and 0 in either stops all requests (RS01-LEASE-03, RS01-LEASE-05).
LEASE_NUMBERS: Final = numbers(time_to_live_ns=ns_in_ms(UINT32_MAX), number_of_requests=U32)
# Data and nothing else, whatever M says (RS01-KA-08).
KEEPALIVE_FIELDS: Final = (bit("respond", RESPOND), absent("last_received_position"), rest("data"))
ERROR_FIELDS: Final = (numbers(code=U32), SHAPE.metadata(), rest("data", terminated=True))  # RS01-ERR-02
ANY_ID: Final = (0, UINT32_MAX)


def counted_rows(*flags: Field) -> tuple[Row, Row]:
    """Return the rows of the requests that always have a count, with these flags."""
    return (
        SHAPE.request_row(0x0006, "REQUEST_STREAM", Interaction.REQUEST_STREAM, *flags, counted=True),
        SHAPE.request_row(0x0007, "REQUEST_SUB", Interaction.REQUEST_SUBSCRIPTION, *flags, counted=True),
    )


ROWS: Final = (  # RS01-TYP-01
    setup_row(),
    SHAPE.row(0x0002, "LEASE", LeaseFrame, LEASE_NUMBERS, SHAPE.metadata()),
    SHAPE.row(0x0003, "KEEPALIVE", KeepaliveFrame, *KEEPALIVE_FIELDS),
    SHAPE.request_row(0x0004, "REQUEST_RESPONSE", Interaction.REQUEST_RESPONSE, FOLLOWING),
    SHAPE.request_row(0x0005, "REQUEST_FNF", Interaction.FIRE_AND_FORGET, FOLLOWING),
    *counted_rows(FOLLOWING),
    channel_row(),
    # RS01-RQN-01
    SHAPE.row(*(0x0009, "REQUEST_N", RequestNFrame, numbers(request_n=U32), absent("metadata")), ids=SHAPE.stream_ids),
    SHAPE.cancel_row(0x000A),
    SHAPE.response_row(0x000B),
    SHAPE.row(0x000C, "ERROR", ErrorFrame, *ERROR_FIELDS, ids=ANY_ID),  # RS01-ERR-01
    SHAPE.push_row(0x000D, 0),  # RS01-MP-01
    SHAPE.ext_row(struct.Struct(">HH")),
)

CODEC: Final = Codec(SHAPE, ROWS)


@functools.cache
def codec(quirks: frozenset[str] = frozenset()) -> Codec:
    """Return the codec with these quirks: the one layout that has any."""
    return CODEC.replacing(setup_row(quirks), channel_row(quirks)) if quirks else CODEC


@functools.cache
def flagging_counts(known: Codec) -> Codec:
    """Return a codec of this layout that flags every count as REQUEST_CHANNEL does: Go reads none without its flag."""
    return known.replacing(*counted_rows(FOLLOWING, always(INITIAL_N)))
