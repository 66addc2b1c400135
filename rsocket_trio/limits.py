"""Limits: every bound of a connection, with its unit, its default and what a peer that exceeds it gets."""

from __future__ import annotations

from typing import Final

import attrs

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.values import between

KIB = 1024
MIB = 1024 * KIB
MAX_FRAME_BYTES = 16 * MIB - 1
"""Bytes: what the 24-bit length field of ReactiveSocket 0.2 and RSocket 1.0 can say."""
ENTRY_OVERHEAD: Final = 256
"""Bytes that each entry counts beside its own. A frame of a few bytes takes some 60 beside them, an item 110, an item
with metadata 150, an element at a sink up to 210; an empty one is not free."""

DRAIN_TIMEOUT = 10.0
"""Seconds that open streams get to finish when a connection drains."""


def checked_grace(grace: object) -> float:
    """Return the seconds that a drain may take. Raise ``TypeError`` for no number, ``ValueError`` for less than 0."""
    if isinstance(grace, bool) or not isinstance(grace, int | float):
        raise TypeError(f"grace is a number of seconds, not {type(grace).__name__}")
    if not grace >= 0:
        raise ValueError(f"grace of {grace} seconds: must be at least 0")
    return grace


@attrs.frozen(kw_only=True)
class Limits:
    """The bounds of one connection. Sizes are bytes, times are seconds. Raise ``ValueError`` for a bound out of range.

    Each attribute says what happens beyond it.
    """

    setup_timeout: float = attrs.field(default=10.0, validator=between(0.001))
    """Seconds from accept to the whole SETUP, with the handshakes of TLS, WebSocket and HTTP/2. Beyond: closed."""
    setup_size: int = attrs.field(default=64 * KIB, validator=between(1, whole=True))
    """Bytes of a SETUP frame, its resume token not counted. Beyond: INVALID_SETUP."""
    frame_size: int = attrs.field(default=MAX_FRAME_BYTES, validator=between(1, 2**31 - 1, whole=True))
    """Bytes of one inbound frame. Beyond: CONNECTION_ERROR, before a byte of the body is stored."""
    payload_size: int = attrs.field(default=64 * MIB, validator=between(1, whole=True))
    """Bytes of one payload joined from fragments. Beyond: the stream ends with INVALID, the rest is skipped."""
    reassembly_size: int = attrs.field(default=128 * MIB, validator=between(1, whole=True))
    """Bytes of all unfinished payloads of a connection. Beyond: the stream that adds to it ends with INVALID."""
    tiny_fragments: int = attrs.field(default=1024, validator=between(1, whole=True))
    """Fragments with less than 32 bytes of metadata and data together, in a row, that are not the last. Beyond: the
    stream ends with INVALID. Also frames of less than 32 bytes in one WebSocket message, which ends with 1008."""
    streams: int = attrs.field(default=10_000, validator=between(1, whole=True))
    """Streams that the peer may have open. Beyond: REJECTED; a fire-and-forget is dropped and counted."""
    cancels: int = attrs.field(default=2_000, validator=between(1, whole=True))
    """Cancels before any item went out that are taken in a burst. Beyond: CONNECTION_ERROR. Also HTTP/2 streams that
    are reset, refused, or over without a byte. Beyond: GOAWAY with ENHANCE_YOUR_CALM."""
    cancel_rate: float = attrs.field(default=200.0, validator=between(0.001))
    """The number of those cancels that become free again in a second."""
    shared_connections: int = attrs.field(default=1_000, validator=between(1, 2**31 - 1, whole=True))
    """Connections that a client may have open over one HTTP/2 connection. Beyond: REFUSED_STREAM for the next."""
    reply_size: int = attrs.field(default=MIB, validator=between(1, whole=True))
    """Bytes of answers (to keepalives, refusals) that wait for a peer that does not read. Beyond: reading pauses."""
    reply_frames: int = attrs.field(default=4_096, validator=between(1, whole=True))
    """The same in frames."""
    outbox_size: int = attrs.field(default=4 * MIB, validator=between(1, whole=True))
    """Bytes that wait to be written, 256 more for each frame or payload. Beyond: ``send`` and requests wait."""
    inbox_size: int = attrs.field(default=8 * MIB, validator=between(1, whole=True))
    """Bytes of items received and not yet taken by their readers. Beyond: no new credit is granted, and reading pauses
    where the peer knows of none (Streamux) or pays no heed to it (the quirk ``ignores_credit``)."""
    held_frames: int = attrs.field(default=256, validator=between(1, whole=True))
    """Frames held while the setup handler decides. Beyond: reading pauses."""
    held_size: int = attrs.field(default=MIB, validator=between(1, whole=True))
    """The same in bytes."""
    silence: float = attrs.field(default=90.0, validator=between(0.001))
    """Seconds that a half-received frame or a paused read may last where no lifetime was agreed, and that the HTTP/2
    connection of a client may be without a stream, whatever other frames it sends. Beyond: closed."""
    metadata_entries: int = attrs.field(default=1_024, validator=between(1, whole=True))
    """Entries of a composite metadata. Beyond: INVALID."""
    idle_workers: int = attrs.field(default=32, validator=between(0, whole=True))
    """Handler tasks that a connection keeps parked between requests."""
    pending_handlers: int = attrs.field(default=10_000, validator=between(1, whole=True))
    """Fire-and-forget and metadata-push handlers running at once. Beyond: dropped and counted."""


def charged(size: int, entries: int = 1) -> int:
    return size + entries * ENTRY_OVERHEAD


@attrs.define(eq=False, repr=False)
class RateBudget:
    """A budget for what costs this side work and the peer nothing: a burst, refilled at a rate per second.

    ``what`` names it in errors: by default requests that are cancelled at once.
    """

    _burst: int
    _rate: float
    _what: str = "requests cancelled unanswered"
    _tokens: float = attrs.Factory(lambda self: float(self._burst), takes_self=True)
    _since: float = 0.0

    def spend(self, now: float) -> None:
        """Count one. Raise ``RemoteProtocolError`` if the budget is used up."""
        self._tokens = min(self._burst, self._tokens + (now - self._since) * self._rate)
        self._since = now
        if self._tokens < 1:
            raise RemoteProtocolError(f"more than {self._burst} {self._what}, with {self._rate:g} a second forgiven")
        self._tokens -= 1
