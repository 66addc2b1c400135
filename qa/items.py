"""Items that both ends of a stream know: of all sizes, and each can be told from any other."""

from __future__ import annotations

import random
import struct
import zlib

from rsocket_trio import Payload

ASKED, ASKING = 0, 1
"""Directions: from the side that was asked, and from the side that asks."""
LARGEST = 70_000
SIZES = (0, 1, *[30] * 30, *[100] * 30, *[300] * 30, *[1_000] * 20, *[3_000] * 6, 16_384, LARGEST)
FILLING = random.Random(1).randbytes(2 * LARGEST)
LABEL = struct.Struct(">IBI")
"""Stream, direction, number of the item."""


def item(stream: int, direction: int, number: int) -> Payload:
    """Return this item, for its sender and for its checker."""
    label = LABEL.pack(stream, direction, number)
    chance = zlib.crc32(label)
    start = chance % LARGEST
    return Payload(FILLING[start : start + SIZES[(chance >> 8) % len(SIZES)]], label)
