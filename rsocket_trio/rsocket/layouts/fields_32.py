"""The rows shared by the layouts with a 32-bit frame length: requests, CANCEL, RESPONSE, METADATA_PUSH, EXT.

ReactiveSocket 0.0 and 0.1 put the same fields in the same order and give them other sizes.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.codec import (
    NOTHING,
    UINT32_MAX,
    BadMetadata,
    Field,
    Number,
    Row,
    Shape,
    Values,
    Written,
    absent,
    bit,
    check,
    numbers,
    rest,
    uint,
)
from rsocket_trio.rsocket.frames import CancelFrame, ExtFrame, MetadataPushFrame, PayloadFrame, RequestFrame

UINT32: Final = struct.Struct(">I")
METADATA_HEADER: Final = UINT32.size
MAX_FRAME_BYTES_32: Final = 2**31 - 1 - 4
"""Bytes: the largest length in 31 bits, without the 4 of the length itself (RS00-HDR-04, RS01-HDR-04)."""
EXT: Final = 0xFFFF
"""The type without a stream id: its extended type stands there (RS00-EXT-02, RS01-EXT-01)."""
EXT_NUMBER_AT: Final = 4
"""The offset of that."""


@attrs.frozen(kw_only=True)
class WordShape(Shape):
    """A layout whose metadata is behind one word: its type, if it has one, and its length, which counts the word.

    RS00-MD-03, RS00-MD-05, RS01-MD-02, RS01-MD-03
    """

    count: Number
    """Initial Request N and Request N."""
    largest_metadata: int
    """The largest number in a metadata header's length; its bits are a mask."""
    follows_flag: int
    complete_flag: int

    def metadata_at(self, data: bytes, offset: int) -> tuple[bytes, int, int]:
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
        size = METADATA_HEADER + len(metadata)
        if size > self.largest_metadata:  # RS00-MD-06, RS01-MD-04
            limit = self.largest_metadata - METADATA_HEADER
            raise LocalProtocolError(f"{name} metadata of {len(metadata)} bytes, limit {limit}")
        if not self.last_metadata_type:
            return UINT32.pack(size) + metadata
        check(name, "metadata_type", metadata_type, 0, self.last_metadata_type)
        return UINT32.pack(metadata_type << 24 | size) + metadata

    @property
    def stream_ids(self) -> tuple[int, int]:
        """The least and the largest id of a stream."""
        return 1, self.last_id

    def request_row(
        self, number: int, name: str, interaction: Interaction, *flags: Field, counted: bool = False
    ) -> Row:
        """Return the row of a request, which may ask for 0 items if it has a count.

        RS00-RR-01, RS00-FNF-01, RS00-STR-01, RS00-SUB-01, RS01-RR-01, RS01-FNF-01, RS01-STR-01, RS01-SUB-01
        """
        count = numbers(initial_n=self.count) if counted else absent("initial_n")
        fields = (count, self.payload, *flags, absent("complete"))
        return self.row(number, name, RequestFrame, *fields, ids=self.stream_ids, interaction=interaction)

    def cancel_row(self, number: int) -> Row:
        """Return the row of CANCEL (RS00-CAN-01, RS01-CAN-01)."""
        return self.row(number, "CANCEL", CancelFrame, self.metadata(), ids=self.stream_ids)

    def push_row(self, number: int, last_id: int) -> Row:
        """Return the row of METADATA_PUSH: M is always set (RS00-MP-01, RS00-MP-05, RS01-MP-02, RS01-MP-03)."""
        return self.row(number, "METADATA_PUSH", MetadataPushFrame, self.metadata(needed=True), ids=(0, last_id))

    def ext_row(self, header: struct.Struct, *, flags_first: bool = False) -> Row:
        """Return the row of EXT: no stream id, and content that is the extension's own, metadata included.

        RS00-EXT-01, RS00-EXT-02, RS01-EXT-01
        """

        def short_header(number: int, flags: int, stream_id: int) -> bytes:
            return header.pack(flags, number) if flags_first else header.pack(number, flags)

        row = attrs.evolve(self, header=short_header, size=EXT_NUMBER_AT).row(
            *(EXT, "EXT", ExtFrame, numbers(ext_type=uint("I", UINT32_MAX)), rest("body")),
            *(bit("ignore", self.ignore_flag, counted=False), bit("has_metadata", self.metadata_flag)),
        )
        return attrs.evolve(row, fixed=0, has_stream_id=False)

    def response_row(self, number: int) -> Row:
        """Return the row of RESPONSE (RS00-RSP-01, RS01-RSP-01), which has no item flag.

        Only an empty one that completes carries no item.
        """

        def read_next(values: Values, data: bytes, offset: int, flags: int) -> int:
            is_bare = not (flags & self.metadata_flag or values["payload"].data)
            values["next"] = not (is_bare and flags & self.complete_flag)
            return offset

        def check_next(name: str, frame: Any) -> Written:
            payload = frame.payload
            if not frame.next and (not frame.complete or payload.metadata is not None or len(payload.data)):
                raise LocalProtocolError(f"{name} next False: it is an item unless it completes and carries nothing")
            return NOTHING

        ends = (bit("complete", self.complete_flag), bit("follows", self.follows_flag))
        fields = (Field(None, check_next), self.payload, Field(read_next, None), *ends)
        return self.row(number, "RESPONSE", PayloadFrame, *fields, ids=self.stream_ids)
