"""Reads a range from a replayable route, and continues at the next position when a connection breaks.

While a server can't be reached this pauses and tries again, and uses none of Spark's retries: those come at once and
are soon used up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import attrs
import pyarrow as pa
import trio

from rsocket_trio import ApplicationError, Connection, ConnectionLost, Rejected, RemoteProtocolError
from rsocket_trio.errors import RSocketError, readable
from rsocket_trio.payload import Payload
from rsocket_trio.replay.element_metadata import Placed, read_placed
from rsocket_trio.replay.elements import Pack, Record, now_us
from rsocket_trio.spark.asking import bounds_at
from rsocket_trio.spark.background import Taker, background
from rsocket_trio.spark.batching import rows_of
from rsocket_trio.spark.connections import Pool, Tries, target_of
from rsocket_trio.spark.diagnosis import explaining
from rsocket_trio.spark.mistakes import PASSING_FOR_READS, DataLossError, is_missing_route
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.protocol import (
    AHEAD,
    EXPIRED,
    LOSSES,
    POSITION_HEAD,
    UINT64,
    encode_ends,
    encode_range,
)
from rsocket_trio.spark.ranges import Bounds, Range
from rsocket_trio.spark.records import WANTED, Chunk, PackChunk, Rows, SchemaMismatchError, Weights

logger = logging.getLogger("rsocket_trio.spark")

FIRST_CREDIT = 16
"""Elements that a server may send before it is known whether they are packs."""
WINDOW_BYTES = 4 * 2**20
"""Bytes of elements that may be on their way, about."""


class Cursor:
    """The position of a reader in a range: everything below ``position`` was taken, or counted in ``lost``.

    With ``arrow`` an element may hold several rows, of which those outside of the range are left out. Without
    ``fail_on_loss`` a gap is counted instead of raised.
    """

    def __init__(self, range_: Range, *, arrow: bool, fail_on_loss: bool) -> None:
        self.partition = range_.partition
        self.position = range_.start
        self.end = range_.end
        self.lost = 0
        self._arrow = arrow
        self._fail_on_loss = fail_on_loss

    @property
    def is_done(self) -> bool:
        """Return whether the whole range was taken."""
        return self.position >= self.end

    def take(self, batch: Sequence[Payload], received_at: int) -> list[Rows]:
        """Return the rows of received elements, in chunks without gaps. Rows that were taken before are left out.

        Raise ``DataLossError`` at a gap, and ``RemoteProtocolError`` for an element without a position.
        """
        chunks: list[Rows] = []
        if self._arrow:
            for payload in batch:
                chunks += self._take_one(payload, received_at)
            return chunks
        head, pack, position, end = POSITION_HEAD, UINT64.pack, self.position, self.end
        datas: list[bytes | None] = []
        for index, payload in enumerate(batch):
            # The usual element: one row, the next one, and no metadata of its own.
            if payload.metadata == head + pack(position) and position < end:
                datas.append(payload.data)
                position += 1
                continue
            if datas:
                chunks.append(Chunk(self.position, datas, None, received_at))
                datas = []
            self.position = position
            taken = self._take_one(batch[index], received_at)
            _append(chunks, taken)
            position = self.position
        if datas:
            chunks.append(Chunk(self.position, datas, None, received_at))
        self.position = position
        return chunks

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

    def _take_one(self, payload: Payload, received_at: int) -> list[Rows]:
        placed = read_placed(payload)
        place = placed.record
        if place.position > self.position:
            self._pass_gap(placed)
        low = self.position - place.position
        high = min(place.count, self.end - place.position)
        if low >= high:
            return []  # taken before, or beyond the end
        start, self.position = self.position, place.position + high
        if placed.form is not None:
            if self._arrow or placed.form not in WANTED:
                raise RemoteProtocolError(
                    f"the element at position {place.position} is a pack in the format "
                    f"{readable(placed.form[:100])!r}, asked for was {'none' if self._arrow else ', '.join(WANTED)}"
                )
            pack = Pack(payload.data, place.count, place.position, place.timestamp, placed.gap is not None)
            return [PackChunk(start, self.position, pack, received_at)]
        if self._arrow:
            return [Chunk(start, [payload.data], None, received_at, (low, high, place.count))]
        self._check_single(place)
        if place.key is None and place.headers is None and place.timestamp is None and place.data is not None:
            return [Chunk(start, [place.data], None if place.metadata is None else [place.metadata], received_at)]
        return [Chunk(start, [place.data], [place.metadata], received_at, records=[place])]

    def _pass_gap(self, placed: Placed) -> None:
        """Go on behind positions that have no record. Raise ``DataLossError`` unless the server says so, or loss is
        accepted."""
        position = placed.record.position
        if placed.gap is not None and placed.gap <= self.position:
            self.position = min(position, self.end)
        else:
            self.skip_to(position, f"a gap before position {position}")

    def _check_single(self, place: Record) -> None:
        if place.count != 1:
            raise SchemaMismatchError(
                f"the element at position {place.position} holds {place.count} rows: set payload=arrow"
            )


def _append(chunks: list[Rows], more: list[Rows]) -> None:
    """Append a chunk of one row, as a part of the last chunk if that is of its kind."""
    for chunk in more:
        last = chunks[-1] if chunks else None
        if (
            isinstance(last, Chunk)
            and isinstance(chunk, Chunk)
            and last.metadatas is not None
            and chunk.metadatas is not None
            and (last.records is None) is (chunk.records is None)
            and last.start + len(last.datas) == chunk.start
        ):
            last.datas += chunk.datas
            last.metadatas += chunk.metadatas
            if last.records is not None and chunk.records is not None:
                last.records += chunk.records
        else:
            chunks.append(chunk)


async def fetch(pool: Pool, options: Options, range_: Range, conveyor: Taker[Rows]) -> None:
    """Put the rows of a range on the conveyor, each once and in order.

    Raise ``DataLossError`` for rows that are gone, ``ConnectionLost`` once too many tries in a row failed.
    """
    await Fetch(pool, options, range_, conveyor).run()


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

    def __init__(self, pool: Pool, options: Options, range_: Range, conveyor: Taker[Rows]) -> None:
        self._pool = pool
        self._options = options
        self._conveyor = conveyor
        self._what = f"reading {options.route}, partition {range_.partition}"
        self._tries = Tries(options, self._what)
        self._target = target_of(options)
        self.cursor = Cursor(range_, arrow=options.payload == "arrow", fail_on_loss=options.fail_on_data_loss)

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
        options, cursor, conveyor = self._options, self.cursor, self._conveyor
        weigh = Weights(options)
        began = cursor.position
        formats = () if options.payload == "arrow" else WANTED
        request = encode_range(cursor.partition, began, cursor.end, formats)
        credit = Credit(options.credit, packs=bool(formats))
        async with connection.request_stream(
            request, route=options.route, initial_request_n=credit.window, refill=False
        ) as items:
            with trio.fail_after(options.read_timeout) as patience:
                while not cursor.is_done and (batch := await items.receive_batch()):
                    before = cursor.position
                    chunks = cursor.take(batch, now_us())
                    if cursor.position > before:
                        self._tries.succeeded()
                        for chunk in chunks:
                            # Not a silence of the server's: how long this takes is up to Spark.
                            patience.deadline = float("inf")
                            await conveyor.put(chunk, weigh(chunk))
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
    here = background()
    for one in ranges:
        if one.size:
            of_route = options.of_route(one.route)
            produce = partial(explaining, here.pool, of_route, partial(fetch, here.pool, of_route, one))
            yield from rows_of(produce, of_route, one.partition, schema)


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
    data, route = encode_ends(ends, options.reader), options.ack_route
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
