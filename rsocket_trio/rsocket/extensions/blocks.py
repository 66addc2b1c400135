"""The extension block of the draft: entries behind one another, each with an id, flags and a payload.

An entry that may be ignored says how long its payload is; that of any other ends where its definition says. The
definitions differ by the point where a block stands, so a ``Point`` comes along. A text, here and in the payloads, is
kept byte by byte as Latin-1: ids are compared and not interpreted (RSX-TLV-09, RSX-MIME-04).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn, TypeAlias

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.rsocket.codec import UINT31_MAX, NotUnderstood, check
from rsocket_trio.rsocket.frames import RESERVED, ExtensionEntry, name_of

# RSX-TLV-02
FOLLOWS: Final = 0x80
IGNORE: Final = 0x40
ACK: Final = 0x20
NIBBLE: Final = 0x0F

WELL_KNOWN_BIT: Final = 0x80
"""In the first byte of an id, a MIME type, a strategy or a tag's key: a number, not the length of a text."""
LONGEST_TEXT: Final = 127
LONGEST_PAYLOAD: Final = 2**24 - 1
ENTRY_LIMIT: Final = 1_024
"""Entries of one block, and tags of one list, unless told otherwise: the default of ``Limits.metadata_entries``."""


class MalformedExtension(NotUnderstood):
    """A block that runs past its frame, has a forbidden id, or a payload that is not as defined (RSX-TLV-08)."""


class UnknownExtension(NotUnderstood):
    """An entry that is not known at this point and may not be ignored: its end is not known (RSX-TLV-07)."""


class Reader:
    """Reads bytes from a place on. With ``end`` a payload of known length ends there.

    Reading past the end raises ``MalformedExtension``.
    """

    __slots__ = ("bounded", "data", "end", "offset")

    def __init__(self, data: bytes, offset: int = 0, end: int | None = None) -> None:
        self.data = data
        self.offset = offset
        self.bounded = end is not None
        self.end = len(data) if end is None else end

    def take(self, size: int, what: str) -> bytes:
        """The next ``size`` bytes."""
        start = self.offset
        if size > self.end - start:
            self.fail(f"{what} needs {size} bytes at offset {start}, {self.end - start} left")
        self.offset = start + size
        return self.data[start : self.offset]

    def uint(self, size: int, what: str) -> int:
        """A number of ``size`` bytes."""
        return int.from_bytes(self.take(size, what), "big")

    def uint31(self, what: str) -> int:
        """A number of four bytes, its reserved bit masked off (ALL-RCT-06)."""
        return self.uint(4, what) & UINT31_MAX

    def name(self, what: str) -> int | str:
        """The number of something well-known, or a text behind its length."""
        first = self.uint(1, what)
        return first & ~WELL_KNOWN_BIT if first & WELL_KNOWN_BIT else self.take(first, what).decode("latin-1")

    def rest(self) -> bytes:
        """Everything up to the end of a payload of known length; nothing where that is not known."""
        return self.take(self.end - self.offset, "rest") if self.bounded else b""

    def fail(self, text: str, *, back: int = 0) -> NoReturn:
        """Raise ``MalformedExtension`` for the bytes here, or ``back`` bytes before."""
        raise MalformedExtension(text, offset=self.offset - back)


Definition: TypeAlias = Callable[[Reader, int], object]
"""Reads the payload of an extension, given its nibble: its value, or ``None`` for a form that is not defined.

A payload without a length ends where the reader was left.
"""


@attrs.frozen
class Point:
    """A place of blocks, and the extensions that are defined there. With ``ack`` its entries can ask for answers."""

    name: str
    definitions: Mapping[int | str, Definition]
    ack: bool = False

    def read(self, entry: ExtensionEntry) -> object:
        """Return the value of a decoded entry's payload, ``None`` for an extension that is unknown at this point."""
        definition = self.definitions.get(entry.ext)  # RSX-TLV-10
        return definition and definition(Reader(entry.payload, 0, len(entry.payload)), entry.nibble)


def decode_block(
    data: bytes, offset: int, point: Point, *, limit: int = ENTRY_LIMIT
) -> tuple[tuple[ExtensionEntry, ...], int]:
    """Return the entries of the block at ``offset``, unknown ones that may be ignored among them, and its end.

    Raise ``MalformedExtension`` or ``UnknownExtension``.
    """
    reader = Reader(data, offset)
    entries: dict[int | str, ExtensionEntry] = {}
    follows = True
    while follows:
        if len(entries) == limit:
            reader.fail(f"more than {limit} extension entries")
        entry, follows = _decode_entry(reader, point, entries)
        entries[entry.ext] = entry
    return tuple(entries.values()), reader.offset


def encode_block(entries: Sequence[ExtensionEntry], point: Point) -> bytes:
    """Return the entries as a block at this point. Raise ``LocalProtocolError`` for one that may not stand there."""
    if not entries:
        raise LocalProtocolError(f"{point.name} extensions: a block has at least one entry")
    if len({entry.ext for entry in entries}) < len(entries):  # RSX-TLV-05
        raise LocalProtocolError(f"{point.name} extensions {[entry.name for entry in entries]}: one is there twice")
    *others, last = entries
    return b"".join(_encode_entry(entry, FOLLOWS, point) for entry in others) + _encode_entry(last, 0, point)


def _decode_entry(
    reader: Reader, point: Point, earlier: Mapping[int | str, ExtensionEntry]
) -> tuple[ExtensionEntry, bool]:
    start = reader.offset
    ext = reader.name("extension id")
    if ext in RESERVED:
        reader.fail(f"extension id {name_of(ext)} is reserved", back=reader.offset - start)
    if ext in earlier:  # RSX-TLV-05
        reader.fail(f"extension {name_of(ext)} is there twice", back=reader.offset - start)
    flags = reader.uint(1, "extension flags")
    nibble = flags & NIBBLE
    definition = point.definitions.get(ext)
    if flags & IGNORE:
        size = reader.uint(3, f"{name_of(ext)} payload length")
        begin = reader.offset
        payload = reader.take(size, f"{name_of(ext)} payload")
        if definition is not None:
            # RSX-TLV-08: too short is malformed, and what stands behind its end is not looked at.
            definition(Reader(reader.data, begin, reader.offset), nibble)
    else:
        begin = reader.offset
        if definition is None or definition(reader, nibble) is None:
            text = f"extension {name_of(ext)} is not known in {point.name}, and may not be ignored"
            raise UnknownExtension(text, offset=start)
        payload = reader.data[begin : reader.offset]
    # RSX-TLV-03: the spare bit, and the wish for an answer where there is none, mean nothing.
    ack = point.ack and flags & ACK != 0
    return ExtensionEntry(ext, flags & IGNORE != 0, ack, nibble, payload), flags & FOLLOWS != 0


def _encode_entry(entry: ExtensionEntry, flags: int, point: Point) -> bytes:
    what = f"{point.name} extension {entry.name}"
    if entry.ext in RESERVED:
        raise LocalProtocolError(f"{what}: this id is reserved")
    check(what, "nibble", entry.nibble, 0, NIBBLE)
    if entry.ack and not point.ack:
        raise LocalProtocolError(f"{what} ack: only those of SETUP are answered")
    _check_payload(entry, point, what)
    flags |= entry.nibble | (IGNORE if entry.ignore else 0) | (ACK if entry.ack else 0)
    head = name_field(entry.ext, what) + bytes((flags,))
    return head + (len(entry.payload).to_bytes(3, "big") if entry.ignore else b"") + entry.payload  # RSX-TLV-01


def _check_payload(entry: ExtensionEntry, point: Point, what: str) -> None:
    """Hold a payload to its definition, so that the peer finds its end where it is."""
    size = len(entry.payload)
    reader = Reader(entry.payload, 0, size if entry.ignore else None)
    definition = point.definitions.get(entry.ext)
    try:
        known = definition is not None and definition(reader, entry.nibble) is not None
    except MalformedExtension as error:
        raise LocalProtocolError(f"{what} payload of {size} bytes: {error}") from None
    if entry.ignore:
        if size > LONGEST_PAYLOAD:
            raise LocalProtocolError(f"{what} payload of {size} bytes, limit {LONGEST_PAYLOAD}")
    elif not known:
        raise LocalProtocolError(f"{what}: it is not known there, and must be ignorable")
    elif reader.offset != size:
        raise LocalProtocolError(f"{what} payload of {size} bytes: without a length it ends after {reader.offset}")


def name_field(name: int | str, what: str) -> bytes:
    """A well-known number in one byte, or a text behind its length. Raise ``LocalProtocolError``."""
    if isinstance(name, int):
        check(what, "id", name, 0, LONGEST_TEXT)
        return bytes((WELL_KNOWN_BIT | name,))
    try:
        text = name.encode("latin-1")
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{what} has {name[error.start]!r} at {error.start}: must be ASCII") from None
    if len(text) > LONGEST_TEXT:
        raise LocalProtocolError(f"{what} of {len(text)} bytes, limit {LONGEST_TEXT}")
    return bytes((len(text),)) + text
