"""The batch and stream writers: tasks send rows, the driver commits staged rows and logs skipped ones."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rsocket_trio.replay.pack_formats import chosen_format
from rsocket_trio.spark.acked_sink import Acknowledged, Requests
from rsocket_trio.spark.background import background
from rsocket_trio.spark.columns import sink_columns
from rsocket_trio.spark.delivering import Delivery, Pieces, Report
from rsocket_trio.spark.feeding import Feed
from rsocket_trio.spark.hosting import in_one_line
from rsocket_trio.spark.options import OptionError, Options
from rsocket_trio.spark.request_rows import PIECE_BYTES, Encoder, Origin
from rsocket_trio.spark.staged_sink import Staging, abort, commit, packs_taken

if TYPE_CHECKING:
    from rsocket_trio.spark.connections import Pool

logger = logging.getLogger("rsocket_trio.spark")

WAITING_BYTES = 4 * PIECE_BYTES
"""Bytes of requests that wait between Spark's thread and the connection."""
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a stream; neither is a public name."""


@attrs.define(slots=False)
class Written(WriterCommitMessage):
    """A task's report to the driver: rows written, rows skipped, the reason for the first, and its staged attempts."""

    sink: str
    rows: int
    skipped: int = 0
    problem: str | None = None
    attempts: tuple[tuple[str, int], ...] = ()


class Writer:
    """The common part of batch and stream writers. Can be pickled; ``sink`` is the id that is known at planning."""

    def __init__(self, options: Options, schema: StructType, sink: str | None) -> None:
        self._options = options
        self._columns = sink_columns(schema, options)
        self._sink = sink
        self._form: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles a writer once for each batch, when it has planned it: the server is asked then, by the driver.
        return self.__dict__ | {"_form": self._form or self._pack_format()}

    @in_one_line
    def _pack_format(self) -> str | None:
        """Return the format of packs in which rows are staged, ``None`` for rows one by one."""
        if self._options.delivery != "exactlyOnce" or self._columns is None:
            return None
        here = background()
        return chosen_format(here.run(partial(packs_taken, here.pool, self._options)))

    @in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Send the rows of a task. Raise ``SinkError`` or ``RowError``."""
        options = self._options
        origin = origin_of(TaskContext.get(), self._sink)
        stages = options.delivery == "exactlyOnce"
        encoder = Encoder(
            self._columns,
            options,
            origin,
            is_staged=stages,
            is_routed=options.interaction == "response",
            form=self._form,
        )
        here = background()
        feed: Feed[Any, Report] = Feed(here, partial(deliver, here.pool, options, origin), WAITING_BYTES)
        try:
            for batch in iterator:
                for piece in encoder.pieces(batch):
                    feed.put(piece, piece.size)
            report = feed.finish()
        finally:
            feed.close()
        return Written(
            origin.sink,
            encoder.rows - report.skipped,
            encoder.skipped + report.skipped,
            encoder.problem or report.problem,
            tuple(report.attempts),
        )

    def _commit(self, messages: Iterable[WriterCommitMessage | None], batch: int, once: bool = False) -> None:
        """Commit the rows that tasks staged, if they did, and log those that they skipped."""
        options = self._options
        written = finished(messages)
        if options.delivery == "exactlyOnce":
            sink = self._sink or next((one.sink for one in written), None)
            # If no task ran, the query's id is unknown: nothing is to be promoted, and the next batch is later.
            if sink is not None:
                here = background()
                attempts = [attempt for one in written for attempt in one.attempts]
                if not here.run(partial(commit, here.pool, options, sink, batch, attempts, once)):
                    logger.warning(
                        "batch %d of sink %s had been committed before, or a later one: it is skipped", batch, sink
                    )
        skipped = sum(one.skipped for one in written)
        if skipped:
            first = next(one.problem for one in written if one.skipped)
            rows = skipped + sum(one.rows for one in written)
            logger.warning(
                "writing to %s, batch %d: %d of %d rows were skipped (errorPolicy=skip); the first: %s",
                *(options.route, batch, skipped, rows, first),
            )

    def _abort(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Drop the rows that tasks staged."""
        by_sink: dict[str, list[str]] = {}
        for one in finished(messages):
            by_sink.setdefault(one.sink, []).extend(attempt for attempt, _ in one.attempts)
        here = background()
        for sink, attempts in by_sink.items():
            if attempts:
                here.run(partial(abort, here.pool, self._options, sink, attempts))


class BatchWriter(Writer, DataSourceArrowWriter):
    """The writer of ``df.write``. Each write is a sink with one batch; under a ``sinkId`` it counts once for ever.

    With the option ``batch`` the sink goes on, and a batch counts that is above the last.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        refuse_overwrite(overwrite)
        super().__init__(options, schema, options.sink_id or f"batch-{uuid.uuid4()}")

    @in_one_line
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the batch: all tasks have succeeded."""
        self._commit(messages, self._options.batch or 0, once=self._options.sink_id is None)

    @in_one_line
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop the staged rows: a task has failed."""
        self._abort(messages)


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``. Spark makes a new one to commit: all that it needs is in the messages."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        refuse_overwrite(overwrite)
        super().__init__(options, schema, options.sink_id)

    @in_one_line
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch whose tasks have all succeeded; it may have been committed before."""
        self._commit(messages, batchId)

    @in_one_line
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Drop the staged rows of a micro-batch: a task has failed."""
        self._abort(messages)


def origin_of(context: TaskContext | None, sink: str | None) -> Origin:
    """Return the origin of the rows, as far as Spark tells it. Raise ``OptionError`` if nothing names the sink."""
    query = batch = None
    partition = 0
    if context is not None:
        partition = context.partitionId()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    name = sink or query
    if not name:
        raise OptionError("option 'sinkId' must be set: this Spark does not tell its tasks the id of the query")
    return Origin(
        sink=name,
        partition=partition,
        query=query or None,
        batch=int(batch) if batch and batch.isdigit() else None,
    )


async def deliver(pool: Pool, options: Options, origin: Origin, pieces: Pieces) -> Report:
    """Deliver the rows of a task as the options say. Raise ``SinkError``."""
    delivery: Delivery
    if options.delivery == "exactlyOnce":
        delivery = Staging(pool, options, pieces, origin)
    else:
        delivery = (Acknowledged if options.interaction == "channel" else Requests)(pool, options, pieces)
    return await delivery.run()


def finished(messages: Iterable[WriterCommitMessage | None]) -> Sequence[Written]:
    """Return the reports of the tasks that finished."""
    return [message for message in messages if isinstance(message, Written)]


def refuse_overwrite(overwrite: bool) -> None:
    """Raise ``OptionError`` if the mode asks to replace rows that the server has."""
    if overwrite:
        raise OptionError(
            "mode 'overwrite' (in streams: output mode 'complete') can't be had: a server has no rows that could be "
            "replaced. Use mode 'append'"
        )
