"""The rule for how long a log keeps its records, and when it is time to apply it."""

from __future__ import annotations

import math

import attrs

from rsocket_trio.values import between

LONGEST_INTERVAL = 60.0
"""Seconds between two times that a log looks for records that are too old, at most."""
LONGEST_TIME = 1e12
"""Seconds that a log keeps its records at most, if it does not keep them for ever."""
SHARE = 8
"""A log looks again after this share of the time, or of the bytes, that it keeps."""


@attrs.frozen
class Retention:
    """Keeps records until all named readers have acknowledged them, but no longer than ``seconds``, up to ``bytes``.

    Records that are older than ``seconds``, and the oldest of more than ``bytes`` in all partitions, are dropped
    whether all readers have them or not; what was appended together is dropped together. Raise ``ValueError`` for a
    number that is not above 0, and for more than 10^12 seconds.
    """

    seconds: float | None = attrs.field(default=None, validator=attrs.validators.optional(between(0.001, LONGEST_TIME)))
    bytes: int | None = attrs.field(default=None, validator=attrs.validators.optional(between(1, whole=True)))

    @property
    def _interval(self) -> float:
        """Return the seconds after which it is time to look for records that are too old."""
        return math.inf if self.seconds is None else min(self.seconds / SHARE, LONGEST_INTERVAL)
