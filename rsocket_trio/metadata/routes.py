"""The route of a request, and the entries that concern typed calls: read from what a peer sent, and written.

A routing entry holds tags of up to 255 bytes of UTF-8, each behind its length; the first one is the route. A deadline
is the milliseconds for which the caller still waits: a duration, so that clocks may differ.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata.composite import Entry, encode_composite, spans
from rsocket_trio.metadata.mime import (
    ACCEPT_MIME_TYPES,
    AUTHENTICATION,
    COMPOSITE_METADATA,
    DEADLINE,
    DEFAULT_LIMIT,
    MIME_TYPE,
    ROUTING,
    TRACE_MIMES,
)
from rsocket_trio.values import value

MAX_TAG_BYTES: Final = 255
"""Bytes."""
_REMEMBERED_SIZE: Final = 128
"""Bytes: longer metadata is read anew each time, so that a peer can make us keep no more than 256 times this."""
_REMEMBERED_COUNT: Final = 256

_TRAVELLING: Final = frozenset({AUTHENTICATION, DEADLINE}) | TRACE_MIMES
_MIMES: Final = frozenset({MIME_TYPE, ACCEPT_MIME_TYPES})


def decode_route(data: bytes) -> list[str]:
    """Return the tags in ``data``, the content of a ``ROUTING`` entry; the first one is the route.

    Raise ``RemoteProtocolError`` for a tag that is cut short or not UTF-8.
    """
    tags: list[str] = []
    offset = 0
    while offset < len(data):
        tags.append(decode_tag(data, offset, len(data)))
        offset += 1 + data[offset]
    return tags


def encode_route(*tags: str) -> bytes:
    """Return ``tags`` as the content of a ``ROUTING`` entry.

    Raise ``ValueError`` for a tag above 255 bytes of UTF-8.
    """
    parts: list[bytes] = []
    for tag in tags:
        text = tag.encode()
        if len(text) > MAX_TAG_BYTES:
            raise ValueError(f"route of {len(text)} bytes, limit {MAX_TAG_BYTES}")
        parts += (bytes((len(text),)), text)
    return b"".join(parts)


def decode_tag(data: bytes, offset: int, end: int) -> str:
    """The one tag at ``offset``, in bytes that end at ``end``."""
    start = offset + 1
    stop = start + data[offset]
    if stop > end:
        text = f"route of {data[offset]} bytes at offset {offset}, {end - start} left"
        raise RemoteProtocolError(text, offset=offset)
    try:
        return data[start:stop].decode()
    except UnicodeDecodeError as error:
        at = start + error.start
        raise RemoteProtocolError(f"route is not UTF-8 at offset {at}: {error.reason}", offset=at) from None


@value
class RequestMetadata:
    """The part of a request's metadata that concerns the call, in the order of the peer.

    ``route`` is the route, or ``None``. ``travelling`` holds the entries that differ from call to call: credentials,
    the deadline, and those of tracing. ``mimes`` holds the entries with the MIME type of the data and of the answers.
    """

    route: str | None = None
    travelling: tuple[Entry, ...] = ()
    mimes: tuple[Entry, ...] = ()


_NOTHING: Final = RequestMetadata()
_remembered: Final[dict[tuple[bytes, str | int, int], RequestMetadata]] = {}


def read_request(metadata: bytes | None, metadata_mime: str | int, limit: int = DEFAULT_LIMIT) -> RequestMetadata:
    """Return the route and the entries for the call in the ``metadata`` of a request.

    ``metadata_mime`` is the metadata MIME type of the connection, or of this request. Composite metadata may have at
    most ``limit`` entries and is checked to its end, so that a malformed entry is refused wherever it stands. With the
    MIME type of one entry the whole metadata is that entry. Contents are not decoded, except for the route. Raise
    ``RemoteProtocolError`` if the metadata or the route is malformed.

    Short metadata is remembered for the whole process, unless a travelling entry is in it: credentials are secret, and
    deadlines and traces would displace what comes back.
    """
    if not metadata:
        return _NOTHING
    if len(metadata) > _REMEMBERED_SIZE:
        return _read(metadata, metadata_mime, limit)
    key = (metadata, metadata_mime, limit)
    known = _remembered.get(key)
    if known is None:
        known = _read(metadata, metadata_mime, limit)
        if known is not _NOTHING and not known.travelling:
            if len(_remembered) >= _REMEMBERED_COUNT:
                _remembered.clear()  # all, as other threads may be in here too and the oldest may be gone
            _remembered[key] = known
    return known


def route_of(metadata: bytes | None, metadata_mime: str | int, limit: int = DEFAULT_LIMIT) -> str | None:
    """Return the route in the ``metadata`` of a request, or ``None`` if it carries none.

    ``metadata_mime``, ``limit`` and what it raises are those of ``read_request``.
    """
    return read_request(metadata, metadata_mime, limit).route


def with_route(route: str, metadata: bytes | None, metadata_mime: str | int) -> bytes:
    """Return the metadata of a request to ``route``, for a connection whose metadata MIME type is ``metadata_mime``.

    In composite metadata the routing entry comes first; ``metadata``, entries that are encoded already, follows. With
    any other MIME type the route is the whole metadata. Raise ``ValueError`` if ``metadata`` is given there, and for a
    route above 255 bytes.
    """
    if metadata is None:
        return _alone(route, metadata_mime)
    if metadata_mime != COMPOSITE_METADATA:
        raise ValueError(f"route {route!r} and metadata of {len(metadata)} bytes: {metadata_mime} carries one of them")
    return _alone(route, metadata_mime) + metadata


def without_entries(mime: str | int, metadata: bytes, metadata_mime: str | int) -> bytes | None:
    """Return the ``metadata`` of a request without its entries of type ``mime``, ``None`` if nothing is left.

    ``metadata_mime`` is the metadata MIME type of the connection. Raise ``RemoteProtocolError`` if composite metadata
    is malformed.
    """
    if metadata_mime != COMPOSITE_METADATA:
        return None if metadata_mime == mime else metadata
    left: list[bytes] = []
    begin = 0
    for entry_mime, _, end in spans(metadata, len(metadata)):
        if entry_mime != mime:
            left.append(metadata[begin:end])
        begin = end
    return b"".join(left) or None


def _read(metadata: bytes, metadata_mime: str | int, limit: int) -> RequestMetadata:
    if metadata_mime == ROUTING:
        return RequestMetadata(decode_tag(metadata, 0, len(metadata)))
    if metadata_mime != COMPOSITE_METADATA:
        if metadata_mime in _TRAVELLING:
            return RequestMetadata(travelling=(Entry(metadata_mime, metadata),))
        if metadata_mime in _MIMES:
            return RequestMetadata(mimes=(Entry(metadata_mime, metadata),))
        return _NOTHING
    route: str | None = None
    has_route = False
    travelling: list[Entry] = []
    mimes: list[Entry] = []
    for mime, start, end in spans(metadata, limit):
        if mime == ROUTING:
            if not has_route and start < end:
                route = decode_tag(metadata, start, end)
            has_route = True
        elif mime in _TRAVELLING:
            travelling.append(Entry(mime, metadata[start:end]))
        elif mime in _MIMES:
            mimes.append(Entry(mime, metadata[start:end]))
    return RequestMetadata(route, tuple(travelling), tuple(mimes))


@lru_cache(maxsize=256)
def _alone(route: str, metadata_mime: str | int) -> bytes:
    tags = encode_route(route)
    return encode_composite([Entry(ROUTING, tags)]) if metadata_mime == COMPOSITE_METADATA else tags


_DEADLINE_SIZE: Final = 4
MAX_DEADLINE_MS: Final = 2 ** (8 * _DEADLINE_SIZE) - 1
"""The longest time that can be written: nearly 50 days."""
_ROUNDING_MS: Final = 1e-6
"""A nanosecond above a whole millisecond is the rounding of a float, and adds no millisecond."""


def encode_deadline(seconds_left: float) -> bytes:
    """Return the content of a ``DEADLINE`` entry for a caller that waits ``seconds_left`` more seconds.

    Milliseconds are rounded up, so that time that is left never reads as none; 0 and less say that the deadline is
    over. Times above 2**32 - 1 milliseconds are written as that many. Raise ``ValueError`` for infinity and NaN: a call
    without a deadline has no such entry.
    """
    if not math.isfinite(seconds_left):
        raise ValueError(f"deadline in {seconds_left} seconds: a call without one carries no entry")
    milliseconds = math.ceil(seconds_left * 1000 - _ROUNDING_MS)
    return min(max(milliseconds, 0), MAX_DEADLINE_MS).to_bytes(_DEADLINE_SIZE, "big")


def decode_deadline(data: bytes) -> float:
    """Return the seconds left in ``data``, the content of a ``DEADLINE`` entry; 0 says that the deadline is over.

    Raise ``RemoteProtocolError`` for another length than 4 bytes.
    """
    if len(data) != _DEADLINE_SIZE:
        raise RemoteProtocolError(f"deadline of {len(data)} bytes, not {_DEADLINE_SIZE}", offset=0)
    return int.from_bytes(data, "big") / 1000
