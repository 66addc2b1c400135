"""Stores the elements of a live stream, numbered and bounded, until Spark has read them.

A store takes elements in the background thread; the thread that Spark calls asks for its end. The producer gets new
credit only for elements that the store has safely, and only while the store has room.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque

import trio
from pyspark.sql.datasource import InputPartition

from rsocket_trio import Payload
from rsocket_trio.spark.connections import PASSING_FOR_READS, Pool, Tries, target_of
from rsocket_trio.spark.live import chunk_of, subscribed
from rsocket_trio.spark.options import Options
from rsocket_trio.spark.ranges import DataLossError, Range, split
from rsocket_trio.spark.records import Chunk

logger = logging.getLogger("rsocket_trio.spark")


OVERHEAD = 100
"""Bytes that an element takes beside its data and metadata, about: empty ones fill a store, too."""


class Store(ABC):
    """Elements by index, from ``begin`` up to, and without, ``end``."""

    begin: int
    end: int

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: deque[tuple[int, int, int]] = deque()
        self._room = trio.Event()
        self.unread = 0
        """Bytes that no micro-batch has read."""
        self._overhead = 0

    async def add(self, batch: list[Payload]) -> None:
        """Store elements; on return they are as safe as this store promises."""
        await self.write(batch)
        self._count(len(batch), sum([payload.size for payload in batch]))

    async def wait_for_room(self) -> None:
        """Wait until fewer unread bytes than the bound are stored."""
        await trio.lowlevel.checkpoint()
        while self.unread + self._overhead >= self._max_bytes:
            self._room = trio.Event()
            await self._room.wait()

    async def read_up_to(self, index: int) -> None:
        """Count all elements below an index as read: that makes room, though they are still kept."""
        await trio.lowlevel.checkpoint()
        while self._sizes and self._sizes[0][0] <= index:
            _, size, overhead = self._sizes.popleft()
            self.unread -= size
            self._overhead -= overhead
        # Wakes the intake, which looks again whether that is room enough before it grants credit.
        self._room.set()

    def _count(self, elements: int, size: int) -> None:
        overhead = elements * OVERHEAD
        self._sizes.append((self.end, size, overhead))
        self.unread += size
        self._overhead += overhead

    def _forget_sizes(self) -> None:
        self._sizes.clear()
        self.unread = self._overhead = 0

    @abstractmethod
    async def write(self, batch: list[Payload]) -> None:
        """Keep elements, and move ``end``."""

    @abstractmethod
    def planned(self, start: int, end: int, pieces: int | None) -> list[InputPartition]:
        """Return the elements between two indexes, for tasks; both were checked. For Spark's thread."""

    @abstractmethod
    async def release(self, before: int) -> None:
        """Release the elements below an index, which were committed."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the store and drop its elements."""


class ChunkPartition(InputPartition):
    """Elements themselves, which travel to their task with the plan."""

    def __init__(self, chunks: list[Chunk]) -> None:
        super().__init__(None)
        self.chunks = chunks

    def __repr__(self) -> str:
        return f"ChunkPartition({sum(chunk.rows for chunk in self.chunks)} rows)"


class MemoryStore(Store):
    """Elements in the memory of the driver's worker: gone with it."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.begin = self.end = 0
        self._chunks: deque[Chunk] = deque()
        # The background adds and releases chunks while Spark's thread plans and renumbers them.
        self._lock = threading.Lock()

    async def write(self, batch: list[Payload]) -> None:
        """Keep elements."""
        await trio.lowlevel.checkpoint()
        chunk = chunk_of(batch, self.end)
        with self._lock:
            self._chunks.append(chunk)
            self.end += chunk.rows

    def renumber(self, index: int) -> None:
        """Continue the numbers at the index that an earlier process reached: renumber the kept elements."""
        with self._lock:
            by = index - self.begin
            for chunk in self._chunks:
                chunk.start += by
            self._sizes = deque((end + by, size, overhead) for end, size, overhead in self._sizes)
            self.begin += by
            self.end += by

    def planned(self, start: int, end: int, pieces: int | None) -> list[InputPartition]:
        """Return the elements between two indexes."""
        with self._lock:
            buffered = [chunk for chunk in self._chunks if chunk.start < end and chunk.start + chunk.rows > start]
        ranges = split([Range(0, start, end)], pieces) if end > start else []
        return [
            ChunkPartition([part for chunk in buffered if (part := within(chunk, one)) is not None]) for one in ranges
        ]

    async def release(self, before: int) -> None:
        """Forget chunks that lie below an index."""
        await trio.lowlevel.checkpoint()
        with self._lock:
            while self._chunks and self._chunks[0].start + self._chunks[0].rows <= before:
                gone = self._chunks.popleft()
                self.begin = gone.start + gone.rows

    async def aclose(self) -> None:
        """Forget everything."""
        await trio.lowlevel.checkpoint()
        self._chunks.clear()


def within(chunk: Chunk, one: Range) -> Chunk | None:
    """Return the part of a chunk that lies in a range."""
    if chunk.start + chunk.rows > one.end:
        chunk, _ = chunk.split(max(one.end - chunk.start, 0))
    if chunk.start < one.start:
        _, chunk = chunk.split(one.start - chunk.start)
    return chunk if chunk.rows else None


class Intake:
    """Reads a live stream into a store for as long as the query runs, over as many connections as it takes."""

    def __init__(self, pool: Pool, options: Options, store: Store) -> None:
        self._pool = pool
        self._options = options
        self._store = store
        self.error: Exception | None = None
        """The error that ended the stream, if one did."""
        self._scope = trio.CancelScope()
        self._over = trio.Event()

    @property
    def is_over(self) -> bool:
        """Return whether the stream has ended."""
        return self._over.is_set()

    async def run(self) -> None:
        """Read until the stream completes, fails for good, or is stopped. Never raises: see ``error``."""
        try:
            with self._scope:
                await self._run()
        except Exception as error:
            # Raised in Spark's thread, which checks it with every micro-batch.
            self.error = error
        finally:
            self._over.set()

    async def stop(self) -> None:
        """Stop reading, and wait until it has stopped."""
        self._scope.cancel()
        await self._over.wait()

    async def _run(self) -> None:
        options = self._options
        tries = Tries(options, f"reading {options.route}")
        target = target_of(options)
        while True:
            # Before there is any credit: each subscription begins with some.
            await self._store.wait_for_room()
            try:
                async with (
                    self._pool.connection(target) as connection,
                    subscribed(connection, options, refill=False) as items,
                ):
                    owed = 0
                    while batch := await items.receive_batch():
                        await self._store.add(batch)
                        tries.succeeded()
                        # Credit follows only once the elements are stored, and in halves, so that a REQUEST_N is rare.
                        owed += len(batch)
                        if owed >= max(options.credit // 2, 1):
                            await self._store.wait_for_room()
                            items.request_n(owed)
                            owed = 0
            except PASSING_FOR_READS as error:
                if self._store.end:
                    logger.warning(
                        "%s: the connection broke, up to %d elements that were on their way are lost: %s",
                        *(options.route, options.credit, str(error)),
                    )
                await tries.failed(error)
            else:
                logger.info("%s: the stream is complete", options.route)
                return


def check_buffered(store: Store, start: int, end: int) -> None:
    """Raise ``DataLossError`` unless a store has the elements between two indexes."""
    if start < store.begin or end > store.end:
        raise DataLossError(
            f"elements {start} to {end - 1} were planned and are not there any more (there are {store.begin} to "
            f"{store.end - 1}): they were lost with the process that had them; with failOnDataLoss=false they are "
            "left out"
        )
