"""Counts the outcomes and times of a load task's requests by second, as rows that can be added up."""

from __future__ import annotations

import math
from typing import Final, TypeAlias

from rsocket_trio.errors import ApplicationError, RSocketError
from rsocket_trio.loadgen.histogram import bucket_of

NS = 1e9

# Measures that count something; their rows have no bucket.
DUE: Final = "due"
OK: Final = "ok"
ERROR: Final = "error"
DROPPED: Final = "dropped"
LATE: Final = "late"
ITEMS: Final = "items"
DONE: Final = "done"
"""Requests that were answered in this second, whenever they were due. All others count in the second they were due."""

# Measures of time in nanoseconds; their rows have a bucket of ``histogram``.
LATENCY: Final = "latency"
"""From when a request was due to the end of its answer."""
SERVICE: Final = "service"
"""The same from when the request was begun."""
LAG: Final = "lag"
"""From when it was due until it was begun."""
BEHIND: Final = "behind"
"""From when it was due until the load came to it: the part of its lag that the server has no part in."""
FIRST_ITEM: Final = "first_item"
"""From when it was due to the first item of a stream or channel."""

# Facts of a task, recorded once.
MEASURED: Final = "measured"
"""The time that the task measured, in nanoseconds."""
LOST: Final = "lost"
"""No connection of the task was there at the end of measuring: the name of the row says why."""
FAILED: Final = "failed"
"""There was no load: the name of the row says why."""
FACTS: Final = (MEASURED, LOST, FAILED)

TIMEOUT: Final = "Timeout"
"""The kind of error of a request that was not answered in time."""

Row: TypeAlias = tuple[int, str, str, int | None, int]
"""Second, measure, name, bucket, count. The name is the kind of an error or the reason in a fact, else nothing."""


class LoadRecorder:
    """Counts of one task. ``at`` is in seconds from the start, warm-up included; the warm-up is not counted."""

    def __init__(self, warm_up: float = 0.0) -> None:
        self._warm_up = warm_up
        self._counts: dict[tuple[int, str, str, int | None], int] = {}

    def count(self, at: float, measure: str, name: str = "", number: int = 1) -> None:
        """Count ``number`` events of a measure."""
        self._add(at, (measure, name, None), number)

    def took(self, at: float, measure: str, seconds: float) -> None:
        """Record a time in seconds."""
        # Two readings of a clock that is a float may be apart by less than nothing.
        self._add(at, (measure, "", bucket_of(max(round(seconds * NS), 0))), 1)

    def fact(self, measure: str, number: int, name: str = "") -> None:
        """Record a fact of the whole task, one of ``FACTS``."""
        self._counts[0, measure, name, None] = number

    def take(self) -> list[Row]:
        """Return all rows and forget them: those of later calls are to be added."""
        rows = [(*key, number) for key, number in self._counts.items()]
        self._counts.clear()
        return rows

    def _add(self, at: float, what: tuple[str, str, int | None], number: int) -> None:
        at -= self._warm_up
        if at >= 0:
            key = (math.floor(at), *what)
            self._counts[key] = self._counts.get(key, 0) + number


def kind_of(error: RSocketError) -> str:
    """Return the kind that an error counts as: its class, and the code of an application error if it chose one."""
    name = type(error).__name__
    if isinstance(error, ApplicationError) and error.code != ApplicationError.default_code:
        return f"{name} 0x{error.code:X}"
    return name
