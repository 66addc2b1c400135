"""The records of one partition in a folder of segment files: appended at the end, read anywhere, trimmed in front.

All of it blocks, and the caller ensures that there is one writer at a time. Readers may read in other threads
meanwhile; they see committed records. A file is named after the position of its first record, and complete on the
disk before the next one begins, so that only the last one can have a torn tail.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import attrs

from rsocket_trio.replay.compaction import NEW, SUFFIX, FileName, Pass, fresh_path, replaced_files
from rsocket_trio.replay.elements import Clock, Element, Record, check_element, now_us
from rsocket_trio.replay.errors import CorruptLog, PositionExpired
from rsocket_trio.replay.filesystem import SYSTEM, FileSystem
from rsocket_trio.replay.log import READ_BYTES
from rsocket_trio.replay.packs import FOREVER, PACK_BYTES, PACK_ROWS, Pack, flattened, pack_elements, packed
from rsocket_trio.replay.segment_reader import ReplacedSegment, Segment, SegmentReader, View, recover_segment
from rsocket_trio.replay.segment_records import (
    FORMER,
    PACKED,
    Head,
    SegmentStart,
    Stored,
    decode_segment_header,
    encode_record,
    encode_segment_header,
)
from rsocket_trio.replay.taken_packs import as_taken

SEGMENT_BYTES = 32 * 2**20
"""Bytes of a file after which the next record begins a new one, by default."""
LARGEST_SEGMENT = 2**30
"""The largest ``segment_bytes``: offsets in a file fit into 32 bits."""
WRITE_BYTES = 2**20
"""Bytes of records that are encoded before they are written."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@attrs.define
class Mark:
    """The state when a write began, for ``roll_back``; sizes in bytes."""

    segments: int
    size: int
    end: int
    durable: int
    time: int | None
    began: int | None


class Segments:
    """The records of one partition.

    ``sync`` says whether a commit waits for the disk; ``first`` is the position where a new log begins, ``partition``
    the number that errors name. ``truncated`` is the number of bytes of a torn tail that were cut off at the opening:
    of records whose writer died before it was told that they are safe. ``clock`` gives the times of records. To open
    it raises ``CorruptLog`` for damage to what was safe, and ``OSError``.

    Elements that are written together become packs, so that a reader who asks for packs gets copies of the file.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync: bool = True,
        first: int = 0,
        partition: int = 0,
        filesystem: FileSystem = SYSTEM,
        clock: Clock = now_us,
    ) -> None:
        if not 1 <= segment_bytes <= LARGEST_SEGMENT:
            raise ValueError(f"segments of {segment_bytes} bytes: must be between 1 and {LARGEST_SEGMENT}")
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._filesystem = filesystem
        self._clock = clock
        self._time: int | None = None
        self._began: int | None = None
        self._compacted = 0
        self._reader = SegmentReader(partition, filesystem)
        self._broken: OSError | None = None
        self._mark: Mark | None = None
        self._fd = -1
        directory.mkdir(parents=True, exist_ok=True)
        self.truncated = 0
        self._segments = self._found()
        if self._segments:
            self._recover()
        else:
            self._end = first
            self._create(first)
        self._publish()

    # State

    @property
    def earliest(self) -> int:
        """Return the first position that can be read."""
        return self._view.segments[0].first

    @property
    def latest(self) -> int:
        """Return the next position that will be committed."""
        return self._view.latest

    @property
    def end(self) -> int:
        """Return the next position that will be written, committed or not."""
        return self._end

    @property
    def size(self) -> int:
        """Return bytes of all files."""
        view = self._view
        return sum(segment.size for segment in view.segments[:-1]) + view.size

    @property
    def files(self) -> int:
        """Return the number of files."""
        return len(self._view.segments)

    @property
    def failure(self) -> OSError | None:
        """Return the error after which nothing more is written, since the content of the disk is unknown."""
        return self._broken

    # Writing: begin, write, then commit or roll back

    def append(self, elements: Iterable[Element | Pack]) -> int:
        """Append all of these or nothing, and return the position of the first once they are safe.

        Raise ``OSError`` if there is no room, ``ValueError`` for an element that can't be a record.
        """
        position = self._end
        self.begin()
        try:
            self.write(elements)
            self.sync()
        except BaseException:
            self.roll_back()
            raise
        self.commit()
        return position

    def begin(self) -> None:
        """Begin a write: ``commit`` shows it to readers, ``roll_back`` undoes it."""
        if self._fd < 0:
            raise ValueError("the log is closed")
        if self._broken is not None:
            raise OSError(
                self._broken.errno, f"the log can't be written since a failure, open it anew: {self._broken}"
            ) from self._broken
        self._mark = Mark(
            len(self._segments), self._segments[-1].size, self._end, self._durable, self._time, self._began
        )

    def write(self, elements: Iterable[Element | Pack]) -> None:
        """Write elements and packs behind the last record. ``end`` moves with each that is taken from the iterable."""
        buffer = bytearray()
        gathered: list[Element] = []
        begin, size, now = self._end, 0, self._clock()
        for element in as_taken(elements):
            if isinstance(element, Pack):
                self._write_gathered(buffer, gathered, begin, now)
                gathered, size = [], 0
                begin = self._end
                self._end += element.count
                self._write_pack(buffer, begin, element, now if element.timestamp is None else element.timestamp)
                begin = self._end
                continue
            check_element(element)
            grown = size + element.size
            if gathered and (grown > PACK_BYTES or len(gathered) >= PACK_ROWS or self._is_full(buffer, size)):
                self._write_gathered(buffer, gathered, begin, now)
                gathered, grown = [], element.size
                begin = self._end
            gathered.append(element)
            size = grown
            self._end += element.count
        self._write_gathered(buffer, gathered, begin, now)
        self._flush(buffer)

    def _is_full(self, buffer: bytearray, size: int) -> bool:
        """Return whether so many bytes behind those in the buffer complete the file."""
        segment = self._segments[-1]
        return segment.size + len(buffer) + size + PACKED.record.size >= self._segment_bytes

    def _write_gathered(self, buffer: bytearray, elements: list[Element], begin: int, now: int) -> None:
        if elements:
            now = self._not_before(now)
            if any(element.timestamp is not None for element in elements):
                elements, now = self._in_time(elements, now)
            self._write_pack(buffer, begin, pack_elements(elements), now)

    def _in_time(self, elements: list[Element], now: int) -> tuple[list[Element], int]:
        """Return elements with timestamps, none of them before the last one, and the time of the last."""
        last, made = self._time or 0, []
        for element in elements:
            last = max(last, now if element.timestamp is None else element.timestamp)
            made.append(attrs.evolve(element, timestamp=last))
        return made, last

    def _not_before(self, now: int) -> int:
        # The clock of the machine may be set back; the times of records never go back.
        return now if self._time is None else max(now, self._time)

    def _write_pack(self, buffer: bytearray, begin: int, pack: Pack, now: int) -> None:
        segment = self._segments[-1]
        offset = segment.size + len(buffer)
        if segment.layout is not PACKED or (offset >= self._segment_bytes and offset > PACKED.header):
            self._flush(buffer)
            segment = self._roll(begin)
            offset = segment.size
        self._time = self._not_before(now)
        if offset == PACKED.header:
            self._began = self._time
        segment.note(offset, begin)
        encode_record(buffer, begin, Pack(pack.data, pack.count, begin, self._time), self._durable)
        if len(buffer) >= WRITE_BYTES:
            self._flush(buffer)

    def sync(self) -> None:
        """Wait until the written records are on the disk, unless the log was opened without ``sync``."""
        if self._sync:
            self._sync_file()
            self._durable = self._segments[-1].size

    def commit(self) -> None:
        """Show the written records to readers. Never raises."""
        self._mark = None
        self._publish()

    def roll_back(self) -> None:
        """Undo the writes since ``begin``. Never raises ``OSError``: if that fails, the log takes no more writes."""
        mark, self._mark = self._mark, None
        if mark is None:
            return
        self._end = mark.end
        self._durable = mark.durable
        self._time, self._began = mark.time, mark.began
        fresh, self._segments = self._segments[mark.segments :], self._segments[: mark.segments]
        segment = self._segments[-1]
        segment.size = mark.size
        segment.forget_from(mark.size)
        try:
            # The newest first: if this fails half-way, the files that are left have no gap.
            for late in reversed(fresh):
                self._filesystem.remove(late.path)
            if fresh:
                self._close_file()
                self._fd = self._filesystem.open(segment.path, writable=True)
            self._filesystem.truncate(self._fd, mark.size)
        except OSError as error:
            self._broken = error

    def give_up(self, error: OSError) -> None:
        """Take no more writes: the content of the disk is unknown."""
        self._broken = error

    def roll(self) -> None:
        """Begin a new file, if the last one holds a record."""
        if self._segments[-1].size > self._segments[-1].layout.header:
            self._roll()
            self._publish()

    def roll_at(self, size: int) -> None:
        """Begin new files at so many bytes, if that is less than before."""
        self._segment_bytes = min(self._segment_bytes, size)

    def roll_if_older(self, than: int) -> None:
        """Begin a new file if the last one has a record of an earlier time, in microseconds since 1970."""
        if self._began is not None and self._began < than and self._broken is None:
            self.roll()

    def older(self, than: int) -> int:
        """Return the position below which all files hold only records of earlier times, in microseconds since 1970.

        A file without times is as old as its last change.
        """
        segments = self._segments
        if last_time(segments[-1], self._time) < than:
            return self._end
        position = segments[0].first
        for segment, after in pairwise(segments):
            if last_time(segment, after.time) >= than:
                break
            position = after.first
        return position

    @property
    def droppable_bytes(self) -> int:
        """Return the bytes of all files, 0 if there is only one."""
        return self.size if len(self._view.segments) > 1 else 0

    def second(self) -> int | None:
        """Return the position where the second file begins, ``None`` without one."""
        segments = self._view.segments
        return segments[1].first if len(segments) > 1 else None

    def has_whole_files_below(self, position: int) -> bool:
        """Return whether ``trim`` would drop anything."""
        view = self._view
        if position >= view.latest:
            return len(view.segments) > 1 or view.size > view.segments[-1].layout.header
        return len(view.segments) > 1 and view.segments[1].first <= position

    def trim(self, before: int) -> int:
        """Delete the files that hold no record from ``before`` on. Return the number of bytes freed.

        The last file is replaced by an empty one if all its records are below.
        """
        if before >= self._end and self._broken is None:
            try:
                self.roll()
            except OSError:
                # No room even for an empty file: deleting the others makes some.
                pass
        count = 0
        while count + 1 < len(self._segments) and self._segments[count + 1].first <= before:
            count += 1
        gone, self._segments = self._segments[:count], self._segments[count:]
        self._publish()
        for segment in gone:
            segment.is_gone = True
        for index, segment in enumerate(gone):
            try:
                self._filesystem.remove(segment.path)
            except OSError:
                self._take_back(gone[index:])
                raise
        if gone:
            self._filesystem.sync_directory(self._directory)
        return sum(segment.size for segment in gone)

    def _take_back(self, segments: list[Segment]) -> None:
        """Keep files that can't be deleted, to be deleted later."""
        for segment in segments:
            segment.is_gone = False
        self._segments[:0] = segments
        self._publish()

    def close(self) -> None:
        """Close the file. Do nothing the second time."""
        self._close_file()

    # Reading

    def read(self, start: int, end: int | None = None, max_bytes: int = READ_BYTES) -> Iterator[Record]:
        """Return about ``max_bytes`` of records from ``start`` to below ``end``: read now, decoded as they are taken.

        At least one, unless nothing is there yet. Raise ``PositionExpired`` and ``PositionAhead``, and ``CorruptLog``
        also while they are taken.
        """
        stored = self._stored(start, end, max_bytes)
        return flattened(stored, start, FOREVER if end is None else end)

    def read_packs(self, start: int, end: int | None = None, max_bytes: int = READ_BYTES) -> Iterator[Pack]:
        """Return the same in packs, the first from ``start`` on. Raise as ``read`` does."""
        stored = self._stored(start, end, max_bytes)
        return packed(stored, start, FOREVER if end is None else end)

    def _stored(self, start: int, end: int | None, max_bytes: int) -> Iterator[Stored]:
        while True:
            with suppress(ReplacedSegment):
                return self._reader.read(self._view, start, end, max_bytes)

    def position_at(self, timestamp: int) -> int:
        """Return the position of the first row of this time, in microseconds since 1970, or a later one.

        That is the end where there is none. Raise ``CorruptLog``.
        """
        while True:
            with suppress(ReplacedSegment, PositionExpired):
                return self._reader.position_at(self._view, timestamp)

    # Compaction: a pass runs while records are appended, ``replace`` while none are

    @property
    def has_gaps(self) -> bool:
        """Return whether some file was compacted."""
        return any(segment.generation for segment in self._view.segments)

    def compaction(self, now: int, is_stopped: Callable[[], bool], *, in_full: bool) -> Pass | None:
        """Return a pass over the closed files, ``None`` if none is new.

        ``now`` is in microseconds since 1970, ``is_stopped`` ends a pass early. Unless ``in_full``, the new ones have
        to be half as large as the others, so that the work is in proportion to what is appended.
        """
        closed, end = self._view.segments[:-1], self._view.segments[-1].first
        fresh = sum(segment.size for segment in closed if segment.first >= self._compacted)
        if end <= self._compacted or (not in_full and fresh * 2 < sum(one.size for one in closed) - fresh):
            return None
        return Pass(self._filesystem, closed, self._compacted, end, now, is_stopped)

    def compacted(self, position: int) -> None:
        """Note that a pass has compacted all records below a position."""
        self._compacted = position

    @property
    def segment_bytes(self) -> int:
        """Return the bytes of a file after which a new one begins."""
        return self._segment_bytes

    def end_of(self, segments: list[Segment]) -> int | None:
        """Return the position behind neighbouring closed files, ``None`` if some are gone."""
        known = self._view.segments
        for index, segment in enumerate(known[: -len(segments)]):
            if segment is segments[0]:
                same = all(one is other for one, other in zip(known[index:], segments, strict=False))
                return known[index + len(segments)].first if same else None
        return None

    def replace(self, segments: list[Segment], made: Segment) -> None:
        """Put a compacted file in the place of others, if they are still there. Readers that are in them read on."""
        if self.end_of(segments) is None:
            self._filesystem.remove(fresh_path(made))
            return
        try:
            self._filesystem.rename(fresh_path(made), made.path)
            self._filesystem.sync_directory(self._directory)
        except OSError:
            self._filesystem.remove(fresh_path(made))
            raise
        index = self._segments.index(segments[0])
        self._segments[index : index + len(segments)] = [made]
        self._publish()
        # Only now: a reader that finds no file any more finds the new one in the view.
        for segment in segments:
            segment.is_replaced = True
        for segment in segments:
            self._filesystem.remove(segment.path)

    # Files

    def _found(self) -> list[Segment]:
        """Return the segments of the folder, oldest first, without one whose writer died before it had a header."""
        self._clean_up()
        paths = sorted(self._directory.glob(f"*{SUFFIX}"))
        found = []
        for path in paths:
            size = path.stat().st_size
            try:
                start = self._start(path)
            except ValueError as error:
                if path is paths[-1] and size <= PACKED.header:
                    self.truncated += size
                    self._filesystem.remove(path)
                    break
                raise damaged_start(path, error) from None
            name = FileName.of(path)
            generation = 0 if name is None else name.generation
            found.append(Segment(path, start.first, start.time, start.layout, size, generation=generation))
        return found

    def _clean_up(self) -> None:
        """Delete what a compaction has left behind whose process died."""
        for path in self._directory.glob(f"*{NEW}"):
            self._filesystem.remove(path)
        for path, other in list(replaced_files(sorted(self._directory.glob(f"*{SUFFIX}")))):
            try:
                self._start(other)
            except ValueError as error:
                raise damaged_start(other, error) from None
            self._filesystem.remove(path)

    def _start(self, path: Path) -> SegmentStart:
        fd = self._filesystem.open(path)
        try:
            start = decode_segment_header(self._filesystem.read(fd, PACKED.header, 0))
        finally:
            self._filesystem.close(fd)
        name = FileName.of(path)
        if name is None or name.first != start.first:
            raise ValueError(f"it begins at position {start.first}, not where its name says")
        return start

    def _recover(self) -> None:
        segment = self._segments[-1]
        self._time = segment.time
        self._fd = self._filesystem.open(segment.path, writable=True)
        try:
            size, self._end = recover_segment(
                self._filesystem, self._fd, segment.path, segment.layout, segment.first, self._note
            )
            self.truncated += segment.size - size
            self._filesystem.truncate(self._fd, size)
            self._filesystem.sync(self._fd)
        except BaseException:
            self._close_file()
            raise
        segment.size = segment.walked = self._durable = size
        if segment.layout is FORMER and size == FORMER.header:
            # A file without a record would have the name of the new one that follows it.
            self._replace_empty(segment)

    def _note(self, head: Head) -> None:
        self._segments[-1].note(head.offset, head.position)
        if head.time is not None:
            self._time = head.time
            self._began = self._began or head.time

    def _replace_empty(self, segment: Segment) -> None:
        fresh = segment.path.with_suffix(NEW)
        self._filesystem.remove(fresh)
        fd = self._filesystem.create(fresh)
        try:
            self._filesystem.write_all(fd, encode_segment_header(segment.first, None), 0)
            self._filesystem.sync(fd)
            self._filesystem.rename(fresh, segment.path)
            self._filesystem.sync_directory(self._directory)
        except BaseException:
            # Raised again at once: the log does not open, so both descriptors are closed here.
            self._filesystem.close(fd)
            self._close_file()
            raise
        self._close_file()
        self._fd = fd
        self._segments[-1] = Segment(segment.path, segment.first)
        self._durable = PACKED.header

    def _create(self, first: int) -> Segment:
        segment = Segment(self._directory / f"{first:020}{SUFFIX}", first, self._time)
        fd = self._filesystem.create(segment.path)
        try:
            self._filesystem.write_all(fd, encode_segment_header(first, self._time), 0)
            self._filesystem.sync(fd)
            self._filesystem.sync_directory(self._directory)
        except BaseException:
            self._filesystem.close(fd)
            self._filesystem.remove(segment.path)
            raise
        self._close_file()
        self._fd = fd
        self._durable = PACKED.header
        self._began = None
        self._segments.append(segment)
        return segment

    def _roll(self, first: int | None = None) -> Segment:
        self._sync_file()
        return self._create(self._end if first is None else first)

    def _sync_file(self) -> None:
        try:
            self._filesystem.sync(self._fd)
        except OSError as error:
            if error.errno not in NO_ROOM:
                # The content of the disk is unknown now, and a second sync would not tell.
                self._broken = error
            raise

    def _flush(self, buffer: bytearray) -> None:
        if buffer:
            segment = self._segments[-1]
            self._filesystem.write_all(self._fd, buffer, segment.size)
            segment.size += len(buffer)
            segment.walked = segment.size
            buffer.clear()

    def _publish(self) -> None:
        # One assignment: readers in other threads see the old view or the new one.
        self._view = View(tuple(self._segments), self._segments[-1].size, self._end)

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._filesystem.close(fd)


def last_time(segment: Segment, known: int | None) -> int:
    """Return the time of the last record, or of the last change of a file without times, in microseconds since 1970."""
    return int(segment.path.stat().st_mtime * 1e6) if known is None else known


def damaged_start(path: Path, error: ValueError) -> CorruptLog:
    """Return the error for a file without a valid header."""
    name = FileName.of(path)
    return CorruptLog(path, 0, 0 if name is None else name.first, str(error))
