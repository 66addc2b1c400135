"""The route of a request: how it is found in what a peer sent, and written into what goes out."""

from __future__ import annotations

from functools import lru_cache

from rsocket_trio.metadata.composite import DEFAULT_LIMIT, Entry, encode_composite, spans
from rsocket_trio.metadata.mime import COMPOSITE_METADATA, ROUTING
from rsocket_trio.metadata.routing import decode_tag, encode_route

_REMEMBERED = 128
"""Bytes: longer metadata is read anew each time, so that a peer can make us keep no more than 256 times this."""


def route_of(metadata: bytes | None, metadata_mime: str | int, limit: int = DEFAULT_LIMIT) -> str | None:
    """Return the route in the ``metadata`` of a request, or ``None`` if it carries none.

    ``metadata_mime`` is the metadata MIME type of the connection. Composite metadata may have at most ``limit`` entries
    and is checked to its end, so that a malformed entry is refused wherever it stands. Raise ``RemoteProtocolError`` if
    the metadata or the route is malformed.
    """
    if not metadata:
        return None
    if len(metadata) <= _REMEMBERED:
        return _remembered(metadata, metadata_mime, limit)
    return _read(metadata, metadata_mime, limit)


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


def _read(metadata: bytes, metadata_mime: str | int, limit: int) -> str | None:
    if metadata_mime == ROUTING:
        return decode_tag(metadata, 0, len(metadata))
    if metadata_mime != COMPOSITE_METADATA:
        return None
    route: str | None = None
    found = False
    for mime, start, end in spans(metadata, limit):
        if mime == ROUTING and not found:
            found = True
            if start < end:
                route = decode_tag(metadata, start, end)
    return route


_remembered = lru_cache(maxsize=256)(_read)


@lru_cache(maxsize=256)
def _alone(route: str, metadata_mime: str | int) -> bytes:
    tags = encode_route(route)
    return encode_composite([Entry(ROUTING, tags)]) if metadata_mime == COMPOSITE_METADATA else tags
