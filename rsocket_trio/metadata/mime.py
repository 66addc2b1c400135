"""The well-known MIME types: which number of seven bits stands for which text, and how either is written.

One byte names a type: its top bit set, the other seven are the number of a well-known one; clear, they are the
length of an ASCII text, less one, and the text follows. Composite metadata, the MIME types of a stream and the
types of authentication all write their names in this way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rsocket_trio.errors import RemoteProtocolError

# In the order of their numbers.
_FIRST: Final = (
    *("application/avro", "application/cbor", "application/graphql", "application/gzip"),  # 0x00
    *("application/javascript", "application/json", "application/octet-stream", "application/pdf"),  # 0x04
    *("application/vnd.apache.thrift.binary", "application/vnd.google.protobuf"),  # 0x08
    *("application/xml", "application/zip"),  # 0x0A
    *("audio/aac", "audio/mp3", "audio/mp4", "audio/mpeg3"),  # 0x0C
    *("audio/mpeg", "audio/ogg", "audio/opus", "audio/vorbis"),  # 0x10
    *("image/bmp", "image/gif", "image/heic-sequence", "image/heic"),  # 0x14
    *("image/heif-sequence", "image/heif", "image/jpeg", "image/png"),  # 0x18
    *("image/tiff", "multipart/mixed", "text/css", "text/csv"),  # 0x1C
    *("text/html", "text/plain", "text/xml", "video/H264"),  # 0x20
    *("video/H265", "video/VP8", "application/x-hessian", "application/x-java-object"),  # 0x24
    *("application/cloudevents+json", "application/x-capnp", "application/x-flatbuffers"),  # 0x28
)
_LAST: Final = (
    "message/x.rsocket.mime-type.v0",
    "message/x.rsocket.accept-mime-types.v0",
    "message/x.rsocket.authentication.v0",
    "message/x.rsocket.tracing-zipkin.v0",
    "message/x.rsocket.routing.v0",
    "message/x.rsocket.composite-metadata.v0",
)
WELL_KNOWN: Final[Mapping[int, str]] = dict([*enumerate(_FIRST), *enumerate(_LAST, 0x7A)])
"""The text of each well-known number."""

IDS: Final[Mapping[str, int]] = {text: number for number, text in WELL_KNOWN.items()}
"""The number of each well-known text."""

APPLICATION_JSON: Final = "application/json"
OCTET_STREAM: Final = "application/octet-stream"
TEXT_PLAIN: Final = "text/plain"
MIME_TYPE: Final = "message/x.rsocket.mime-type.v0"
ACCEPT_MIME_TYPES: Final = "message/x.rsocket.accept-mime-types.v0"
AUTHENTICATION: Final = "message/x.rsocket.authentication.v0"
TRACING_ZIPKIN: Final = "message/x.rsocket.tracing-zipkin.v0"
ROUTING: Final = "message/x.rsocket.routing.v0"
COMPOSITE_METADATA: Final = "message/x.rsocket.composite-metadata.v0"
DEADLINE: Final = "message/x.rsocket-trio.deadline.v0"
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"

TRACE_MIMES: Final = frozenset({TRACEPARENT, TRACESTATE, BAGGAGE, TRACING_ZIPKIN})
"""The entries of distributed tracing: the three of W3C, whose names are their MIME types, and that of Zipkin."""

SHORT_NAMES: Final[Mapping[str, str]] = {
    **{text.partition("/")[2]: text for text in IDS if text.startswith(("application/", "text/"))},
    "text": TEXT_PLAIN,
    "binary": OCTET_STREAM,
    "protobuf": "application/vnd.google.protobuf",
    "composite": COMPOSITE_METADATA,
    "routing": ROUTING,
}
"""MIME types by the names that people type."""
CHARSETS: Final = ("utf-8", "utf8", "ascii", "us-ascii")
"""A word of the drafts' peers in place of a MIME type: it means text."""

NO_MIME: Final = (None, "")
"""A payload's own MIME type that leaves the connection's as it is."""

DEFAULT_LIMIT = 1024
"""Entries of composite metadata, and MIME types of a list, that are decoded at most."""
MAX_NAME_BYTES = 128
_WELL_KNOWN_BIT = 0x80


def mime_name(mime: str | int | None) -> str | int:
    """The text of a MIME type; the number itself where it is not in the table, and ``""`` for none."""
    if mime is None:
        return ""
    return WELL_KNOWN.get(mime, mime) if isinstance(mime, int) else mime


def check_mime(what: str, mime: object) -> None:
    """Raise ``ValueError`` for a text without a slash, which is no MIME type; it names the one that is meant."""
    if not isinstance(mime, str) or "/" in mime:
        return
    word = mime.strip().lower()
    from difflib import get_close_matches  # only who needs it loads it

    meant = TEXT_PLAIN if word in CHARSETS else SHORT_NAMES.get(word)
    if meant is None and (close := get_close_matches(word, SHORT_NAMES, 1, 0.7)):
        meant = SHORT_NAMES[close[0]]
    hint = f"did you mean {meant!r}?" if meant is not None else f"it has no slash, as {APPLICATION_JSON!r} has"
    raise ValueError(f"{what} {mime!r} is no MIME type: {hint}")


def decode_mime(data: bytes, offset: int = 0) -> tuple[str | int, int]:
    """Return the MIME type in ``data`` at ``offset``, and the offset behind it.

    A type is a text, or its number if that is not in the table. Raise ``RemoteProtocolError`` if the bytes end too
    early or the text is not ASCII.
    """
    return decode_name(data, offset, WELL_KNOWN)


def encode_mime(mime: str | int) -> bytes:
    """Return ``mime``, a text or a number from 0 to 127, in as few bytes as it takes.

    Raise ``ValueError`` for a type that cannot be written: not ASCII, empty, or above 128 characters.
    """
    return encode_name(mime, IDS)


def decode_data_mime(data: bytes) -> str | int:
    """Return the MIME type in ``data``, the content of a ``MIME_TYPE`` entry.

    Raise ``RemoteProtocolError`` for malformed or trailing bytes.
    """
    mime, end = decode_mime(data)
    if end != len(data):
        raise RemoteProtocolError(f"{len(data) - end} bytes behind the MIME type at offset {end}", offset=end)
    return mime


encode_data_mime = encode_mime
"""Return a MIME type as the content of a ``MIME_TYPE`` entry, which is nothing else."""


def decode_accepted_mimes(data: bytes, *, limit: int = DEFAULT_LIMIT) -> list[str | int]:
    """Return the MIME types in ``data``, the content of an ``ACCEPT_MIME_TYPES`` entry, in order.

    Raise ``RemoteProtocolError`` for malformed bytes and for more than ``limit`` types.
    """
    mimes: list[str | int] = []
    offset = 0
    while offset < len(data):
        if len(mimes) == limit:
            raise RemoteProtocolError(f"more than {limit} MIME types at offset {offset}", offset=offset)
        mime, offset = decode_mime(data, offset)
        mimes.append(mime)
    return mimes


def encode_accepted_mimes(mimes: Iterable[str | int]) -> bytes:
    """Return ``mimes`` as the content of an ``ACCEPT_MIME_TYPES`` entry.

    Raise ``ValueError`` for a type that cannot be written.
    """
    return b"".join(map(encode_mime, mimes))


def decode_name(data: bytes, offset: int, names: Mapping[int, str]) -> tuple[str | int, int]:
    """A number or a text at ``offset``, read with the table of an extension, and the offset behind it."""
    if offset >= len(data):
        raise RemoteProtocolError(f"no type at offset {offset} of {len(data)} bytes", offset=offset)
    head = data[offset]
    start = offset + 1
    if head & _WELL_KNOWN_BIT:
        number = head & 0x7F
        return names.get(number, number), start
    end = start + head + 1
    text = data[start:end]
    if end > len(data):
        left = len(data) - start
        raise RemoteProtocolError(f"type of {head + 1} bytes at offset {offset}, {left} left", offset=offset)
    if not text.isascii():
        raise RemoteProtocolError(f"type of {head + 1} bytes at offset {offset} is not ASCII", offset=offset)
    return text.decode("ascii"), end


def encode_name(name: str | int, ids: Mapping[str, int]) -> bytes:
    """The mirror of ``decode_name``: the number where the table has one, else the text."""
    number = ids.get(name) if isinstance(name, str) else name
    if number is not None:
        if not 0 <= number < _WELL_KNOWN_BIT:
            raise ValueError(f"type number {number}: 0 to 127 can be written")
        return bytes((_WELL_KNOWN_BIT | number,))
    text = str(name)
    if not text.isascii() or not 1 <= len(text) <= MAX_NAME_BYTES:
        raise ValueError(f"type {text!r}: 1 to {MAX_NAME_BYTES} ASCII characters can be written")
    return bytes((len(text) - 1,)) + text.encode("ascii")
