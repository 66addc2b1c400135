"""An item as one JSON object: its data and each entry of its metadata, the values of credentials masked."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from contextlib import suppress

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.masking import may_hold_credentials
from rsocket_trio.metadata import (
    ACCEPT_MIME_TYPES,
    APPLICATION_JSON,
    AUTHENTICATION,
    COMPOSITE_METADATA,
    MIME_TYPE,
    OCTET_STREAM,
    ROUTING,
    Entry,
    decode_accepted_mimes,
    decode_composite,
    decode_data_mime,
    decode_route,
)
from rsocket_trio.metadata.mime import NO_MIME, mime_name
from rsocket_trio.payload import Payload
from rsocket_trio.terms import Setup

MASK = "**"
"""Stands for the value of credentials."""
SECRET = (AUTHENTICATION, COMPOSITE_METADATA)
"""MIME types of entries that are not shown: composite metadata in an entry may have such an entry as well."""
DECODERS: Mapping[str | int, Callable[[bytes], object]] = {
    ROUTING: decode_route,
    MIME_TYPE: decode_data_mime,
    ACCEPT_MIME_TYPES: decode_accepted_mimes,
}


def item_json(item: Payload, setup: Setup) -> bytes:
    """Return an item of a connection as JSON in ASCII: ``data`` with its ``encoding``, and ``metadata`` by entry."""
    entries = entries_of(item, setup)
    shown = [
        {"mime": entry.mime, **({"data": MASK, "encoding": "text"} if is_secret else entry_content(entry))}
        for entry, is_secret in entries
    ]
    named = next((decoded(entry) for entry, _ in entries if entry.mime == MIME_TYPE), None)
    mime = named or mime_name(setup.data_mime if item.data_mime in NO_MIME else item.data_mime)
    return json.dumps({**content_of(item.data, str(mime)), "metadata": shown}).encode()


def entries_of(item: Payload, setup: Setup) -> list[tuple[Entry, bool]]:
    """Return the entries of the metadata, and whether each may hold credentials.

    Metadata that is not composite is one entry, also where the connection says that it is.
    """
    metadata = item.metadata
    if metadata is None:
        return []
    mime = mime_name(setup.metadata_mime if item.metadata_mime in NO_MIME else item.metadata_mime)
    if mime == COMPOSITE_METADATA:
        with suppress(RemoteProtocolError):
            return [(entry, entry.mime in SECRET) for entry in decode_composite(metadata)]
    return [(Entry(mime, metadata), may_hold_credentials(metadata, mime))]


def decoded(entry: Entry) -> object:
    """Return the content of an entry about routes or MIME types, ``None`` of another, or if it is malformed."""
    try:
        return DECODERS[entry.mime](entry.content)
    except (KeyError, RemoteProtocolError):
        return None


def entry_content(entry: Entry) -> dict[str, object]:
    """Return the content of an entry as members of a JSON object; routes and MIME types are decoded."""
    value = decoded(entry)
    return content_of(entry.content, str(entry.mime)) if value is None else {"data": value, "encoding": "json"}


def content_of(data: bytes, mime: str) -> dict[str, object]:
    """Return data as members of a JSON object: as JSON if it is, as text if it is UTF-8, else in base64.

    Data of a JSON type is JSON; data of no special type is, if it is an object or an array.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return {"data": base64.b64encode(data).decode(), "encoding": "base64"}
    name = mime.partition(";")[0].strip().lower()
    is_json = name == APPLICATION_JSON or name.endswith("+json")
    if is_json or (mime in (OCTET_STREAM, "") and text.lstrip()[:1] in ("{", "[")):
        try:
            value = json.loads(text)
            # Also refuses numbers that JSON cannot hold, and what is nested too deeply to be written in an object.
            json.dumps([[value]], allow_nan=False)
        except (ValueError, RecursionError):
            pass
        else:
            return {"data": value, "encoding": "json"}
    return {"data": text, "encoding": "text"}
