"""Stream readers for replayable routes: the driver plans ranges, and the tasks read them.

Spark keeps one reader per query, in a process of its own on the driver, and asks it for offsets; that process may be
killed at any time. Each task gets a pickled copy, which only reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from rsocket_trio.spark.background import Background, background
from rsocket_trio.spark.batching import rows_of
from rsocket_trio.spark.checks import checked
from rsocket_trio.spark.heads import Heads
from rsocket_trio.spark.options import Options, Use
from rsocket_trio.spark.parsing import LATEST
from rsocket_trio.spark.ranges import (
    Bounds,
    DataLossError,
    PositionMap,
    Range,
    advance,
    first_of,
    from_offset,
    ranges_between,
    resolve,
    split,
    to_offset,
)
from rsocket_trio.spark.reading import RangePartition
from rsocket_trio.spark.records import Chunk
from rsocket_trio.spark.replayed import acknowledge, fetch
from rsocket_trio.spark.volume import Volume

logger = logging.getLogger("rsocket_trio.spark")

SAMPLE = 64
"""Rows of a partition that are read ahead to learn how large they are."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The base of stream readers: its options are checked when Spark first asks, and it is pickled without state.

    ``schema`` is that of Arrow payloads, ``None`` for raw rows.
    """

    def __init__(self, options: Options, schema: pa.Schema | None) -> None:
        self._given = options
        self._schema = schema

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return type(self), (self._given, self._schema)

    @cached_property
    def _options(self) -> Options:
        """Return the checked options. Not in the constructor: an error raised there reaches the user garbled."""
        return checked(self._given, Use.STREAM_READ)

    @cached_property
    def _background(self) -> Background:
        return background()

    @cached_property
    def _volume(self) -> Volume:
        return Volume(self._options)

    def stop(self) -> None:
        """Do nothing: servers hear of the end when the process goes, and Spark seldom calls this."""


class ServerStreamReader(StreamReader):
    """Reads a route whose server replays: offsets are the server's positions."""

    _goal: Mapping[int, int] | None = None
    """The end of a query with the trigger ``availableNow``."""
    _first: Mapping[int, int] | None = None
    """The beginning of a query without a checkpoint, in the process that was asked for it."""

    @cached_property
    def _heads(self) -> Heads:
        return Heads(self._background, self._options)

    @cached_property
    def _initial(self) -> PositionMap:
        """Return the starting positions. Spark asks more than once, and they must not move in between."""
        options = self._options
        bounds = self._heads.fresh()
        start = resolve(options.starting_position or LATEST, bounds, "startingPosition")
        for partition, one in bounds.items():
            if start[partition] > one.latest:
                raise ValueError(
                    f"option 'startingPosition': position {start[partition]} of partition {partition} is not there "
                    f"yet, the latest is {one.latest}"
                )
        return start

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a query without a checkpoint begins."""
        self._first = self._initial
        return to_offset(self._options.fingerprint, self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch."""
        return self._volume.default_limit(len(self._heads.fresh()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` if there is nothing, or too little, to read."""
        options, volume = self._options, self._volume
        begin = from_offset(start, options.fingerprint)
        bounds = self._heads.fresh()
        if options.fail_on_data_loss:
            check_not_gone(begin, bounds)
        if replaced := replaced_in(begin, bounds, options.route):
            # A micro-batch without rows: the next one begins there.
            return to_offset(options.fingerprint, begin | replaced)
        latest = self._goal if self._goal is not None else latest_of(bounds)
        everything = ranges_between(begin, advance(begin, latest, None))
        is_last_call = self._goal is not None
        rows = sum(one.size for one in everything)
        if not volume.is_worthwhile(rows, limit) and not (is_last_call and rows):
            return start
        most = volume.max_rows(limit)
        max_bytes = volume.max_bytes(limit)
        if max_bytes is not None:
            by_bytes = self._rows_in(max_bytes, everything)
            most = by_bytes if most is None else min(most, by_bytes)
        end = advance(begin, latest, most)
        # When Spark repeats the first batch it asks anew for the initial offset: so the batch has its own beginning.
        return to_offset(options.fingerprint, end, begin if begin == self._first else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the latest known offset of the server, for the query's progress."""
        known = self._heads.known
        if known is None:
            return None
        return to_offset(self._options.fingerprint, latest_of(known))

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query: rows written from now on are left for another query."""
        self._goal = latest_of(self._heads.fresh())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the ranges of a micro-batch: the same for the same offsets and options."""
        options = self._options
        begin = first_of(end, options.fingerprint) or from_offset(start, options.fingerprint)
        stop = from_offset(end, options.fingerprint)
        return [RangePartition(one) for one in split(ranges_between(begin, stop), options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a range, in a task."""
        assert isinstance(partition, RangePartition)
        one, here = partition.range, background()
        return rows_of(partial(fetch, here.pool, self._options, one), self._options, one.partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the rows below ``end`` to the server, if the options ask for that."""
        options = self._options
        if options.ack_route is not None:
            ends = from_offset(end, options.fingerprint)
            self._background.start(partial(acknowledge, self._background.pool, options, ends))

    def _rows_in(self, max_bytes: int, ranges: list[Range]) -> int:
        """Estimate the number of rows in so many bytes, by a sample from the beginning of each range."""
        sample = Sample()
        for one in ranges:
            head = Range(one.partition, one.start, min(one.start + SAMPLE, one.end))
            self._background.run(partial(fetch, self._background.pool, self._options, head, sample))
        return max(int(max_bytes * sample.rows / max(sample.size, 1)), 1)


class Sample:
    """Counts rows and their bytes."""

    def __init__(self) -> None:
        self.rows = 0
        self.size = 0

    async def put(self, item: Chunk, weight: int) -> None:
        """Count the rows of a chunk and their bytes."""
        self.rows += item.rows
        # Of an Arrow payload only some rows may be wanted.
        self.size += item.size if item.part is None else item.size * item.rows // item.part[2]


def latest_of(bounds: Mapping[int, Bounds]) -> PositionMap:
    """Return the end of each partition."""
    return {partition: one.latest for partition, one in bounds.items()}


def replaced_in(begin: Mapping[int, int], bounds: Mapping[int, Bounds], route: str) -> PositionMap:
    """Return new starts for partitions that end before the read position, and log a warning for each."""
    replaced: PositionMap = {}
    for partition, position in begin.items():
        there = bounds.get(partition)
        if there is not None and position > there.latest:
            replaced[partition] = there.earliest
            logger.warning(
                "%s: partition %d was read up to %d, but the server ends at %d: its log was replaced, and the %d rows "
                "of the new one are read from position %d on (failOnDataLoss=false)",
                *(route, partition, position, there.latest, there.latest - there.earliest, there.earliest),
            )
    return replaced


def check_not_gone(begin: Mapping[int, int], bounds: Mapping[int, Bounds]) -> None:
    """Raise ``DataLossError`` if a server lacks rows that a query has read already, or has yet to read."""
    hint = "with failOnDataLoss=false the query goes on with what there is"
    for partition, position in begin.items():
        there = bounds.get(partition)
        if there is None:
            raise DataLossError(f"partition {partition} is gone, the server has {list(bounds)}; {hint}")
        if position > there.latest:
            raise DataLossError(
                f"partition {partition} was read up to {position}, but the server ends at {there.latest}: has its log "
                f"been replaced? {hint}"
            )
        if position < there.earliest:
            raise DataLossError(
                f"position {position} of partition {partition} has expired: the earliest is {there.earliest}; {hint}"
            )


class RefusedStreamReader(ServerStreamReader):
    """Replaces a reader that can't be made: raises the reason when Spark asks, so that the user gets it whole."""

    def __init__(self, error: ValueError) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return type(self), (self._error,)

    @cached_property
    def _options(self) -> Options:
        raise self._error
