"""Field codecs shared by the layouts with a 24-bit frame length: header, flags, metadata, requests.

Clauses are those of RSocket 1.0; ReactiveSocket 0.2 defines these parts alike.
"""

from __future__ import annotations

import struct
from typing import Final

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.limits import LARGEST_FRAME
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import UINT31_MAX, BadMetadata, HeaderLayout, Parts, Row, check, sized
from rsocket_trio.rsocket.frames import LeaseFrame, RequestFrame

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
UINT64: Final = struct.Struct(">Q")
TWO_UINT32: Final = struct.Struct(">II")
TWO_UINT64: Final = struct.Struct(">QQ")
VERSION: Final = struct.Struct(">HH")
SETUP_FIELDS: Final = struct.Struct(">HHII")
LONGEST_METADATA: Final = 2**24 - 1
NS_PER_MS: Final = 1_000_000


# The header: stream id, then six bits of type and ten of flags in one word (RS10-HDR-01).


def split_header(data: bytes) -> tuple[int, int, int]:
    """Return type number, flags and stream id."""
    stream_id, word = HEADER.unpack_from(data)
    return word >> 10, word & 0x3FF, stream_id


def header(number: int, flags: int, stream_id: int) -> bytes:
    """Return the six bytes that begin a frame."""
    return HEADER.pack(stream_id, number << 10 | flags)


def add_flags(data: bytes, flags: int) -> bytes:
    """Return the frame with more flags set."""
    stream_id, word = HEADER.unpack_from(data)
    return HEADER.pack(stream_id, word | flags) + data[BODY:]


HEADER_24: Final = HeaderLayout(
    minimum=BODY,
    type_offset=4,
    ignore_flag=IGNORE,
    all_flags=0x3FF,
    last_id=UINT31_MAX,
    largest=LARGEST_FRAME,
    split=split_header,
    add_flags=add_flags,
    stream_id=slice(0, 4),
)
"""The header of every layout whose frames have a 24-bit length."""


# Metadata behind its 24-bit length, which does not count itself, then data to the end (RS10-MD-01, RS10-MD-02).


def metadata_at(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return the metadata whose length is at ``offset``, and its end. Raise ``BadMetadata``."""
    start = offset + 3
    left = len(data) - start
    if left < 0:
        raise BadMetadata(f"metadata length needs 3 bytes at offset {offset}, {left + 3} left", offset=offset)
    size = int.from_bytes(data[offset:start], "big")
    if size > left:
        raise BadMetadata(f"metadata of {size} bytes at offset {start}, {left} left", offset=offset)
    return data[start : start + size], start + size


def metadata_field(name: str, metadata: bytes) -> bytes:
    """Return metadata behind its length."""
    if len(metadata) > LONGEST_METADATA:
        raise LocalProtocolError(f"{name} metadata of {len(metadata)} bytes, limit {LONGEST_METADATA}")
    return len(metadata).to_bytes(3, "big") + metadata


def payload_at(data: bytes, offset: int, flags: int) -> Payload:
    """Return the payload from ``offset`` to the end: metadata if M is set, then data."""
    if not flags & METADATA:
        return Payload(data[offset:])
    metadata, offset = metadata_at(data, offset)
    return Payload(data[offset:], metadata)


def check_connection(name: str, stream_id: int) -> None:
    """Raise ``LocalProtocolError`` if a frame of the connection is not on stream 0."""
    if stream_id:
        raise LocalProtocolError(f"{name} stream_id {stream_id}: it concerns the connection, whose number is 0")


def check_stream(name: str, stream_id: int) -> None:
    """Raise ``LocalProtocolError`` if a frame of a stream is on stream 0 or names an id out of range."""
    check(name, "stream_id", stream_id, 1, UINT31_MAX)


def refuse_metadata(name: str, metadata: bytes | None) -> None:
    """Raise ``LocalProtocolError`` for metadata in a frame type without it, instead of losing it."""
    if metadata is not None:
        raise LocalProtocolError(f"{name} metadata of {len(metadata)} bytes: this frame has none")


# Texts and times of SETUP


def milliseconds(field: str, seconds: float) -> int:
    """Return a time of SETUP in milliseconds, as its field holds it."""
    # NaN and infinity have no milliseconds to check: the comparison refuses them.
    if not 0 < seconds * 1000 <= UINT31_MAX:
        raise LocalProtocolError(f"SETUP {field} {seconds}: must be from 0.001 to {UINT31_MAX / 1000} seconds")
    # RS10-SETUP-04: both times are above 0, also where rounding would say otherwise.
    return max(round(seconds * 1000), 1)


def mime_field(field: str, mime: str) -> bytes:
    """Return a MIME type of SETUP behind its length of one byte."""
    try:
        content = mime.encode("latin-1")
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"SETUP {field} has {mime[error.start]!r} at {error.start}: must be ASCII") from None
    return sized(content, 1, f"SETUP {field}")


# The numbers of LEASE: milliseconds here, nanoseconds in every dialect's frame


def lease_numbers(data: bytes) -> tuple[int, int]:
    """Return the time to live in nanoseconds, and the number of requests."""
    time_to_live, number_of_requests = TWO_UINT32.unpack_from(data, BODY)
    return (time_to_live & UINT31_MAX) * NS_PER_MS, number_of_requests & UINT31_MAX


def lease_fields(frame: LeaseFrame) -> bytes:
    """Encode both numbers, cutting off part milliseconds; 0 in either stops all requests (RS10-LEASE-03)."""
    check("LEASE", "stream_id", frame.stream_id, 0, 0)
    check("LEASE", "time_to_live_ns", frame.time_to_live_ns, 0, UINT31_MAX * NS_PER_MS)
    check("LEASE", "number_of_requests", frame.number_of_requests, 0, UINT31_MAX)
    return TWO_UINT32.pack(frame.time_to_live_ns // NS_PER_MS, frame.number_of_requests)


# The four requests: without a count (RS10-RR-01), and with one (RS10-STR-01, RS10-CH-01)


def request_row(number: int, name: str, interaction: Interaction) -> Row:
    """Return the row of a request that asks for one item or none."""

    def decode(stream_id: int, flags: int, data: bytes) -> RequestFrame:
        payload = payload_at(data, BODY, flags) if flags & METADATA else Payload(data[BODY:])
        return RequestFrame(stream_id, interaction, payload, None, flags & FOLLOWS != 0)

    def encode(frame: RequestFrame) -> Parts:
        stream_id, payload = frame.stream_id, frame.payload
        if not 0 < stream_id <= UINT31_MAX:
            check_stream(name, stream_id)
        if frame.initial_n is not None or frame.complete:
            raise LocalProtocolError(f"{name} initial_n {frame.initial_n}, complete {frame.complete}: it has neither")
        word = number << 10 | (FOLLOWS if frame.follows else 0)
        if payload.metadata is None:
            return HEADER.pack(stream_id, word), payload.data
        return HEADER.pack(stream_id, word | METADATA) + metadata_field(name, payload.metadata), payload.data

    return Row(number, name, RequestFrame, METADATA | FOLLOWS, 0, decode, encode, interaction)


def counted_request_row(number: int, name: str, interaction: Interaction, complete_flag: int) -> Row:
    """Return the row of a request with credit; it has a COMPLETE flag if the requester sends items of its own."""
    fixed = BODY + UINT32.size
    pack = struct.Struct(">IHI").pack

    def decode(stream_id: int, flags: int, data: bytes) -> RequestFrame:
        (initial_n,) = UINT32.unpack_from(data, BODY)
        return RequestFrame(
            stream_id,
            interaction,
            payload_at(data, fixed, flags),
            initial_n & UINT31_MAX,
            flags & FOLLOWS != 0,
            flags & complete_flag != 0,
        )

    def encode(frame: RequestFrame) -> Parts:
        stream_id, initial_n, payload = frame.stream_id, frame.initial_n, frame.payload
        if not 0 < stream_id <= UINT31_MAX:
            check_stream(name, stream_id)
        if initial_n is None or not 0 < initial_n <= UINT31_MAX:  # RS10-N-01
            check(name, "initial_n", initial_n, 1, UINT31_MAX)
        if frame.complete and not complete_flag:
            raise LocalProtocolError(f"{name} complete: its requester sends nothing more anyway")
        flags = (FOLLOWS if frame.follows else 0) | (complete_flag if frame.complete else 0)
        word = number << 10 | flags
        if payload.metadata is None:
            return pack(stream_id, word, initial_n), payload.data
        return pack(stream_id, word | METADATA, initial_n) + metadata_field(name, payload.metadata), payload.data

    flags = METADATA | FOLLOWS | complete_flag
    return Row(number, name, RequestFrame, flags, UINT32.size, decode, encode, interaction)
