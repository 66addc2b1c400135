"""The frame layout of the extension draft: the table of RSocket 1.0 with rows that carry extensions.

SETUP, its new answer SETUP_OK and the requests may have extensions, and so may EXT frames of one type; a payload may
name MIME types of its own. Behind the fixed fields stand the MIME types, the extensions, metadata and data.
"""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.errors import LocalProtocolError
from rsocket_trio.mux.stream_state import Interaction
from rsocket_trio.payload import Payload
from rsocket_trio.rsocket.codec import UINT31_MAX, Codec, Parts, Row, check, end_of
from rsocket_trio.rsocket.extensions.blocks import (
    ENTRY_LIMIT,
    WELL_KNOWN_BIT,
    Point,
    UnknownExtension,
    decode_block,
    encode_block,
    name_field,
)
from rsocket_trio.rsocket.extensions.payloads import AT_EXT, AT_OK, AT_SETUP, AT_STREAM
from rsocket_trio.rsocket.frames import (
    ExtensionEntry,
    ExtFrame,
    Frame,
    PayloadFrame,
    RequestFrame,
    SetupFrame,
    SetupOkFrame,
)
from rsocket_trio.rsocket.layouts import v1_0 as layout_1_0
from rsocket_trio.rsocket.layouts.fields_24 import (
    BODY,
    COMPLETE,
    FOLLOWS,
    HEADER_24,
    IGNORE,
    METADATA,
    NEXT,
    UINT32,
    VERSION,
    check_connection,
    check_stream,
    header,
    metadata_at,
    metadata_field,
)

EXTENSIONS: Final = 0x200  # X, where other types have the ignore flag (RSX-FLG-05)
ACK: Final = 0x080
DATA_MIME: Final = 0x010  # D
METADATA_MIME: Final = 0x008  # Y

EXTENSION_BLOCK: Final = 1
"""The one type of EXT that is not opaque (RSX-GAP-12)."""

SETUP_FLAGS: Final = EXTENSIONS | METADATA | ACK
SETUP_OK_FLAGS: Final = EXTENSIONS | METADATA
REQUEST_FLAGS: Final = EXTENSIONS | METADATA | FOLLOWS | DATA_MIME | METADATA_MIME
PAYLOAD_FLAGS: Final = METADATA | FOLLOWS | COMPLETE | NEXT | DATA_MIME | METADATA_MIME


class DraftCodec(Codec):
    """The codec of the draft, whose errors keep the number of an unknown extension."""

    def decode(self, data: bytes) -> Frame:
        """Decode one frame.

        Raise ``NotUnderstood``, ``MalformedExtension`` and ``UnknownExtension`` among it, or ``BadMetadata``.
        """
        try:
            return super().decode(data)
        except UnknownExtension as error:
            # The error was made anew to name the frame; what it was made of still knows the extension.
            if isinstance(error.__context__, UnknownExtension):
                error.ext = error.__context__.ext
            raise


# MIME types: a number, or a text whose length is meant literally (RSX-MIME-01, RSX-GAP-08)


def mime_at(data: bytes, offset: int, what: str) -> tuple[int | str, int]:
    """Return the MIME type at ``offset`` and its end; ``""`` is the field that gives none."""
    start = end_of(data, offset, 1, what)
    first = data[offset]
    if first & WELL_KNOWN_BIT:
        return first & ~WELL_KNOWN_BIT, start
    end = end_of(data, start, first, what)
    return data[start:end].decode("latin-1"), end


def mimes_at(data: bytes, offset: int, flags: int) -> tuple[int | str | None, int | str | None, int]:
    """Return the overrides of the connection's MIME types, data's first, and their end (RSX-GAP-10)."""
    data_mime: int | str | None = None
    metadata_mime: int | str | None = None
    if flags & DATA_MIME:
        data_mime, offset = mime_at(data, offset, "data MIME type")
    if flags & METADATA_MIME:
        metadata_mime, offset = mime_at(data, offset, "metadata MIME type")
    return data_mime, metadata_mime, offset


def mime_fields(name: str, payload: Payload) -> tuple[int, bytes]:
    """Return the flags of the MIME type overrides, and the overrides."""
    flags, fields = 0, b""
    if payload.data_mime is not None:
        flags, fields = DATA_MIME, name_field(payload.data_mime, f"{name} data_mime")
    if payload.metadata_mime is not None:
        return flags | METADATA_MIME, fields + name_field(payload.metadata_mime, f"{name} metadata_mime")
    return flags, fields


def payload_at(
    data: bytes, offset: int, flags: int, data_mime: int | str | None, metadata_mime: int | str | None
) -> Payload:
    """Return the payload from ``offset`` to the end: metadata if M is set, then data."""
    metadata = None
    if flags & METADATA:
        metadata, offset = metadata_at(data, offset)
    return Payload(data[offset:], metadata, data_mime=data_mime, metadata_mime=metadata_mime)


def metadata_if_any(name: str, metadata: bytes | None) -> tuple[int, bytes]:
    """Return the flag of metadata, and the metadata behind its length."""
    return (0, b"") if metadata is None else (METADATA, metadata_field(name, metadata))


# PAYLOAD: no extensions; where others have X it has a spare bit (RSX-PAY-01, RSX-FLG-04, RSX-FLG-06)


def decode_payload(stream_id: int, flags: int, data: bytes) -> PayloadFrame:
    data_mime, metadata_mime, offset = mimes_at(data, BODY, flags)
    return PayloadFrame(
        stream_id,
        payload_at(data, offset, flags, data_mime, metadata_mime),
        flags & NEXT != 0,
        flags & COMPLETE != 0,
        flags & FOLLOWS != 0,
    )


def encode_payload(frame: PayloadFrame) -> Parts:
    check_stream("PAYLOAD", frame.stream_id)
    if not (frame.next or frame.complete or frame.follows):  # RSX-PAY-02
        raise LocalProtocolError("PAYLOAD next False, complete False: one of them, or follows, must be set")
    flags = (NEXT if frame.next else 0) | (COMPLETE if frame.complete else 0) | (FOLLOWS if frame.follows else 0)
    mime_flags, mimes = mime_fields("PAYLOAD", frame.payload)
    metadata_flag, metadata = metadata_if_any("PAYLOAD", frame.payload.metadata)
    head = header(0x0A, flags | mime_flags | metadata_flag, frame.stream_id)
    return head + mimes + metadata, frame.payload.data


@attrs.frozen
class Layout:
    """Builds the draft's codec from the extensions known at each point and their limit per frame."""

    at_setup: Point = AT_SETUP
    at_ok: Point = AT_OK
    at_ext: Point = AT_EXT
    at_stream: Point = AT_STREAM
    limit: int = ENTRY_LIMIT

    def codec(self) -> DraftCodec:
        """Return the codec of these frames, and of all others as RSocket 1.0 writes them (RSX-OTH-01)."""
        setup, ok = (self.decode_setup, self.encode_setup), (self.decode_ok, self.encode_ok)
        # fmt: off
        table = layout_1_0.CODEC.replacing(
            #    type  name        value         flags           fixed fields
            Row(0x01, "SETUP",    SetupFrame,   SETUP_FLAGS,    0, *setup, ignorable=False),
            Row(0x0A, "PAYLOAD",  PayloadFrame, PAYLOAD_FLAGS,  0, decode_payload, encode_payload, ignorable=False),
            Row(0x0F, "SETUP_OK", SetupOkFrame, SETUP_OK_FLAGS, 0, *ok, ignorable=False),
            Row(0x3F, "EXT",      ExtFrame,     METADATA,       4, self.decode_ext, self.encode_ext),
            self.request_row(0x04, "REQUEST_RESPONSE", Interaction.REQUEST_RESPONSE),
            self.request_row(0x05, "REQUEST_FNF", Interaction.FIRE_AND_FORGET),
            self.request_row(0x06, "REQUEST_STREAM", Interaction.REQUEST_STREAM, counted=True),
            self.request_row(0x07, "REQUEST_CHANNEL", Interaction.REQUEST_CHANNEL, COMPLETE, counted=True),
        )
        # fmt: on
        return DraftCodec(HEADER_24, table.rows)

    # SETUP: the MIME types come before the version (RSX-SETUP-02)

    def decode_setup(self, stream_id: int, flags: int, data: bytes) -> SetupFrame:
        # A data MIME type must be given (RSX-MIME-03); one that is not is read as "".
        data_mime, offset = mime_at(data, BODY, "data MIME type")
        metadata_mime, offset = mime_at(data, offset, "metadata MIME type")
        version, offset = offset, end_of(data, offset, VERSION.size, "version")
        major, minor = VERSION.unpack_from(data, version)
        extensions, offset = self._extensions_at(data, offset, flags, self.at_setup)
        payload = payload_at(data, offset, flags, None, None)
        ack = flags & ACK != 0
        return SetupFrame(
            major, minor, 0.0, 0.0, metadata_mime, data_mime, payload, False, False, None, stream_id, ack, extensions
        )

    def encode_setup(self, frame: SetupFrame) -> Parts:
        check_connection("SETUP", frame.stream_id)
        check("SETUP", "major", frame.major, 0, 0xFFFF)
        check("SETUP", "minor", frame.minor, 0, 0xFFFF)
        for field in ("keepalive_interval", "max_lifetime", "lease", "resume_token", "strict"):
            if getattr(frame, field) not in (0, None):
                raise LocalProtocolError(f"SETUP {field}: here it is an extension that says so, if any")
        if frame.data_mime == "":  # RSX-MIME-03
            raise LocalProtocolError("SETUP data_mime: it must be given")
        if not frame.ack and any(entry.ack for entry in frame.extensions):  # RSX-SETUP-04
            raise LocalProtocolError("SETUP ack False: one of its extensions asks for an answer")
        mimes = name_field(frame.data_mime, "SETUP data_mime") + name_field(frame.metadata_mime, "SETUP metadata_mime")
        fields = mimes + VERSION.pack(frame.major, frame.minor)
        extension_flag, block = self._extension_fields(frame.extensions, self.at_setup)
        metadata_flag, metadata = metadata_if_any("SETUP", frame.payload.metadata)
        flags = extension_flag | metadata_flag | (ACK if frame.ack else 0)
        return header(0x01, flags, 0) + fields + block + metadata, frame.payload.data

    # SETUP_OK (RSX-OK-01)

    def decode_ok(self, stream_id: int, flags: int, data: bytes) -> SetupOkFrame:
        extensions, offset = self._extensions_at(data, BODY, flags, self.at_ok)
        return SetupOkFrame(payload_at(data, offset, flags, None, None), extensions, stream_id)

    def encode_ok(self, frame: SetupOkFrame) -> Parts:
        check_connection("SETUP_OK", frame.stream_id)
        extension_flag, block = self._extension_fields(frame.extensions, self.at_ok)
        metadata_flag, metadata = metadata_if_any("SETUP_OK", frame.payload.metadata)
        return header(0x0F, extension_flag | metadata_flag, 0) + block + metadata, frame.payload.data

    # EXT: extensions in one type, then metadata to the end; any other is opaque (RSX-EXT-01 to RSX-EXT-03)

    def decode_ext(self, stream_id: int, flags: int, data: bytes) -> ExtFrame:
        (ext_type,) = UINT32.unpack_from(data, BODY)
        if ext_type & UINT31_MAX != EXTENSION_BLOCK:
            return layout_1_0.decode_ext(stream_id, flags, data)
        extensions, offset = decode_block(data, BODY + UINT32.size, self.at_ext, limit=self.limit)
        metadata = data[offset:] if flags & METADATA else None
        ignore = flags & IGNORE != 0
        return ExtFrame(stream_id, EXTENSION_BLOCK, b"", ignore, extensions=extensions, metadata=metadata)

    def encode_ext(self, frame: ExtFrame) -> Parts:
        if frame.ext_type != EXTENSION_BLOCK:
            if frame.extensions or frame.metadata is not None:
                raise LocalProtocolError(f"EXT ext_type {frame.ext_type}: only type 1 has extensions and metadata")
            return layout_1_0.encode_ext(frame)
        check_connection("EXT", frame.stream_id)
        if frame.body or frame.has_metadata:
            raise LocalProtocolError("EXT body: in type 1 there are extensions and metadata instead")
        flags = (IGNORE if frame.ignore else 0) | (0 if frame.metadata is None else METADATA)
        block = encode_block(frame.extensions, self.at_ext)
        return header(0x3F, flags, 0) + UINT32.pack(EXTENSION_BLOCK) + block, frame.metadata or b""

    # The four requests: without a count (RSX-REQ-01), and with one (RSX-REQ-02)

    def request_row(
        self, number: int, name: str, interaction: Interaction, complete_flag: int = 0, *, counted: bool = False
    ) -> Row:
        """Return the row of a request; it has a COMPLETE flag if the requester sends items of its own."""

        def decode(stream_id: int, flags: int, data: bytes) -> RequestFrame:
            initial_n = None
            offset = BODY
            if counted:
                initial_n = UINT32.unpack_from(data, BODY)[0] & UINT31_MAX
                offset += UINT32.size
            data_mime, metadata_mime, offset = mimes_at(data, offset, flags)
            extensions, offset = self._extensions_at(data, offset, flags, self.at_stream)
            payload = payload_at(data, offset, flags, data_mime, metadata_mime)
            follows, complete = flags & FOLLOWS != 0, flags & complete_flag != 0
            return RequestFrame(stream_id, interaction, payload, initial_n, follows, complete, extensions)

        def encode(frame: RequestFrame) -> Parts:
            check_stream(name, frame.stream_id)
            fields = b""
            if counted:
                check(name, "initial_n", frame.initial_n, 1, UINT31_MAX)
                fields = UINT32.pack(frame.initial_n)
            elif frame.initial_n is not None:
                raise LocalProtocolError(f"{name} initial_n {frame.initial_n}: it has none")
            if frame.complete and not complete_flag:
                raise LocalProtocolError(f"{name} complete: its requester sends nothing more anyway")
            mime_flags, mimes = mime_fields(name, frame.payload)
            extension_flag, block = self._extension_fields(frame.extensions, self.at_stream)
            metadata_flag, metadata = metadata_if_any(name, frame.payload.metadata)
            flags = (FOLLOWS if frame.follows else 0) | (complete_flag if frame.complete else 0)
            head = header(number, flags | mime_flags | extension_flag | metadata_flag, frame.stream_id)
            return head + fields + mimes + block + metadata, frame.payload.data

        flags, fixed = REQUEST_FLAGS | complete_flag, UINT32.size if counted else 0
        return Row(number, name, RequestFrame, flags, fixed, decode, encode, interaction, ignorable=False)

    def _extensions_at(
        self, data: bytes, offset: int, flags: int, point: Point
    ) -> tuple[tuple[ExtensionEntry, ...], int]:
        return decode_block(data, offset, point, limit=self.limit) if flags & EXTENSIONS else ((), offset)

    def _extension_fields(self, entries: tuple[ExtensionEntry, ...], point: Point) -> tuple[int, bytes]:
        return (EXTENSIONS, encode_block(entries, point)) if entries else (0, b"")


CODEC: Final = Layout().codec()
