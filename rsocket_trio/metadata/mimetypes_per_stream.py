"""The MIME types of one stream: which one its data has, and which ones the requester accepts in answers."""

from __future__ import annotations

from collections.abc import Iterable

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.metadata.composite import DEFAULT_LIMIT
from rsocket_trio.metadata.mime import decode_mime, encode_mime


def decode_data_mime(data: bytes) -> str | int:
    """Return the MIME type in ``data``, the content of a ``MIME_TYPE`` entry.

    Raise ``RemoteProtocolError`` for malformed or trailing bytes.
    """
    mime, end = decode_mime(data)
    if end != len(data):
        raise RemoteProtocolError(f"{len(data) - end} bytes behind the MIME type at offset {end}", offset=end)
    return mime


def encode_data_mime(mime: str | int) -> bytes:
    """Return ``mime`` as the content of a ``MIME_TYPE`` entry.

    Raise ``ValueError`` for a type that cannot be written.
    """
    return encode_mime(mime)


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
