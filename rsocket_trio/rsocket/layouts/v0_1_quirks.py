"""Alternative rows of the ReactiveSocket 0.1 layout, for peers that deviate from its document."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import attrs

from rsocket_trio.rsocket.codec import Codec, Parts, Row
from rsocket_trio.rsocket.frames import (
    Frame,
    RequestFrame,
    SetupFrame,
)
from rsocket_trio.rsocket.layouts.fields_32 import (
    UINT32,
)
from rsocket_trio.rsocket.layouts.v0_1 import (
    BODY,
    CHANNEL_ROW,
    CODEC,
    INITIAL_N,
    LEASE,
    LOW_LEASE,
    LOW_STRICT,
    SETUP_ROW,
    STRICT,
    add_flags,
    channel_frame,
    channel_parts,
    encode_channel,
)

REQUEST_STREAM: Final = 0x0006
REQUEST_SUB: Final = 0x0007


def with_low_flags(row: Row) -> Row:
    """Return SETUP's row with lease and strict flags also one byte too low: both are written, either counts."""

    def decode(stream_id: int, flags: int, data: bytes) -> Frame:
        frame = row.decode(stream_id, flags, data)
        assert isinstance(frame, SetupFrame)
        lease, strict = flags & (LEASE | LOW_LEASE) != 0, flags & (STRICT | LOW_STRICT) != 0
        return attrs.evolve(frame, lease=lease, strict=strict)

    def encode(frame: SetupFrame) -> Parts:
        head, data = row.encode(frame)
        return add_flags(head, (LOW_LEASE if frame.lease else 0) | (LOW_STRICT if frame.strict else 0)), data

    return attrs.evolve(row, decode=decode, encode=encode, flags=row.flags | LOW_LEASE | LOW_STRICT)


def with_version_0_0(row: Row) -> Row:
    """Return SETUP's row with version 0.0 written for every frame."""

    def encode(frame: SetupFrame) -> Parts:
        return row.encode(attrs.evolve(frame, major=0, minor=0))

    return attrs.evolve(row, encode=encode)


def with_slot(row: Row) -> Row:
    """Return REQUEST_CHANNEL's row with a count in every frame."""
    return attrs.evolve(row, decode=decode_channel_with_slot, encode=encode_channel_with_slot)


def with_count_flag(row: Row) -> Row:
    """Return the row of REQUEST_STREAM or REQUEST_SUB, written with REQUEST_CHANNEL's flag for its count."""

    def encode(frame: RequestFrame) -> Parts:
        head, data = row.encode(frame)
        return add_flags(head, INITIAL_N), data

    return attrs.evolve(row, encode=encode)


def decode_channel_with_slot(stream_id: int, flags: int, data: bytes) -> RequestFrame:
    """Decode a count even if N is clear; then 0 means none. A body below 4 bytes has no room for it."""
    if len(data) < BODY + UINT32.size:
        return channel_frame(stream_id, flags, data, None, BODY)
    (initial_n,) = UINT32.unpack_from(data, BODY)
    granted = initial_n if flags & INITIAL_N else initial_n or None
    return channel_frame(stream_id, flags, data, granted, BODY + UINT32.size)


def encode_channel_with_slot(frame: RequestFrame) -> Parts:
    """Encode the count always, with N set if it was given."""
    return encode_channel(frame) if frame.initial_n is not None else channel_parts(frame, 0, UINT32.pack(0))


@attrs.frozen
class Quirk:
    """A row that some peers read or write otherwise, and its change."""

    row: Row
    change: Callable[[Row], Row]


# fmt: off
QUIRKS: Final[dict[str, Quirk]] = {
    # Java v0.2.2 and Go take no other version; every peer that ever ran said 0.0, except PyPI's, which says 0.2.
    "version_0_0":     Quirk(SETUP_ROW, with_version_0_0),
    # Java wrote 0x0020 for the lease, 0x0010 for strict, and reads only those.
    "low_setup_flags": Quirk(SETUP_ROW, with_low_flags),
    # Java 0.5.2 and C++ always write the count, C++ without ever setting N.
    "channel_slot":    Quirk(CHANNEL_ROW, with_slot),
}
# fmt: on


@functools.cache
def codec(quirks: frozenset[str] = frozenset()) -> Codec:
    """Return the codec with these quirks. Raise ``ValueError`` naming one that this layout does not have."""
    rows: dict[int, Row] = {}
    for name in sorted(quirks):
        if name not in QUIRKS:
            raise ValueError(f"quirk {name!r}: this layout has {', '.join(QUIRKS)}")
        quirk = QUIRKS[name]
        rows[quirk.row.number] = quirk.change(rows.get(quirk.row.number, quirk.row))
    return CODEC.replacing(*rows.values()) if rows else CODEC


@functools.cache
def flagging_counts(known: Codec) -> Codec:
    """Return a codec of this layout that flags every count: Go reads none without its flag."""
    rows = [known.row(number) for number in (REQUEST_STREAM, REQUEST_SUB)]
    return known.replacing(*(with_count_flag(row) for row in rows if row is not None))
