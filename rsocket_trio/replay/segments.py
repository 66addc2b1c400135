"""The records of one partition in a folder of segment files: appended at the end, read anywhere, trimmed in front.

Synchronous, and for one writer at a time: who calls it makes sure of both. Readers may read in other threads
meanwhile; they see what was committed. A file is named after the position of its first record, and complete on the
disk before the next one begins, so that only the last one can have a torn tail.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.layer import SYSTEM, FileLayer
from rsocket_trio.replay.log import READ_BYTES, Element, Record, check_element
from rsocket_trio.replay.reading import Segment, SegmentReader, View
from rsocket_trio.replay.records import (
    SEGMENT_HEADER,
    decode_segment_header,
    encode_record,
    encode_segment_header,
)
from rsocket_trio.replay.recovery import recover_segment

SEGMENT_BYTES = 32 * 2**20
LARGEST_SEGMENT = 2**30
WRITE_BYTES = 2**20
"""Bytes of records that are encoded before they are written."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
SUFFIX = ".segment"


@attrs.define
class Mark:
    """Where a write began, to go back to."""

    segments: int
    size: int
    end: int
    durable: int


class Segments:
    """The records of one partition.

    ``sync`` says whether a commit waits for the disk; ``first`` is the position where a new log begins, ``partition``
    the number that errors name. ``truncated`` is how many bytes of a torn tail were cut off
    when it was opened: of records whose writer died before it was told that they are safe. Opening raises
    ``CorruptLog`` for damage to what was safe, and ``OSError``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        sync: bool = True,
        first: int = 0,
        partition: int = 0,
        layer: FileLayer = SYSTEM,
    ) -> None:
        if not 1 <= segment_bytes <= LARGEST_SEGMENT:
            raise ValueError(f"segments of {segment_bytes} bytes: must be between 1 and {LARGEST_SEGMENT}")
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._layer = layer
        self._reader = SegmentReader(partition, layer)
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

    # What it holds

    @property
    def earliest(self) -> int:
        """The first position that can be read."""
        return self._view.segments[0].first

    @property
    def latest(self) -> int:
        """The next position that will be committed."""
        return self._view.latest

    @property
    def end(self) -> int:
        """The next position that will be written, committed or not."""
        return self._end

    @property
    def size(self) -> int:
        """Bytes of all files."""
        view = self._view
        return sum(segment.size for segment in view.segments[:-1]) + view.size

    @property
    def failure(self) -> OSError | None:
        """Why nothing more is written: it is not known what is on the disk."""
        return self._broken

    # Writing: begin, write, then commit or roll back

    def append(self, elements: Iterable[Element]) -> int:
        """Append all of these or nothing, and return the position of the first once they are safe.

        Raises ``OSError`` where there is no room, ``ValueError`` for what can't be a record.
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
        """What is written from now on is seen by readers with ``commit``, and is undone by ``roll_back``."""
        if self._fd < 0:
            raise ValueError("the log is closed")
        if self._broken is not None:
            raise OSError(
                self._broken.errno, f"the log can't be written since a failure, open it anew: {self._broken}"
            ) from self._broken
        self._mark = Mark(len(self._segments), self._segments[-1].size, self._end, self._durable)

    def write(self, elements: Iterable[Element]) -> None:
        """Write records behind the last."""
        buffer = bytearray()
        segment = self._segments[-1]
        for element in elements:
            check_element(element)
            offset = segment.size + len(buffer)
            if offset >= self._segment_bytes and offset > SEGMENT_HEADER:
                self._flush(buffer)
                segment = self._roll()
                offset = segment.size
            segment.note(offset, self._end)
            encode_record(buffer, self._end, element, self._durable)
            self._end += element.count
            if len(buffer) >= WRITE_BYTES:
                self._flush(buffer)
        self._flush(buffer)

    def sync(self) -> None:
        """Wait until what was written is on the disk, where that was asked for."""
        if self._sync:
            self._sync_file()
            self._durable = self._segments[-1].size

    def commit(self) -> None:
        """Show readers what was written. Never raises."""
        self._mark = None
        self._publish()

    def roll_back(self) -> None:
        """Undo what was written since ``begin``. Never raises ``OSError``: where that fails too, the log is broken."""
        mark, self._mark = self._mark, None
        if mark is None:
            return
        self._end = mark.end
        self._durable = mark.durable
        fresh, self._segments = self._segments[mark.segments :], self._segments[: mark.segments]
        segment = self._segments[-1]
        segment.size = mark.size
        segment.forget_from(mark.size)
        try:
            # The newest first: should this end half-way, what is left has no gap.
            for late in reversed(fresh):
                self._layer.remove(late.path)
            if fresh:
                self._close_file()
                self._fd = self._layer.open(segment.path, writable=True)
            self._layer.truncate(self._fd, mark.size)
        except OSError as error:
            self._broken = error

    def give_up(self, error: OSError) -> None:
        """Take no more writes: what is on the disk is not known."""
        self._broken = error

    def roll(self) -> None:
        """Begin a new file, if the last one holds a record."""
        if self._segments[-1].size > SEGMENT_HEADER:
            self._roll()
            self._publish()

    def trim(self, before: int) -> int:
        """Delete the files that hold nothing from ``before`` on; how many bytes that freed.

        The last file is replaced by an empty one when everything in it is below.
        """
        if before >= self._end and self._broken is None:
            try:
                self.roll()
            except OSError:
                # Where not even an empty file has room, to delete the others is what helps.
                pass
        count = 0
        while count + 1 < len(self._segments) and self._segments[count + 1].first <= before:
            count += 1
        gone, self._segments = self._segments[:count], self._segments[count:]
        self._publish()
        for segment in gone:
            segment.is_gone = True
            self._layer.remove(segment.path)
        if gone:
            self._layer.sync_directory(self._directory)
        return sum(segment.size for segment in gone)

    def close(self) -> None:
        """Close the file. Does nothing the second time."""
        self._close_file()

    # Reading

    def read(self, start: int, end: int | None = None, max_bytes: int = READ_BYTES) -> Iterator[Record]:
        """About ``max_bytes`` of records from ``start`` to below ``end``: read now, decoded as they are taken.

        At least one, unless nothing is there yet. Raises ``PositionExpired`` and ``PositionAhead``, and ``CorruptLog``
        also while they are taken.
        """
        return self._reader.read(self._view, start, end, max_bytes)

    # Files

    def _found(self) -> list[Segment]:
        """The segments of the folder, oldest first, without one whose writer died before it had a header."""
        paths = sorted(self._directory.glob(f"*{SUFFIX}"))
        found = []
        for path in paths:
            size = path.stat().st_size
            try:
                first = self._first(path)
            except ValueError as error:
                if path is paths[-1] and size <= SEGMENT_HEADER:
                    self.truncated += size
                    self._layer.remove(path)
                    break
                raise CorruptLog(path, 0, int(path.stem) if path.stem.isdigit() else 0, str(error)) from None
            found.append(Segment(path, first, size))
        return found

    def _first(self, path: Path) -> int:
        fd = self._layer.open(path)
        try:
            first = decode_segment_header(self._layer.read(fd, SEGMENT_HEADER, 0))
        finally:
            self._layer.close(fd)
        if path.stem != f"{first:020}":
            raise ValueError(f"it begins at position {first}, not where its name says")
        return first

    def _recover(self) -> None:
        segment = self._segments[-1]
        self._fd = self._layer.open(segment.path, writable=True)
        try:
            size, self._end = recover_segment(self._layer, self._fd, segment.path, segment.first, segment.note)
            self.truncated += segment.size - size
            self._layer.truncate(self._fd, size)
            self._layer.sync(self._fd)
        except BaseException:
            self._close_file()
            raise
        segment.size = segment.walked = self._durable = size

    def _create(self, first: int) -> Segment:
        segment = Segment(self._directory / f"{first:020}{SUFFIX}", first)
        fd = self._layer.create(segment.path)
        try:
            self._layer.write_all(fd, encode_segment_header(first), 0)
            self._layer.sync(fd)
            self._layer.sync_directory(self._directory)
        except BaseException:
            self._layer.close(fd)
            self._layer.remove(segment.path)
            raise
        self._close_file()
        self._fd = fd
        self._durable = SEGMENT_HEADER
        self._segments.append(segment)
        return segment

    def _roll(self) -> Segment:
        self._sync_file()
        return self._create(self._end)

    def _sync_file(self) -> None:
        try:
            self._layer.sync(self._fd)
        except OSError as error:
            if error.errno not in NO_ROOM:
                # What is on the disk is not known now, and a second sync would not tell.
                self._broken = error
            raise

    def _flush(self, buffer: bytearray) -> None:
        if buffer:
            segment = self._segments[-1]
            self._layer.write_all(self._fd, buffer, segment.size)
            segment.size += len(buffer)
            segment.walked = segment.size
            buffer.clear()

    def _publish(self) -> None:
        self._view = View(tuple(self._segments), self._segments[-1].size, self._end)

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._layer.close(fd)
