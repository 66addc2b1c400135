"""Stores the elements of a live stream, numbered and bounded, until Spark has read them: in memory or in a log.

A store takes elements in the background thread; the thread that Spark calls asks for its end. The producer gets new
credit only for elements that the store has safely, and only while the store has room.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from abc import ABC, abstractmethod
from collections import deque
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Self

import trio
from pyspark.sql.datasource import InputPartition

from rsocket_trio import Payload
from rsocket_trio.errors import readable
from rsocket_trio.replay import CorruptLog, Element, Log, PositionExpired
from rsocket_trio.replay.elements import now_us
from rsocket_trio.spark.connections import Pool, Tries, target_of
from rsocket_trio.spark.diagnosis import diagnosed
from rsocket_trio.spark.live import chunk_of, subscribed
from rsocket_trio.spark.mistakes import PASSING_FOR_READS, is_missing_route
from rsocket_trio.spark.options import OptionError, Options
from rsocket_trio.spark.ranges import CheckpointError, DataLossError, Range, split
from rsocket_trio.spark.records import Chunk
from rsocket_trio.spark.tallies import Tally

logger = logging.getLogger("rsocket_trio.spark")

OVERHEAD = 100
"""Bytes that an element takes beside its data and metadata, about: empty ones fill a store, too."""
PART_BYTES = 8 * 2**20
"""Bytes of a task's elements, about: they travel with its plan, for which Spark has a limit."""
IDENTITY: Final = {"v": int, "id": str, "f": str, "epoch": int, "base": int}
IDENTITY_FILE: Final = "wal.json"
WAL_VERSION: Final = 3
"""The version of ``wal.json``: those before are of logs of other forms."""
LOG_FILE: Final = "log.db"


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

    async def planned(self, start: int, end: int, pieces: int | None) -> list[InputPartition]:
        """Return the elements between two indexes, which were checked: for so many tasks, or more where they are large.

        Raise ``DataLossError`` for elements that can't be read.
        """
        if start >= end:
            return []
        chunks = await self.between(start, end)
        ranges = split([Range(0, start, end)], max(pieces or 1, -(-sum(one.size for one in chunks) // PART_BYTES)))
        return [
            ChunkPartition([part for chunk in chunks if (part := within(chunk, one)) is not None]) for one in ranges
        ]

    @abstractmethod
    async def between(self, start: int, end: int) -> list[Chunk]:
        """Return the elements between two indexes, and maybe others beside them."""

    @abstractmethod
    async def release(self, before: int) -> None:
        """Release the elements below an index, which were committed."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the store and drop its elements."""


# In memory


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

    async def between(self, start: int, end: int) -> list[Chunk]:
        """Return the elements between two indexes."""
        await trio.lowlevel.checkpoint()
        with self._lock:
            return [chunk for chunk in self._chunks if chunk.start < end and chunk.start + chunk.rows > start]

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


# The stream that fills a store


class Intake:
    """Reads a live stream into a store for as long as the query runs, over as many connections as it takes."""

    def __init__(self, pool: Pool, options: Options, store: Store) -> None:
        self._pool = pool
        self._options = options
        self._store = store
        self.tally = Tally()
        """The elements that came, and the connections that broke."""
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
            self.error = await diagnosed(self._pool, self._options, error)
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
                        self.tally.add(len(batch), sum([payload.size for payload in batch]))
                        tries.succeeded()
                        # Credit follows only once the elements are stored, and in halves, so that a REQUEST_N is rare.
                        owed += len(batch)
                        if owed >= max(options.credit // 2, 1):
                            await self._store.wait_for_room()
                            items.request_n(owed)
                            owed = 0
            except PASSING_FOR_READS as error:
                if is_missing_route(error) and not self._store.end:
                    raise  # a retry is useless
                if self._store.end:
                    logger.warning(
                        "%s: the connection broke, up to %d elements that were on their way are lost: %s",
                        *(options.route, options.credit, str(error)),
                    )
                self.tally.add(0, 0, 1)
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


# In a log


class WalError(Exception):
    """Raised if the log can't be written: names its directory and the reason. The elements in it are whole."""


class WalStore(Store):
    """Elements in a ``Log``; make one with ``opened``.

    ``id`` names the log for checkpoints. An element has the index of its position and, where the log had to begin anew,
    a base that ``wal.json`` holds beside the log.
    """

    def __init__(self, directory: Path, options: Options, log: Log, said: dict[str, Any]) -> None:
        super().__init__(options.wal_max_bytes)
        self.directory = directory
        self._log = log
        self.id, self._epoch, self.base = said["id"], said["epoch"], said["base"]
        self._look()
        if self.end > self.begin:
            files = [directory / LOG_FILE, directory / f"{LOG_FILE}-wal"]
            self._count(self.end - self.begin, sum(file.stat().st_size for file in files if file.exists()))

    @classmethod
    async def opened(cls, directory: Path, options: Options) -> Self:
        """Open the log of ``directory``; a process that had it before can write no more.

        Raise ``CheckpointError`` for the log of another query or of another version, ``OptionError`` for a place where
        no log can be, and ``CorruptLog``.
        """
        log = Log(directory / LOG_FILE, 1)
        try:
            said = await trio.to_thread.run_sync(_claim, directory, options.fingerprint)
            await log.open()
        except OSError as error:
            raise OptionError(f"option 'walDir' of {str(directory)!r}: {error.strerror}") from error
        return cls(directory, options, log, said)

    def _look(self) -> None:
        earliest, latest = self._log.bounds(0)
        self.begin, self.end = self.base + earliest, self.base + latest

    async def begin_anew(self, index: int) -> None:
        """Drop all elements, and number new ones from an index on. Only while nothing is added."""
        await trio.to_thread.run_sync(self.check_epoch)
        latest = self._log.bounds(0)[1]
        await self._log.trim(0, latest)
        self.base = index - latest
        # The elements first: should this process end here, the log ends before the checkpoint again, as it did.
        said = _said(self.directory) | {"base": self.base}
        await trio.to_thread.run_sync(_replace, self.directory / IDENTITY_FILE, json.dumps(said).encode())
        self._look()
        self._forget_sizes()

    async def write(self, batch: list[Payload]) -> None:
        """Write elements, and wait for the disk. Raise ``WalError`` where there is no room, and ``DataLossError`` where
        another process has taken the log over.
        """
        now = now_us()
        elements = [Element(payload.data, payload.metadata, timestamp=now) for payload in batch]
        position = self.end - self.base
        try:
            await trio.to_thread.run_sync(self.check_epoch)
            # Only if nobody else has written: a process that was taken over may be between two looks at the epoch.
            await self._log.append_all({0: elements}, at={0: position})
        except OSError as error:
            # No OSError: the intake would take it for a lost connection, and each try would cost another credit.
            raise WalError(
                f"option 'walDir': {self.directory} can't be written: {error.strerror or error}. What it holds "
                "is read; start the query again when there is room"
            ) from error
        except ValueError as error:
            raise DataLossError(f"{self.directory} was taken over by another query: {error}") from error
        self.end += len(elements)

    async def between(self, start: int, end: int) -> list[Chunk]:
        """Return the elements between two indexes."""
        chunks: list[Chunk] = []
        position = start
        try:
            while position < end:
                found = list(await self._log.read_some(0, position - self.base, end - self.base))
                for received_at, group in groupby(found, lambda record: record.timestamp or 0):
                    some = list(group)
                    datas = [record.data for record in some]
                    chunks.append(Chunk(position, datas, [record.metadata for record in some], received_at))
                    position += len(some)
        except (CorruptLog, PositionExpired, OSError) as error:
            raise DataLossError(f"{self.directory}: elements from {position} on can't be read: {error}") from error
        return chunks

    async def release(self, before: int) -> None:
        """Drop elements below an index. Raise ``DataLossError`` where another process has taken the log over."""
        await trio.to_thread.run_sync(self.check_epoch)
        await self._log.trim(0, max(before - self.base, 0))
        self.begin = self.base + self._log.bounds(0)[0]

    async def aclose(self) -> None:
        """Close the log."""
        await self._log.aclose()

    def check_epoch(self) -> None:
        """Raise ``DataLossError`` if another process opened the log meanwhile."""
        if _said(self.directory)["epoch"] != self._epoch:
            raise DataLossError(f"{self.directory} was taken over by another query: two may not share a walDir")


def _claim(directory: Path, fingerprint: str) -> dict[str, Any]:
    """Return what ``wal.json`` says, with an epoch of this process's own."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        found = _said(directory)
    except FileNotFoundError:
        found = {"v": WAL_VERSION, "id": uuid.uuid4().hex, "f": fingerprint, "epoch": 0, "base": 0}
    if found["v"] != WAL_VERSION:
        raise CheckpointError(
            f"{directory} holds a log of another version of this program. Let that version read it to the end (trigger "
            "availableNow), then choose another walDir and another checkpointLocation"
        )
    if found["f"] != fingerprint:
        raise CheckpointError(f"{directory} holds the log of a query with other options: choose another walDir")
    found["epoch"] += 1
    _replace(directory / IDENTITY_FILE, json.dumps(found).encode())
    return found


def _said(directory: Path) -> dict[str, Any]:
    """Return the content of ``wal.json``. Raise ``CheckpointError`` if it is damaged."""
    path = directory / IDENTITY_FILE
    content = path.read_bytes()
    try:
        found = json.loads(content)
        if any(type(found[key]) is not kind for key, kind in IDENTITY.items()):
            raise TypeError("of another type")
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise CheckpointError(
            f"{path} is damaged, so nobody knows which query the log beside it belongs to: it holds "
            f"{readable(content[:100]) or 'nothing'}. Restore it, or choose another walDir and another checkpoint"
        ) from error
    return dict(found)


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole, or as it was."""
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    fd = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
