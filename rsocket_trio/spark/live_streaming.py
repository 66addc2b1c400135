"""The stream reader for ``positions=none``: a look at a live stream, whose elements come at most once.

Elements wait in the memory of the process that Spark runs for the query on the driver, and are lost with it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import trio
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from rsocket_trio.spark.batching import gathered
from rsocket_trio.spark.connections import Pool
from rsocket_trio.spark.diagnosis import diagnosed
from rsocket_trio.spark.hosting import in_one_line, rows_in_one_line
from rsocket_trio.spark.live import Reception
from rsocket_trio.spark.mistakes import DataLossError
from rsocket_trio.spark.options import OptionError, Options
from rsocket_trio.spark.ranges import VERSION, Range, check_offset, split
from rsocket_trio.spark.records import Chunk
from rsocket_trio.spark.streaming import StreamReader, names_of

logger = logging.getLogger("rsocket_trio.spark")

OVERHEAD = 100
"""Bytes that an element takes beside its data and metadata, about: empty ones fill the memory, too."""
PART_BYTES = 8 * 2**20
"""Bytes of a task's elements, about: they travel with its plan, for which Spark has a limit."""


class ChunkPartition(InputPartition):
    """Elements themselves, which travel to their task with the plan."""

    def __init__(self, chunks: list[Chunk]) -> None:
        super().__init__(None)
        self.chunks = chunks


class LiveBuffer:
    """Elements that came and were not read, numbered from ``begin`` on, up to and without ``end``.

    The background thread changes it. While it is full the producer gets no credit.
    """

    def __init__(self, pool: Pool, options: Options, begin: int) -> None:
        self._pool = pool
        self._options = options
        self.begin = self.end = begin
        self.size = 0
        """Bytes of the elements, with what each takes beside its data."""
        self.has_received = False
        """True once an element has come."""
        self.error: Exception | None = None
        """The error that ended the stream, if one did."""
        self.is_over = False
        self._chunks: deque[Chunk] = deque()
        self._room = trio.Event()

    @property
    def is_full(self) -> bool:
        """Return whether nothing more comes until some of it is read."""
        return self.size >= self._options.buffer_bytes

    async def receive(self) -> None:
        """Receive until the stream completes or fails for good. Never raises: see ``error``."""
        try:
            await Reception(self._pool, self._options, self.add, self._note_loss).run()
        except Exception as error:
            # Raised in Spark's thread, which looks with every micro-batch.
            self.error = await diagnosed(self._pool, self._options, error)
        self.is_over = True

    async def add(self, chunk: Chunk) -> bool:
        """Add elements, and wait until there is room for more."""
        chunk.start = self.end
        self._chunks.append(chunk)
        self.size += chunk.size + chunk.rows * OVERHEAD
        self.has_received = True
        self.end += chunk.rows
        while self.is_full:
            self._room = trio.Event()
            await self._room.wait()
        return False

    def _note_loss(self, error: Exception) -> bool:
        if self.has_received:
            logger.warning(
                "%s: the connection broke, up to %d elements that were on their way are lost: %s",
                *(self._options.route, self._options.credit, str(error)),
            )
        return False

    async def release(self, before: int) -> None:
        """Drop elements that came together and are all below a number: they were read."""
        await trio.lowlevel.checkpoint()
        while self._chunks and self._chunks[0].start + self._chunks[0].rows <= before:
            gone = self._chunks.popleft()
            self.begin = gone.start + gone.rows
            self.size -= gone.size + gone.rows * OVERHEAD
        # Wakes ``add``, which looks again whether that is room enough.
        self._room.set()

    async def planned(self, start: int, end: int) -> list[InputPartition]:
        """Return the elements between two numbers, for one task, or more where they are large."""
        await trio.lowlevel.checkpoint()
        chunks = [part for chunk in self._chunks if (part := within(chunk, start, end)).rows]
        tasks = split([Range(0, start, end)], -(-sum(chunk.size for chunk in chunks) // PART_BYTES) or 1)
        parts = [[within(chunk, one.start, one.end) for chunk in chunks] for one in tasks]
        return [ChunkPartition([chunk for chunk in part if chunk.rows]) for part in parts]


def within(chunk: Chunk, start: int, end: int) -> Chunk:
    """Return the part of a chunk between two numbers, without rows if there is none."""
    _, chunk = chunk.split(max(start - chunk.start, 0))
    return chunk.split(max(end - chunk.start, 0))[0]


class LiveStreamReader(StreamReader):
    """Reads a live stream: offsets are numbers of elements, which mean nothing in another process."""

    _buffer: LiveBuffer | None = None

    def _received(self, begin: int) -> LiveBuffer:
        """Return what came. The first call begins to receive, with ``begin`` as the number of the first element."""
        if self._buffer is None:
            self._buffer = LiveBuffer(self._background.pool, self._options, begin)
            self._background.start(self._buffer.receive)
        return self._buffer

    def _to_offset(self, number: int) -> dict[str, Any]:
        return {"v": VERSION, "f": self._options.fingerprint, "n": number}

    def _from_offset(self, offset: Mapping[str, Any]) -> int:
        check_offset(offset, self._options.fingerprint)
        return int(offset["n"])

    @in_one_line
    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a query without a checkpoint begins."""
        return self._to_offset(0)

    @in_one_line
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch."""
        return self._volume.default_limit(1)

    @in_one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` if there is nothing, or too little, to read."""
        begin = self._from_offset(start)
        buffer, volume = self._received(begin), self._volume
        # The micro-batch that ended there was read: Spark asks for another one behind it.
        self._background.run(partial(buffer.release, begin))
        # Taken before the end: elements that came before an error are read first.
        error, is_over = buffer.error, buffer.is_over
        available = buffer.end - begin
        if not available and error is not None:
            raise error
        # What is waited for can't come where there is no room for it.
        if not volume.is_worthwhile(available, limit) and not (is_over or buffer.is_full):
            return self._to_offset(begin)
        most, max_bytes = volume.max_rows(limit), volume.max_bytes(limit)
        bounds = [available] if most is None else [available, most]
        if max_bytes is not None:
            bounds.append(max(max_bytes * available // max(buffer.size, 1), 1))
        return self._to_offset(begin + min(bounds))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offset behind the last received element, for the query's progress."""
        if self._buffer is None:
            return None
        return self._to_offset(self._buffer.end) | names_of(self._options, ())

    @in_one_line
    def prepareForTriggerAvailableNow(self) -> None:
        """Raise ``OptionError``: what a live stream has sent before the query is not there any more."""
        raise OptionError(
            "the trigger availableNow needs positions=server: of a live stream nothing is there when a query begins. "
            "A batch reads one up to 'maxRows' or 'maxDuration'"
        )

    @in_one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the elements of a micro-batch. Raise ``DataLossError`` if it is one of an earlier process."""
        first, last = self._from_offset(start), self._from_offset(end)
        buffer = self._buffer
        if buffer is None or first < buffer.begin or last > buffer.end:
            if self._options.fail_on_data_loss:
                raise DataLossError(
                    f"elements {first} to {last - 1} were planned and are not there any more: they were lost with the "
                    "process that had them; with failOnDataLoss=false they are left out"
                )
            return []
        return self._background.run(partial(buffer.planned, first, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the elements of a partition, in a task."""
        assert isinstance(partition, ChunkPartition)
        chunks = iter(partition.chunks)

        def take(timeout: float | None) -> Chunk:
            return next(chunks)

        return rows_in_one_line(gathered(take, self._options, 0, self._schema))
