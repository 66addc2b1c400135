"""Routing metadata: tags of up to 255 bytes of UTF-8, each behind its length; the first one is the route."""

from __future__ import annotations

from rsocket_trio.errors import RemoteProtocolError

LONGEST_TAG = 255


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
        if len(text) > LONGEST_TAG:
            raise ValueError(f"route of {len(text)} bytes, limit {LONGEST_TAG}")
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
