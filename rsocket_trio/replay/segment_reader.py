"""Reads the segment files of one partition, in any thread, while records are appended, and after their writer died."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import attrs

from rsocket_trio.replay.errors import CorruptLog, PositionAhead, PositionExpired
from rsocket_trio.replay.filesystem import FileSystem
from rsocket_trio.replay.log import READ_BYTES
from rsocket_trio.replay.packs import FOREVER, Pack, records_of
from rsocket_trio.replay.segment_records import (
    PACKED,
    Damage,
    Head,
    Layout,
    Stored,
    heads,
    missing,
    records,
    skipped,
    was_durable,
)

BLOCK = 2**20
"""Bytes that are read at a time."""
INDEX_BYTES = 16 * 2**10
"""Bytes between two places of a file whose positions are indexed."""
CURSORS = 1024
"""Readers whose place is remembered exactly."""


class ReplacedSegment(Exception):
    """The file was compacted meanwhile: a newer view has another one."""


@attrs.define(eq=False)
class Segment:
    """One file, and an index of places in it; ``walked`` is the offset up to which it is indexed.

    ``time`` is the last time before its first record, in microseconds since 1970. ``generation`` counts how often its
    records were compacted. It ``is_gone`` once it was trimmed, and ``is_replaced`` once another has its records.
    """

    path: Path
    first: int
    time: int | None = None
    layout: Layout = PACKED
    size: int = attrs.field(default=attrs.Factory(lambda self: self.layout.header, takes_self=True))
    positions: array[int] = attrs.field(factory=lambda: array("Q"))
    offsets: array[int] = attrs.field(factory=lambda: array("Q"))
    walked: int = attrs.field(default=attrs.Factory(lambda self: self.layout.header, takes_self=True))
    is_gone: bool = False
    is_replaced: bool = False
    generation: int = 0

    def note(self, offset: int, position: int) -> None:
        """Remember a place, if it is far enough from the one before."""
        if not self.offsets or offset - self.offsets[-1] >= INDEX_BYTES:
            # In this order, so that a reader in another thread finds an offset for every position.
            self.offsets.append(offset)
            self.positions.append(position)

    def forget_from(self, offset: int) -> None:
        """Forget the places from an offset on."""
        while self.offsets and self.offsets[-1] >= offset:
            self.positions.pop()
            self.offsets.pop()
        self.walked = min(self.walked, offset)

    def nearest(self, position: int) -> tuple[int, int]:
        """Return the last known place at or before a position: its offset and position."""
        index = bisect_right(self.positions, position) - 1
        return (self.layout.header, self.first) if index < 0 else (self.offsets[index], self.positions[index])


@attrs.frozen
class View:
    """The committed content: the segments, the size of the last one in bytes, and the position where it ends."""

    segments: tuple[Segment, ...]
    size: int
    latest: int

    def limits(self, index: int) -> tuple[int, int]:
        """Return where a segment ends: its bytes and the position behind it."""
        if index + 1 < len(self.segments):
            return self.segments[index].size, self.segments[index + 1].first
        return self.size, self.latest


class SegmentReader:
    """Reads one partition, and learns where its positions are."""

    def __init__(self, partition: int, filesystem: FileSystem) -> None:
        self._partition = partition
        self._filesystem = filesystem
        self._walking = threading.Lock()
        self._cursors: dict[int, tuple[Segment, int]] = {}

    def read(self, view: View, start: int, end: int | None, max_bytes: int) -> Iterator[Stored]:
        """Return about ``max_bytes`` of committed records from ``start`` to below ``end``, decoded as they are taken.

        Raise ``ReplacedSegment`` if ``view`` is too old.
        """
        if start < view.segments[0].first:
            raise PositionExpired.at(start, self._partition, view.segments[0].first)
        if start > view.latest:
            raise PositionAhead.at(start, self._partition, view.latest)
        if start == view.latest:
            return iter(())
        index = bisect_right(view.segments, start, key=lambda segment: segment.first) - 1
        segment = view.segments[index]
        limit, stop = view.limits(index)
        fd = self._open(view, segment, start)
        try:
            offset, position = self._locate(fd, segment, start, limit)
            block = read_block(self._filesystem, fd, segment.layout, offset, limit, max_bytes)
        finally:
            self._filesystem.close(fd)
        return self._decoded(
            segment, block, (offset, limit), (position, stop), (start, FOREVER if end is None else end)
        )

    def position_at(self, view: View, timestamp: int) -> int:
        """Return the position of the first committed row of this time or a later one; the end where there is none.

        Raise ``CorruptLog``, and ``ReplacedSegment`` if ``view`` is too old.
        """
        # The first file that begins after a row of this time or a later one; the row is in the file before.
        later = (index for index, one in enumerate(view.segments) if one.time is not None and one.time >= timestamp)
        index = max(next(later, len(view.segments)) - 1, 0)
        segment = view.segments[index]
        limit, stop = view.limits(index)
        fd = self._open(view, segment, segment.first)
        try:
            offset, position = segment.layout.header, segment.first
            while offset < limit:
                block = read_block(self._filesystem, fd, segment.layout, offset, limit, READ_BYTES)
                for head in heads(segment.layout, block, offset, limit, position, check=False):
                    if head.time is not None and head.time >= timestamp:
                        return self._row_at(segment, fd, head, limit, timestamp)
                    offset, position = head.stop, head.end
        except Damage as damage:
            raise CorruptLog(segment.path, damage.offset, damage.position, damage.reason) from None
        finally:
            self._filesystem.close(fd)
        return stop

    def _row_at(self, segment: Segment, fd: int, head: Head, limit: int, timestamp: int) -> int:
        block = self._filesystem.read(fd, head.stop - head.offset, head.offset)
        for stored in records(segment.layout, block, head.offset, limit, head.position):
            for record in records_of(stored) if isinstance(stored, Pack) else (stored,):
                if record.timestamp is not None and record.timestamp >= timestamp:
                    return record.position
        return head.end

    def _open(self, view: View, segment: Segment, position: int) -> int:
        try:
            return self._filesystem.open(segment.path)
        except FileNotFoundError:
            if segment.is_replaced:
                raise ReplacedSegment from None
            if segment.is_gone:
                raise PositionExpired.at(position, self._partition, view.segments[-1].first) from None
            raise CorruptLog(segment.path, 0, position, "the file is missing") from None

    def _decoded(
        self, segment: Segment, block: bytes, place: tuple[int, int], known: tuple[int, int], wanted: tuple[int, int]
    ) -> Generator[Stored, None, None]:
        (base, limit), (expected, stop) = place, known
        try:
            offset, position = yield from records(segment.layout, block, base, limit, expected, *wanted)
        except Damage as damage:
            raise CorruptLog(segment.path, damage.offset, damage.position, damage.reason) from None
        if offset == limit and position != stop:
            raise CorruptLog(segment.path, offset, position, f"the file ends, but its records go on to {stop}")
        if len(self._cursors) >= CURSORS:
            self._cursors.clear()
        self._cursors[position] = segment, offset

    def _locate(self, fd: int, segment: Segment, start: int, limit: int) -> tuple[int, int]:
        """Return the place of the record that holds ``start``, as offset and position; that of one before it if those
        between them are damaged.
        """
        known = self._cursors.get(start)
        if known is not None and known[0] is segment and known[1] < limit:
            return known[1], start
        with self._walking:
            if segment.walked < limit:
                self._walk(fd, segment, start, limit)
        offset, position = segment.nearest(start)
        if position < start:
            size = min(INDEX_BYTES + segment.layout.record.size, limit - offset)
            found = skipped(segment.layout, self._filesystem.read(fd, size, offset), position, start)
            if found is not None:
                return offset + found[0], found[1]
        return offset, position

    def _walk(self, fd: int, segment: Segment, start: int, limit: int) -> None:
        """Learn the places of a file up to a position."""
        offset, position = segment.nearest(FOREVER)
        while offset < limit and position < start:
            block = read_block(self._filesystem, fd, segment.layout, offset, limit, READ_BYTES)
            try:
                for head in heads(segment.layout, block, offset, limit, position, check=False):
                    segment.note(head.offset, head.position)
                    offset, position = head.stop, head.end
            except Damage:
                # A read from the last place before the damage will raise it.
                return
        segment.walked = max(segment.walked, offset)


def recover_segment(
    filesystem: FileSystem, fd: int, path: Path, layout: Layout, first: int, note: Callable[[Head], None]
) -> tuple[int, int]:
    """Return the size of the whole records of a segment in bytes, and the position behind them.

    ``note`` is called with the head of each. The bytes behind them are a torn tail that may be cut off.
    Raise ``CorruptLog`` if a later record says that the damaged one was on the disk once.
    """
    offset, position = layout.header, first
    size = filesystem.size(fd)
    while offset < size:
        block = read_block(filesystem, fd, layout, offset, size, BLOCK)
        try:
            for head in heads(layout, block, offset, size, position, check=True):
                note(head)
                offset, position = head.stop, head.end
        except Damage as damage:
            tail = filesystem.read(fd, size - damage.offset, damage.offset)
            if was_durable(layout, tail, damage.offset, damage.offset, damage.position):
                raise CorruptLog(path, damage.offset, damage.position, damage.reason) from None
            return offset, position
    return offset, position


def read_block(filesystem: FileSystem, fd: int, layout: Layout, offset: int, limit: int, size: int) -> bytes:
    """Return about ``size`` bytes of a file from an offset on, but the whole first record, if ``limit`` does not cut
    it."""
    left = limit - offset
    block = filesystem.read(fd, min(size, left), offset)
    while more := missing(layout, block, left):
        longer = filesystem.read(fd, more, offset)
        if len(longer) <= len(block):
            break
        block = longer
    return block
