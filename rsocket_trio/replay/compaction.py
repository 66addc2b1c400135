"""Compaction: of the records with a key only the last stays, in new files that span the same positions.

A pass learns where the last record of each key is, in as many of the new records as its memory allows. Then it writes
anew the files in which others are, the oldest first, so that a record is never gone before all older ones of its key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import attrs

from rsocket_trio.replay.elements import LARGEST_COUNT, Record
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.filesystem import FileSystem
from rsocket_trio.replay.log import READ_BYTES
from rsocket_trio.replay.packs import (
    KEY,
    NO_TIME,
    PACK_BYTES,
    PACK_ROWS,
    SMALL_PACK,
    Columns,
    Pack,
    encode_rows,
    pack_records,
    read_columns,
    records_of,
)
from rsocket_trio.replay.segment_reader import Segment, read_block
from rsocket_trio.replay.segment_records import PACKED, Damage, encode_record, encode_segment_header, records

KEYS = 250_000
"""Keys that a pass has in memory: about 50 MiB. A pass ends where there are more, and the next goes on there."""
TOMBSTONE_US = 86_400_000_000
"""Microseconds for which a record without data, the last of its key, is kept: a day."""
SMALL_SHARE = 4
"""Files of less than this part of the size of a file are joined with their neighbours."""
WRITE_BYTES = 2**20
"""Bytes of records that are encoded before they are written."""
SUFFIX = ".segment"
NEW = ".new"
_NAME = re.compile(r"(\d{20})(?:-(\d{20})-(\d{6}))?", re.ASCII)


class Interrupted(Exception):
    """A pass ends early: the log is being closed, or a file was trimmed meanwhile. Nothing is lost by that."""


@attrs.frozen
class FileName:
    """The name of a segment file: its first position and, if it is compacted, its end and the number of passes."""

    first: int
    end: int | None = None
    generation: int = 0

    @classmethod
    def of(cls, path: Path) -> FileName | None:
        """Return what a name says, ``None`` for any other file's."""
        found = _NAME.fullmatch(path.stem)
        if found is None:
            return None
        return cls(int(found[1]), None if found[2] is None else int(found[2]), int(found[3] or 0))

    def __str__(self) -> str:
        if self.end is None:
            return f"{self.first:020}{SUFFIX}"
        return f"{self.first:020}-{self.end:020}-{self.generation:06}{SUFFIX}"

    def replaces(self, other: FileName) -> bool:
        """Return whether this file has the content of the other, compacted."""
        return self.end is not None and self.first <= other.first < self.end and self.generation > other.generation


def replaced_files(paths: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield the files whose content is in another one, each with that: the process died before it deleted them."""
    named = [(path, name) for path in paths if (name := FileName.of(path)) is not None]
    compacted = [(path, name) for path, name in named if name.end is not None]
    for path, name in named:
        for other, by in compacted:
            if by.replaces(name):
                yield path, other
                break


def packs_of(filesystem: FileSystem, segment: Segment) -> Iterator[Pack]:
    """Yield the packs of a closed file. Raise ``CorruptLog``, and ``Interrupted`` if it was deleted."""
    try:
        fd = filesystem.open(segment.path)
    except FileNotFoundError:
        if segment.is_gone:
            raise Interrupted from None
        raise CorruptLog(segment.path, 0, segment.first, "the file is missing") from None
    offset, position = segment.layout.header, segment.first
    try:
        while offset < segment.size:
            block = read_block(filesystem, fd, segment.layout, offset, segment.size, READ_BYTES)
            found = records(segment.layout, block, offset, segment.size, position)
            while True:
                try:
                    stored = next(found)
                except StopIteration as stop:
                    offset, position = stop.value
                    break
                if isinstance(stored, Pack):
                    yield stored
    except Damage as damage:
        raise CorruptLog(segment.path, damage.offset, damage.position, damage.reason) from None
    finally:
        filesystem.close(fd)


def has_keys(pack: Pack) -> bool:
    """Return whether any record of a pack has a key."""
    return bool(pack.data[4] & KEY)


def short(key: bytes) -> bytes:
    """Return what stands for a key in memory."""
    return key if len(key) < 16 else blake2b(key, digest_size=16).digest()


def keys_of(pack: Pack, columns: Columns) -> Iterator[tuple[int, bytes | None]]:
    """Yield the position of each record of a pack, and its key."""
    assert columns.key is not None
    for offset, key in zip(columns.starts(), columns.key.contents(pack.data), strict=True):
        yield pack.position + offset, None if key is None else short(key)


@attrs.define
class Group:
    """Neighbouring files that become one."""

    segments: list[Segment] = attrs.field(factory=list)
    dropped: int = 0
    size: float = 0.0


class Pass:
    """One pass over the closed ``segments`` of a partition, the oldest first; all of it blocks.

    Their records from ``start`` on are new since the pass before. ``end`` is the end of the last file, ``now`` the time
    in microseconds since 1970, ``is_stopped`` says whether to end early. Methods raise ``Interrupted`` then,
    ``CorruptLog`` and ``OSError``.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        segments: Sequence[Segment],
        start: int,
        end: int,
        now: int,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._filesystem = filesystem
        self._segments = [segment for segment in segments if segment.layout is PACKED]
        self._start = start
        self._is_stopped = is_stopped
        self._last: dict[bytes, int] = {}
        self._oldest_tombstone = now - TOMBSTONE_US
        self.covered = end
        """The position below which only the last records of the keys are left when the pass is done."""

    def learn(self) -> None:
        """Learn the last position of each key among the new records."""
        last = self._last
        for index, segment in enumerate(self._segments):
            if index + 1 < len(self._segments) and self._segments[index + 1].first <= self._start:
                continue
            for pack in self._packs(segment):
                if pack.end <= self._start or not has_keys(pack):
                    continue
                for position, key in keys_of(pack, read_columns(pack.data, check=False)):
                    if key is None:
                        continue
                    if len(last) >= KEYS and key not in last:
                        self.covered = position
                        return
                    last[key] = position

    def groups(self, segment_bytes: int) -> list[Group]:
        """Return the files to write anew, in groups of about ``segment_bytes`` once that is done."""
        found: list[Group] = []
        for segment in self._segments:
            if segment.first >= self.covered:
                break
            rows, dropped = self._survey(segment)
            left = segment.size * (1 - dropped / rows) if rows else 0.0
            if not found or found[-1].size + left > segment_bytes:
                found.append(Group())
            found[-1].segments.append(segment)
            found[-1].dropped += dropped
            found[-1].size += left
        return [group for group in found if group.dropped or is_all_small(group, segment_bytes)]

    def write_anew(self, group: Group, end: int) -> Segment:
        """Write the records of a group that stay to a new file, up to the position ``end``, and wait for the disk.

        Return it under its final name: it has that of a new file still, see ``fresh_path``.
        """
        first = group.segments[0]
        generation = 1 + max(segment.generation for segment in group.segments)
        path = first.path.with_name(str(FileName(first.first, end, generation)))
        made = Segment(path, first.first, first.time, generation=generation)
        new = fresh_path(made)
        self._filesystem.remove(new)
        fd = self._filesystem.create(new)
        try:
            made.size = self._write(Rewriter(self._filesystem, fd, made), group, end)
            made.walked = made.layout.header
            self._filesystem.sync(fd)
        except BaseException:
            # Raised again at once: no failed pass leaves a half-written file.
            self._filesystem.close(fd)
            self._filesystem.remove(new)
            raise
        self._filesystem.close(fd)
        return made

    def _write(self, out: Rewriter, group: Group, end: int) -> int:
        for segment in group.segments:
            for pack in self._packs(segment):
                stays = self._stays(pack)
                out.time = pack.timestamp
                if stays is None and pack.size >= SMALL_PACK:
                    out.copy(pack)
                    continue
                for index, record in enumerate(records_of(pack, check=False)):
                    if stays is None or stays[index]:
                        out.keep(record)
        return out.finish(end)

    def _packs(self, segment: Segment) -> Iterator[Pack]:
        for pack in packs_of(self._filesystem, segment):
            if self._is_stopped():
                raise Interrupted
            yield pack

    def _survey(self, segment: Segment) -> tuple[int, int]:
        """Return how many records a file has, and how many of them go."""
        rows = dropped = 0
        for pack in self._packs(segment):
            rows += pack.rows
            stays = self._stays(pack)
            dropped += 0 if stays is None else stays.count(False)
        return rows, dropped

    def _stays(self, pack: Pack) -> list[bool] | None:
        """Return for each record of a pack whether it stays, ``None`` if all do."""
        if not has_keys(pack) or pack.position >= self.covered:
            return None
        columns = read_columns(pack.data, check=False)
        times = columns.timestamp
        stays = []
        for index, (position, key) in enumerate(keys_of(pack, columns)):
            if key is None or position >= self.covered:
                stays.append(True)
            elif self._last.get(key, position) > position:
                stays.append(False)
            elif columns.data.lengths[index]:
                stays.append(True)
            else:
                time = pack.timestamp if times is None or times[index] == NO_TIME else times[index]
                stays.append(time is None or time >= self._oldest_tombstone)
        return None if all(stays) else stays


def is_all_small(group: Group, segment_bytes: int) -> bool:
    """Return whether the files of a group are several, and each is small."""
    return len(group.segments) > 1 and all(one.size * SMALL_SHARE < segment_bytes for one in group.segments)


def fresh_path(segment: Segment) -> Path:
    """Return the name of a compacted file until it takes the place of others."""
    return segment.path.with_suffix(NEW)


class Rewriter:
    """Writes records with gaps between them to ``fd``, the new file of ``segment``, in packs that span all positions.

    ``time`` is that of the last record that was read, in microseconds since 1970.
    """

    def __init__(self, filesystem: FileSystem, fd: int, segment: Segment) -> None:
        self._filesystem = filesystem
        self._fd = fd
        self._buffer = bytearray(encode_segment_header(segment.first, segment.time))
        self._written = 0
        self._position = segment.first
        self._rows: list[Record] = []
        self._size = 0
        self.time: int | None = segment.time

    def keep(self, record: Record) -> None:
        """Write a record."""
        size = record.element.size
        if self._rows and (self._size + size > PACK_BYTES or len(self._rows) >= PACK_ROWS):
            self._flush(self._rows[-1].end)
        if record.end - self._position > LARGEST_COUNT:
            self._flush(record.position)
        self._rows.append(record)
        self._size += size

    def copy(self, pack: Pack) -> None:
        """Write a pack as it is."""
        self._flush(pack.position)
        self._put(pack)

    def finish(self, end: int) -> int:
        """Write what is left, up to the position ``end``. Return the bytes of the file."""
        self._flush(end)
        self._write()
        return self._written

    def _flush(self, end: int) -> None:
        """Write the records that wait, and that there is nothing from them up to ``end``."""
        rows, self._rows, self._size = self._rows, [], 0
        if rows and end - self._position <= LARGEST_COUNT:
            rows.append(Record(end, b"", count=0))
        if rows:
            pack = pack_records(rows, self._position)
            times = [row.timestamp for row in rows if row.timestamp is not None]
            self._put(Pack(pack.data, pack.count, pack.position, max(times, default=self.time)))
        while self._position < end:
            count = min(end - self._position, LARGEST_COUNT)
            self._put(Pack(encode_rows((), (), with_times=False), count, self._position, self.time))

    def _put(self, pack: Pack) -> None:
        encode_record(self._buffer, pack.position, pack, 0)
        self._position = pack.end
        if len(self._buffer) >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        self._filesystem.write_all(self._fd, self._buffer, self._written)
        self._written += len(self._buffer)
        self._buffer.clear()
