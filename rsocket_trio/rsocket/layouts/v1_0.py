"""The frame layout of RSocket 1.0: a decoder and an encoder for every type, and their table.

The clauses RS10-... define the place of each field. Spare flag bits are ignored (RS10-UNX-08), reserved bits
inside fields are masked off (ALL-RCT-06), bytes after the last field of a frame without payload are ignored
(ALL-RCT-11).
"""

from __future__ import annotations

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import UINT31_MAX, UINT63_MAX, Codec, Parts, Row, check, end_of, sized, sized_at
from rsocket_trio.rsocket.frames import (
    CancelFrame,
    ErrorFrame,
    ExtFrame,
    KeepaliveFrame,
    LeaseFrame,
    MetadataPushFrame,
    PayloadFrame,
    RequestNFrame,
    ResumeFrame,
    ResumeOkFrame,
    SetupFrame,
)
from rsocket_trio.rsocket.layouts.fields_24 import (
    BODY,
    COMPLETE,
    FOLLOWS,
    HEADER,
    HEADER_24,
    IGNORE,
    LEASE,
    METADATA,
    NEXT,
    RESPOND,
    RESUME_ENABLE,
    SETUP_FIELDS,
    TWO_UINT32,
    TWO_UINT64,
    UINT32,
    UINT64,
    VERSION,
    check_connection,
    check_stream,
    counted_request_row,
    header,
    lease_fields,
    lease_numbers,
    metadata_field,
    milliseconds,
    mime_field,
    payload_at,
    refuse_metadata,
    request_row,
)

# SETUP (RS10-SETUP-02)


def decode_setup(stream_id: int, flags: int, data: bytes) -> SetupFrame:
    major, minor, interval, lifetime = SETUP_FIELDS.unpack_from(data, BODY)
    offset = BODY + SETUP_FIELDS.size
    token = None
    if flags & RESUME_ENABLE:
        token, offset = sized_at(data, offset, 2, "resume token")
    metadata_mime, offset = sized_at(data, offset, 1, "metadata MIME type")
    data_mime, offset = sized_at(data, offset, 1, "data MIME type")
    return SetupFrame(
        major,
        minor,
        (interval & UINT31_MAX) / 1000,
        (lifetime & UINT31_MAX) / 1000,
        # Not to be interpreted (RS10-SETUP-05): Latin-1 keeps every byte, ASCII or not.
        metadata_mime.decode("latin-1"),
        data_mime.decode("latin-1"),
        payload_at(data, offset, flags),
        lease=flags & LEASE != 0,
        resume_token=token,
        stream_id=stream_id,
    )


def encode_setup(frame: SetupFrame) -> Parts:
    check_connection("SETUP", frame.stream_id)
    check("SETUP", "major", frame.major, 0, 0xFFFF)
    check("SETUP", "minor", frame.minor, 0, 0xFFFF)
    if frame.strict:
        raise LocalProtocolError("SETUP strict: this layout has no such flag")
    flags = LEASE if frame.lease else 0
    fields = SETUP_FIELDS.pack(
        frame.major,
        frame.minor,
        milliseconds("keepalive_interval", frame.keepalive_interval),
        milliseconds("max_lifetime", frame.max_lifetime),
    )
    if frame.resume_token is not None:
        flags |= RESUME_ENABLE
        fields += sized(frame.resume_token, 2, "SETUP resume_token")
    fields += mime_field("metadata_mime", frame.metadata_mime) + mime_field("data_mime", frame.data_mime)
    if frame.payload.metadata is not None:
        flags |= METADATA
        fields += metadata_field("SETUP", frame.payload.metadata)
    return header(0x01, flags, 0) + fields, frame.payload.data


# LEASE: the metadata goes to the end of the frame and has no length (RS10-LEASE-01, RS10-LEASE-02)


def decode_lease(stream_id: int, flags: int, data: bytes) -> LeaseFrame:
    time_to_live, number_of_requests = lease_numbers(data)
    metadata = data[BODY + TWO_UINT32.size :] if flags & METADATA else None
    return LeaseFrame(time_to_live, number_of_requests, metadata, stream_id)


def encode_lease(frame: LeaseFrame) -> Parts:
    flags = 0 if frame.metadata is None else METADATA
    return header(0x02, flags, 0) + lease_fields(frame), frame.metadata or b""


# KEEPALIVE: the position is always present (RS10-KA-05)


def decode_keepalive(stream_id: int, flags: int, data: bytes) -> KeepaliveFrame:
    (position,) = UINT64.unpack_from(data, BODY)
    return KeepaliveFrame(flags & RESPOND != 0, position & UINT63_MAX, data[BODY + UINT64.size :], stream_id)


def encode_keepalive(frame: KeepaliveFrame) -> Parts:
    check_connection("KEEPALIVE", frame.stream_id)
    check("KEEPALIVE", "last_received_position", frame.last_received_position, 0, UINT63_MAX)
    flags = RESPOND if frame.respond else 0
    return header(0x03, flags, 0) + UINT64.pack(frame.last_received_position), frame.data


# REQUEST_N (RS10-RQN-01) and CANCEL, which has no metadata here (RS10-CAN-01)


def decode_request_n(stream_id: int, flags: int, data: bytes) -> RequestNFrame:
    (request_n,) = UINT32.unpack_from(data, BODY)
    return RequestNFrame(stream_id, request_n & UINT31_MAX)


def encode_request_n(frame: RequestNFrame) -> Parts:
    check_stream("REQUEST_N", frame.stream_id)
    check("REQUEST_N", "request_n", frame.request_n, 1, UINT31_MAX)  # RS10-N-01
    refuse_metadata("REQUEST_N", frame.metadata)
    return header(0x08, 0, frame.stream_id) + UINT32.pack(frame.request_n), b""


def decode_cancel(stream_id: int, flags: int, data: bytes) -> CancelFrame:
    return CancelFrame(stream_id)


def encode_cancel(frame: CancelFrame) -> Parts:
    check_stream("CANCEL", frame.stream_id)
    refuse_metadata("CANCEL", frame.metadata)
    return header(0x09, 0, frame.stream_id), b""


# PAYLOAD (RS10-PAY-01)


def decode_payload(stream_id: int, flags: int, data: bytes) -> PayloadFrame:
    return PayloadFrame(
        stream_id,
        payload_at(data, BODY, flags) if flags & METADATA else Payload(data[BODY:]),
        flags & NEXT != 0,
        flags & COMPLETE != 0,
        flags & FOLLOWS != 0,
    )


def encode_payload(frame: PayloadFrame) -> Parts:
    stream_id, payload = frame.stream_id, frame.payload
    word = 0x0A << 10
    if frame.next:
        word |= NEXT
    if frame.complete:
        word |= COMPLETE
    if frame.follows:
        word |= FOLLOWS
    if word == 0x0A << 10:  # RS10-PAY-03
        raise LocalProtocolError("PAYLOAD next False, complete False: one of them, or follows, must be set")
    if not 0 < stream_id <= UINT31_MAX:
        check_stream("PAYLOAD", stream_id)
    if payload.metadata is None:
        return HEADER.pack(stream_id, word), payload.data
    return HEADER.pack(stream_id, word | METADATA) + metadata_field("PAYLOAD", payload.metadata), payload.data


# ERROR: all 32 bits are the code, and there is no metadata (RS10-ERR-01, RS10-ERR-03)


def decode_error(stream_id: int, flags: int, data: bytes) -> ErrorFrame:
    (code,) = UINT32.unpack_from(data, BODY)
    return ErrorFrame(stream_id, code, data[BODY + UINT32.size :])


def encode_error(frame: ErrorFrame) -> Parts:
    check("ERROR", "stream_id", frame.stream_id, 0, UINT31_MAX)
    check("ERROR", "code", frame.code, 0, 0xFFFFFFFF)
    refuse_metadata("ERROR", frame.metadata)
    return header(0x0B, 0, frame.stream_id) + UINT32.pack(frame.code), frame.data


# METADATA_PUSH: metadata to the end, whatever M says (RS10-MP-01, RS10-MP-02)


def decode_metadata_push(stream_id: int, flags: int, data: bytes) -> MetadataPushFrame:
    return MetadataPushFrame(data[BODY:], stream_id)


def encode_metadata_push(frame: MetadataPushFrame) -> Parts:
    check_connection("METADATA_PUSH", frame.stream_id)
    return header(0x0C, METADATA, 0), frame.metadata


# RESUME and RESUME_OK (RS10-RES-01, RS10-RES-02)


def decode_resume(stream_id: int, flags: int, data: bytes) -> ResumeFrame:
    major, minor = VERSION.unpack_from(data, BODY)
    token, offset = sized_at(data, BODY + VERSION.size, 2, "resume token")
    end_of(data, offset, TWO_UINT64.size, "positions")
    server_position, client_position = TWO_UINT64.unpack_from(data, offset)
    return ResumeFrame(major, minor, token, server_position & UINT63_MAX, client_position & UINT63_MAX, stream_id)


def encode_resume(frame: ResumeFrame) -> Parts:
    check_connection("RESUME", frame.stream_id)
    check("RESUME", "major", frame.major, 0, 0xFFFF)
    check("RESUME", "minor", frame.minor, 0, 0xFFFF)
    server_position, client_position = frame.last_received_server_position, frame.first_available_client_position
    check("RESUME", "last_received_server_position", server_position, 0, UINT63_MAX)
    check("RESUME", "first_available_client_position", client_position, 0, UINT63_MAX)
    fields = VERSION.pack(frame.major, frame.minor) + sized(frame.token, 2, "RESUME token")
    return header(0x0D, 0, 0) + fields + TWO_UINT64.pack(server_position, client_position), b""


def decode_resume_ok(stream_id: int, flags: int, data: bytes) -> ResumeOkFrame:
    (position,) = UINT64.unpack_from(data, BODY)
    return ResumeOkFrame(position & UINT63_MAX, stream_id)


def encode_resume_ok(frame: ResumeOkFrame) -> Parts:
    check_connection("RESUME_OK", frame.stream_id)
    check("RESUME_OK", "last_received_client_position", frame.last_received_client_position, 0, UINT63_MAX)
    return header(0x0E, 0, 0) + UINT64.pack(frame.last_received_client_position), b""


# EXT: the body is the extension's own, metadata included (RS10-EXT-01, RS10-EXT-02)


def decode_ext(stream_id: int, flags: int, data: bytes) -> ExtFrame:
    (ext_type,) = UINT32.unpack_from(data, BODY)
    body = data[BODY + UINT32.size :]
    return ExtFrame(stream_id, ext_type & UINT31_MAX, body, flags & IGNORE != 0, flags & METADATA != 0)


def encode_ext(frame: ExtFrame) -> Parts:
    check("EXT", "stream_id", frame.stream_id, 0, UINT31_MAX)
    check("EXT", "ext_type", frame.ext_type, 1, UINT31_MAX)
    flags = (IGNORE if frame.ignore else 0) | (METADATA if frame.has_metadata else 0)
    return header(0x3F, flags, frame.stream_id) + UINT32.pack(frame.ext_type), frame.body


SETUP_FLAGS = METADATA | RESUME_ENABLE | LEASE
PAYLOAD_FLAGS = METADATA | FOLLOWS | COMPLETE | NEXT

# RS10-TYP-01
# fmt: off
ROWS = (
    #    type  name             value              flags        fixed fields
    Row(0x01, "SETUP",         SetupFrame,        SETUP_FLAGS,  12, decode_setup, encode_setup),
    Row(0x02, "LEASE",         LeaseFrame,        METADATA,      8, decode_lease, encode_lease),
    Row(0x03, "KEEPALIVE",     KeepaliveFrame,    RESPOND,       8, decode_keepalive, encode_keepalive),
    request_row(0x04, "REQUEST_RESPONSE", Interaction.REQUEST_RESPONSE),
    request_row(0x05, "REQUEST_FNF", Interaction.FIRE_AND_FORGET),
    counted_request_row(0x06, "REQUEST_STREAM", Interaction.REQUEST_STREAM, 0),
    counted_request_row(0x07, "REQUEST_CHANNEL", Interaction.REQUEST_CHANNEL, COMPLETE),
    Row(0x08, "REQUEST_N",     RequestNFrame,     0,             4, decode_request_n, encode_request_n),
    Row(0x09, "CANCEL",        CancelFrame,       0,             0, decode_cancel, encode_cancel),
    Row(0x0A, "PAYLOAD",       PayloadFrame,      PAYLOAD_FLAGS, 0, decode_payload, encode_payload),
    Row(0x0B, "ERROR",         ErrorFrame,        0,             4, decode_error, encode_error),
    Row(0x0C, "METADATA_PUSH", MetadataPushFrame, METADATA,      0, decode_metadata_push, encode_metadata_push),
    Row(0x0D, "RESUME",        ResumeFrame,       0,             4, decode_resume, encode_resume),
    Row(0x0E, "RESUME_OK",     ResumeOkFrame,     0,             8, decode_resume_ok, encode_resume_ok),
    Row(0x3F, "EXT",           ExtFrame,          METADATA,      4, decode_ext, encode_ext),
)
# fmt: on

CODEC = Codec(HEADER_24, ROWS)
