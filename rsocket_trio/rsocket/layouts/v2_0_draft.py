"""The frame layout of the extension draft: the table of RSocket 1.0 with rows that carry extensions.

SETUP, its new answer SETUP_OK and the requests may have extensions, and so may EXT frames of one type; a payload may
name MIME types of its own. Behind the fixed fields stand the MIME types, the extensions, metadata and data.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import (
    NOTHING,
    UINT31_MAX,
    Codec,
    Field,
    Parts,
    Row,
    Values,
    Written,
    absent,
    bit,
    constant,
    end_of,
    numbers,
    rest,
)
from rsocket_trio.rsocket.extensions.entries import (
    AT_EXT,
    AT_OK,
    AT_SETUP,
    AT_STREAM,
    WELL_KNOWN_BIT,
    Point,
    decode_block,
    encode_block,
    name_field,
)
from rsocket_trio.rsocket.frames import ExtFrame, Frame, PayloadFrame, SetupFrame, SetupOkFrame
from rsocket_trio.rsocket.layouts import v1_0 as layout_1_0
from rsocket_trio.rsocket.layouts.v1_0 import (
    BODY,
    CHECKED_ITEM,
    IGNORE,
    METADATA,
    PAYLOAD_FLAGS,
    SHAPE,
    STREAM_IDS,
    U16,
    U31,
    UINT32,
    request_rows,
)

EXTENSIONS: Final = 0x200  # X, where other types have the ignore flag (RSX-FLG-05)
ACK: Final = 0x080
DATA_MIME: Final = 0x010  # D
METADATA_MIME: Final = 0x008  # Y

EXTENSION_BLOCK: Final = 1
"""The one type of EXT that is not opaque (RSX-GAP-12)."""

TERMS: Final = ("keepalive_interval", "max_lifetime", "lease", "resume_token", "strict")
"""The terms of SETUP that are extensions here."""
OPAQUE_EXT: Final = layout_1_0.EXT_ROW


# MIME types: a number, or a text whose length is meant literally (RSX-MIME-01, RSX-GAP-08)


def mime_at(data: bytes, offset: int, what: str) -> tuple[int | str, int]:
    """Return the MIME type at ``offset`` and its end; ``""`` is the field that gives none."""
    start = end_of(data, offset, 1, what)
    first = data[offset]
    if first & WELL_KNOWN_BIT:
        return first & ~WELL_KNOWN_BIT, start
    end = end_of(data, start, first, what)
    return data[start:end].decode("latin-1"), end


def mime(attribute: str, what: str) -> Field:
    """Return a MIME type of SETUP."""

    def read(values: Values, data: bytes, offset: int, flags: int) -> int:
        values[attribute], end = mime_at(data, offset, what)
        return end

    def write(name: str, frame: Any) -> Written:
        return 0, name_field(getattr(frame, attribute), f"{name} {attribute}"), b""

    return Field(read, write, attributes=(attribute,))


def mime_fields(name: str, payload: Payload) -> tuple[int, bytes]:
    """Return the flags of a payload's own MIME types, and the MIME types."""
    flags, fields = 0, b""
    if payload.data_mime is not None:
        flags, fields = DATA_MIME, name_field(payload.data_mime, f"{name} data_mime")
    if payload.metadata_mime is not None:
        return flags | METADATA_MIME, fields + name_field(payload.metadata_mime, f"{name} metadata_mime")
    return flags, fields


def read_mimes(values: Values, data: bytes, offset: int, flags: int) -> int:
    """Read the overrides of the connection's MIME types, data's first (RSX-GAP-10); the payload takes them."""
    if flags & DATA_MIME:
        values["data_mime"], offset = mime_at(data, offset, "data MIME type")
    if flags & METADATA_MIME:
        values["metadata_mime"], offset = mime_at(data, offset, "metadata MIME type")
    return offset


def read_payload(values: Values, data: bytes, offset: int, flags: int) -> int:
    """Read a payload whose MIME types were read before."""
    payload = values["payload"] = SHAPE.payload_at(data, offset, flags)
    payload.data_mime = values.pop("data_mime", None)
    payload.metadata_mime = values.pop("metadata_mime", None)
    return len(data)


MIMES: Final = Field(
    read_mimes,
    lambda name, frame: (*mime_fields(name, frame.payload), b""),
    flags=DATA_MIME | METADATA_MIME,
    attributes=("payload.data_mime", "payload.metadata_mime"),
)
PAYLOAD: Final = attrs.evolve(SHAPE.payload, read=read_payload)


def check_setup(name: str, frame: Any) -> Written:
    if frame.data_mime == "":  # RSX-MIME-03; one that was not given is read so
        raise LocalProtocolError("SETUP data_mime: it must be given")
    if not frame.ack and any(entry.ack for entry in frame.extensions):  # RSX-SETUP-04
        raise LocalProtocolError("SETUP ack False: one of its extensions asks for an answer")
    return NOTHING


def extensions(point: Point, *, needed: bool = False) -> Field:
    """Return the extensions at this point, if X says that there are some, or the frame always has some."""

    def read(values: Values, data: bytes, offset: int, flags: int) -> int:
        if not flags & EXTENSIONS and not needed:
            return offset
        values["extensions"], end = decode_block(data, offset, point)
        return end

    def write(name: str, frame: Any) -> Written:
        if not frame.extensions and not needed:
            return NOTHING
        return 0 if needed else EXTENSIONS, encode_block(frame.extensions, point), b""

    return Field(read, write, flags=0 if needed else EXTENSIONS, attributes=("extensions",))


def ext_row() -> Row:
    """Return the row of EXT: extensions in one type, then metadata to the end; any other is opaque.

    RSX-EXT-01 to RSX-EXT-03
    """
    row = SHAPE.row(
        *(0x3F, "EXT", ExtFrame, numbers(ext_type=U31), extensions(AT_EXT, needed=True)),
        *(rest("metadata", METADATA), bit("ignore", IGNORE, counted=False)),
    )

    def decode(stream_id: int, flags: int, data: bytes) -> Frame:
        (ext_type,) = UINT32.unpack_from(data, BODY)
        known = ext_type & UINT31_MAX == EXTENSION_BLOCK
        return (row if known else OPAQUE_EXT).decode(stream_id, flags, data)

    def encode(frame: ExtFrame) -> Parts:
        if frame.ext_type != EXTENSION_BLOCK:
            if frame.extensions or frame.metadata is not None:
                raise LocalProtocolError(f"EXT ext_type {frame.ext_type}: only type 1 has extensions and metadata")
            return OPAQUE_EXT.encode(frame)
        if frame.body or frame.has_metadata:
            raise LocalProtocolError("EXT body: in type 1 there are extensions and metadata instead")
        return row.encode(frame)

    return attrs.evolve(row, decode=decode, encode=encode, opaque=OPAQUE_EXT)


def codec(at_stream: Point = AT_STREAM) -> Codec:
    """Return the codec of these frames, and of all others as RSocket 1.0 writes them (RSX-OTH-01).

    ``at_stream`` are the extensions known in requests.
    """
    setup = (
        Field(None, check_setup),
        # The MIME types come before the version (RSX-SETUP-02).
        *(mime("data_mime", "data MIME type"), mime("metadata_mime", "metadata MIME type")),
        *(numbers("version", major=U16, minor=U16), extensions(AT_SETUP), SHAPE.payload, bit("ack", ACK)),
        *(constant(keepalive_interval=0.0, max_lifetime=0.0), absent(*TERMS)),
    )
    item = (CHECKED_ITEM, MIMES, PAYLOAD, *PAYLOAD_FLAGS)
    return layout_1_0.CODEC.replacing(
        SHAPE.row(0x01, "SETUP", SetupFrame, *setup, ignorable=False),
        # No extensions: where others have X it has a spare bit (RSX-PAY-01, RSX-FLG-04, RSX-FLG-06).
        SHAPE.row(0x0A, "PAYLOAD", PayloadFrame, *item, ids=STREAM_IDS, ignorable=False),
        # RSX-OK-01
        SHAPE.row(*(0x0F, "SETUP_OK", SetupOkFrame, extensions(AT_OK), SHAPE.payload), ignorable=False),
        ext_row(),
        *request_rows(MIMES, extensions(at_stream), PAYLOAD, ignorable=False),
    )


CODEC: Final = codec()
