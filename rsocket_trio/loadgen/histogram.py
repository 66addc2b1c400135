"""A histogram of whole numbers in little memory: buckets grow with the numbers and bound the relative error.

Up to 255 each number has a bucket of its own; from there on each power of two is cut into 128. A bucket is 1/128 of its
lowest number wide at most. Buckets with the same index mean the same numbers everywhere: histograms merge by adding
their counts, in Spark by a ``groupBy`` over the index.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction

BITS = 7
RELATIVE_ERROR = 2.0**-BITS
"""The part by which a quantile may be above the exact one. It is never below."""


def bucket_of(number: int) -> int:
    """Return the bucket of a number from 0 on. Raise ``ValueError`` for one below."""
    if number < 0:
        raise ValueError(f"{number}: only numbers from 0 on are counted")
    shift = number.bit_length() - BITS - 1
    return number if shift <= 0 else (shift << BITS) + (number >> shift)


def bounds_of(bucket: int) -> tuple[int, int]:
    """Return the lowest and the highest number of a bucket."""
    shift = max((bucket >> BITS) - 1, 0)
    lowest = (bucket - (shift << BITS)) << shift
    return lowest, lowest + (1 << shift) - 1


class Histogram:
    """Counts of whole numbers from 0 on, in any unit."""

    def __init__(self, counts: Iterable[tuple[int, int]] = ()) -> None:
        """``counts`` are pairs of a bucket and how often it came, as ``counts()`` gives them."""
        self._counts = Counter[int]()
        for bucket, count in counts:
            self._counts[bucket] += count

    @property
    def total(self) -> int:
        """Return the count of all numbers."""
        return self._counts.total()

    def record(self, number: int, count: int = 1) -> None:
        """Count ``number`` so many times: ``count``. Raise ``ValueError`` for a number below 0."""
        self._counts[bucket_of(number)] += count

    def merge(self, other: Histogram) -> None:
        """Add all counts of ``other``."""
        self._counts.update(other._counts)

    def counts(self) -> Iterator[tuple[int, int]]:
        """Return each bucket that is not empty with its count, in the order of their numbers."""
        return iter(sorted(self._counts.items()))

    def quantile(self, part: float) -> int | None:
        """Return the number that ``part`` of all numbers do not exceed; ``None`` if there are none.

        It is the highest one of its bucket: the exact one by nearest rank, or above it by ``RELATIVE_ERROR`` at most.
        Raise ``ValueError`` for a part outside of 0 to 1.
        """
        if not 0 <= part <= 1:
            raise ValueError(f"quantile {part}: a part is 0 to 1")
        # As it is written: 0.07 of 100 are 7, where floats make 7.000000000000001 of it.
        rank = max(math.ceil(Fraction(str(part)) * self.total), 1)
        for bucket, count in self.counts():
            rank -= count
            if rank <= 0:
                return bounds_of(bucket)[1]
        return None
