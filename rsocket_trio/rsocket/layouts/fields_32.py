"""What the layouts with a 32-bit frame length share: metadata behind its header, requests, CANCEL, RESPONSE.

ReactiveSocket 0.0 and 0.1 put the same fields in the same order and give them other sizes: a ``Shape`` says which.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.interaction import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import BadMetadata, Parts, Row, check
from rsocket_trio.rsocket.frames import CancelFrame, MetadataPushFrame, PayloadFrame, RequestFrame

UINT32: Final = struct.Struct(">I")
UINT64: Final = struct.Struct(">Q")
UINT32_MAX: Final = 2**32 - 1
UINT64_MAX: Final = 2**64 - 1
METADATA_HEADER: Final = UINT32.size
LARGEST_FRAME_32: Final = 2**31 - 1 - 4
"""Bytes: what the 31 bits of the length can say, the 4 of the length itself not counted (RS00-HDR-04, RS01-HDR-04)."""
EXT: Final = 0xFFFF
"""The type without a stream id: its extended type stands there (RS00-EXT-02, RS01-EXT-01)."""
EXT_BODY: Final = 8
"""Where the content of an EXT begins."""


@attrs.frozen
class Shape:
    """Where a layout keeps what all its frames have, and how wide its numbers are."""

    header: Callable[[int, int, int], bytes]
    """What a frame begins with: type number, flags, stream id."""
    body: int
    """Where a frame goes on after its header."""
    flags_offset: int
    last_id: int
    count: struct.Struct
    """Initial Request N and Request N."""
    last_count: int
    """The largest number that a count can say."""
    read_count: Callable[[int], int]
    """What a count on the wire counts as."""
    largest_metadata: int
    """The largest number in a metadata header's length, which counts those 4 bytes too; its bits are a mask."""
    last_metadata_type: int
    """0 where metadata has no type: those bits are reserved then."""
    metadata_flag: int
    follows_flag: int
    complete_flag: int

    # Metadata: one word with its type, if it has one, and its length (RS00-MD-03, RS00-MD-05, RS01-MD-02, RS01-MD-03).

    def metadata_at(self, data: bytes, offset: int) -> tuple[bytes, int, int]:
        """The metadata whose header is at ``offset``, its type, and where it ends. Raises ``BadMetadata``."""
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
        """Metadata behind its header."""
        size = METADATA_HEADER + len(metadata)
        if size > self.largest_metadata:  # RS00-MD-06, RS01-MD-04
            limit = self.largest_metadata - METADATA_HEADER
            raise LocalProtocolError(f"{name} metadata of {len(metadata)} bytes, limit {limit}")
        if not self.last_metadata_type:
            return UINT32.pack(size) + metadata
        check(name, "metadata_type", metadata_type, 0, self.last_metadata_type)
        return UINT32.pack(metadata_type << 24 | size) + metadata

    def payload_at(self, data: bytes, offset: int, flags: int) -> Payload:
        """What stands from ``offset`` to the end: metadata if M is set, then data."""
        if not flags & self.metadata_flag:
            return Payload(data[offset:])
        metadata, metadata_type, offset = self.metadata_at(data, offset)
        return Payload(data[offset:], metadata, metadata_type=metadata_type)

    def payload_head(self, name: str, payload: Payload) -> tuple[int, bytes]:
        """The M flag and everything of a payload that stands before its data."""
        return self.optional_metadata(name, payload.metadata, payload.metadata_type)

    # Frames that have nothing but metadata carry it the same way (RS00-MD-09, RS01-MD-09).

    def metadata_if_any(self, data: bytes, offset: int, flags: int) -> tuple[bytes | None, int, int]:
        """Metadata if M is set, its type, and where the frame goes on."""
        return self.metadata_at(data, offset) if flags & self.metadata_flag else (None, 0, offset)

    def optional_metadata(self, name: str, metadata: bytes | None, metadata_type: int) -> tuple[int, bytes]:
        """The M flag and the metadata behind its header, or neither."""
        if metadata is None:
            return 0, b""
        return self.metadata_flag, self.metadata_field(name, metadata, metadata_type)

    def check_stream(self, name: str, stream_id: int) -> None:
        """Frames that concern a stream name one: 0 is the connection. Raises ``LocalProtocolError``."""
        check(name, "stream_id", stream_id, 1, self.last_id)


# The requests: without a count, and with one. F is 0 in a shape whose requests can't be fragmented (RS00-FRAG-02).


def request_row(shape: Shape, number: int, name: str, interaction: Interaction, follows_flag: int) -> Row:
    """A request that asks for one item or none (RS00-RR-01, RS00-FNF-01, RS01-RR-01, RS01-FNF-01)."""
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
    """A request that grants credit at once; 0 is allowed (RS00-STR-01, RS00-SUB-01, RS01-STR-01, RS01-SUB-01)."""
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
    """The F flag of a request, where its type has one."""
    if not frame.follows:
        return 0
    if not follows_flag:
        raise LocalProtocolError(f"{name} follows: a request of this dialect can't be fragmented")
    return follows_flag


def cancel_row(shape: Shape, number: int) -> Row:
    """CANCEL (RS00-CAN-01, RS01-CAN-01)."""

    def decode(stream_id: int, flags: int, data: bytes) -> CancelFrame:
        metadata, metadata_type, _ = shape.metadata_if_any(data, shape.body, flags)
        return CancelFrame(stream_id, metadata, metadata_type)

    def encode(frame: CancelFrame) -> Parts:
        shape.check_stream("CANCEL", frame.stream_id)
        flags, metadata = shape.optional_metadata("CANCEL", frame.metadata, frame.metadata_type)
        return shape.header(number, flags, frame.stream_id) + metadata, b""

    return Row(number, "CANCEL", CancelFrame, shape.metadata_flag, 0, decode, encode)


def response_row(shape: Shape, number: int) -> Row:
    """RESPONSE (RS00-RSP-01, RS01-RSP-01). It has no flag for an item: only C with nothing at all is none by itself."""
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
    """METADATA_PUSH: M is always set (RS00-MP-01, RS00-MP-05, RS01-MP-02, RS01-MP-03)."""
    if not flags & shape.metadata_flag:
        raise BadMetadata("no metadata: its flag is clear", offset=shape.flags_offset)
    metadata, metadata_type, _ = shape.metadata_at(data, shape.body)
    return MetadataPushFrame(metadata, stream_id, metadata_type)


def encode_metadata_push(shape: Shape, number: int, frame: MetadataPushFrame) -> Parts:
    """Its mirror; which stream ids are allowed is the layout's to say."""
    metadata = shape.metadata_field("METADATA_PUSH", frame.metadata, frame.metadata_type)
    return shape.header(number, shape.metadata_flag, frame.stream_id) + metadata, b""
