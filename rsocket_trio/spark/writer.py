"""The batch and stream writers: tasks send rows, the driver commits staged rows and logs skipped ones."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Self

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rsocket_trio.spark.background import Job, background
from rsocket_trio.spark.connections import Pool
from rsocket_trio.spark.deliveries import Pieces, Report, Requests, Staging, abort, commit, next_epoch, takes_packs
from rsocket_trio.spark.errors import OptionError, in_one_line
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.request_rows import PIECE_BYTES, Encoder, Origin, Piece, sink_columns

logger = logging.getLogger("rsocket_trio.spark")

MAX_WAITING_BYTES = 4 * PIECE_BYTES
"""Bytes of requests that wait between Spark's thread and the connection."""
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a stream; neither is a public name."""
ANY_QUERY = "*"
"""The sink for which an epoch is taken where only tasks know the id of the query: such sinks share one counter."""


@attrs.define(slots=False)
class Written(WriterCommitMessage):
    """A task's report to the driver: rows written, rows skipped, the reason for the first, and its staged attempts.

    ``query`` is the id of the query that it belongs to, ``epoch`` that of the planning.
    """

    sink: str
    rows: int
    skipped: int = 0
    problem: str | None = None
    attempts: tuple[tuple[str, int], ...] = ()
    query: str | None = None
    epoch: int | None = None


class Writer:
    """The common part of batch and stream writers. Can be pickled.

    ``sink`` and ``batch`` are those that are known at planning, ``counter`` is the sink for which an epoch is taken.
    """

    def __init__(
        self, options: Options, schema: StructType, sink: str | None, batch: int | None, counter: str | None
    ) -> None:
        self._options = options
        self._columns = sink_columns(schema, options)
        self._sink = sink
        self._batch = batch
        self._counter = counter
        self._packs = False
        self._epoch: int | None = None

    def planned(self) -> Self:
        """Ask the server, once for all attempts of all tasks, whether it takes packs, and for the epoch.

        Return this writer. Raise ``SinkError`` if the server can't be reached.
        """
        if self._options.delivery == "exactlyOnce":
            here = background()
            here.run(partial(self._ask, here.pool))
        return self

    async def _ask(self, pool: Pool) -> None:
        self._packs = self._columns is not None and await takes_packs(pool, self._options)
        if self._counter is not None:
            self._epoch = await next_epoch(pool, self._options, self._counter)

    @in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send the rows of a task. Raise ``SinkError`` or ``RowError``."""
        options = self._options
        stages = options.delivery == "exactlyOnce"
        origin = origin_of(TaskContext.get(), self._sink, self._batch if stages else None)
        encoder = Encoder(self._columns, options, origin, packs=self._packs)
        here = background()
        work = partial(deliver, here.pool, options, origin, epoch=self._epoch)
        job: Job[Piece, Report] = Job(here, work, MAX_WAITING_BYTES)
        try:
            for batch in iterator:
                for piece in encoder.pieces(batch):
                    job.put(piece, piece.size)
            report = job.finish()
        finally:
            job.close()
        return Written(
            origin.sink,
            encoder.rows - report.skipped,
            encoder.skipped + report.skipped,
            encoder.problem or report.problem,
            tuple(report.attempts),
            origin.query,
            self._epoch,
        )

    def _commit(self, messages: Iterable[WriterCommitMessage | None], batch: int, once: bool = False) -> None:
        """Commit the rows that tasks staged, if they did, and log those that they skipped."""
        options = self._options
        written = finished(messages)
        # If no task ran, the query's id is unknown: nothing is to be promoted, and the next batch is later.
        if options.delivery == "exactlyOnce" and written:
            here, task = background(), written[0]
            attempts = [attempt for message in written for attempt in message.attempts]
            done = partial(commit, here.pool, options, task.sink, batch, attempts, once=once)
            if not here.run(partial(done, query=task.query, epoch=task.epoch)):
                logger.warning("batch %d of sink %s had been committed before: it is skipped", batch, task.sink)
        skipped = sum(message.skipped for message in written)
        if skipped:
            first = next(message.problem for message in written if message.skipped)
            rows = skipped + sum(message.rows for message in written)
            logger.warning(
                "writing to %s, batch %d: %d of %d rows were skipped (errorPolicy=skip); the first: %s",
                *(options.route, batch, skipped, rows, first),
            )

    def _abort(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        by_sink: dict[str, list[str]] = {}
        for message in finished(messages):
            by_sink.setdefault(message.sink, []).extend(attempt for attempt, _ in message.attempts)
        here = background()
        for sink, attempts in by_sink.items():
            if attempts:
                here.run(partial(abort, here.pool, self._options, sink, attempts))


class BatchWriter(Writer, DataSourceArrowWriter):
    """The writer of ``df.write``. Each write is a sink with one batch; under a ``sinkId`` it counts once for ever.

    With the option ``batch`` the sink goes on, and a batch counts once.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        refuse_overwrite(overwrite)
        sink = options.sink_id or f"batch-{uuid.uuid4()}"
        # A sink without a name is planned once, and needs no epoch.
        super().__init__(options, schema, sink, options.batch or 0, options.sink_id)

    @in_one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        assert self._batch is not None
        self._commit(messages, self._batch, once=self._options.sink_id is None)

    @in_one_line
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``. Spark makes a new one to commit: all that it needs is in the messages."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        refuse_overwrite(overwrite)
        super().__init__(options, schema, options.sink_id, None, options.sink_id or ANY_QUERY)

    @in_one_line
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch whose tasks have all succeeded; it may have been committed before."""
        self._commit(messages, batchId)

    @in_one_line
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)


def origin_of(context: TaskContext | None, sink: str | None, batch: int | None = None) -> Origin:
    """Return the origin of the rows, as far as Spark tells it; ``batch`` is that of a batch write.

    Raise ``OptionError`` if nothing names the sink.
    """
    query, partition = None, 0
    if context is not None:
        partition = context.partitionId()
        query, number = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if batch is None and number and number.isdigit():
            batch = int(number)
    name = sink or query
    if not name:
        raise OptionError("option 'sinkId' must be set: this Spark does not tell its tasks the id of the query")
    return Origin(name, partition, query or None, batch)


async def deliver(pool: Pool, options: Options, origin: Origin, pieces: Pieces, *, epoch: int | None = None) -> Report:
    """Deliver the rows of a task as the options say. Raise ``SinkError``."""
    if options.delivery == "exactlyOnce":
        return await Staging(pool, options, pieces, origin, epoch).run()
    return await Requests(pool, options, pieces).run()


def finished(messages: Iterable[WriterCommitMessage | None]) -> Sequence[Written]:
    return [message for message in messages if isinstance(message, Written)]


def refuse_overwrite(overwrite: bool) -> None:
    """Raise ``OptionError`` if the mode asks to replace rows that the server has."""
    if overwrite:
        raise OptionError(
            "mode 'overwrite' (in streams: output mode 'complete') can't be had: a server has no rows that could be "
            "replaced. Use mode 'append'"
        )
