"""The frame layout of ReactiveSocket 0.2: the table of RSocket 1.0 with some rows replaced.

SETUP has a strict flag (RS02-SETUP-03), ERROR and CANCEL may have metadata (RS02-ERR-01, RS02-CAN-01), metadata that
stands alone has its length too (RS02-MD-04), and a PAYLOAD may have neither NEXT nor COMPLETE (RS02-PAY-03).
"""

from __future__ import annotations

import attrs

from rsocket_trio.rsocket.codec import UINT31_MAX, BadMetadata, Parts, Row, check
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    LeaseFrame,
    MetadataPushFrame,
    PayloadFrame,
    SetupFrame,
)
from rsocket_trio.rsocket.layouts import v1_0 as layout_1_0
from rsocket_trio.rsocket.layouts.fields_24 import (
    BODY,
    METADATA,
    TWO_UINT32,
    UINT32,
    add_flags,
    check_connection,
    check_stream,
    header,
    lease_fields,
    lease_numbers,
    metadata_at,
    metadata_field,
)

STRICT = 0x020
SETUP_FLAGS = layout_1_0.SETUP_FLAGS | STRICT


# SETUP (RS02-SETUP-03)


def decode_setup(stream_id: int, flags: int, data: bytes) -> SetupFrame:
    return attrs.evolve(layout_1_0.decode_setup(stream_id, flags, data), strict=flags & STRICT != 0)


def encode_setup(frame: SetupFrame) -> Parts:
    head, data = layout_1_0.encode_setup(attrs.evolve(frame, strict=False))
    return add_flags(head, STRICT if frame.strict else 0), data


# LEASE, CANCEL: metadata behind its length if M is set, and nothing else (RS02-LEASE-01, RS02-CAN-01)


def decode_lease(stream_id: int, flags: int, data: bytes) -> LeaseFrame:
    time_to_live, number_of_requests = lease_numbers(data)
    metadata, _ = _metadata_if_any(data, BODY + TWO_UINT32.size, flags)
    return LeaseFrame(time_to_live, number_of_requests, metadata, stream_id)


def encode_lease(frame: LeaseFrame) -> Parts:
    flags, metadata = _metadata_or_none("LEASE", frame.metadata)
    return header(0x02, flags, 0) + lease_fields(frame) + metadata, b""


def decode_cancel(stream_id: int, flags: int, data: bytes) -> CancelFrame:
    metadata, _ = _metadata_if_any(data, BODY, flags)
    return CancelFrame(stream_id, metadata)


def encode_cancel(frame: CancelFrame) -> Parts:
    check_stream("CANCEL", frame.stream_id)
    flags, metadata = _metadata_or_none("CANCEL", frame.metadata)
    return header(0x09, flags, frame.stream_id) + metadata, b""


# PAYLOAD: only sending differs, so that what was received bare can be written again (RS02-PAY-03)

decode_payload = layout_1_0.decode_payload


def encode_payload(frame: PayloadFrame) -> Parts:
    if frame.next or frame.complete or frame.follows:
        return layout_1_0.encode_payload(frame)
    check_stream("PAYLOAD", frame.stream_id)
    flags, metadata = _metadata_or_none("PAYLOAD", frame.payload.metadata)
    return header(0x0A, flags, frame.stream_id) + metadata, frame.payload.data


# ERROR (RS02-ERR-01, RS02-ERR-03)


def decode_error(stream_id: int, flags: int, data: bytes) -> ErrorFrame:
    (code,) = UINT32.unpack_from(data, BODY)
    metadata, offset = _metadata_if_any(data, BODY + UINT32.size, flags)
    return ErrorFrame(stream_id, code, data[offset:], metadata)


def encode_error(frame: ErrorFrame) -> Parts:
    check("ERROR", "stream_id", frame.stream_id, 0, UINT31_MAX)
    check("ERROR", "code", frame.code, 0, 0xFFFFFFFF)
    flags, metadata = _metadata_or_none("ERROR", frame.metadata)
    return header(0x0B, flags, frame.stream_id) + UINT32.pack(frame.code) + metadata, frame.data


# METADATA_PUSH: M is always set (RS02-MP-01)


def decode_metadata_push(stream_id: int, flags: int, data: bytes) -> MetadataPushFrame:
    if not flags & METADATA:
        # Without M there is no telling where metadata would be; 0.1 has the same case, and ignores such a frame.
        raise BadMetadata("no metadata: its flag is clear", offset=4)
    metadata, _ = metadata_at(data, BODY)
    return MetadataPushFrame(metadata, stream_id)


def encode_metadata_push(frame: MetadataPushFrame) -> Parts:
    check_connection("METADATA_PUSH", frame.stream_id)
    return header(0x0C, METADATA, 0) + metadata_field("METADATA_PUSH", frame.metadata), b""


def _metadata_if_any(data: bytes, offset: int, flags: int) -> tuple[bytes | None, int]:
    return metadata_at(data, offset) if flags & METADATA else (None, offset)


def _metadata_or_none(name: str, metadata: bytes | None) -> tuple[int, bytes]:
    return (0, b"") if metadata is None else (METADATA, metadata_field(name, metadata))


# fmt: off
CODEC = layout_1_0.CODEC.replacing(
    #    type  name             value              flags     fixed fields
    Row(0x01, "SETUP",         SetupFrame,        SETUP_FLAGS, 12, decode_setup, encode_setup),
    Row(0x02, "LEASE",         LeaseFrame,        METADATA,     8, decode_lease, encode_lease),
    Row(0x09, "CANCEL",        CancelFrame,       METADATA,     0, decode_cancel, encode_cancel),
    Row(0x0A, "PAYLOAD",       PayloadFrame,      layout_1_0.PAYLOAD_FLAGS, 0, decode_payload, encode_payload),
    Row(0x0B, "ERROR",         ErrorFrame,        METADATA,     4, decode_error, encode_error),
    Row(0x0C, "METADATA_PUSH", MetadataPushFrame, METADATA,     0, decode_metadata_push, encode_metadata_push),
)
# fmt: on
