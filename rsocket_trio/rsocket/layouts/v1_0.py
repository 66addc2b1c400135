"""The frame layout of RSocket 1.0: a decoder and an encoder for every type, and their table.

The clauses RS10-... define the place of each field; ReactiveSocket 0.2 and the extension draft define most of them
alike. Spare flag bits are ignored (RS10-UNX-08), reserved bits inside fields are masked off (ALL-RCT-06), bytes after
the last field of a frame without payload are ignored (ALL-RCT-11).
"""

from __future__ import annotations

import struct
from typing import Any, Final

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.limits import MAX_FRAME_BYTES
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.codec import (
    MIMES,
    NOTHING,
    UINT31_MAX,
    UINT32_MAX,
    UINT63_MAX,
    BadMetadata,
    Codec,
    Field,
    Parts,
    Row,
    Shape,
    Written,
    absent,
    always,
    bit,
    ns_in_ms,
    numbers,
    rest,
    seconds_in_ms,
    token,
    uint,
)
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    ExtFrame,
    KeepaliveFrame,
    LeaseFrame,
    MetadataPushFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
    ResumeFrame,
    ResumeOkFrame,
    SetupFrame,
)

IGNORE: Final = 0x200
METADATA: Final = 0x100
FOLLOWS: Final = 0x080
RESUME_ENABLE: Final = 0x080
RESPOND: Final = 0x080
LEASE: Final = 0x040
COMPLETE: Final = 0x040
NEXT: Final = 0x020

HEADER: Final = struct.Struct(">IH")
BODY: Final = HEADER.size
"""The offset behind a frame's header."""
UINT32: Final = struct.Struct(">I")
MAX_METADATA_BYTES: Final = 2**24 - 1


# The header: stream id, then six bits of type and ten of flags in one word (RS10-HDR-01).


def split_header(data: bytes) -> tuple[int, int, int]:
    """Return type number, flags and stream id."""
    stream_id, word = HEADER.unpack_from(data)
    return word >> 10, word & 0x3FF, stream_id


def header(number: int, flags: int, stream_id: int) -> bytes:
    """Return the six bytes that begin a frame."""
    return HEADER.pack(stream_id, number << 10 | flags)


# Metadata behind its 24-bit length, which does not count itself, then data to the end (RS10-MD-01, RS10-MD-02).


@attrs.frozen(kw_only=True)
class LengthShape(Shape):
    """A layout whose frames have a 24-bit length. Metadata has no type."""

    def metadata_at(self, data: bytes, offset: int) -> tuple[bytes, int, int]:
        start = offset + 3
        left = len(data) - start
        if left < 0:
            raise BadMetadata(f"metadata length needs 3 bytes at offset {offset}, {left + 3} left", offset=offset)
        size = int.from_bytes(data[offset:start], "big")
        if size > left:
            raise BadMetadata(f"metadata of {size} bytes at offset {start}, {left} left", offset=offset)
        return data[start : start + size], 0, start + size

    def metadata_field(self, name: str, metadata: bytes, metadata_type: int = 0) -> bytes:
        if len(metadata) > MAX_METADATA_BYTES:
            raise LocalProtocolError(f"{name} metadata of {len(metadata)} bytes, limit {MAX_METADATA_BYTES}")
        return len(metadata).to_bytes(3, "big") + metadata


SHAPE: Final = LengthShape(
    minimum=BODY,
    type_offset=4,
    ignore_flag=IGNORE,
    all_flags=0x3FF,
    last_id=UINT31_MAX,
    largest=MAX_FRAME_BYTES,
    split=split_header,
    flags_at=4,
    stream_id=slice(0, 4),
    header=header,
    metadata_flag=METADATA,
)
STREAM_IDS: Final = (1, UINT31_MAX)
U16, U31, U32, U63 = uint("H", 0xFFFF), uint("I", UINT31_MAX), uint("I", UINT32_MAX), uint("Q", UINT63_MAX)
LIFETIME: Final = seconds_in_ms(UINT31_MAX, zero=False)  # RS10-SETUP-04

# RS10-SETUP-02
SETUP_FIELDS: Final = (
    numbers(major=U16, minor=U16, keepalive_interval=LIFETIME, max_lifetime=LIFETIME),
    token("resume_token", RESUME_ENABLE),
    *MIMES,
    SHAPE.payload,
    bit("lease", LEASE),
)
# 0 in either stops all requests (RS10-LEASE-03).
LEASE_NUMBERS: Final = numbers(time_to_live_ns=ns_in_ms(UINT31_MAX), number_of_requests=U31)
ERROR_CODE: Final = numbers(code=U32)
"""All 32 bits are the code (RS10-ERR-03)."""
POSITIONS: Final = {"last_received_server_position": U63, "first_available_client_position": U63}
COUNTED: Final = uint("I", UINT31_MAX, 1)  # RS10-N-01
COUNT: Final = numbers(initial_n=COUNTED)
NO_COUNT: Final = absent("initial_n")
NO_COMPLETE: Final = absent("complete", reason="its requester sends nothing more anyway")
NO_METADATA: Final = absent("metadata")
ANY_ID: Final = (0, UINT31_MAX)
# The body is the extension's own, metadata included (RS10-EXT-01, RS10-EXT-02).
EXT_ROW: Final = SHAPE.row(
    *(0x3F, "EXT", ExtFrame, numbers(ext_type=uint("I", UINT31_MAX, 1)), rest("body")),
    *(bit("ignore", IGNORE, counted=False), bit("has_metadata", METADATA)),
    ids=ANY_ID,
)

FOLLOWING: Final = bit("follows", FOLLOWS)
PAYLOAD_FLAGS: Final = (bit("next", NEXT), bit("complete", COMPLETE), FOLLOWING)

# Without a count (RS10-RR-01, RSX-REQ-01), and with one (RS10-STR-01, RS10-CH-01, RSX-REQ-02). The fast path has those
# of most calls. There is a COMPLETE flag if the requester sends items of its own.
REQUESTS: Final = (
    (0x04, "REQUEST_RESPONSE", Interaction.REQUEST_RESPONSE, NO_COUNT, NO_COMPLETE),
    (0x05, "REQUEST_FNF", Interaction.FIRE_AND_FORGET, NO_COUNT, NO_COMPLETE),
    (0x06, "REQUEST_STREAM", Interaction.REQUEST_STREAM, COUNT, NO_COMPLETE),
    (0x07, "REQUEST_CHANNEL", Interaction.REQUEST_CHANNEL, COUNT, bit("complete", COMPLETE)),
)


def request_rows(*fields: Field, ignorable: bool = True) -> list[Row]:
    """Return the rows of all requests, with these fields behind the count."""
    return [
        SHAPE.row(
            number,
            name,
            RequestFrame,
            *(count, *fields, FOLLOWING, complete),
            ids=STREAM_IDS,
            interaction=interaction,
            ignorable=ignorable,
        )
        for number, name, interaction, count, complete in REQUESTS
    ]


def check_item(name: str, frame: Any) -> Written:
    if not (frame.next or frame.complete or frame.follows):  # RS10-PAY-03, RSX-PAY-02
        raise LocalProtocolError(f"{name} next False, complete False: one of them, or follows, must be set")
    return NOTHING


CHECKED_ITEM: Final = Field(None, check_item)
# RS10-PAY-01
PAYLOAD: Final = SHAPE.row(0x0A, "PAYLOAD", PayloadFrame, CHECKED_ITEM, SHAPE.payload, *PAYLOAD_FLAGS, ids=STREAM_IDS)


def decode_payload(stream_id: int, flags: int, data: bytes) -> PayloadFrame:
    payload = SHAPE.payload_at(data, BODY, flags)
    return PayloadFrame(stream_id, payload, flags & NEXT != 0, flags & COMPLETE != 0, flags & FOLLOWS != 0)


def encode_payload(frame: PayloadFrame) -> Parts:
    """Encode what most streams end with in fewer calls; all else is for the fields."""
    flags = (NEXT if frame.next else 0) | (COMPLETE if frame.complete else 0) | (FOLLOWS if frame.follows else 0)
    if frame.payload.metadata is not None or not flags or not 0 < frame.stream_id <= UINT31_MAX:
        return PAYLOAD.encode(frame)
    return header(0x0A, flags, frame.stream_id), frame.payload.data


ROWS: Final = (  # RS10-TYP-01
    SHAPE.row(0x01, "SETUP", SetupFrame, *SETUP_FIELDS, absent("strict")),
    # The metadata goes to the end of the frame and has no length (RS10-LEASE-01, RS10-LEASE-02).
    SHAPE.row(0x02, "LEASE", LeaseFrame, LEASE_NUMBERS, rest("metadata", METADATA)),
    # The position is always present (RS10-KA-05).
    SHAPE.row(
        *(0x03, "KEEPALIVE", KeepaliveFrame),
        *(numbers(last_received_position=U63), rest("data"), bit("respond", RESPOND)),
    ),
    *request_rows(SHAPE.payload),
    # RS10-RQN-01, RS10-N-01, RS10-CAN-01
    SHAPE.row(0x08, "REQUEST_N", RequestNFrame, numbers(request_n=COUNTED), NO_METADATA, ids=STREAM_IDS),
    SHAPE.row(0x09, "CANCEL", CancelFrame, NO_METADATA, ids=STREAM_IDS),
    attrs.evolve(PAYLOAD, decode=decode_payload, encode=encode_payload),
    # RS10-ERR-01
    SHAPE.row(0x0B, "ERROR", ErrorFrame, ERROR_CODE, rest("data"), absent("metadata"), ids=ANY_ID),
    # Metadata to the end, whatever M says (RS10-MP-01, RS10-MP-02).
    SHAPE.row(0x0C, "METADATA_PUSH", MetadataPushFrame, rest("metadata"), always(METADATA)),
    # RS10-RES-01, RS10-RES-02
    SHAPE.row(
        *(0x0D, "RESUME", ResumeFrame),
        *(numbers(major=U16, minor=U16), token("token"), numbers("positions", **POSITIONS)),
    ),
    SHAPE.row(0x0E, "RESUME_OK", ResumeOkFrame, numbers(last_received_client_position=U63)),
    EXT_ROW,
)

CODEC: Final = Codec(SHAPE, ROWS)
