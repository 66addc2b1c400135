"""A query that is slow slows the sender: what the server may send ahead is bounded, and all of it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio import Responder
from rsocket_trio.replay import Element, Log, Record, add_source
from rsocket_trio.spark.background import background
from rsocket_trio.spark.batch_reader import BatchReader
from rsocket_trio.spark.options import Use
from rsocket_trio.spark.stream_reader import ServerStreamReader
from tests.spark.serving import column, options

ROWS, CREDIT, BATCH = 100_000, 64, 100
AHEAD = 4 * BATCH + 2 * CREDIT
"""Rows that may be on their way: batches that wait for Spark, the one that is filled, and the credit."""


class CountedLog(Log):
    """Counts the records that were taken from it to be sent."""

    taken = 0

    async def read_some(self, *wanted: Any, **more: Any) -> Iterator[Record]:
        return self._counted(await super().read_some(*wanted, **more))

    def _counted(self, records: Iterator[Record]) -> Iterator[Record]:
        for record in records:
            self.taken += 1
            yield record


@pytest.fixture
def log(serving: Callable[[Responder], None]) -> CountedLog:
    found = CountedLog()
    trio.run(found.open)
    trio.run(found.append_all, {0: [Element(b"%d" % number) for number in range(ROWS)]})
    responder = Responder()
    add_source(responder, "log", found)
    serving(responder)
    return found


def of_batch() -> Iterator[Any]:
    """The record batches of a batch read."""
    reader = BatchReader(options(batch_rows=BATCH, credit=CREDIT), None)
    [partition] = reader.partitions()
    return reader.read(partition)


def of_stream() -> Iterator[Any]:
    """The record batches of one micro-batch."""
    given = options(Use.STREAM_READ, batch_rows=BATCH, credit=CREDIT, startingPosition="earliest")
    reader = ServerStreamReader(given, None)
    start = reader.initialOffset()
    [partition] = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    return reader.read(partition)


@pytest.mark.parametrize("reading", [of_batch, of_stream])
def test_the_server_is_never_far_ahead_of_a_slow_query(reading: Callable[[], Iterator[Any]], log: CountedLog) -> None:
    batches = reading()
    read: list[bytes] = []
    for _ in range(5):
        read += column([next(batches)], "data")
        # Whoever can go on does so meanwhile: this is as slow as a query can be.
        background().run(trio.testing.wait_all_tasks_blocked)
        assert log.taken <= len(read) + AHEAD
    read += column(list(batches), "data")

    assert read == [b"%d" % number for number in range(ROWS)]
