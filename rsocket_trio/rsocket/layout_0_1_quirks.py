"""What did peers of the time write otherwise in 0.1? Each quirk replaces a row, none is on by default."""

from __future__ import annotations

import functools
from typing import Any, Final

import attrs

from rsocket_trio.rsocket.codec import Codec, Parts, Row
from rsocket_trio.rsocket.frames import (
    RequestFrame,
    SetupFrame,
)
from rsocket_trio.rsocket.layout_0_1 import (
    BODY,
    CHANNEL_ROW,
    CODEC,
    INITIAL_N,
    LEASE,
    LOW_LEASE,
    LOW_STRICT,
    SETUP_FLAGS,
    SETUP_ROW,
    STRICT,
    channel_frame,
    channel_parts,
    decode_setup,
    encode_channel,
    encode_setup,
)
from rsocket_trio.rsocket.layout_32 import (
    UINT32,
)


def decode_setup_with_low_flags(stream_id: int, flags: int, data: bytes) -> SetupFrame:
    """The lease and strict flags one byte too low count as well; they are written where the document draws them."""
    frame = decode_setup(stream_id, flags, data)
    lease, strict = flags & (LEASE | LOW_LEASE) != 0, flags & (STRICT | LOW_STRICT) != 0
    return attrs.evolve(frame, lease=lease, strict=strict)


def encode_setup_of_0_0(frame: SetupFrame) -> Parts:
    """The version is 0.0, whatever the frame says."""
    return encode_setup(attrs.evolve(frame, major=0, minor=0))


def decode_channel_with_slot(stream_id: int, flags: int, data: bytes) -> RequestFrame:
    """The count is there even if N is clear; then 0 is as good as none. Less than 4 bytes have no room for it."""
    if len(data) < BODY + UINT32.size:
        return channel_frame(stream_id, flags, data, None, BODY)
    (initial_n,) = UINT32.unpack_from(data, BODY)
    granted = initial_n if flags & INITIAL_N else initial_n or None
    return channel_frame(stream_id, flags, data, granted, BODY + UINT32.size)


def encode_channel_with_slot(frame: RequestFrame) -> Parts:
    """The count is written always, with N set if it was given."""
    return encode_channel(frame) if frame.initial_n is not None else channel_parts(frame, 0, UINT32.pack(0))


@attrs.frozen
class Quirk:
    """A row that some peers read or write otherwise: what changes in it."""

    row: Row
    changes: dict[str, Any]


# fmt: off
QUIRKS: Final[dict[str, Quirk]] = {
    # Java v0.2.2 and Go take no other version; every peer that ever ran said 0.0, except PyPI's, which says 0.2.
    "version_0_0":     Quirk(SETUP_ROW, {"encode": encode_setup_of_0_0}),
    # Java wrote 0x0020 for the lease, 0x0010 for strict.
    "low_setup_flags": Quirk(SETUP_ROW, {"decode": decode_setup_with_low_flags,
                                         "flags": SETUP_FLAGS | LOW_LEASE | LOW_STRICT}),
    # Java 0.5.2 and C++ always write the count, C++ without ever setting N.
    "channel_slot":    Quirk(CHANNEL_ROW, {"decode": decode_channel_with_slot, "encode": encode_channel_with_slot}),
}
# fmt: on


@functools.cache
def codec(quirks: frozenset[str] = frozenset()) -> Codec:
    """The codec with these quirks. Raises ``ValueError`` naming one that this layout does not have."""
    rows: dict[int, Row] = {}
    for name in sorted(quirks):
        if name not in QUIRKS:
            raise ValueError(f"quirk {name!r}: this layout has {', '.join(QUIRKS)}")
        quirk = QUIRKS[name]
        rows[quirk.row.number] = attrs.evolve(rows.get(quirk.row.number, quirk.row), **quirk.changes)
    return CODEC.replacing(*rows.values()) if rows else CODEC
