"""Reads a live stream as it comes, each row at most once, in batches up to a bound and under streaming queries.

What is lost with a connection is not sent again. Rows of a streaming query wait in the memory of the process that Spark
runs for it on the driver, and are lost with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from functools import partial

import pyarrow as pa
import trio
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from rsocket_trio import Connection, ConnectionLost, Payload
from rsocket_trio.replay.arrow_packs import encoded
from rsocket_trio.replay.elements import Record, now_us
from rsocket_trio.spark.background import Job, Taker, background
from rsocket_trio.spark.connections import Pool, Tries, target_of
from rsocket_trio.spark.errors import PASSING_FOR_READS, DataLossError, OptionError, in_one_line, is_missing_route
from rsocket_trio.spark.options import MAX_POSITION, Options
from rsocket_trio.spark.ranges import VERSION, check_offset
from rsocket_trio.spark.rows import RowShape, joined, rows_of
from rsocket_trio.spark.server_sources import explaining
from rsocket_trio.spark.stream_reader import StreamReader, names_of

logger = logging.getLogger("rsocket_trio.spark")

MAX_PART_BYTES = 8 * 2**20
"""Bytes of a task's rows, about: they travel with its plan, for which Spark has a limit."""


class Reception:
    """Receives a live stream, over as many connections as it takes, and gives its rows to ``taker``.

    ``number`` is the position of the next row. In a batch, which ``is_batch``, a connection that breaks once rows have
    come ends the read; elsewhere the stream is asked for again, with a warning.
    """

    def __init__(
        self, pool: Pool, options: Options, schema: pa.Schema | None, number: int, taker: Taker[pa.RecordBatch]
    ) -> None:
        self._pool = pool
        self._options = options
        self._shape = RowShape(options, 0, schema)
        self._taker = taker
        self._most = math.inf if options.max_rows is None else options.max_rows
        self._number = number
        self.tries = Tries(options, f"reading {options.route}")
        self.is_connected = False
        """True once there was a connection."""
        self.rows = 0

    @property
    def end(self) -> int:
        return self._number + self.rows

    async def run(self, is_batch: bool) -> None:
        """Receive until the stream completes, or there is enough. Raise the error of the stream."""
        while True:
            try:
                async with self._pool.connection(target_of(self._options)) as connection:
                    self.is_connected = True
                    await self._receive(connection)
                    return
            except PASSING_FOR_READS as error:
                if is_missing_route(error) and not self.rows:
                    raise  # a retry is useless
                if self.rows:
                    options = self._options
                    problem = f"the connection broke after {self.rows} rows, those on their way are lost: {error}"
                    if is_batch and options.fail_on_data_loss:
                        raise DataLossError(
                            f"{options.route}: {problem}; with failOnDataLoss=false the read ends there"
                        ) from error
                    logger.warning("%s: %s", options.route, problem)
                    if is_batch:
                        return
                await self.tries.failed(error)

    async def _receive(self, connection: Connection) -> None:
        options = self._options
        request = Payload(options.request, options.request_metadata or None)
        if options.interaction == "response":
            with trio.move_on_after(options.read_timeout):
                await self._give([await connection.request_response(request, route=options.route)])
                return
            raise ConnectionLost(f"no answer within {options.read_timeout:g} s")
        ask = connection.request_channel if options.interaction == "channel" else connection.request_stream
        async with ask(request, route=options.route, initial_request_n=options.credit) as items:
            while self.rows < self._most and (payloads := await items.receive_batch()):
                await self._give(payloads)
                self.tries.succeeded()

    async def _give(self, payloads: list[Payload]) -> None:
        """Give the rows of payloads to the taker, up to the last that is wanted."""
        for batch in self._rows(payloads):
            some = batch.slice(0, min(batch.num_rows, self._most - self.rows))
            self.rows += some.num_rows
            await self._taker.put(some, self._shape.weight(some))

    def _rows(self, payloads: list[Payload]) -> list[pa.RecordBatch]:
        if self._shape.is_arrow:
            return [batch for payload in payloads for batch in self._shape.of_payload(payload.data)]
        records = [Record(number, payload.data, payload.metadata) for number, payload in enumerate(payloads, self.end)]
        return [self._shape.of_records(records, now_us())]


class LivePartition(InputPartition):
    """The whole of a live stream, for one task; or some rows, as an Arrow IPC stream that travels with the plan."""

    def __init__(self, rows: bytes | None = None) -> None:
        super().__init__(None)
        self.rows = rows


def live_rows(options: Options, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    """Return the rows of a live stream up to its end, ``maxRows`` or ``maxDuration``, in a task."""
    pool = background().pool

    async def read(taker: Taker[pa.RecordBatch]) -> None:
        reception = Reception(pool, options, schema, 0, taker)
        with trio.move_on_after(math.inf if options.max_duration is None else options.max_duration) as time:
            await reception.run(is_batch=True)
        if time.cancelled_caught and not reception.is_connected:
            why = reception.tries.last or "it was still being made"
            raise ConnectionLost(f"no connection within {options.max_duration:g} s (maxDuration): {why}")

    return rows_of(partial(explaining, pool, options, read), options)


class LiveStreamReader(StreamReader):
    """Reads a live stream: offsets are numbers of rows, which mean nothing in another process."""

    _job: Job[pa.RecordBatch, None] | None = None
    _reception: Reception | None = None
    _first = _last = 0
    """The numbers of the rows that are planned, from the first to behind the last."""
    _planned: pa.RecordBatch | None = None
    _rest: pa.RecordBatch | None = None
    """Rows behind them that came together with the last of them."""

    def _to_offset(self, number: int) -> dict[str, object]:
        return {"v": VERSION, "f": self._options.fingerprint, "n": number}

    def _from_offset(self, offset: Mapping[str, object]) -> int:
        check_offset(offset, self._options.fingerprint)
        return int(str(offset["n"]))

    @in_one_line
    def initialOffset(self) -> dict[str, object]:
        return self._to_offset(0)

    @in_one_line
    def getDefaultReadLimit(self) -> ReadLimit:
        return self._volume.default_limit(1)

    @in_one_line
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """Return the end of the next micro-batch; ``start`` if there is nothing, or too little, to read."""
        begin = self._from_offset(start)
        if self._job is None:
            self._first = self._last = begin
            pool, options = self._background.pool, self._options

            async def read(taker: Taker[pa.RecordBatch]) -> None:
                self._reception = Reception(pool, options, self._schema, begin, taker)
                await self._reception.run(is_batch=False)

            self._job = Job(self._background, partial(explaining, pool, options, read), options.buffer_bytes)
        elif begin == self._last:
            # The micro-batch that ended there was read: Spark asks for another one behind it. A volume for which there
            # is no room is not waited for.
            available = 0 if self._reception is None else self._reception.end - begin
            if self._volume.is_worthwhile(available, limit) or self._job.is_full:
                self._take(self._job, limit)
        return self._to_offset(self._last)

    def _take(self, job: Job[pa.RecordBatch, None], limit: ReadLimit) -> None:
        """Plan the rows that have come, up to the limits. Raise the error of the stream behind its last row."""
        most, max_bytes = (bound or MAX_POSITION for bound in self._volume.bounds(limit))
        taken, rows, size = [], 0, 0
        try:
            while rows < most and size < max_bytes and (batch := self._rest or job.take(0)) is not None:
                fitting = (max_bytes - size) * batch.num_rows // max(batch.nbytes, 1)
                some = batch.slice(0, max(min(most - rows, fitting), 1))
                self._rest = batch.slice(some.num_rows) if some.num_rows < batch.num_rows else None
                taken.append(some)
                rows, size = rows + some.num_rows, size + some.nbytes
        except TimeoutError:
            pass  # nothing more has come
        except Exception:
            if not rows:
                raise
        self._first, self._last = self._last, self._last + rows
        self._planned = joined(taken) if rows else None

    def reportLatestOffset(self) -> dict[str, object] | None:
        """Return the offset behind the last planned row, for the query's progress."""
        return None if self._job is None else self._to_offset(self._last) | names_of(self._options, ())

    @in_one_line
    def prepareForTriggerAvailableNow(self) -> None:
        """Raise ``OptionError``: what a live stream has sent before the query is not there any more."""
        raise OptionError(
            "the trigger availableNow needs positions=server. A batch reads a live stream up to 'maxRows'"
        )

    @in_one_line
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """Plan the rows of a micro-batch. Raise ``DataLossError`` if it is one of an earlier process."""
        first, last = self._from_offset(start), self._from_offset(end)
        if self._planned is not None and (first, last) == (self._first, self._last):
            rows, size = self._planned.num_rows, self._planned.nbytes
            some = max(rows * MAX_PART_BYTES // size, 1)
            return [LivePartition(encoded(self._planned.slice(at, some))) for at in range(0, rows, some)]
        if self._options.fail_on_data_loss and first < last:
            raise DataLossError(
                f"rows {first} to {last - 1} were planned and are not there any more: they were lost with the "
                "process that had them; with failOnDataLoss=false they are left out"
            )
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LivePartition)
        return iter(pa.ipc.open_stream(partition.rows))
