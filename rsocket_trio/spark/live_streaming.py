"""Stream readers for live streams: they receive elements while Spark works, and number them.

With ``positions=wal`` the elements are in a log, and can be read again; with ``positions=none`` they are in the memory
of the process that Spark runs for the query on the driver.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from rsocket_trio.spark.batching import gathered
from rsocket_trio.spark.hosting import in_one_line, rows_in_one_line
from rsocket_trio.spark.live_buffer import (
    ChunkPartition,
    Intake,
    MemoryStore,
    Store,
    WalStore,
    check_buffered,
)
from rsocket_trio.spark.ranges import VERSION, CheckpointError, DataLossError, check_offset
from rsocket_trio.spark.records import Chunk
from rsocket_trio.spark.streaming import StreamReader, names_of

logger = logging.getLogger("rsocket_trio.spark")


class LiveStreamReader(StreamReader):
    """The common part of live stream readers: an intake that reads the stream into a store."""

    _goal: int | None = None
    _takes_what_came = False

    @property
    @abstractmethod
    def _store(self) -> Store:
        """Return the store of received elements."""

    @abstractmethod
    def _to_offset(self, index: int) -> dict[str, Any]: ...

    @abstractmethod
    def _from_offset(self, offset: Mapping[str, Any]) -> int: ...

    @cached_property
    def _intake(self) -> Intake:
        intake = Intake(self._background.pool, self._options, self._store)
        self._background.start(intake.run)
        return intake

    @in_one_line
    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a query without a checkpoint begins: the first buffered element."""
        return self._to_offset(self._store.begin)

    @in_one_line
    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch."""
        return self._volume.default_limit(1)

    @in_one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` if there is nothing, or too little, to read."""
        begin = self._from_offset(start)
        self._reach(begin)
        intake = self._intake
        if self._takes_what_came and self._goal is None:
            self._goal = self._what_came()
        self._background.run(partial(self._store.read_up_to, begin))
        # Taken before the end: elements that came before an error are read first.
        error = intake.error
        latest = self._store.end if self._goal is None else self._goal
        available = latest - begin
        is_last_call = self._goal is not None or intake.is_over
        if available <= 0 and error is not None:
            raise error
        if available <= 0 or not (self._volume.is_worthwhile(available, limit) or is_last_call):
            return self._to_offset(begin)
        most = self._volume.max_rows(limit)
        max_bytes = self._volume.max_bytes(limit)
        if max_bytes is not None:
            by_bytes = max(max_bytes * available // max(self._store.unread, 1), 1)
            most = by_bytes if most is None else min(most, by_bytes)
        return self._to_offset(latest if most is None else min(latest, begin + most))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offset behind the last received element, for the query's progress."""
        return self._to_offset(self._store.end) | names_of(self._options, ())

    def prepareForTriggerAvailableNow(self) -> None:
        """Have the query read the elements that came; wait for a volume that is asked for, up to its delay."""
        # Not yet: nothing may be added before it is known where the query goes on.
        self._takes_what_came = True

    def _what_came(self) -> int:
        options, intake = self._options, self._intake
        deadline = time.monotonic() + options.max_trigger_delay
        wanted = self._store.begin + (options.min_rows_per_trigger or 0)
        while self._store.end < wanted and not intake.is_over and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._store.end

    @abstractmethod
    def _reach(self, index: int) -> None:
        """Continue the query at an index: no element that comes may have a lower one."""

    @in_one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the elements of a micro-batch."""
        first, last = self._from_offset(start), self._from_offset(end)
        store = self._store
        try:
            check_buffered(store, first, last)
        except DataLossError:
            if self._options.fail_on_data_loss:
                raise
            first, last = max(first, store.begin), min(last, store.end)
        return self._background.run(partial(store.planned, first, last, self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the elements of a partition, in a task."""
        assert isinstance(partition, ChunkPartition)
        chunks = iter(partition.chunks)

        def take(timeout: float | None) -> Chunk:
            return next(chunks)

        return rows_in_one_line(gathered(take, self._options, 0, self._schema))

    @in_one_line
    def commit(self, end: dict[str, Any]) -> None:
        """Release the elements below ``end``."""
        self._background.run(partial(self._store.release, self._from_offset(end)))

    def stop(self) -> None:
        """Stop the intake and close the store. Spark seldom calls this: it ends the process, which loses nothing."""
        if "_intake" in vars(self):
            self._background.run(self._intake.stop)
        if "_store" in vars(self):
            self._background.run(self._store.aclose)


class MemoryStreamReader(LiveStreamReader):
    """A live stream without a log: elements that are not read when the process ends are lost."""

    _is_numbered = False

    @cached_property
    def _store(self) -> MemoryStore:
        return MemoryStore(self._options.wal_max_bytes)

    def _to_offset(self, index: int) -> dict[str, Any]:
        return {"v": VERSION, "f": self._options.fingerprint, "n": index}

    def _from_offset(self, offset: Mapping[str, Any]) -> int:
        check_offset(offset, self._options.fingerprint)
        return int(offset["n"])

    @in_one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the elements. A first call before any other is for a micro-batch of an earlier process."""
        if not self._is_numbered:
            self._reach(self._from_offset(end))
        return super().partitions(start, end)

    def _reach(self, index: int) -> None:
        """Continue the numbers, on the first call, at the index that an earlier process reached."""
        if not self._is_numbered:
            self._is_numbered = True
            if index:
                self._store.renumber(index)


class WalStreamReader(LiveStreamReader):
    """A live stream with a log."""

    @cached_property
    def _store(self) -> WalStore:
        options = self._options
        assert options.wal_dir is not None
        return self._background.run(partial(WalStore.opened, Path(options.wal_dir), options))

    def _to_offset(self, index: int) -> dict[str, Any]:
        return {"v": VERSION, "f": self._options.fingerprint, "log": self._store.id, "index": index}

    def _from_offset(self, offset: Mapping[str, Any]) -> int:
        check_offset(offset, self._options.fingerprint)
        if offset.get("log") != self._store.id:
            raise CheckpointError(
                f"the checkpoint belongs to the log {offset.get('log')!r}, option 'walDir' holds {self._store.id!r}"
            )
        return int(offset["index"])

    def _reach(self, index: int) -> None:
        """Raise ``DataLossError`` if the log ends before the index: new elements would count as read."""
        store = self._store
        if index <= store.end:
            return
        lost = f"the log in {self._options.wal_dir} ends at element {store.end}, the checkpoint is at {index}: it was "
        lost += "deleted, or replaced"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{lost}; with failOnDataLoss=false it goes on with what comes from now on")
        logger.warning("%s. It goes on with what comes from now on", lost)
        self._background.run(partial(store.begin_anew, index))
