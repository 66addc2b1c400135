"""The batch reader: plans ranges from the server's bounds, and reads them, or one live stream, in tasks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

import attrs
import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from rsocket_trio.replay.elements import Bounds
from rsocket_trio.spark.background import background
from rsocket_trio.spark.errors import DataLossError, SchemaMismatchError, in_one_line, rows_in_one_line
from rsocket_trio.spark.live_reader import LivePartition, live_rows
from rsocket_trio.spark.options import EARLIEST, LATEST, MAX_POSITION, Options, Place, place_name
from rsocket_trio.spark.ranges import Range, RangePartition, ranges_between, resolve, split
from rsocket_trio.spark.replayed import check_columns, rows_of_ranges
from rsocket_trio.spark.server_sources import ask_places, ask_times

T = TypeVar("T")

logger = logging.getLogger("rsocket_trio.spark")


# Filters that are pushed down


@attrs.frozen
class Selection:
    """Rows by route, partition and position: ``routes`` and ``partitions`` are ``None`` for all, ``end`` is behind the
    last position.
    """

    partitions: frozenset[int] | None = None
    start: int = 0
    end: int = MAX_POSITION
    routes: frozenset[str] | None = None

    def both(self, other: Selection) -> Selection:
        partitions = common(self.partitions, other.partitions)
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Selection(partitions, start, end, common(self.routes, other.routes))

    def narrowed(self, span: Range, route: str) -> Range | None:
        """Return the selected part of a range of this route, or ``None`` if none of it is selected."""
        if self.partitions is not None and span.partition not in self.partitions:
            return None
        if self.routes is not None and route not in self.routes:
            return None
        start, end = max(span.start, self.start), min(span.end, self.end)
        return Range(span.partition, start, end, span.route) if start < end else None


def common(mine: frozenset[T] | None, theirs: frozenset[T] | None) -> frozenset[T] | None:
    """Return the intersection of two sets, where ``None`` stands for everything."""
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    return mine & theirs


POSITION: dict[type[Filter], Callable[[int], Selection]] = {
    EqualTo: lambda value: Selection(start=value, end=value + 1),
    GreaterThan: lambda value: Selection(start=value + 1),
    GreaterThanOrEqual: lambda value: Selection(start=value),
    LessThan: lambda value: Selection(end=value),
    LessThanOrEqual: lambda value: Selection(end=value + 1),
}


def selection_of(condition: Filter) -> Selection | None:
    """Return the rows that a filter lets through, ``None`` for a filter that can't be obeyed here."""
    column, value = getattr(condition, "attribute", None), getattr(condition, "value", None)
    if column == ("position",) and type(condition) in POSITION and type(value) is int:
        return POSITION[type(condition)](value)
    values = condition.value if isinstance(condition, In) else (value,) if isinstance(condition, EqualTo) else ()
    if column == ("partition",) and values and all(type(value) is int for value in values):
        return Selection(frozenset(values))
    if column == ("route",) and values and all(type(value) is str for value in values):
        return Selection(routes=frozenset(values))
    return None


# The readers


class BatchReader(DataSourceReader):
    """Reads a range of a replayable route, or a live stream up to its end or a bound.

    ``schema`` has the columns of the query, ``None`` for all columns of raw rows. Can be pickled.
    """

    def __init__(self, options: Options, schema: pa.Schema | None) -> None:
        self._options = options
        self._schema = schema
        self._selection = Selection()

    @in_one_line
    def partitions(self) -> list[InputPartition]:
        """Plan the read. Raise the error that makes it impossible, with a message for the user."""
        options = self._options
        if options.positions != "server":
            return [LivePartition()]
        here = background()
        bounds = here.run(partial(ask_places, here.pool, options))
        ask = partial(ask_times, here.pool, options, bounds)
        starts = here.run(partial(ask, options.starting_timestamp, "startingTimestamp"))
        ends = here.run(partial(ask, options.ending_timestamp, "endingTimestamp"))
        ranges = [
            selected
            for whole in planned(options, bounds, starts, ends)
            if (selected := self._selection.narrowed(whole, whole.route or options.route)) is not None
        ]
        if options.payload == "arrow" and ranges:
            check_columns(ranges[0], options, self._schema)
        # An empty read needs an empty range: Spark takes an empty list for a read that is not partitioned.
        route, partition = next(iter(bounds))
        empty = Range(partition, 0, 0, route)
        return [RangePartition(part) for part in split(ranges, options.min_partitions) or [empty]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangePartition):
            return rows_in_one_line(rows_of_ranges(partition.ranges, self._options, self._schema))
        return rows_in_one_line(live_rows(self._options, self._schema))


class PushdownReader(BatchReader):
    """A ``BatchReader`` that takes filters on partition and position over from Spark."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that can be obeyed exactly, and return the others to Spark, which applies them."""
        if self._options.payload == "arrow":
            return filters  # columns of that name are the user's own
        kept = []
        for condition in filters:
            narrower = selection_of(condition)
            if narrower is None:
                kept.append(condition)
            else:
                self._selection = self._selection.both(narrower)
        return kept


def planned(
    options: Options,
    bounds: Mapping[Place, Bounds],
    starts: Mapping[Place, int] | None = None,
    ends: Mapping[Place, int] | None = None,
) -> list[Range]:
    """Return the ranges of a batch read. ``starts`` and ``ends`` are the positions of its times.

    Raise ``DataLossError`` for positions that have expired or do not exist yet, unless that is accepted.
    """
    start = dict(starts or resolve(options.starting_position or EARLIEST, bounds, "startingPosition"))
    end = dict(ends or resolve(options.ending_position or LATEST, bounds, "endingPosition"))
    for place, edges in bounds.items():
        if start[place] > edges.latest:
            problem = (
                f"option 'startingPosition': position {start[place]} of {place_name(place)} is not there yet, "
                f"the latest is {edges.latest}"
            )
            if options.fail_on_data_loss:
                raise DataLossError(f"{problem}; with failOnDataLoss=false nothing of it is read")
            logger.warning("%s: nothing of it is read (failOnDataLoss=false)", problem)
        if not options.fail_on_data_loss:
            start[place] = max(start[place], edges.earliest)
            end[place] = min(end[place], edges.latest)
            continue
        if start[place] < edges.earliest and end[place] > start[place]:
            raise DataLossError(
                f"option 'startingPosition': position {start[place]} of {place_name(place)} has expired, the "
                f"earliest is {edges.earliest}; with failOnDataLoss=false the read begins there"
            )
        if end[place] > edges.latest:
            raise DataLossError(
                f"option 'endingPosition': position {end[place]} of {place_name(place)} is not there yet, the "
                f"latest is {edges.latest}; with failOnDataLoss=false the read ends there"
            )
    return ranges_between(start, end)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with these columns.

    Raise ``SchemaMismatchError`` for a column of a type that has no counterpart in Arrow.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    for field in schema.fields:
        try:
            to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkTypeError as error:
            problem = f"column {field.name!r} can't be read: {error}"
            raise SchemaMismatchError(problem) from None
    return to_arrow_schema(schema, timezone="UTC")
