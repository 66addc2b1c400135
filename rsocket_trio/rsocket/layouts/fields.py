"""Frames as rows of fields: the decoder and the encoder of a frame follow from the fields that it is made of.

Frames that are sent many times a second are not written so: a layout has functions of its own for them.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import BadMetadata, Body, HeaderLayout, Parts, Row, check, end_of, sized, sized_at
from rsocket_trio.rsocket.frames import Frame

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

    def dump(name: str, attribute: str, number: int | None) -> int:
        if number is None or not low <= number <= high:
            check(name, attribute, number, low, high)
        return number or 0

    return Number(form, high.__and__, dump)


def seconds_in_ms(high: int, *, zero: bool) -> Number:
    """Return a time in seconds that the frame has in milliseconds; 0 may be forbidden."""

    def dump(name: str, attribute: str, seconds: float) -> int:
        return milliseconds(f"{name} {attribute}", seconds, high, zero=zero)

    return Number("I", lambda number: (number & high) / 1000, dump)


def milliseconds(what: str, seconds: float, high: int, *, zero: bool = False) -> int:
    """Return a time in milliseconds. Only 0 is rounded to 0. Raise ``LocalProtocolError`` outside of its range."""
    # NaN and infinity have no milliseconds to check: the comparison refuses them.
    if not 0 <= seconds * 1000 <= high or not (seconds or zero):
        raise LocalProtocolError(f"{what} {seconds}: must be from {0 if zero else 0.001} to {high / 1000} seconds")
    return max(round(seconds * 1000), 1 if seconds else 0)


def ns_in_ms(high: int) -> Number:
    """Return a time in nanoseconds that the frame has in milliseconds; part milliseconds are cut off."""

    def dump(name: str, attribute: str, nanoseconds: int) -> int:
        check(name, attribute, nanoseconds, 0, high * NS_PER_MS)
        return nanoseconds // NS_PER_MS

    return Number("I", lambda number: (number & high) * NS_PER_MS, dump)


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


NUL: Final = "\0"


def mime(attribute: str, what: str, *, terminated: bool = False) -> Field:
    """Return a MIME type behind a length of 8 bits.

    It is not interpreted (RS10-SETUP-05, RS01-SETUP-05): Latin-1 keeps every byte, ASCII or not. ``terminated`` takes
    one NUL off the end (RS01-SETUP-07); none is sent, except behind a text that itself ends with one.
    """

    def read(values: Values, data: bytes, offset: int, flags: int) -> int:
        content, end = sized_at(data, offset, 1, what)
        text = content.decode("latin-1")
        values[attribute] = text.removesuffix(NUL) if terminated else text
        return end

    def write(name: str, frame: Any) -> Written:
        text = getattr(frame, attribute)
        if terminated and text.endswith(NUL):
            text += NUL
        try:
            content = text.encode("latin-1")
        except UnicodeEncodeError as error:
            place = f"{text[error.start]!r} at {error.start}"
            raise LocalProtocolError(f"{name} {attribute} has {place}: must be ASCII") from None
        return 0, sized(content, 1, f"{name} {attribute}"), b""

    return Field(read, write, attributes=(attribute,))


MIMES: Final = (mime("metadata_mime", "metadata MIME type"), mime("data_mime", "data MIME type"))


def rest(attribute: str, flag: int = 0) -> Field:
    """Return bytes up to the end of the frame; with ``flag`` they are there only if it is set, and else ``None``."""

    def read(values: Values, data: bytes, offset: int, flags: int) -> int:
        if not flag or flags & flag:
            values[attribute] = data[offset:]
        return len(data)

    def write(name: str, frame: Any) -> Written:
        content = getattr(frame, attribute)
        return (flag, b"", content) if content is not None else NOTHING

    return Field(read, write, flags=flag, attributes=(attribute,))


@attrs.frozen(kw_only=True)
class Shape(HeaderLayout, ABC):
    """The parts that all frames of a layout share: its header, and metadata behind its length."""

    header: Callable[[int, int, int], bytes]
    """The beginning of a frame: type number, flags, stream id."""
    metadata_flag: int
    has_types: bool = False
    """True if metadata has a type."""

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

        typed = ("payload.metadata_type",) if self.has_types else ()
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
            if self.has_types:
                values["metadata_type"] = metadata_type
            return end

        def write(name: str, frame: Any) -> Written:
            metadata_type = frame.metadata_type if self.has_types else 0
            return *self.metadata_head(name, frame.metadata, metadata_type), b""

        attributes = ("metadata", "metadata_type") if self.has_types else ("metadata",)
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
