"""Finds and reads records in the segment files of one partition, in any thread, while others are appended."""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterator
from pathlib import Path

import attrs

from rsocket_trio.replay.errors import CorruptLog, PositionAhead, PositionExpired
from rsocket_trio.replay.filesystem import FileSystem
from rsocket_trio.replay.log import READ_BYTES, Record
from rsocket_trio.replay.recovery import read_block
from rsocket_trio.replay.segment_records import SEGMENT_HEADER, Damage, heads, records

INDEX_BYTES = 16 * 2**10
"""Bytes between two places of a file whose positions are indexed."""
CURSORS = 1024
"""Readers whose place is remembered exactly."""
FOREVER = 2**63
"""A position beyond all others."""


@attrs.define(eq=False)
class Segment:
    """One file, and an index of places in it; ``walked`` is the offset up to which it is indexed."""

    path: Path
    first: int
    size: int = SEGMENT_HEADER
    positions: array[int] = attrs.field(factory=lambda: array("Q"))
    offsets: array[int] = attrs.field(factory=lambda: array("Q"))
    walked: int = SEGMENT_HEADER
    is_gone: bool = False

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
        return (SEGMENT_HEADER, self.first) if index < 0 else (self.offsets[index], self.positions[index])


@attrs.frozen
class View:
    """The committed content: the segments, the size of the last one in bytes, and the position where it ends."""

    segments: tuple[Segment, ...]
    size: int
    latest: int


class SegmentReader:
    """Reads one partition, and learns where its positions are."""

    def __init__(self, partition: int, filesystem: FileSystem) -> None:
        self._partition = partition
        self._filesystem = filesystem
        self._walking = threading.Lock()
        self._cursors: dict[int, tuple[Segment, int]] = {}

    def read(self, view: View, start: int, end: int | None, max_bytes: int) -> Iterator[Record]:
        """Return about ``max_bytes`` of committed records from ``start`` to below ``end``, decoded as they are
        taken."""
        if start < view.segments[0].first:
            raise PositionExpired.at(start, self._partition, view.segments[0].first)
        if start > view.latest:
            raise PositionAhead.at(start, self._partition, view.latest)
        if start == view.latest:
            return iter(())
        index = bisect_right(view.segments, start, key=lambda segment: segment.first) - 1
        segment = view.segments[index]
        if index + 1 < len(view.segments):
            limit, stop = segment.size, view.segments[index + 1].first
        else:
            limit, stop = view.size, view.latest
        try:
            fd = self._filesystem.open(segment.path)
        except FileNotFoundError:
            if segment.is_gone:
                raise PositionExpired.at(start, self._partition, view.segments[-1].first) from None
            raise CorruptLog(segment.path, 0, start, "the file is missing") from None
        try:
            offset, position = self._locate(fd, segment, start, limit)
            block = read_block(self._filesystem, fd, offset, limit, max_bytes)
        finally:
            self._filesystem.close(fd)
        return self._decoded(
            segment, block, (offset, limit), (position, stop), (start, FOREVER if end is None else end)
        )

    def _decoded(
        self, segment: Segment, block: bytes, place: tuple[int, int], known: tuple[int, int], wanted: tuple[int, int]
    ) -> Generator[Record, None, None]:
        (base, limit), (expected, stop) = place, known
        try:
            offset, position = yield from records(block, base, limit, expected, *wanted)
        except Damage as damage:
            raise CorruptLog(segment.path, damage.offset, damage.position, damage.reason) from None
        if offset == limit and position != stop:
            raise CorruptLog(segment.path, offset, position, f"the file ends, but its records go on to {stop}")
        if len(self._cursors) >= CURSORS:
            self._cursors.clear()
        self._cursors[position] = segment, offset

    def _locate(self, fd: int, segment: Segment, start: int, limit: int) -> tuple[int, int]:
        """Return a place from which the record that holds ``start`` is not far, as offset and position."""
        known = self._cursors.get(start)
        if known is not None and known[0] is segment and known[1] < limit:
            return known[1], start
        with self._walking:
            if segment.walked < limit:
                self._walk(fd, segment, start, limit)
        return segment.nearest(start)

    def _walk(self, fd: int, segment: Segment, start: int, limit: int) -> None:
        """Learn the places of a file up to a position."""
        offset, position = segment.nearest(FOREVER)
        while offset < limit and position < start:
            block = read_block(self._filesystem, fd, offset, limit, READ_BYTES)
            try:
                for head in heads(block, offset, limit, position, check=False):
                    segment.note(head.offset, head.position)
                    offset, position = head.stop, head.position + head.count
            except Damage:
                # A read from the last place before the damage will raise it.
                return
        segment.walked = max(segment.walked, offset)
