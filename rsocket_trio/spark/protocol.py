"""How is a replayable route asked? Ranges and acknowledgements, and what its usual answer looks like.

The other half is ``rsocket_trio.replay``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Final

from rsocket_trio.metadata.mime import encode_mime
from rsocket_trio.replay.entries import POSITION
from rsocket_trio.replay.errors import PositionAhead, PositionExpired, UnknownPartition

OFFSETS_ROUTE: Final = ".offsets"

EXPIRED: Final = PositionExpired.default_code
AHEAD: Final = PositionAhead.default_code
LOSSES: Final = frozenset({EXPIRED, AHEAD, UnknownPartition.default_code})
"""Codes with which a server says that rows are not there."""

UINT64 = struct.Struct(">Q")
POSITION_HEAD: Final = encode_mime(POSITION) + UINT64.size.to_bytes(3, "big")
"""What stands before the position in the entry of an element of one row: usually its whole metadata."""


def encode_range(partition: int, start: int, end: int | None) -> bytes:
    """The data of a request for a range; without an end it never completes."""
    return json.dumps({"partition": partition, "from": start, "to": end}).encode()


def encode_ends(positions: Mapping[int, int]) -> bytes:
    """The data of an acknowledgement: everything below these was committed."""
    return json.dumps({str(partition): positions[partition] for partition in sorted(positions)}).encode()
