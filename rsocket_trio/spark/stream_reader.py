"""Stream readers for replayable routes: the driver plans ranges, and the tasks read them.

Spark keeps one reader per query, in a process of its own on the driver, and asks it for offsets; that process may be
killed at any time. Each task gets a pickled copy, which only reads.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import trio
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rsocket_trio.replay.elements import Bounds
from rsocket_trio.spark.background import Background, background
from rsocket_trio.spark.errors import PASSING_FOR_READS, DataLossError, OptionError, in_one_line, rows_in_one_line
from rsocket_trio.spark.options import LATEST, Options, Place, Use, checked, place_name
from rsocket_trio.spark.ranges import (
    PositionMap,
    Range,
    RangePartition,
    advance,
    first_of,
    from_offset,
    gathered,
    partitions_at,
    ranges_between,
    resolve,
    routes_at,
    split,
    to_offset,
)
from rsocket_trio.spark.replayed import acknowledge, check_columns, fetch, rows_of_ranges
from rsocket_trio.spark.server_sources import ask_places, ask_times, explaining

logger = logging.getLogger("rsocket_trio.spark")

BOUNDS_TIMEOUT = 0.5
"""Seconds that a micro-batch waits for new bounds before it is planned with the known ones."""
ROWS_PER_PARTITION = 100_000
"""Rows of a micro-batch by default, for each partition. They bound the first micro-batch after a long pause."""
MAX_SAMPLE_ROWS = 64
"""Rows of a partition that are read ahead to learn how large they are."""
MAX_PLAN_ROWS, MAX_PLAN_BYTES = 500, 2**20
"""The largest micro-batch that the driver reads itself, in rows and in bytes: Spark then starts no task in Python."""
PLAN_TIMEOUT = 0.5
"""Seconds that the driver tries to read it; then tasks do."""
FADING = 0.9
"""The part of the estimated size of a row that each micro-batch read by tasks leaves: later the driver tries again."""


class LatestBounds:
    """The bounds of the server's partitions as last heard; ``known`` is ``None`` before the first answer."""

    def __init__(self, background: Background, options: Options) -> None:
        self._background = background
        self._options = options
        self._error: Exception | None = None
        self._is_away = False
        self._answered: trio.Event | None = None
        self.known: dict[Place, Bounds] | None = None

    def fresh(self) -> dict[Place, Bounds]:
        """Return the bounds as they are now, or as last heard where no answer comes in time.

        Raise the error for the user where the server refuses, or never answered.
        """
        return self._background.run(self._fresh)

    async def _fresh(self) -> dict[Place, Bounds]:
        if self._error is None and (self._answered is None or self._answered.is_set()):
            self._answered = trio.Event()
            self._background.start(partial(self._ask, self._answered))
        # With known bounds Spark is not kept waiting: an answer that comes later serves the next micro-batch.
        assert self._answered is not None
        with trio.move_on_after(math.inf if self.known is None else BOUNDS_TIMEOUT):
            await self._answered.wait()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        assert self.known is not None
        return self.known

    async def _ask(self, answered: trio.Event) -> None:
        pool, options = self._background.pool, self._options
        try:
            self.known = await ask_places(pool, options, {route for route, _ in self.known or ()})
            self._is_away = False
        except Exception as error:
            # Raised in the thread that asks, unless a later answer may be better.
            if self.known is None or not isinstance(error.__cause__, PASSING_FOR_READS):
                self._error = error
            elif not self._is_away:
                self._is_away = True
                logger.warning("%s: no new rows until the server is back: %s", options.shown_route, str(error))
        finally:
            answered.set()


class Volume:
    """The read limits of one query."""

    def __init__(self, options: Options, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._waiting_since: float | None = None

    def default_limit(self, partitions: int) -> ReadLimit:
        """Return the limit for Spark, which knows one kind at a time; the other limits are applied here as well."""
        options = self._options
        if options.max_rows_per_trigger is None and options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadMaxRows(options.max_rows_per_trigger or ROWS_PER_PARTITION * max(partitions, 1))

    def bounds(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Return how many rows and how many bytes may be read, ``None`` for as many as there are."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows_per_trigger
        return rows, limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes_per_trigger

    def is_worthwhile(self, available: int, limit: ReadLimit) -> bool:
        """Return whether ``available`` rows make a micro-batch: there are enough, or some have waited long enough."""
        least = self._options.min_rows_per_trigger or 0
        if 0 < available < least and not isinstance(limit, ReadAllAvailable):
            now = self._clock()
            if self._waiting_since is None:
                self._waiting_since = now
            if now - self._waiting_since < self._options.max_trigger_delay:
                return False
        self._waiting_since = None
        return available > 0


# The readers


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The base of stream readers: its options are checked when Spark first asks, and it is pickled without state.

    ``options`` may be the error for why there are none, which is raised then: so the user gets it whole. ``schema`` has
    the columns of the query, ``None`` for all columns of raw rows.
    """

    def __init__(self, options: Options | ValueError, schema: pa.Schema | None) -> None:
        self._given = options
        self._schema = schema

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return type(self), (self._given, self._schema)

    @cached_property
    def _options(self) -> Options:
        """Return the checked options. Not in the constructor: an error raised there reaches the user garbled."""
        if isinstance(self._given, ValueError):
            raise self._given
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
    """Reads a route whose server replays: offsets are the server's positions.

    ``planned`` are the columns of the query with all that Spark wants to find in rows that travel with the plan,
    ``None`` where they can't be had.
    """

    def __init__(
        self, options: Options | ValueError, schema: pa.Schema | None, planned: pa.Schema | None = None
    ) -> None:
        super().__init__(options, schema)
        self._planned = planned

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return ServerStreamReader, (self._given, self._schema, self._planned)

    _goal: Mapping[Place, int] | None = None
    """The end of a query with the trigger ``availableNow``."""
    _first: Mapping[Place, int] | None = None
    """The beginning of a query without a checkpoint, in the process that was asked for it."""

    _fits = False
    """True once an Arrow payload had the columns of the query."""
    _row_bytes = 1.0
    """Bytes of a row on average, as far as it is known from micro-batches that the driver has tried to read."""

    @cached_property
    def _bounds(self) -> LatestBounds:
        return LatestBounds(self._background, self._options)

    @cached_property
    def _initial(self) -> PositionMap:
        """Return the starting positions. Spark asks more than once, and they must not move in between."""
        options = self._options
        bounds = self._bounds.fresh()
        ask = partial(ask_times, self._background.pool, options, bounds, options.starting_timestamp)
        if (positions := self._background.run(partial(ask, "startingTimestamp"))) is not None:
            return positions
        start = resolve(options.starting_position or LATEST, bounds, "startingPosition")
        for place, edges in bounds.items():
            if start[place] > edges.latest:
                raise OptionError(
                    f"option 'startingPosition': position {start[place]} of {place_name(place)} is not there yet, the "
                    f"latest is {edges.latest}"
                )
        return start

    @in_one_line
    def initialOffset(self) -> dict[str, object]:
        """Return the offset at which a query without a checkpoint begins."""
        self._first = self._initial
        if self._options.reader is not None:
            # From now on the server keeps what this query has yet to read.
            self._acknowledge(self._initial)
        return to_offset(self._options.fingerprint, self._initial)

    @in_one_line
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch."""
        return self._volume.default_limit(len(self._bounds.known or self._bounds.fresh()))

    @in_one_line
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Return the end of the next micro-batch; ``start`` if there is nothing, or too little, to read."""
        options, volume = self._options, self._volume
        begin = from_offset(start, options.fingerprint)
        bounds = self._bounds.fresh()
        if options.fail_on_data_loss:
            check_not_gone(begin, bounds)
        if replaced := replaced_in(begin, bounds, options.shown_route):
            # A micro-batch without rows: the next one begins there.
            return to_offset(options.fingerprint, begin | replaced)
        added = added_routes(begin, bounds)
        begin |= added
        latest = self._goal or latest_of(bounds)
        everything = ranges_between(begin, advance(begin, latest, None))
        rows = sum(span.size for span in everything)
        if not volume.is_worthwhile(rows, limit) and not (self._goal and rows):
            return start
        most, max_bytes = volume.bounds(limit)
        if max_bytes is not None:
            by_bytes = self._rows_in(max_bytes, everything)
            most = by_bytes if most is None else min(most, by_bytes)
        end = advance(begin, latest, most)
        # When Spark repeats the first batch it asks anew for the initial offset: so the batch has its own beginning.
        # So does one with new routes, of which the offset before says nothing.
        return to_offset(options.fingerprint, end, begin if added or begin == self._first else None)

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Return the latest known offset of the server, for the query's progress."""
        known = self._bounds.known
        if known is None:
            return None
        options = self._options
        return to_offset(options.fingerprint, latest_of(known)) | names_of(options, known)

    @in_one_line
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query: rows written from now on are left for another query."""
        self._goal = latest_of(self._bounds.fresh())

    @in_one_line
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """Plan the ranges of a micro-batch: the same for the same offsets and options."""
        options = self._options
        begin = first_of(end, options.fingerprint) or from_offset(start, options.fingerprint)
        stop = from_offset(end, options.fingerprint)
        ranges = ranges_between(begin, stop)
        if options.payload == "arrow" and ranges and not self._fits:
            check_columns(ranges[0], options, self._schema)
            self._fits = True
        if options.min_partitions is not None:
            return [RangePartition(span) for span in split(ranges, options.min_partitions)]
        rows = sum(span.size for span in ranges)
        if rows > min(MAX_PLAN_ROWS, MAX_PLAN_BYTES // self._row_bytes):
            self._row_bytes = max(self._row_bytes * FADING, 1.0)
        elif rows and (batches := self._read_few(ranges)):
            PlannedReader.hand_over(self, batches)
            # Read by a task after all where Spark has lost the rows.
            return [RangePartition(*ranges)]
        return [RangePartition(*task) for task in gathered(ranges)]

    def _read_few(self, ranges: Sequence[Range]) -> list[pa.RecordBatch]:
        """Return the rows of small ranges; nothing if they are too large, or for whatever error a task will meet."""
        if self._planned is None or planned_reader() is None:
            return []
        takers = [Few() for _ in ranges]
        here, options = self._background, self._options

        async def read_all() -> bool:
            with trio.move_on_after(PLAN_TIMEOUT) as patience:
                async with trio.open_nursery() as nursery:
                    for span, taker in zip(ranges, takers, strict=True):
                        nursery.start_soon(fetch, here.pool, options.of_route(span.route), span, taker, self._schema)
            return not patience.cancelled_caught

        batches: list[pa.RecordBatch] = []
        size = 0
        try:
            if here.run(read_all):
                # All or none: a batch of one range must not stay where the rows of another are no such columns.
                batches = [batch for taker in takers for batch in taker.batches]
            else:
                # A slow server is as good as large rows: it is not waited for with each micro-batch.
                size = 2 * MAX_PLAN_BYTES
        except Exception as error:
            # The task that reads them meets it again, and says it in the words of the options.
            logger.debug("a micro-batch is read by tasks: %r", error)
        size = max(sum(taker.size for taker in takers), size)
        self._row_bytes = max(size / sum(span.size for span in ranges), 1.0)
        return [pa.RecordBatch.from_arrays(batch.columns, schema=self._planned) for batch in batches]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return rows_in_one_line(rows_of_ranges(partition.ranges, self._options, self._schema))

    @in_one_line
    def commit(self, end: dict[str, object]) -> None:
        """Acknowledge the rows below ``end`` to the server, if the options ask for that."""
        if self._options.ack_route is not None:
            self._acknowledge(from_offset(end, self._options.fingerprint))

    def _acknowledge(self, positions: PositionMap) -> None:
        ends: dict[str, dict[int, int]] = {}
        for (route, partition), position in positions.items():
            ends.setdefault(route, {})[partition] = position
        for route, by_partition in ends.items():
            of_route = self._options.of_route(route)
            self._background.start(partial(acknowledge, self._background.pool, of_route, by_partition))

    def _rows_in(self, max_bytes: int, ranges: list[Range]) -> int:
        """Estimate the number of rows in so many bytes, by a sample from the beginning of each range."""
        pool, is_raw = self._background.pool, self._options.payload == "raw"
        sample = Sample(is_raw)
        for span in ranges:
            head = attrs.evolve(span, end=min(span.start + MAX_SAMPLE_ROWS, span.end))
            of_route, schema = self._options.of_route(span.route), None if is_raw else self._schema
            read = partial(fetch, pool, of_route, head, sample, schema)
            self._background.run(partial(explaining, pool, of_route, read))
        return max(int(max_bytes * sample.rows / max(sample.size, 1)), 1)


class TooLarge(Exception):
    """Rows that the driver reads are too large to travel with the plan."""


class Few:
    """The rows of a small range, in the driver."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.size = 0

    async def put(self, item: pa.RecordBatch, weight: int) -> None:
        """Take rows. Raise ``TooLarge``."""
        self.size += item.nbytes
        if self.size > MAX_PLAN_BYTES:
            raise TooLarge
        self.batches.append(item)


class Sample:
    """Counts rows and their bytes: of raw ones those of data and metadata."""

    def __init__(self, is_raw: bool) -> None:
        self._is_raw = is_raw
        self.rows = 0
        self.size = 0

    async def put(self, item: pa.RecordBatch, weight: int) -> None:
        self.rows += item.num_rows
        if self._is_raw:
            self.size += sum(pc.sum(pc.binary_length(item.column(name))).as_py() or 0 for name in ("data", "metadata"))
        else:
            self.size += item.nbytes


class PlannedReader(ServerStreamReader):
    """A reader that has the rows of the micro-batch which is being planned.

    Spark sends rows with the plan for one kind of reader, a private class of its own. For as long as it plans such a
    micro-batch, the reader is of this class, which is registered as a subclass of that one.
    """

    _batches: Sequence[pa.RecordBatch] = ()

    @staticmethod
    def hand_over(reader: ServerStreamReader, batches: Sequence[pa.RecordBatch]) -> None:
        """Let Spark ask ``reader`` for these rows next."""
        reader.__class__ = PlannedReader
        assert isinstance(reader, PlannedReader)
        reader._batches = batches

    def getCache(self, start: dict[str, object], end: dict[str, object]) -> Iterator[pa.RecordBatch]:
        batches, self._batches = self._batches, ()
        reader: ServerStreamReader = self
        reader.__class__ = ServerStreamReader
        return iter(batches)


@cache
def planned_reader() -> type[PlannedReader] | None:
    """Return the class of readers whose rows Spark sends with the plan; ``None`` if this Spark has none."""
    try:
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as Prefetching
    except ImportError:
        return None
    if not hasattr(Prefetching, "getCache"):
        return None
    Prefetching.register(PlannedReader)
    return PlannedReader


def names_of(options: Options, places: Iterable[Place]) -> dict[str, object]:
    """Return what the offset for a query's progress says beside positions: the server, and the routes."""
    return {
        "server": options.shown_uris,
        "routes": sorted({route or options.route for route, _ in places} or {options.route}),
    }


def latest_of(bounds: Mapping[Place, Bounds]) -> PositionMap:
    return {place: edges.latest for place, edges in bounds.items()}


def added_routes(begin: Mapping[Place, int], bounds: Mapping[Place, Bounds]) -> PositionMap:
    """Return the starts of routes that a query has not read before: their earliest positions.

    New partitions of a known route are not among them: their rows are wanted from position 0 on.
    """
    known = {route for route, _ in begin}
    return {place: edges.earliest for place, edges in bounds.items() if place[0] not in known}


def replaced_in(begin: Mapping[Place, int], bounds: Mapping[Place, Bounds], route: str) -> PositionMap:
    """Return new starts for partitions that end before the read position, and log a warning for each."""
    replaced: PositionMap = {}
    for place, position in begin.items():
        there = bounds.get(place)
        if there is not None and position > there.latest:
            replaced[place] = there.earliest
            logger.warning(
                "%s: %s was read up to %d, but the server ends at %d: its log was replaced, and the %d rows "
                "of the new one are read from position %d on (failOnDataLoss=false)",
                *(route, place_name(place), position, there.latest, there.latest - there.earliest, there.earliest),
            )
    return replaced


def check_not_gone(begin: Mapping[Place, int], bounds: Mapping[Place, Bounds]) -> None:
    """Raise ``DataLossError`` if a server lacks rows that a query has read already, or has yet to read."""
    hint = "with failOnDataLoss=false the query goes on with what there is"
    for place, position in begin.items():
        there, name = bounds.get(place), place_name(place)
        if there is None:
            if place[0] and not partitions_at(bounds, place[0]):
                raise DataLossError(
                    f"route {place[0]!r} is gone: it was read up to position {position} of partition {place[1]}, and "
                    f"now the routes are {routes_at(bounds)}; {hint}"
                )
            raise DataLossError(f"{name} is gone, the server has {partitions_at(bounds, place[0])}; {hint}")
        if position > there.latest:
            raise DataLossError(
                f"{name} was read up to {position}, but the server ends at {there.latest}: has its log "
                f"been replaced? {hint}"
            )
        if position < there.earliest:
            raise DataLossError(f"position {position} of {name} has expired: the earliest is {there.earliest}; {hint}")
