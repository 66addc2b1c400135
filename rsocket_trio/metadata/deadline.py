"""The deadline of a call: how many milliseconds its caller still waits, as a duration, so that clocks may differ."""

from __future__ import annotations

import math
from typing import Final

from rsocket_trio.errors import RemoteProtocolError

SIZE: Final = 4
LONGEST_MS: Final = 2 ** (8 * SIZE) - 1
"""The longest time that can be written: nearly 50 days."""
_ROUNDING_MS: Final = 1e-6
"""A nanosecond above a whole millisecond is the rounding of a float, and adds no millisecond."""


def encode_deadline(seconds_left: float) -> bytes:
    """Return the content of a ``DEADLINE`` entry for a caller that waits ``seconds_left`` more seconds.

    Milliseconds are rounded up, so that time that is left never reads as none; 0 and less say that the deadline is
    over. Times above 2**32 - 1 milliseconds are written as that many. Raise ``ValueError`` for infinity and NaN: a call
    without a deadline has no such entry.
    """
    if not math.isfinite(seconds_left):
        raise ValueError(f"deadline in {seconds_left} seconds: a call without one carries no entry")
    milliseconds = math.ceil(seconds_left * 1000 - _ROUNDING_MS)
    return min(max(milliseconds, 0), LONGEST_MS).to_bytes(SIZE, "big")


def decode_deadline(data: bytes) -> float:
    """Return the seconds left in ``data``, the content of a ``DEADLINE`` entry; 0 says that the deadline is over.

    Raise ``RemoteProtocolError`` for another length than 4 bytes.
    """
    if len(data) != SIZE:
        raise RemoteProtocolError(f"deadline of {len(data)} bytes, not {SIZE}", offset=0)
    return int.from_bytes(data, "big") / 1000
