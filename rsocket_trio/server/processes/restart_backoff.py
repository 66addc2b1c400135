"""Computes the pause before a dead worker is replaced, and gives up after five short lives in a row."""

from __future__ import annotations

import attrs

GOOD_LIFE = 10.0
"""Seconds after which a worker's death says nothing about the next one."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 10.0
TRIES = 5
"""Deaths in a row, each of a worker that lived less than ``GOOD_LIFE``, after which the supervisor gives up."""


@attrs.define
class Patience:
    """The count of short lives in a row, shared by all workers of one generation."""

    deaths: int = 0

    def after(self, lived: float) -> float | None:
        """Return the seconds to wait before the next worker, after one that ``lived`` so long; ``None`` to give up."""
        if lived >= GOOD_LIFE:
            self.deaths = 0
            return 0.0
        self.deaths += 1
        if self.deaths >= TRIES:
            return None
        return min(FIRST_PAUSE * 2.0 ** (self.deaths - 1), LONGEST_PAUSE)
