"""The codec of every dialect: it turns bytes into frames and back by a layout's header and table of rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, Self, TypeAlias

import attrs

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.rsocket.frames import ErrorFrame, Frame, RequestFrame
from rsocket_trio.values import value

UINT31_MAX: Final = 2**31 - 1
UINT63_MAX: Final = 2**63 - 1
FLAGS_SIZE: Final = 2
"""Bytes of the flags, and of what shares them."""

Body: TypeAlias = bytes | bytearray | memoryview
"""Data that leaves as it stands: an encoder never copies it."""

Parts: TypeAlias = tuple[bytes, Body]
"""A frame on its way out: everything before the data, and the data."""

Decoder: TypeAlias = Callable[[int, int, bytes], Frame]
"""From stream id, flags and the whole frame to its value. May let ``struct.error`` out for short fixed fields."""

# A table of encoders that each take their own class cannot be told to a type checker any closer than this.
Encoder: TypeAlias = Callable[[Any], Parts]


class NotUnderstood(RemoteProtocolError):
    """A frame of an unknown type, too short for its header or fixed fields, or with a reserved stream id.

    What follows depends on the ignore flag (ALL-RCT-01 to ALL-RCT-04).
    """


class BadMetadata(RemoteProtocolError):
    """A frame whose metadata does not fit into it (RS10-MD-02, RS10-MD-03, RS02-MD-02, RS02-MD-03)."""


@attrs.frozen
class Row:
    """One frame type of a layout: its number, name, flags, decoder and encoder."""

    number: int
    """The type's number on the wire."""
    name: str
    """The type's name in its own document."""
    frame: type[Frame]
    flags: int
    """The bits that the type defines, M among them where it does; the ignore flag is never counted."""
    fixed: int
    """Bytes that stand between the header and everything of variable length."""
    decode: Decoder
    encode: Encoder
    interaction: Interaction | None = None
    """The interaction of a request; ``None`` for all other frames."""
    ignorable: bool = True
    """True if the layout's ignore flag keeps its meaning in this type."""
    has_stream_id: bool = True
    """True if the frame has room for one; without it the frame's value says 0."""
    attributes: tuple[str, ...] = ()
    """The frame's attributes that stand in it, those of its payload as ``payload.data``."""
    opaque: Row | None = None
    """The row of an EXT of any type but 1, in a layout where that one is not opaque."""


@value
class Header:
    """The header of a frame, as written: a reserved bit of the stream id is not cut off."""

    number: int
    flags: int
    stream_id: int


@attrs.frozen(kw_only=True)
class HeaderLayout:
    """The positions of a layout's header fields, and the bounds of its numbers."""

    minimum: int
    """Bytes of the smallest frame."""
    type_offset: int
    """The offset of the type's number, for error messages."""
    ignore_flag: int
    all_flags: int
    """Every bit that the flags may have."""
    last_id: int
    """The largest stream id; above it the reserved bit is set."""
    largest: int
    """Bytes of the largest frame, its length prefix not counted."""
    split: Callable[[bytes], tuple[int, int, int]]
    """Type number, flags and stream id of a frame. Lets ``struct.error`` out when it is too short."""
    flags_at: int
    """The offset of the two bytes with the flags in their low bits."""
    stream_id: slice
    """The place of the stream id: at the beginning of the header, or at its end."""
    size: int = attrs.field(default=attrs.Factory(lambda self: self.minimum, takes_self=True))
    """Bytes of the header, where some type is smaller than that without its stream id."""


class Codec:
    """The codec of one layout: decodes by type number, encodes by the class of the frame.

    ``rows`` are in the order of their numbers, ``minimum`` is the size of the smallest frame in bytes, ``largest``
    that of the largest, ``header_size`` that of the header of a stream's frames, ``ignore_flag`` the bit that lets a
    receiver skip what it does not understand; ``encoders`` write each interaction's requests and each other kind of
    frame, without a check of its size; ``layout`` are the places of the header's fields.
    """

    def __init__(self, header: HeaderLayout, rows: Iterable[Row]) -> None:
        self.rows = tuple(sorted(rows, key=lambda row: row.number))
        self.minimum = header.minimum
        self.largest = header.largest
        self.header_size = header.size
        self.ignore_flag = header.ignore_flag
        self.layout = header
        self._split = header.split
        self._last_id = header.last_id
        self._by_number = {row.number: row for row in self.rows}
        self._by_kind: dict[object, Row] = {row.interaction or row.frame: row for row in self.rows}
        self._decoders = {row.number: row.decode for row in self.rows}
        self.encoders: dict[object, Encoder] = {kind: row.encode for kind, row in self._by_kind.items()}

    def replacing(self, *rows: Row) -> Self:
        """Return a neighbouring draft's codec: the same table, with these rows replacing those of their numbers."""
        return type(self)(self.layout, {**self._by_number, **{row.number: row for row in rows}}.values())

    def decode(self, data: bytes) -> Frame:
        """Decode one frame, given without a length prefix.

        Raise ``NotUnderstood`` or ``BadMetadata``, and nothing else.
        """
        try:
            number, flags, stream_id = self._split(data)
        except struct.error:
            self._fail_short(data)
        try:
            decode = self._decoders[number]
        except KeyError:
            self._fail_unknown(data, number)
        if stream_id > self._last_id:
            self._fail_stream_id(data, number, stream_id)
        try:
            return decode(stream_id, flags, data)
        except struct.error:
            self._fail_fixed(data, number)
        except RemoteProtocolError as error:
            # A decoder knows the place; only here is it known which frame that was.
            name = self._by_number[number].name
            raise type(error)(f"{name} frame of {len(data)} bytes: {error}", offset=error.offset) from None

    def encode(self, frame: Frame) -> bytes:
        """Encode one frame, without a length prefix.

        Raise ``LocalProtocolError`` for a frame that the dialect forbids.
        """
        head, data = self.encode_parts(frame)
        return head + data

    def encode_parts(self, frame: Frame) -> Parts:
        """Encode one frame as two pieces: the second is the payload's data as given, not a copy.

        Raise ``LocalProtocolError`` for a frame that the dialect forbids.
        """
        parts = self.row_of(frame).encode(frame)
        size = len(parts[0]) + len(parts[1])
        if size > self.largest:
            raise LocalProtocolError(f"{self.name_of(frame)} frame of {size} bytes, limit {self.largest}")
        return parts

    def header(self, data: bytes) -> Header | None:
        """Return the header of a frame of any type, ``None`` if the frame is too short."""
        try:
            return Header(*self._split(data))
        except struct.error:
            return None

    def ignorable(self, data: bytes) -> bool:
        """Return whether a frame not understood may be skipped (ALL-RCT-02); not one too short for the flag."""
        if len(data) < self.layout.flags_at + FLAGS_SIZE:
            return False
        number, flags, _ = self._split(data.ljust(self.header_size, b"\0"))
        if not flags & self.ignore_flag:
            return False
        row = self._by_number.get(number)
        return row is None or row.ignorable

    def shortened(self, data: bytes, most: int) -> bytes:
        """Return an ERROR with its data cut to ``most`` bytes, and every other frame unchanged.

        To be used before ``decode``, which copies the data. One with metadata stays whole: its lengths must fit.
        """
        header = self.header(data)
        row = None if header is None else self._by_number.get(header.number)
        if header is None or row is None or row.frame is not ErrorFrame or header.flags & row.flags:
            return data
        return data[: self.header_size + row.fixed + most]

    def row(self, number: int) -> Row | None:
        """Return the row of a type number, ``None`` for a type that the layout lacks."""
        return self._by_number.get(number)

    def row_of(self, frame: Frame) -> Row:
        """Return the row that encodes a frame. Raise ``LocalProtocolError`` if the layout has none."""
        kind: object = frame.interaction if type(frame) is RequestFrame else type(frame)
        try:
            return self._by_kind[kind]
        except KeyError:
            raise LocalProtocolError(f"no frame of this dialect says {_kind_name(kind)}") from None

    def spare_flags(self, row: Row) -> int:
        """Return the flag bits without meaning in this type: sent as 0, ignored on reception."""
        return self.layout.all_flags & ~row.flags & ~(self.ignore_flag if row.ignorable else 0)

    def writes(self, frame: type[Frame]) -> bool:
        """Return whether the layout has frames of this kind."""
        return frame in self._by_kind

    def name_of(self, frame: Frame) -> str:
        """Return the name of this frame's type in the dialect's document."""
        return self.row_of(frame).name

    def add_flags(self, data: bytes, flags: int) -> bytes:
        """Return an encoded frame with more flags set in its header, for flags that no frame value carries."""
        start, end = self.layout.flags_at, self.layout.flags_at + FLAGS_SIZE
        word = int.from_bytes(data[start:end], "big") | flags
        return data[:start] + word.to_bytes(FLAGS_SIZE, "big") + data[end:]

    # Failures are rare; kept out of decode, they leave it short enough to read.

    def _fail_short(self, data: bytes) -> NoReturn:
        raise NotUnderstood(f"frame of {len(data)} bytes: header needs {self.header_size}") from None

    def _fail_unknown(self, data: bytes, number: int) -> NoReturn:
        text = f"frame of {len(data)} bytes: unknown type 0x{number:02X}"
        raise NotUnderstood(text, offset=self.layout.type_offset) from None

    def _fail_stream_id(self, data: bytes, number: int, stream_id: int) -> NoReturn:
        name = self._by_number[number].name
        raise NotUnderstood(f"{name} frame of {len(data)} bytes: stream id 0x{stream_id:X} above 0x{self._last_id:X}")

    def _fail_fixed(self, data: bytes, number: int) -> NoReturn:
        row = self._by_number[number]
        start = self.header_size
        raise NotUnderstood(
            f"{row.name} frame of {len(data)} bytes: "
            f"fixed fields need {row.fixed} bytes at offset {start}, {len(data) - start} left",
            offset=start,
        ) from None


def end_of(data: bytes, offset: int, size: int, what: str) -> int:
    """Return the end of a field of ``size`` bytes. Raise ``NotUnderstood`` if the frame ends before it."""
    end = offset + size
    if end > len(data):
        raise NotUnderstood(
            f"{what} needs {size} bytes at offset {offset}, {max(len(data) - offset, 0)} left", offset=offset
        )
    return end


def sized_at(data: bytes, offset: int, width: int, what: str) -> tuple[bytes, int]:
    """Return a field behind its length of ``width`` bytes, and its end. Raise ``NotUnderstood`` if cut short."""
    start = end_of(data, offset, width, f"{what} length")
    end = end_of(data, start, int.from_bytes(data[offset:start], "big"), what)
    return data[start:end], end


def sized(content: bytes, width: int, what: str) -> bytes:
    """Write a field behind its length of ``width`` bytes. Raise ``LocalProtocolError`` if it is too long."""
    limit = (1 << 8 * width) - 1
    if len(content) > limit:
        raise LocalProtocolError(f"{what} of {len(content)} bytes, limit {limit}")
    return len(content).to_bytes(width, "big") + content


def check(name: str, field: str, number: int | None, low: int, high: int) -> None:
    """Check an outbound number against the range of its field. Raise ``LocalProtocolError`` outside it."""
    if number is None or not low <= number <= high:
        allowed = f"must be {low}" if low == high else f"must be from {low} to {high}"
        raise LocalProtocolError(f"{name} {field} {number}: {allowed}")


def _kind_name(kind: object) -> str:
    return kind.name if isinstance(kind, Interaction) else getattr(kind, "__name__", repr(kind))
