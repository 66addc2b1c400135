"""Field codecs shared by the layouts with a 32-bit frame length: metadata, requests, CANCEL, RESPONSE.

ReactiveSocket 0.0 and 0.1 put the same fields in the same order and give them other sizes, which a ``Shape`` holds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import BadMetadata, Parts, Row, check
from rsocket_trio.rsocket.frames import CancelFrame, MetadataPushFrame, PayloadFrame, RequestFrame

UINT32: Final = struct.Struct(">I")
UINT64: Final = struct.Struct(">Q")
UINT32_MAX: Final = 2**32 - 1
UINT64_MAX: Final = 2**64 - 1
METADATA_HEADER: Final = UINT32.size
LARGEST_FRAME_32: Final = 2**31 - 1 - 4
"""Bytes: the largest length in 31 bits, without the 4 of the length itself (RS00-HDR-04, RS01-HDR-04)."""
EXT: Final = 0xFFFF
"""The type without a stream id: its extended type stands there (RS00-EXT-02, RS01-EXT-01)."""
EXT_BODY: Final = 8
"""The offset of an EXT's content."""


@attrs.frozen
class Shape:
    """The positions of the fields that all frames of a layout share, and the widths of its numbers."""

    header: Callable[[int, int, int], bytes]
    """The beginning of a frame: type number, flags, stream id."""
    body: int
    """The offset behind a frame's header."""
    flags_offset: int
    last_id: int
    count: struct.Struct
    """Initial Request N and Request N."""
    last_count: int
    """The largest value of a count."""
    read_count: Callable[[int], int]
    """The value of a count on the wire."""
    largest_metadata: int
    """The largest number in a metadata header's length, which counts those 4 bytes too; its bits are a mask."""
    last_metadata_type: int
    """0 where metadata has no type: those bits are reserved then."""
    metadata_flag: int
    follows_flag: int
    complete_flag: int

    # Metadata: one word with its type, if it has one, and its length (RS00-MD-03, RS00-MD-05, RS01-MD-02, RS01-MD-03).

    def metadata_at(self, data: bytes, offset: int) -> tuple[bytes, int, int]:
        """Return the metadata whose header is at ``offset``, its type and its end. Raise ``BadMetadata``."""
        start = offset + METADATA_HEADER
        left = len(data) - offset
        if left < METADATA_HEADER:
            raise BadMetadata(f"metadata header needs 4 bytes at offset {offset}, {left} left", offset=offset)
        (word,) = UINT32.unpack_from(data, offset)
        size = word & self.largest_metadata
        if size < METADATA_HEADER:  # RS00-MD-08, RS01-MD-07
            raise BadMetadata(f"metadata length {size}, which must count its own 4 bytes", offset=offset)
        if size > left:  # RS00-MD-08, RS01-MD-05, RS01-MD-06
            raise BadMetadata(f"metadata length {size} at offset {offset}, {left} left", offset=offset)
        end = offset + size
        return data[start:end], word >> 24 & self.last_metadata_type, end

    def metadata_field(self, name: str, metadata: bytes, metadata_type: int) -> bytes:
        """Return metadata behind its header."""
        size = METADATA_HEADER + len(metadata)
        if size > self.largest_metadata:  # RS00-MD-06, RS01-MD-04
            limit = self.largest_metadata - METADATA_HEADER
            raise LocalProtocolError(f"{name} metadata of {len(metadata)} bytes, limit {limit}")
        if not self.last_metadata_type:
            return UINT32.pack(size) + metadata
        check(name, "metadata_type", metadata_type, 0, self.last_metadata_type)
        return UINT32.pack(metadata_type << 24 | size) + metadata

    def payload_at(self, data: bytes, offset: int, flags: int) -> Payload:
        """Return the payload from ``offset`` to the end: metadata if M is set, then data."""
        if not flags & self.metadata_flag:
            return Payload(data[offset:])
        metadata, metadata_type, offset = self.metadata_at(data, offset)
        return Payload(data[offset:], metadata, metadata_type=metadata_type)

    def payload_head(self, name: str, payload: Payload) -> tuple[int, bytes]:
        """Return the M flag and the bytes of a payload before its data."""
        return self.optional_metadata(name, payload.metadata, payload.metadata_type)

    # Frames that have nothing but metadata carry it the same way (RS00-MD-09, RS01-MD-09).

    def metadata_if_any(self, data: bytes, offset: int, flags: int) -> tuple[bytes | None, int, int]:
        """Return the metadata if M is set, its type, and the offset behind it."""
        return self.metadata_at(data, offset) if flags & self.metadata_flag else (None, 0, offset)

    def optional_metadata(self, name: str, metadata: bytes | None, metadata_type: int) -> tuple[int, bytes]:
        """Return the M flag and the metadata behind its header, or neither."""
        if metadata is None:
            return 0, b""
        return self.metadata_flag, self.metadata_field(name, metadata, metadata_type)

    def check_stream(self, name: str, stream_id: int) -> None:
        """Raise ``LocalProtocolError`` if a frame of a stream is on stream 0 or names an id out of range."""
        check(name, "stream_id", stream_id, 1, self.last_id)


# The requests: without a count, and with one. F is 0 in a shape whose requests can't be fragmented (RS00-FRAG-02).


def request_row(shape: Shape, number: int, name: str, interaction: Interaction, follows_flag: int) -> Row:
    """Return the row of a request that asks for one item or none (RS00-RR-01, RS00-FNF-01, RS01-RR-01, RS01-FNF-01)."""
    body, header, payload_at = shape.body, shape.header, shape.payload_at

    def decode(stream_id: int, flags: int, data: bytes) -> RequestFrame:
        return RequestFrame(stream_id, interaction, payload_at(data, body, flags), None, flags & follows_flag != 0)

    def encode(frame: RequestFrame) -> Parts:
        shape.check_stream(name, frame.stream_id)
        if frame.initial_n is not None or frame.complete:
            raise LocalProtocolError(f"{name} initial_n {frame.initial_n}, complete {frame.complete}: it has neither")
        flags, metadata = shape.payload_head(name, frame.payload)
        head = header(number, flags | follows(name, frame, follows_flag), frame.stream_id)
        return head + metadata, frame.payload.data

    return Row(number, name, RequestFrame, shape.metadata_flag | follows_flag, 0, decode, encode, interaction)


def counted_request_row(shape: Shape, number: int, name: str, interaction: Interaction, follows_flag: int) -> Row:
    """Return the row of a request with credit, which may be 0 (RS00-STR-01, RS00-SUB-01, RS01-STR-01, RS01-SUB-01)."""
    body, header, count, read_count = shape.body, shape.header, shape.count, shape.read_count
    fixed = body + count.size

    def decode(stream_id: int, flags: int, data: bytes) -> RequestFrame:
        (initial_n,) = count.unpack_from(data, body)
        payload = shape.payload_at(data, fixed, flags)
        return RequestFrame(stream_id, interaction, payload, read_count(initial_n), flags & follows_flag != 0)

    def encode(frame: RequestFrame) -> Parts:
        shape.check_stream(name, frame.stream_id)
        check(name, "initial_n", frame.initial_n, 0, shape.last_count)
        if frame.complete:
            raise LocalProtocolError(f"{name} complete: its requester sends nothing more anyway")
        flags, metadata = shape.payload_head(name, frame.payload)
        head = header(number, flags | follows(name, frame, follows_flag), frame.stream_id)
        return head + count.pack(frame.initial_n) + metadata, frame.payload.data

    flags = shape.metadata_flag | follows_flag
    return Row(number, name, RequestFrame, flags, count.size, decode, encode, interaction)


def follows(name: str, frame: RequestFrame, follows_flag: int) -> int:
    """Return the F bit of a request, 0 if it is whole. Raise ``LocalProtocolError`` if its type has none."""
    if not frame.follows:
        return 0
    if not follows_flag:
        raise LocalProtocolError(f"{name} follows: a request of this dialect can't be fragmented")
    return follows_flag


def cancel_row(shape: Shape, number: int) -> Row:
    """Return the row of CANCEL (RS00-CAN-01, RS01-CAN-01)."""

    def decode(stream_id: int, flags: int, data: bytes) -> CancelFrame:
        metadata, metadata_type, _ = shape.metadata_if_any(data, shape.body, flags)
        return CancelFrame(stream_id, metadata, metadata_type)

    def encode(frame: CancelFrame) -> Parts:
        shape.check_stream("CANCEL", frame.stream_id)
        flags, metadata = shape.optional_metadata("CANCEL", frame.metadata, frame.metadata_type)
        return shape.header(number, flags, frame.stream_id) + metadata, b""

    return Row(number, "CANCEL", CancelFrame, shape.metadata_flag, 0, decode, encode)


def response_row(shape: Shape, number: int) -> Row:
    """Return the row of RESPONSE (RS00-RSP-01, RS01-RSP-01). It has no item flag: only an empty C carries no item."""
    body, header, payload_at, last_id = shape.body, shape.header, shape.payload_at, shape.last_id
    metadata_flag, follows_flag, complete_flag = shape.metadata_flag, shape.follows_flag, shape.complete_flag

    def decode(stream_id: int, flags: int, data: bytes) -> PayloadFrame:
        if flags & metadata_flag:
            payload, item = payload_at(data, body, flags), True
        else:
            payload = Payload(data[body:])
            item = not flags & complete_flag or len(data) > body
        return PayloadFrame(stream_id, payload, item, flags & complete_flag != 0, flags & follows_flag != 0)

    def encode(frame: PayloadFrame) -> Parts:
        stream_id, payload = frame.stream_id, frame.payload
        flags = 0
        if frame.complete:
            flags = complete_flag
        if frame.follows:
            flags |= follows_flag
        if not frame.next and (not frame.complete or payload.metadata is not None or len(payload.data)):
            raise LocalProtocolError("RESPONSE next False: it is an item unless it completes and carries nothing")
        if not 0 < stream_id <= last_id:
            shape.check_stream("RESPONSE", stream_id)
        if payload.metadata is None:
            return header(number, flags, stream_id), payload.data
        head = header(number, flags | metadata_flag, stream_id)
        return head + shape.metadata_field("RESPONSE", payload.metadata, payload.metadata_type), payload.data

    return Row(number, "RESPONSE", PayloadFrame, metadata_flag | follows_flag | complete_flag, 0, decode, encode)


def decode_metadata_push(shape: Shape, stream_id: int, flags: int, data: bytes) -> MetadataPushFrame:
    """Decode METADATA_PUSH: M is always set (RS00-MP-01, RS00-MP-05, RS01-MP-02, RS01-MP-03)."""
    if not flags & shape.metadata_flag:
        raise BadMetadata("no metadata: its flag is clear", offset=shape.flags_offset)
    metadata, metadata_type, _ = shape.metadata_at(data, shape.body)
    return MetadataPushFrame(metadata, stream_id, metadata_type)


def encode_metadata_push(shape: Shape, number: int, frame: MetadataPushFrame) -> Parts:
    """Encode METADATA_PUSH; the layout checks its stream id."""
    metadata = shape.metadata_field("METADATA_PUSH", frame.metadata, frame.metadata_type)
    return shape.header(number, shape.metadata_flag, frame.stream_id) + metadata, b""
