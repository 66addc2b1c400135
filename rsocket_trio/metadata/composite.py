"""Composite metadata: several pieces of metadata, each with its own MIME type, one after the other.

Each entry is a MIME type as in ``mime``, the length of the content in 24 bits, and the content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.masking import may_hold_credentials, shown_size
from rsocket_trio.metadata.mime import (
    AUTHENTICATION,
    COMPOSITE_METADATA,
    DEFAULT_LIMIT,
    IDS,
    decode_mime,
    encode_mime,
    mime_name,
)
from rsocket_trio.payload import BytesLike, as_bytes
from rsocket_trio.values import value

MetadataPair: TypeAlias = tuple[str | int, BytesLike]
"""A MIME type, and the content of an entry of that type; text is UTF-8."""

MAX_CONTENT_BYTES = 0xFFFFFF
_LENGTH_SIZE = 3
_SECRET = (AUTHENTICATION, IDS[AUTHENTICATION], COMPOSITE_METADATA, IDS[COMPOSITE_METADATA])
"""The types whose content may hold credentials; composite metadata may hold itself."""


@value
class Entry:
    """One entry of composite metadata. ``mime`` is its MIME type, or the number of a well-known type that is not in
    the table; ``content`` its bytes, at most 16 MiB - 1.
    """

    mime: str | int
    content: bytes

    def __repr__(self) -> str:
        hidden = self.mime in _SECRET and may_hold_credentials(self.content, self.mime)
        return f"Entry(mime={self.mime!r}, content={shown_size(self.content) if hidden else repr(self.content)})"


def entries_of_pairs(pairs: Iterable[MetadataPair]) -> list[Entry]:
    """Return the entries for ``pairs`` of MIME type and content.

    Raise ``TypeError`` for anything else, and ``ValueError`` for a MIME type that cannot be written.
    """
    entries: list[Entry] = []
    items: Iterable[object] = pairs
    if isinstance(items, str | bytes | bytearray | memoryview):
        raise TypeError(f"metadata= is pairs of a MIME type and bytes or str, not {type(pairs).__name__}")
    for item in items:
        match item:
            case (str() | int() as mime, str() | bytes() | bytearray() | memoryview() as content):
                encode_mime(mime)
                entries.append(Entry(mime, as_bytes(content)))
            case _:
                kind = type(item).__name__
                raise TypeError(f"metadata= is pairs of a MIME type and bytes or str; one is of type {kind}")
    return entries


def check_composite(argument: str, metadata_mime: str | int) -> None:
    """Raise ``ValueError``, which names the ``argument``, for a connection whose metadata is not composite."""
    if metadata_mime != COMPOSITE_METADATA:
        mime = f"metadata MIME type {metadata_mime!r}" if metadata_mime else "no metadata MIME type"
        raise ValueError(f"{argument} needs composite metadata, and the connection has {mime}")


def spans(data: bytes, limit: int = DEFAULT_LIMIT) -> Iterator[tuple[str | int, int, int]]:
    """The MIME type of each entry, and where its content starts and ends; nothing is copied.

    Raises ``RemoteProtocolError``, when it gets there, for an entry that is cut short, a MIME type that is not ASCII,
    and the first entry beyond ``limit``.
    """
    size = len(data)
    offset = count = 0
    while offset < size:
        if count == limit:
            raise RemoteProtocolError(f"more than {limit} metadata entries at offset {offset}", offset=offset)
        count += 1
        mime, at = decode_mime(data, offset)
        start = at + _LENGTH_SIZE
        if start > size:
            left = size - at
            raise RemoteProtocolError(f"metadata entry at offset {offset} has {left} of 3 length bytes", offset=at)
        length = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
        offset = start + length
        if offset > size:
            left = size - start
            raise RemoteProtocolError(f"metadata entry of {length} bytes at offset {start}, {left} left", offset=at)
        yield mime, start, offset


def iterate_composite(data: bytes, limit: int = DEFAULT_LIMIT) -> Iterator[Entry]:
    """Yield the entries of ``data`` one by one; the rest is not decoded before it is asked for.

    Raise ``RemoteProtocolError`` at the first entry that is malformed, or beyond ``limit`` entries.
    """
    return (Entry(mime, data[start:end]) for mime, start, end in spans(data, limit))


def decode_composite(data: bytes, *, limit: int = DEFAULT_LIMIT) -> list[Entry]:
    """Return all entries of ``data``. Raise ``RemoteProtocolError`` if one is malformed or there are more than
    ``limit``.
    """
    return list(iterate_composite(data, limit))


def encode_composite(entries: Iterable[Entry]) -> bytes:
    """Return ``entries`` as composite metadata. Raise ``ValueError`` for a MIME type or a content that cannot be
    written.
    """
    parts: list[bytes] = []
    for entry in entries:
        length = len(entry.content)
        if length > MAX_CONTENT_BYTES:
            raise ValueError(f"metadata entry of {length} bytes, limit {MAX_CONTENT_BYTES}")
        parts += (encode_mime(entry.mime), length.to_bytes(_LENGTH_SIZE, "big"), entry.content)
    return b"".join(parts)


def converted(metadata: bytes, mime: str | int, to_mime: str | int) -> bytes | None:
    """Return metadata of one MIME type as that of another, for which one entry is a composite of one.

    Raise ``ValueError`` for entries that the other type has no place for.
    """
    entries = decode_composite(metadata) if mime == COMPOSITE_METADATA else [Entry(mime_name(mime), metadata)]
    if to_mime == COMPOSITE_METADATA:
        return encode_composite(entries)
    for number, entry in enumerate(entries):
        if number or entry.mime != to_mime:
            taken = f"only {to_mime!r} is taken" if to_mime else "no metadata is taken"
            raise ValueError(f"metadata of type {entry.mime!r}: {taken}")
    return entries[0].content if entries else None
