"""Reads a range from a replayable route, and continues at the next position when a connection breaks.

While a server can't be reached this pauses and tries again, and uses none of Spark's retries: those come at once and
are soon used up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import attrs
import pyarrow as pa
import trio

from rsocket_trio import ApplicationError, Connection, ConnectionLost, Rejected, RemoteProtocolError
from rsocket_trio.errors import RSocketError
from rsocket_trio.payload import Payload
from rsocket_trio.replay.elements import ARROW, Bounds, Pack, Record, now_us, read_rows
from rsocket_trio.replay.errors import PositionAhead, PositionExpired, TopicGone, UnknownPartition
from rsocket_trio.spark.background import Taker, background
from rsocket_trio.spark.connections import Pool, Tries, target_of
from rsocket_trio.spark.errors import PASSING_FOR_READS, DataLossError, is_missing_route
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.ranges import Range
from rsocket_trio.spark.rows import RowShape, rows_of, several_rows
from rsocket_trio.spark.server_sources import bounds_at, explaining

logger = logging.getLogger("rsocket_trio.spark")

FIRST_CREDIT = 16
"""Elements that a server may send before it is known whether they are packs."""
WINDOW_BYTES = 4 * 2**20
"""Bytes of elements that may be on their way, about."""
EXPIRED: Final = PositionExpired.default_code
AHEAD: Final = PositionAhead.default_code
LOSSES: Final = frozenset({EXPIRED, AHEAD, TopicGone.default_code, UnknownPartition.default_code})
"""Error codes of a server that does not have the rows."""


class Cursor:
    """The position of a reader in a range: everything below ``position`` was taken, or counted in ``lost``.

    ``shape`` is the form of the rows. Without ``fail_on_loss`` a gap is counted instead of raised.
    """

    def __init__(self, range_: Range, shape: RowShape, *, fail_on_loss: bool) -> None:
        self.partition = range_.partition
        self.position = range_.start
        self.end = range_.end
        self.lost = 0
        self._shape = shape
        self._fail_on_loss = fail_on_loss

    @property
    def is_done(self) -> bool:
        return self.position >= self.end

    def take(self, payloads: Sequence[Payload], received_at: int) -> list[pa.RecordBatch]:
        """Return the rows of received elements. Rows that were taken before, and those beyond the end, are left out.

        Raise ``DataLossError`` at a gap, and ``RemoteProtocolError`` for an element without a position.
        """
        shape = self._shape
        batches: list[pa.RecordBatch] = []
        records: list[Record] = []
        for payload in payloads:
            rows = read_rows(payload)
            if rows.position > self.position:
                self.skip_to(rows.position, f"a gap before position {rows.position}")
            start, end = self.position, min(rows.end, self.end)
            if start >= end:
                continue
            self.position = end
            if isinstance(rows, Pack):
                if rows.data and shape.is_arrow:
                    raise RemoteProtocolError(f"the element at position {rows.position} is a pack, asked for was none")
                if rows.data:
                    batches += self._flushed(records, received_at)
                    batches.append(shape.of_pack(rows, start, end, received_at))
            elif shape.is_arrow:
                low, high = start - rows.position, end - rows.position
                batches += shape.of_part(payload.data, rows.position, rows.count, low, high)
            elif rows.count != 1:
                raise several_rows(rows.position, rows.count)
            else:
                records.append(rows)
        return batches + self._flushed(records, received_at)

    def _flushed(self, records: list[Record], received_at: int) -> list[pa.RecordBatch]:
        """Return single rows as a batch, and forget them."""
        batches = [self._shape.of_records(records, received_at)] if records else []
        records.clear()
        return batches

    def skip_to(self, position: int, reason: str) -> None:
        """Go on behind rows that are gone. Raise ``DataLossError`` unless that is accepted."""
        position = min(position, self.end)
        if position <= self.position:
            return
        if self._fail_on_loss:
            raise DataLossError(
                f"{reason}: positions {self.position} to {position - 1} of partition {self.partition} can't be read; "
                "with failOnDataLoss=false they are left out"
            )
        self.lost += position - self.position
        self.position = position

    def cut(self, end: int) -> None:
        """End the range earlier than planned: the rows behind are lost."""
        self.lost += self.end - end
        self.end = end


async def fetch(
    pool: Pool, options: Options, range_: Range, taker: Taker[pa.RecordBatch], schema: pa.Schema | None = None
) -> None:
    """Give the rows of a range to ``taker``, each once and in order.

    ``schema`` has the columns of the query, ``None`` for all columns of raw rows. Raise ``DataLossError`` for rows that
    are gone, ``ConnectionLost`` once too many tries in a row failed.
    """
    await Fetch(pool, options, range_, taker, schema).run()


class Credit:
    """The credit of one range: ``window`` elements may be on their way, ``limit`` of them at most.

    A server that may send packs gets a small window at first, and then one by the bytes of what comes: an element of
    256 KiB weighs as much as 9,000 small rows. Credit is topped up at half.
    """

    def __init__(self, limit: int, *, packs: bool) -> None:
        self._limit = limit
        self.window = min(FIRST_CREDIT, limit) if packs else limit
        self._granted = self.window
        self._largest = 0

    def after(self, batch: Sequence[Payload]) -> int:
        """Return the credit to grant once these elements were taken, 0 for none yet."""
        self._granted -= len(batch)
        self._largest = max(self._largest, *[len(payload.data) for payload in batch])
        window = min(self._limit, max(WINDOW_BYTES // max(self._largest, 1), 2))
        if self._granted > window // 2:
            return 0
        more = window - self._granted
        self._granted = window
        return more


class Fetch:
    """The reading of one range."""

    def __init__(
        self, pool: Pool, options: Options, range_: Range, taker: Taker[pa.RecordBatch], schema: pa.Schema | None = None
    ) -> None:
        self._pool = pool
        self._options = options
        self._taker = taker
        self._what = f"reading {options.route}, partition {range_.partition}"
        self._tries = Tries(options, self._what)
        self._target = target_of(options)
        self._shape = RowShape(options, range_.partition, schema)
        self.cursor = Cursor(range_, self._shape, fail_on_loss=options.fail_on_data_loss)

    async def run(self) -> None:
        """Read all of it."""
        cursor = self.cursor
        while not cursor.is_done:
            try:
                async with self._pool.connection(self._target) as connection:
                    try:
                        await self._read_on(connection)
                    except ApplicationError as error:
                        if error.code not in LOSSES:
                            raise
                        await self._settle_loss(error, connection)
                    except trio.TooSlowError:
                        self._pool.distrust(connection)
                        raise ConnectionLost(f"nothing came for {self._options.read_timeout:g} s") from None
            except PASSING_FOR_READS as error:
                await self._tries.failed(error)
        if cursor.lost:
            logger.warning("%s: %d rows were lost (failOnDataLoss=false)", self._what, cursor.lost)

    async def _read_on(self, connection: Connection) -> None:
        """Read from the cursor's position until the range is read, the server completes or the connection breaks.

        Only a position that moves is progress: rows that a server repeats, or sends beyond the range, do not count.
        """
        options, cursor = self._options, self.cursor
        began = cursor.position
        request: dict[str, object] = {"partition": cursor.partition, "from": began, "to": cursor.end}
        if not self._shape.is_arrow:
            # A server that does not know the field sends single rows.
            request["pack"] = [ARROW]
        credit = Credit(options.credit, packs=not self._shape.is_arrow)
        async with connection.request_stream(
            json.dumps(request).encode(), route=options.route, initial_request_n=credit.window, refill=False
        ) as items:
            with trio.fail_after(options.read_timeout) as patience:
                while not cursor.is_done and (batch := await items.receive_batch()):
                    before = cursor.position
                    rows = cursor.take(batch, now_us())
                    if cursor.position > before:
                        self._tries.succeeded()
                        # Not a silence of the server's: how long this takes is up to Spark.
                        patience.deadline = float("inf")
                        for some in rows:
                            await self._taker.put(some, self._shape.weight(some))
                        patience.deadline = trio.current_time() + options.read_timeout
                    if (more := credit.after(batch)) and not cursor.is_done:
                        items.request_n(more)
        # A server that completes early may have more when it is asked again: one that then brings nothing has not.
        if cursor.position == began:
            cursor.skip_to(cursor.end, f"the server completed at position {cursor.position}")

    async def _settle_loss(self, error: ApplicationError, connection: Connection) -> None:
        """Skip the positions that the server does not have, or raise if data loss is an error."""
        cursor = self.cursor
        bounds: Mapping[int, Bounds] = {}
        if not self._options.fail_on_data_loss:
            bounds = await bounds_at(self._pool, connection, self._options)
        there = bounds.get(cursor.partition)
        if error.code == EXPIRED and there is not None:
            if there.earliest <= cursor.position:
                raise RemoteProtocolError(f"{error}, and yet the earliest is {there.earliest}")
            cursor.skip_to(there.earliest, str(error))
        elif error.code == AHEAD and there is not None and cursor.position < there.latest < cursor.end:
            cursor.cut(there.latest)
        else:
            cursor.skip_to(cursor.end, str(error))


def rows_of_ranges(ranges: Iterable[Range], options: Options, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ranges, one behind the other, in a task."""
    pool = background().pool
    for span in ranges:
        if span.size:
            of_route = options.of_route(span.route)
            read = partial(fetch, pool, of_route, span, schema=schema)
            yield from rows_of(partial(explaining, pool, of_route, read), of_route)


def check_columns(range_: Range, options: Options, schema: pa.Schema | None) -> None:
    """Read the first payload of a range: it shows whether the columns fit, before tasks fail and are tried in vain.

    Raise ``SchemaMismatchError``, and the errors of reading.
    """
    for _ in rows_of_ranges([attrs.evolve(range_, end=range_.start + 1)], options, schema):
        pass


async def acknowledge(pool: Pool, options: Options, ends: Mapping[int, int]) -> None:
    """Tell the server the committed positions: late, twice or never are possible. A failure logs a warning.

    A named reader waits for the answer: a server refuses one reader too many.
    """
    assert options.ack_route is not None
    said = {"ends": dict(sorted(ends.items())), "reader": options.reader}
    data, route = json.dumps(said).encode(), options.ack_route
    try:
        with trio.fail_after(options.read_timeout):
            async with pool.connection(target_of(options)) as connection:
                if options.reader is None or not await _is_answered(connection, data, route):
                    await connection.fire_and_forget(data, route=route)
    except (RSocketError, OSError, trio.TooSlowError, ValueError) as error:
        logger.warning("the server was not told on %s what was committed: %s", route, str(error))


async def _is_answered(connection: Connection, data: bytes, route: str) -> bool:
    """Ask on a route, and return whether there is one that answers."""
    try:
        await connection.request_response(data, route=route)
    except Rejected as error:
        if is_missing_route(error):
            return False
        raise
    return True
