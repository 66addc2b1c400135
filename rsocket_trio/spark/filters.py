"""Turns the query filters that the source obeys exactly, on partition and position, into a selection of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from rsocket_trio.spark.parsing import MAX_POSITION
from rsocket_trio.spark.ranges import Range


@attrs.frozen
class Selection:
    """Rows by partition and position: ``partitions`` is ``None`` for all, ``end`` is behind the last position."""

    partitions: frozenset[int] | None = None
    start: int = 0
    end: int = MAX_POSITION

    def both(self, other: Selection) -> Selection:
        """Return the intersection of two selections."""
        mine, theirs = self.partitions, other.partitions
        if mine is None or theirs is None:
            partitions = theirs if mine is None else mine
        else:
            partitions = mine & theirs
        return Selection(partitions, max(self.start, other.start), min(self.end, other.end))

    def narrowed(self, one: Range) -> Range | None:
        """Return the selected part of a range, or ``None`` if none of it is selected."""
        if self.partitions is not None and one.partition not in self.partitions:
            return None
        start, end = max(one.start, self.start), min(one.end, self.end)
        return Range(one.partition, start, end) if start < end else None


POSITION: dict[type[Filter], Callable[[int], Selection]] = {
    EqualTo: lambda value: Selection(start=value, end=value + 1),
    GreaterThan: lambda value: Selection(start=value + 1),
    GreaterThanOrEqual: lambda value: Selection(start=value),
    LessThan: lambda value: Selection(end=value),
    LessThanOrEqual: lambda value: Selection(end=value + 1),
}


def selection_of(one: Filter) -> Selection | None:
    """Return the rows that a filter lets through, ``None`` for a filter that can't be obeyed here."""
    found: Any = one
    column = getattr(found, "attribute", None)
    if column == ("position",) and type(one) in POSITION and type(found.value) is int:
        return POSITION[type(one)](found.value)
    if column == ("partition",):
        values = found.value if isinstance(one, In) else (found.value,) if isinstance(one, EqualTo) else ()
        if values and all(type(value) is int for value in values):
            return Selection(frozenset(values))
    return None
