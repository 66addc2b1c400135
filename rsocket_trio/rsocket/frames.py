"""The frames of all dialects of the RSocket family, as values: one model for all layouts.

``metadata_type`` is the byte that 0.0 gives to metadata; every other dialect reads it as 0 and leaves it unsaid.
``repr`` shows metadata, tokens and extensions by size only: they may be secret, or a fragment of a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from rsocket_trio.masking import shown_size
from rsocket_trio.payload import without_metadata
from rsocket_trio.values import value

if TYPE_CHECKING:
    from rsocket_trio.mux.stream_state import Interaction
    from rsocket_trio.payload import Payload

# A union would have every dialect ask which of the two it holds, and only one has numbers.
Mime: TypeAlias = Any
"""A MIME type of SETUP: a text; in the extension draft it may be the number of a well-known one."""


# Extension entries, which frames of the extension draft carry. A text id is kept byte by byte as Latin-1 (RSX-TLV-09).

# RSX-GAP-17
KEEPALIVE: Final = 0x01
RESUME: Final = 0x02
LEASE: Final = 0x03
BROKER: Final = 0x04
NAMES: Final = {KEEPALIVE: "keepalive", RESUME: "resume", LEASE: "lease", BROKER: "broker"}
RESERVED: Final = (0x00, 0x7F, "")
"""Ids that no extension has (RSX-TLV-04)."""


def name_of(ext: int | str) -> str:
    """Return an extension in words, for messages: its name, its number, or its text in quotes."""
    return NAMES.get(ext) or f"0x{ext:02X}" if isinstance(ext, int) else repr(ext)


@value
class ExtensionEntry:
    """One extension in a frame; ``ext`` is the number of a well-known one or the name of an application's own.

    ``ignore`` lets a receiver skip it, ``ack`` asks for an answer in SETUP_OK, ``nibble`` is four bits that the
    extension defines.
    """

    ext: int | str
    ignore: bool = False
    ack: bool = False
    nibble: int = 0
    payload: bytes = attrs.field(default=b"", repr=shown_size)

    @property
    def name(self) -> str:
        """The extension in words, for messages."""
        return name_of(self.ext)


@value
class Frame:
    """The base class of all frames: each has a stream id, 0 for those of the connection."""

    stream_id: int


@value
class SetupFrame(Frame):
    """SETUP: version, keepalive terms in seconds, mime types, and the application's payload.

    In 0.0 ``major`` is the version byte; it has neither ``minor`` nor keepalive terms, which are read as 0.
    In the extension draft keepalive terms, leases and resumption stand in ``extensions``.
    """

    major: int
    minor: int
    keepalive_interval: float
    max_lifetime: float
    metadata_mime: Mime
    data_mime: Mime
    payload: Payload = attrs.field(repr=without_metadata)
    lease: bool = False
    strict: bool = False
    resume_token: bytes | None = attrs.field(default=None, repr=shown_size)
    stream_id: int = 0
    ack: bool = False
    extensions: tuple[ExtensionEntry, ...] = ()


@value
class LeaseFrame(Frame):
    """LEASE: how many requests, for how long. Nanoseconds, so that every dialect's unit is exact."""

    time_to_live_ns: int
    number_of_requests: int
    metadata: bytes | None = attrs.field(default=None, repr=shown_size)
    stream_id: int = 0
    metadata_type: int = 0


@value
class KeepaliveFrame(Frame):
    """KEEPALIVE: a sign of life, and with ``respond`` the wish for one."""

    respond: bool
    last_received_position: int = 0
    data: bytes = b""
    stream_id: int = 0


@value
class RequestFrame(Frame):
    """REQUEST_RESPONSE, _FNF, _STREAM, _SUB or _CHANNEL: opens a stream, and starts its first payload.

    ``initial_n`` is ``None`` where the type or the frame has no such field.
    """

    stream_id: int
    interaction: Interaction
    payload: Payload = attrs.field(repr=without_metadata)
    initial_n: int | None = None
    follows: bool = False
    complete: bool = False
    extensions: tuple[ExtensionEntry, ...] = ()


@value
class RequestNFrame(Frame):
    """REQUEST_N: credit for so many items more."""

    stream_id: int
    request_n: int
    metadata: bytes | None = attrs.field(default=None, repr=shown_size)
    metadata_type: int = 0


@value
class CancelFrame(Frame):
    """CANCEL: its receiver's items are no longer wanted."""

    stream_id: int
    metadata: bytes | None = attrs.field(default=None, repr=shown_size)
    metadata_type: int = 0


@value
class PayloadFrame(Frame):
    """PAYLOAD (or RESPONSE): one item of a stream, its end, or both.

    A RESPONSE has no flag for ``next``. One that was read says ``next`` unless it completes and carries nothing;
    whether that is an item all the same depends on the interaction (RS00-RSP-03, RS01-RSP-03).
    """

    stream_id: int
    payload: Payload = attrs.field(repr=without_metadata)
    next: bool = True
    complete: bool = False
    follows: bool = False


@value
class ErrorFrame(Frame):
    """ERROR on a stream, or on stream 0 for the connection (0.0: SETUP_ERROR).

    An ERROR of 0.0 has no code: one that was read says 0x201, and in writing the code goes unsaid.
    """

    stream_id: int
    code: int
    data: bytes = b""
    metadata: bytes | None = attrs.field(default=None, repr=shown_size)
    metadata_type: int = 0


@value
class MetadataPushFrame(Frame):
    """METADATA_PUSH: metadata without a request."""

    metadata: bytes = attrs.field(repr=shown_size)
    stream_id: int = 0
    metadata_type: int = 0


@value
class ResumeFrame(Frame):
    """RESUME: the first frame of a client that wants its session back. Positions are bytes."""

    major: int
    minor: int
    token: bytes = attrs.field(repr=shown_size)
    last_received_server_position: int
    first_available_client_position: int
    stream_id: int = 0


@value
class ResumeOkFrame(Frame):
    """RESUME_OK: the session goes on from this position, in bytes."""

    last_received_client_position: int
    stream_id: int = 0


@value
class ExtFrame(Frame):
    """EXT: a frame of an extension; ``body`` is opaque and includes any metadata.

    In 0.0 and 0.1 it has no stream id, which is read as 0. In the extension draft one type is not opaque: it has
    ``extensions`` and ``metadata`` instead of a ``body``.
    """

    stream_id: int
    ext_type: int
    body: bytes = attrs.field(default=b"", repr=shown_size)
    ignore: bool = False
    has_metadata: bool = False
    extensions: tuple[ExtensionEntry, ...] = ()
    metadata: bytes | None = attrs.field(default=None, repr=shown_size)


@value
class SetupOkFrame(Frame):
    """SETUP_OK: the server's answer to a SETUP of the extension draft that asked for one."""

    payload: Payload = attrs.field(repr=without_metadata)
    extensions: tuple[ExtensionEntry, ...] = ()
    stream_id: int = 0
