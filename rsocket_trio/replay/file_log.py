"""A log on files: one writing thread call for all that was appended meanwhile, and reading that never blocks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import outcome
import trio

from rsocket_trio.connection.parking_lot import ParkingLot
from rsocket_trio.replay.compaction import Interrupted, fresh_path
from rsocket_trio.replay.elements import Clock, Element, Record, check_element, now_us
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.filesystem import SYSTEM, FileSystem
from rsocket_trio.replay.locking import DirectoryLock
from rsocket_trio.replay.log import READ_BYTES, Appending, ReplayableLog, check_begin, check_partition
from rsocket_trio.replay.named_readers import Reader, ReaderTable, load_readers, save_readers, within
from rsocket_trio.replay.packs import Pack
from rsocket_trio.replay.retention import SHARE, Retention
from rsocket_trio.replay.segment_reader import Segment
from rsocket_trio.replay.segments import LARGEST_SEGMENT, SEGMENT_BYTES, Segments

READERS_FILE = "readers.json"
Sync: TypeAlias = Literal["batch", "always", "never"]

logger = logging.getLogger("rsocket_trio.replay")


class FileLog(ReplayableLog):
    """A log in a folder, which one process at a time can open; its records survive the end of the process.

    ``directory`` is the folder, with ``partitions`` partitions. A file holds about ``segment_bytes``, and is deleted by
    ``trim`` as a whole. ``sync`` says when ``append`` returns: ``"batch"``, when one sync of the disk has covered all
    that was appended since the last; ``"always"``, after a sync for each call alone; ``"never"``, when the operating
    system has it, which survives the end of the process but not that of the machine.
    ``clock`` gives the times of records, in microseconds since 1970.

    Opening raises ``LogLocked`` if another writer has the folder, ``CorruptLog`` for damage to records that were safe,
    ``ValueError`` if the folder has more partitions, and ``OSError``. ``truncated`` then says how many bytes of a torn
    tail were cut off. ``retention_failure`` is the error of the last try to drop records, ``None`` after a success.
    """

    def __init__(
        self,
        directory: str | PathLike[str],
        partitions: int = 1,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync: Sync = "batch",
        filesystem: FileSystem = SYSTEM,
        clock: Clock = now_us,
    ) -> None:
        if partitions < 1:
            raise ValueError(f"{partitions} partitions: there must be at least 1")
        if sync not in get_args(Sync):
            raise ValueError(f"sync {sync!r}: must be one of {', '.join(get_args(Sync))}")
        if not 1 <= segment_bytes <= LARGEST_SEGMENT:
            raise ValueError(f"segments of {segment_bytes} bytes: must be between 1 and {LARGEST_SEGMENT}")
        self.directory = Path(directory)
        self._count = partitions
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._filesystem = filesystem
        self._clock = clock
        self._lock: DirectoryLock | None = None
        self._partitions: list[Segments] = []
        self._readers = [ParkingLot() for _ in range(partitions)]
        self._opening = trio.Lock()
        self._pending: list[Appending] = []
        self._is_writing = False
        self._turn = trio.Lock()
        self._closed = False
        self._retention: Retention | None = None
        self._retaining = trio.Lock()
        self._retained: tuple[float, int] = (-math.inf, 0)
        self.retention_failure: OSError | CorruptLog | None = None

    async def open(self) -> None:
        if self._partitions and not self._closed:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        async with self._opening:
            self._check_closed()
            if self._lock is None:
                await trio.to_thread.run_sync(self._open)

    @property
    def truncated(self) -> int:
        """Return the bytes of torn tails that were cut off when the log was opened: parts of appends that had not
        returned.
        """
        return sum(segments.truncated for segments in self._partitions)

    @property
    def size(self) -> int:
        """Return the bytes of all files."""
        return sum(segments.size for segments in self._partitions)

    @property
    def has_gaps(self) -> bool:
        compacts = self._retention is not None and self._retention.compact
        return compacts or any(segments.has_gaps for segments in self._partitions)

    @property
    def failure(self) -> OSError | None:
        return next((segments.failure for segments in self._partitions if segments.failure is not None), None)

    def partitions(self) -> Sequence[int]:
        return range(self._count)

    def bounds(self, partition: int) -> tuple[int, int]:
        segments = self._find(partition)
        return segments.earliest, segments.latest

    async def append_all(
        self, elements: Mapping[int, Iterable[Element | Pack]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        await trio.lowlevel.checkpoint()
        for partition, group_elements in elements.items():
            self._find(partition)
            if isinstance(group_elements, Sequence):
                # An element that is refused later fails the whole group, which is then written call by call.
                for element in group_elements:
                    if isinstance(element, Element):
                        check_element(element)
        group = Appending(elements, at)
        self._pending.append(group)
        if self._is_writing:
            await self._wait_for(group)
        # Without positions the task was woken to write: its group is still pending, together with later ones.
        if group.begins is None:
            # No task writes: this one writes all pending groups, then wakes the first of those that came meanwhile.
            with trio.CancelScope(shield=True):
                await self._write_pending()
        assert group.begins is not None
        return group.begins.unwrap()

    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        segments = self._find(partition)
        if start == segments.latest:
            await trio.lowlevel.checkpoint()
            return iter(())
        return await trio.to_thread.run_sync(segments.read, start, end, max_bytes)

    async def read_packs(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Pack]:
        segments = self._find(partition)
        if start == segments.latest:
            await trio.lowlevel.checkpoint()
            return iter(())
        return await trio.to_thread.run_sync(segments.read_packs, start, end, max_bytes)

    async def position_at(self, partition: int, timestamp: int) -> int:
        return await trio.to_thread.run_sync(self._find(partition).position_at, timestamp)

    async def wait_beyond(self, partition: int, position: int) -> None:
        segments = self._find(partition)
        await trio.lowlevel.checkpoint()
        while segments.latest <= position:
            self._check_closed()
            await self._readers[partition].park()

    async def trim(self, partition: int, before: int) -> None:
        segments = self._find(partition)
        await self._alone(partial(segments.trim, before))

    async def acknowledge(self, reader: str, ends: Mapping[int, int]) -> Reader:
        found = await super().acknowledge(reader, ends)
        await self._drop_acknowledged()
        return found

    async def forget_reader(self, reader: str) -> bool:
        found = await super().forget_reader(reader)
        await self._drop_acknowledged()
        return found

    async def aclose(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        for readers in self._readers:
            readers.wake_all()
        async with self._retaining:
            await self._alone(self._close)

    # Opening and closing: these run in a thread

    def _open(self) -> None:
        lock = DirectoryLock(self.directory)
        opened: list[Segments] = []
        try:
            known = load_readers(self._filesystem, self.directory / READERS_FILE)
            found = {path.name for path in self.directory.glob("partition-*")}
            names = [f"partition-{number}" for number in range(self._count)]
            if more := found - set(names):
                raise ValueError(f"{self.directory} has more than {self._count} partitions: {', '.join(sorted(more))}")
            for number, name in enumerate(names):
                opened.append(
                    Segments(
                        self.directory / name,
                        segment_bytes=self._segment_bytes,
                        sync=self._sync != "never",
                        partition=number,
                        filesystem=self._filesystem,
                        clock=self._clock,
                    )
                )
        except BaseException:
            for segments in opened:
                segments.close()
            lock.release()
            raise
        self._lock, self._partitions = lock, opened
        latest = [segments.latest for segments in opened]
        self._known_readers = ReaderTable({reader.name: within(reader, latest, self.directory) for reader in known})
        self._limit_files()
        if self.truncated:
            logger.warning("%s: cut off a torn tail of %d bytes", self.directory, self.truncated)

    def _close(self) -> None:
        for segments in self._partitions:
            segments.close()
        if self._lock is not None:
            self._lock.release()

    # Named readers: a file of them, replaced as a whole

    async def _save_readers(self, readers: Mapping[str, Reader]) -> None:
        def save() -> None:
            self._check_closed()
            save_readers(self._filesystem, self.directory / READERS_FILE, readers.values())

        await self._alone(save)

    # Retention: applied by the tasks that append, acknowledge or ask for the bounds, never by one of its own

    def set_retention(self, retention: Retention) -> None:
        if self._retention not in (None, retention):
            raise ValueError(f"{self.directory} has another retention: {self._retention}")
        self._retention = retention
        self._limit_files()

    def _limit_files(self) -> None:
        size = None if self._retention is None else self._retention._segment_bytes(self._count)
        if size is not None:
            for segments in self._partitions:
                segments.roll_at(size)

    @property
    def _files(self) -> int:
        return sum(segments.files for segments in self._partitions)

    def _is_time_to_retain(self) -> bool:
        retention = self._retention
        if retention is None or self._retaining.locked():
            return False
        last, files = self._retained
        return files != self._files or self._clock() / 1e6 - last >= retention._interval

    async def retain(self, *, in_full: bool = True) -> None:
        if in_full:
            async with self._retaining:
                await self._apply_retention()
                await self._compact(in_full=True)
                self.retention_failure = None
        elif self._is_time_to_retain():
            await self._retain_and_log()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def _drop_acknowledged(self) -> None:
        retention = self._retention
        if retention is not None and not retention.compact:
            below = {number: self.lowest(number) or 0 for number in range(self._count)}
            if any(self._partitions[number].has_whole_files_below(end) for number, end in below.items()):
                await self._retain_and_log()

    async def _retain_and_log(self, *, compacts: bool = False) -> None:
        """Apply the retention; its failure is none of the append or the acknowledgement that it comes with."""
        try:
            async with self._retaining:
                await self._apply_retention()
                if compacts:
                    await self._compact(in_full=False)
                    self.retention_failure = None
        except (OSError, CorruptLog) as error:
            if str(error) != str(self.retention_failure):
                logger.exception("%s: the retention failed, and is tried again", self.directory)
            self.retention_failure = error
        except trio.ClosedResourceError:
            pass  # there is nothing left to do in a log that was closed

    async def _apply_retention(self) -> None:
        if self._retention is not None:
            self._retained = (self._clock() / 1e6, self._files)
            await self._alone(partial(self._trim_by, self._retention))
            self._retained = (self._retained[0], self._files)

    async def _compact(self, *, in_full: bool) -> None:
        """Compact the partitions that need it; other tasks append meanwhile."""
        if self._retention is None or not self._retention.compact:
            return
        for segments in self._partitions:
            with suppress(Interrupted):
                while await self._compact_once(segments, in_full=in_full):
                    pass

    async def _compact_once(self, segments: Segments, *, in_full: bool) -> bool:
        """Make one pass over a partition. Return whether there was anything to do."""
        found = segments.compaction(self._clock(), lambda: self._closed, in_full=in_full)
        if found is None:
            return False
        await trio.to_thread.run_sync(found.learn)
        for group in await trio.to_thread.run_sync(found.groups, segments.segment_bytes):
            end = segments.end_of(group.segments)
            if end is None:
                raise Interrupted
            made = await trio.to_thread.run_sync(found.write_anew, group, end)
            await self._alone(partial(self._replace, segments, group.segments, made))
        segments.compacted(found.covered)
        return True

    def _replace(self, segments: Segments, old: list[Segment], made: Segment) -> None:
        if self._closed:
            self._filesystem.remove(fresh_path(made))
            raise Interrupted
        segments.replace(old, made)

    def _trim_by(self, retention: Retention) -> None:
        """Drop files, in a thread: those that all readers have, the too old ones, and those beyond the size."""
        self._check_closed()
        now = self._clock()
        for number, segments in enumerate(self._partitions):
            if retention.seconds is not None:
                kept = int(retention.seconds * 1e6)
                segments.roll_if_older(now - kept // SHARE)
                self._expire(number, segments.older(now - kept), f"older than {retention.seconds:g} s")
            lowest = None if retention.compact else self.lowest(number)
            if lowest is not None and segments.has_whole_files_below(lowest):
                segments.trim(lowest)
        while retention.bytes is not None and self.size > retention.bytes:
            number = max(range(self._count), key=lambda one: self._partitions[one].droppable_bytes)
            second = self._partitions[number].second()
            if second is None:
                break
            self._expire(number, second, f"of more than {retention.bytes} bytes")

    def _expire(self, number: int, before: int, reason: str) -> None:
        segments = self._partitions[number]
        if not segments.has_whole_files_below(before):
            return
        earliest = segments.earliest
        segments.trim(before)
        gone = segments.earliest
        for reader in self._reader_table.behind(number, gone):
            logger.warning(
                "%s: %d rows of partition %d are gone that reader %s has not acknowledged: they were %s",
                *(self.directory, gone - max(earliest, reader.ends.get(number, 0)), number, reader.name, reason),
            )

    # Writing: one task at a time writes the groups of all

    async def _wait_for(self, group: Appending) -> None:
        """Wait until a group is settled, or until it is this task's turn to write.

        A group being written can't be cancelled.
        """
        group.task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            if group not in self._pending:
                # A thread is writing it: the caller learns the outcome first and is cancelled then.
                return trio.lowlevel.Abort.FAILED
            self._pending.remove(group)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def _write_pending(self) -> None:
        self._is_writing = True
        groups: list[Appending] = []
        try:
            async with self._turn:
                self._check_closed()
                groups = self._take()
                results = await trio.to_thread.run_sync(self._write_groups, groups)
            for group, result in zip(groups, results, strict=True):
                group.settle(result)
        finally:
            # If the log was closed, or this task ends early, every waiting task is still woken.
            for group in groups:
                if group.begins is None:
                    group.settle(outcome.Error(RuntimeError("interrupted: nobody knows what was written")))
            for group in self._take() if self._closed else ():
                group.settle(outcome.Error(trio.ClosedResourceError("the log was closed")))
            self._hand_over()
        # Readers last: the writers of these records know their positions by then.
        for partition in {partition for group in groups for partition in group.elements}:
            self._readers[partition].wake_all()
        if self._is_time_to_retain():
            # Whoever wrote pays for what became needless: no task of the log could.
            await self._retain_and_log(compacts=True)

    def _take(self) -> list[Appending]:
        """Remove and return the groups to write now; the others wait on."""
        count = 1 if self._sync == "always" else len(self._pending)
        groups, self._pending = self._pending[:count], self._pending[count:]
        return groups

    def _hand_over(self) -> None:
        self._is_writing = bool(self._pending)
        if self._pending:
            # The woken task finds its group still pending and writes it with those that join until it runs.
            task, self._pending[0].task = self._pending[0].task, None
            assert task is not None
            trio.lowlevel.reschedule(task)

    async def _alone(self, function: Callable[[], object]) -> None:
        """Run a function in a thread while no task writes."""
        async with self._turn:
            await trio.to_thread.run_sync(function)

    def _write_groups(self, groups: Sequence[Appending]) -> list[outcome.Outcome[dict[int, int]]]:
        """Write what callers appended, in a thread: all at once, or each alone if that fails."""
        try:
            return [outcome.Value(begins) for begins in self._write_together(groups)]
        except Exception as error:
            # Raised in the task that appended: each caller gets the error of its own elements.
            if len(groups) == 1:
                return [outcome.Error(error)]
        return [result for group in groups for result in self._write_groups([group])]

    def _write_together(self, groups: Sequence[Appending]) -> list[dict[int, int]]:
        numbers = sorted({number for group in groups for number in group.elements})
        touched = [self._partitions[number] for number in numbers]
        begun: list[Segments] = []
        begins: list[dict[int, int]] = [{} for _ in groups]
        try:
            for segments in touched:
                segments.begin()
                begun.append(segments)
            for number, segments in zip(numbers, touched, strict=True):
                # All groups in one call, so that what came together is packed together.
                segments.write(in_order(groups, number, segments, begins))
            for segments in touched:
                segments.sync()
        except BaseException:
            for segments in begun:
                segments.roll_back()
            raise
        for segments in touched:
            segments.commit()
        return begins

    def _find(self, partition: int) -> Segments:
        self._check_closed()
        check_partition(partition, self._count)
        if not self._partitions:
            raise trio.ClosedResourceError("the log is not open: use it under 'async with'")
        return self._partitions[partition]

    def _check_closed(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the log was closed")


def in_order(
    groups: Sequence[Appending], partition: int, segments: Segments, begins: Sequence[dict[int, int]]
) -> Iterator[Element | Pack]:
    """Yield the elements of all groups for a partition, and note where each group begins."""
    for group, noted in zip(groups, begins, strict=True):
        elements = group.elements.get(partition)
        if elements is not None:
            check_begin(partition, group.at, segments.end)
            noted[partition] = segments.end
            yield from elements
