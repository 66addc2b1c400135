"""The codec of every dialect: it turns bytes into frames and back by a layout's header and table of rows.

A row is a sequence of fields, from which the decoder and the encoder of a frame follow. The fast path has functions of
its own for most frames that are sent many times a second.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, Self, TypeAlias

import attrs

from rsocket_trio.errors import LocalProtocolError, RemoteProtocolError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
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
    row: Row | None = attrs.field(default=None, eq=False, repr=False)
    """The row of its type, ``None`` for one that the layout lacks."""


class Codec:
    """The codec of one layout: decodes by type number, encodes by the class of the frame.

    ``rows`` are in the order of their numbers, ``minimum`` is the size of the smallest frame in bytes, ``largest``
    that of the largest, ``header_size`` that of the header of a stream's frames, ``ignore_flag`` the bit that lets a
    receiver skip what it does not understand; ``encoders`` write each interaction's requests and each other kind of
    frame, without a check of its size; ``layout`` are the places of the header's fields.
    """

    def __init__(self, header: Shape, rows: Iterable[Row]) -> None:
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
            raise NotUnderstood(f"frame of {len(data)} bytes: header needs {self.header_size}") from None
        try:
            decode = self._decoders[number]
        except KeyError:
            self._fail_unknown(data, number)
        if stream_id > self._last_id:
            text = f"stream id 0x{stream_id:X} above 0x{self._last_id:X}"
            raise NotUnderstood(f"{self._by_number[number].name} frame of {len(data)} bytes: {text}")
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
            number, flags, stream_id = self._split(data)
        except struct.error:
            return None
        return Header(number, flags, stream_id, self._by_number.get(number))

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
        row = None if header is None else header.row
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
            said = kind.name if isinstance(kind, Interaction) else type(frame).__name__
            raise LocalProtocolError(f"no frame of this dialect says {said}") from None

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

    def _fail_unknown(self, data: bytes, number: int) -> NoReturn:
        text = f"frame of {len(data)} bytes: unknown type 0x{number:02X}"
        raise NotUnderstood(text, offset=self.layout.type_offset) from None

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


def latin_1(text: str, what: str) -> bytes:
    """Return the bytes of a text. Raise ``LocalProtocolError`` if it has other characters than Latin-1."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{what} has {text[error.start]!r} at {error.start}: must be ASCII") from None


def check(name: str, field: str, number: int | None, low: int, high: int) -> int:
    """Return an outbound number. Raise ``LocalProtocolError`` for one outside of the range of its field."""
    if number is None or not low <= number <= high:
        allowed = f"must be {low}" if low == high else f"must be from {low} to {high}"
        raise LocalProtocolError(f"{name} {field} {number}: {allowed}")
    return number


UINT32_MAX: Final = 2**32 - 1
UINT64_MAX: Final = 2**64 - 1
NS_PER_MS: Final = 1_000_000

Values: TypeAlias = dict[str, Any]
"""The attributes of a frame that were read so far, by name."""
Written: TypeAlias = tuple[int, bytes, Body]
NOTHING: Final[Written] = (0, b"", b"")


@attrs.frozen
class Field:
    """A part of a frame, both ways. One that has no bytes is a flag, or says what the frame may not have."""

    read: Callable[[Values, bytes, int, int], int] | None
    """Adds the values at an offset of a frame with these flags. Returns the end of the field."""
    write: Callable[[str, Any], Written] | None
    """From the name of a frame's type and the frame: the field's flags, its bytes, and the data that ends the frame."""
    size: int = 0
    """Bytes of the numbers that stand right behind the header."""
    flags: int = 0
    """The bits that it gives a meaning to."""
    attributes: tuple[str, ...] = ()
    """The frame's attributes that it carries, those of its payload as ``payload.data``."""


# Numbers: each is one of several behind one another


@attrs.frozen
class Number:
    """A number as it stands in a frame: its format, and its value in the frame's attribute."""

    format: str
    load: Callable[[int], Any]
    dump: Callable[[str, str, Any], int]


def uint(form: str, high: int, low: int = 0) -> Number:
    """Return a number from ``low`` to ``high``; what is read has its reserved bits masked off (ALL-RCT-06)."""
    return Number(form, high.__and__, lambda name, attribute, number: check(name, attribute, number, low, high))


def seconds_in_ms(high: int, *, zero: bool) -> Number:
    """Return a time in seconds that the frame has in milliseconds. Only 0 is rounded to 0, which may be forbidden."""

    def dump(name: str, attribute: str, seconds: float) -> int:
        # NaN and infinity have no milliseconds to check: the comparison refuses them.
        if not 0 <= seconds * 1000 <= high or not (seconds or zero):
            bounds = f"must be from {0 if zero else 0.001} to {high / 1000} seconds"
            raise LocalProtocolError(f"{name} {attribute} {seconds}: {bounds}")
        return max(round(seconds * 1000), 1 if seconds else 0)

    return Number("I", lambda number: (number & high) / 1000, dump)


def ns_in_ms(high: int) -> Number:
    """Return a time in nanoseconds that the frame has in milliseconds; part milliseconds are cut off."""
    whole = uint("Q", high * NS_PER_MS)
    return Number("I", lambda number: (number & high) * NS_PER_MS, lambda *what: whole.dump(*what) // NS_PER_MS)


def numbers(what: str | None = None, /, **columns: Number) -> Field:
    """Return the numbers of these attributes. Those behind a field of variable length are named by ``what``."""
    layout = struct.Struct(">" + "".join(number.format for number in columns.values()))
    loads = tuple((attribute, number.load) for attribute, number in columns.items())
    dumps = tuple((attribute, number.dump) for attribute, number in columns.items())

    def read(values: Values, data: bytes, offset: int, flags: int) -> int:
        if what is not None:
            end_of(data, offset, layout.size, what)
        for (attribute, load), content in zip(loads, layout.unpack_from(data, offset), strict=True):
            values[attribute] = load(content)
        return offset + layout.size

    def write(name: str, frame: Any) -> Written:
        return 0, layout.pack(*[dump(name, attribute, getattr(frame, attribute)) for attribute, dump in dumps]), b""

    return Field(read, write, 0 if what is not None else layout.size, attributes=tuple(columns))


# Flags, and what a layout does not have


def bit(attribute: str, flag: int, *, counted: bool = True) -> Field:
    """Return a flag; of several bits either counts, and all are written. The ignore flag is not ``counted``."""

    def read(values: Values, data: bytes, offset: int, flags: int) -> int:
        values[attribute] = flags & flag != 0
        return offset

    def write(name: str, frame: Any) -> Written:
        return is_set if getattr(frame, attribute) else NOTHING

    is_set: Written = (flag, b"", b"")
    return Field(read, write, flags=flag if counted else 0, attributes=(attribute,))


def always(flag: int) -> Field:
    """Return a flag that is always written, and says nothing."""
    return Field(None, lambda name, frame: (flag, b"", b""), flags=flag)


def constant(**values: object) -> Field:
    """Return attributes that are read with these values, and not written."""

    def read(read_values: Values, data: bytes, offset: int, flags: int) -> int:
        read_values.update(values)
        return offset

    return Field(read, None)


def absent(*attributes: str, reason: str = "this frame has none") -> Field:
    """Return attributes that the frame has no place for: they are refused instead of lost."""

    def write(name: str, frame: Any) -> Written:
        for attribute in attributes:
            content = getattr(frame, attribute)
            if content not in (0, None):
                shown = f"of {len(content)} bytes" if isinstance(content, bytes) else content
                raise LocalProtocolError(f"{name} {attribute} {shown}: {reason}")
        return NOTHING

    return Field(None, write)


# Bytes and texts


def token(attribute: str, flag: int = 0) -> Field:
    """Return bytes behind a length of 16 bits; with ``flag`` they are there only if it is set."""

    def read(values: Values, data: bytes, offset: int, flags: int) -> int:
        if flag and not flags & flag:
            return offset
        values[attribute], end = sized_at(data, offset, 2, "resume token")
        return end

    def write(name: str, frame: Any) -> Written:
        content = getattr(frame, attribute)
        if flag and content is None:
            return NOTHING
        return flag, sized(content, 2, f"{name} {attribute}"), b""

    return Field(read, write, flags=flag, attributes=(attribute,))


NUL: Final = b"\0"


def mime(attribute: str, what: str, *, terminated: bool = False) -> Field:
    """Return a MIME type behind a length of 8 bits.

    It is not interpreted (RS10-SETUP-05, RS01-SETUP-05): Latin-1 keeps every byte, ASCII or not. ``terminated`` takes
    one NUL off the end (RS01-SETUP-07); none is sent, except behind a text that itself ends with one.
    """

    def read(values: Values, data: bytes, offset: int, flags: int) -> int:
        content, end = sized_at(data, offset, 1, what)
        values[attribute] = content.removesuffix(NUL if terminated else b"").decode("latin-1")
        return end

    def write(name: str, frame: Any) -> Written:
        content = latin_1(getattr(frame, attribute), f"{name} {attribute}")
        if terminated and content.endswith(NUL):
            content += NUL
        return 0, sized(content, 1, f"{name} {attribute}"), b""

    return Field(read, write, attributes=(attribute,))


MIMES: Final = (mime("metadata_mime", "metadata MIME type"), mime("data_mime", "data MIME type"))


def rest(attribute: str, flag: int = 0, *, terminated: bool = False) -> Field:
    """Return bytes up to the end of the frame; with ``flag`` they are there only if it is set, and else ``None``.

    ``terminated`` is as for ``mime``.
    """

    def read(values: Values, data: bytes, offset: int, flags: int) -> int:
        if not flag or flags & flag:
            values[attribute] = data[offset:].removesuffix(NUL if terminated else b"")
        return len(data)

    def write(name: str, frame: Any) -> Written:
        content = getattr(frame, attribute)
        if content is None:
            return NOTHING
        return flag, b"", content + NUL if terminated and content.endswith(NUL) else content

    return Field(read, write, flags=flag, attributes=(attribute,))


@attrs.frozen(kw_only=True)
class Shape(ABC):
    """The parts that all frames of a layout share: its header, with the bounds of its numbers, and metadata."""

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
    header: Callable[[int, int, int], bytes]
    """The beginning of a frame: type number, flags, stream id."""
    metadata_flag: int
    last_metadata_type: int = 0
    """0 where metadata has no type."""

    @abstractmethod
    def metadata_at(self, data: bytes, offset: int) -> tuple[bytes, int, int]:
        """Return the metadata at an offset, its type and its end. Raise ``BadMetadata``."""

    @abstractmethod
    def metadata_field(self, name: str, metadata: bytes, metadata_type: int) -> bytes:
        """Return metadata of a frame of this name, with its type, behind its length."""

    def metadata_head(self, name: str, metadata: bytes | None, metadata_type: int = 0) -> tuple[int, bytes]:
        """Return the M flag and the metadata behind its length, or neither."""
        return (
            (0, b"") if metadata is None else (self.metadata_flag, self.metadata_field(name, metadata, metadata_type))
        )

    def payload_at(self, data: bytes, offset: int, flags: int) -> Payload:
        """Return the payload from ``offset`` to the end: metadata if M is set, then data."""
        if not flags & self.metadata_flag:
            return Payload(data[offset:])
        metadata, metadata_type, offset = self.metadata_at(data, offset)
        return Payload(data[offset:], metadata, metadata_type=metadata_type)

    @property
    def payload(self) -> Field:
        """The payload, which ends a frame."""

        def read(values: Values, data: bytes, offset: int, flags: int) -> int:
            values["payload"] = self.payload_at(data, offset, flags)
            return len(data)

        def write(name: str, frame: Any) -> Written:
            payload = frame.payload
            return *self.metadata_head(name, payload.metadata, payload.metadata_type), payload.data

        typed = ("payload.metadata_type",) if self.last_metadata_type else ()
        return Field(read, write, flags=self.metadata_flag, attributes=("payload.metadata", "payload.data", *typed))

    def metadata(self, *, needed: bool = False) -> Field:
        """Return the metadata of a frame without a payload; ``needed`` says that the frame is nothing without it."""

        def read(values: Values, data: bytes, offset: int, flags: int) -> int:
            if not flags & self.metadata_flag:
                if needed:
                    # Without M there is no telling where metadata would be.
                    place = self.flags_at + (self.metadata_flag < 0x100)  # the byte of the flag
                    raise BadMetadata("no metadata: its flag is clear", offset=place)
                return offset
            values["metadata"], metadata_type, end = self.metadata_at(data, offset)
            if self.last_metadata_type:
                values["metadata_type"] = metadata_type
            return end

        def write(name: str, frame: Any) -> Written:
            metadata_type = frame.metadata_type if self.last_metadata_type else 0
            return *self.metadata_head(name, frame.metadata, metadata_type), b""

        attributes = ("metadata", "metadata_type") if self.last_metadata_type else ("metadata",)
        return Field(read, write, flags=self.metadata_flag, attributes=attributes)

    def row(
        self,
        number: int,
        name: str,
        kind: type[Frame],
        *fields: Field,
        ids: tuple[int, int] = (0, 0),
        interaction: Interaction | None = None,
        ignorable: bool = True,
    ) -> Row:
        """Return the row of frames of these fields in this order; ``ids`` are the least and the largest stream id."""
        start, header, (low, high) = self.size, self.header, ids
        if interaction is not None:
            fields = (constant(interaction=interaction), *fields)
        readers = [field.read for field in fields if field.read is not None]
        writers = [field.write for field in fields if field.write is not None]
        make: Callable[..., Frame] = kind

        def decode(stream_id: int, flags: int, data: bytes) -> Frame:
            values: Values = {"stream_id": stream_id}
            offset = start
            for read in readers:
                offset = read(values, data, offset, flags)
            return make(**values)

        def encode(frame: Any) -> Parts:
            stream_id = frame.stream_id
            if not low <= stream_id <= high:
                check(name, "stream_id", stream_id, low, high)
            flags, content = 0, b""
            body: Body = b""
            for write in writers:
                bits, more, end = write(name, frame)
                flags |= bits
                content += more
                body = end or body
            return header(number, flags, stream_id) + content, body

        defined = 0
        for field in fields:
            defined |= field.flags
        fixed = next((field.size for field in fields if field.size), 0)
        attributes = tuple(attribute for field in fields for attribute in field.attributes)
        return Row(*(number, name, kind, defined, fixed, decode, encode, interaction, ignorable), attributes=attributes)
