"""Encodes the ranges and acknowledgements that a replayable route takes, and holds its codes and entry heads.

The server's half is ``rsocket_trio.replay``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rsocket_trio.metadata.mime import encode_mime
from rsocket_trio.replay.element_metadata import POSITION
from rsocket_trio.replay.errors import PositionAhead, PositionExpired, TopicGone, UnknownPartition

OFFSETS_ROUTE: Final = ".offsets"
ACK_ROUTE: Final = ".ack"
STAGE_ROUTE: Final = ".stage"
COMMIT_ROUTE: Final = ".commit"
ABORT_ROUTE: Final = ".abort"
PACK_ROUTE: Final = ".pack"
EPOCH_ROUTE: Final = ".epoch"

EXPIRED: Final = PositionExpired.default_code
AHEAD: Final = PositionAhead.default_code
GONE: Final = TopicGone.default_code
LOSSES: Final = frozenset({EXPIRED, AHEAD, GONE, UnknownPartition.default_code})
"""Error codes of a server that does not have the rows."""

UINT64 = struct.Struct(">Q")
POSITION_HEAD: Final = encode_mime(POSITION) + UINT64.size.to_bytes(3, "big")
"""The bytes before the position in the entry of a one-row element; that entry is usually its whole metadata."""


def encode_range(partition: int, start: int, end: int | None, packs: Sequence[str] = ()) -> bytes:
    """Encode the data of a request for a range, in ``packs`` of these formats; without an end it never completes."""
    said: dict[str, Any] = {"partition": partition, "from": start, "to": end}
    if packs:
        # A server that does not know the field sends single rows.
        said["pack"] = list(packs)
    return json.dumps(said).encode()


def encode_ends(positions: Mapping[int, int], reader: str | None = None) -> bytes:
    """Encode the data of an acknowledgement: all rows below these positions were committed, by ``reader`` if named."""
    said: dict[str, Any] = {str(partition): positions[partition] for partition in sorted(positions)}
    return json.dumps(said if reader is None else said | {"reader": reader}).encode()
