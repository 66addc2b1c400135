"""Staged attempts, in memory and on files: the rows that a task of a writer has sent and no commit has promoted.

An attempt on files is a file of rows and, once they are all on the disk, a note that describes them. A file of rows
without a note was left by a writer or a server that did not finish.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import attrs
import trio

from rsocket_trio.errors import Rejected
from rsocket_trio.replay.elements import Element, check_element
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.filesystem import FileSystem
from rsocket_trio.replay.log import READ_BYTES
from rsocket_trio.replay.memory_log import OVERHEAD
from rsocket_trio.replay.packs import Pack, pack_elements
from rsocket_trio.replay.segment_reader import read_block
from rsocket_trio.replay.segment_records import FORMER, LAYOUTS, PACKED, Damage, Layout, encode_record, records
from rsocket_trio.replay.segments import WRITE_BYTES

ROWS = ".rows"
NOTE = ".json"
NEW = ".new"


class StagedAttempt:
    """One attempt in memory: its rows are not in the log until a commit names it.

    ``charge`` counts bytes that are to be staged and raises ``Rejected`` if there is no room for them.
    ``rows``, ``elements`` and ``size`` (bytes) count its content so far, ``sealed`` says whether it is complete.
    """

    def __init__(self, charge: Callable[[int], None], sink: str, attempt: str, partition: int, deadline: float) -> None:
        self._charge = charge
        self.sink = sink
        self.attempt = attempt
        self.partition = partition
        self.deadline = deadline
        self.rows = self.elements = self.size = 0
        self.sealed = self.dropped = False
        self.share: Callable[[StagedAttempt], Awaitable[None]] | None = None
        """Shows the complete attempt to other servers, before it is sealed."""
        self._kept: list[Element | Pack] = []

    async def add(self, element: Element | Pack) -> None:
        """Stage one element, or a pack of many.

        Raise ``Rejected`` if there is no room for it or the attempt has expired, ``ValueError`` if it can't be a
        record, ``OSError`` if the disk is full.
        """
        if isinstance(element, Element):
            check_element(element)
        if self.dropped:
            raise Rejected(f"attempt {self.attempt} is staged no longer: it was too old, or was aborted")
        size = element.size + OVERHEAD
        self._charge(size)
        self.rows += element.count
        self.elements += 1
        self.size += size
        await self.keep(element)

    async def seal(self) -> None:
        """Mark the attempt as complete: from now on a commit may name it. Raise as ``add`` does."""
        await self.finish()
        if self.share is not None:
            await self.share(self)
        if self.dropped:
            raise Rejected(f"attempt {self.attempt} is staged no longer: it was too old, or was aborted")
        self.sealed = True

    # Storage of the rows: subclasses override these

    async def keep(self, element: Element | Pack) -> None:
        """Hold an element."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._kept.append(element)

    async def finish(self) -> None:
        """Make the held elements as durable as the ledger is."""
        await trio.lowlevel.checkpoint()

    def remove(self) -> None:
        """Drop the held elements. It runs in a place where it may block."""
        self._kept.clear()

    def content(self) -> Iterable[Element | Pack]:
        """Return the elements in order; they can be read more than once."""
        return self._kept


@attrs.frozen
class StagedRows:
    """The elements in a file of rows. To iterate blocks, and raises ``CorruptLog``."""

    path: Path
    layout: Layout
    size: int
    filesystem: FileSystem

    def __iter__(self) -> Iterator[Element | Pack]:
        fd = self.filesystem.open(self.path)
        offset = position = 0
        try:
            while offset < self.size:
                block = read_block(self.filesystem, fd, self.layout, offset, self.size, READ_BYTES)
                found = records(self.layout, block, offset, self.size, position)
                while True:
                    try:
                        record = next(found)
                    except StopIteration as stop:
                        offset, position = stop.value
                        break
                    yield record if isinstance(record, Pack) else record.element
        except Damage as damage:
            raise CorruptLog(self.path, damage.offset, damage.position, damage.reason) from None
        finally:
            self.filesystem.close(fd)


class FileStagedAttempt(StagedAttempt):
    """An attempt whose rows are on the disk once it is sealed; before, up to 1 MiB of them is in memory."""

    def __init__(
        self,
        charge: Callable[[int], None],
        sink: str,
        attempt: str,
        partition: int,
        deadline: float,
        directory: Path,
        filesystem: FileSystem,
    ) -> None:
        super().__init__(charge, sink, attempt, partition, deadline)
        self._filesystem = filesystem
        self._rows = directory / f"{attempt}{ROWS}"
        self._note = directory / f"{attempt}{NOTE}"
        self._buffer = bytearray()
        self._end = 0
        self._layout = PACKED
        self._fd = -1
        # An abort may come while a thread writes the rows.
        self._busy = threading.Lock()

    async def keep(self, element: Element | Pack) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        pack = element if isinstance(element, Pack) else pack_elements([element])
        encode_record(self._buffer, self.rows - element.count, pack, 0)
        if len(self._buffer) >= WRITE_BYTES:
            await trio.to_thread.run_sync(self._flush)

    async def finish(self) -> None:
        await trio.to_thread.run_sync(self._finish)

    def remove(self) -> None:
        with self._busy:
            self._close()
            # The note goes first: rows without a note are no attempt.
            self._filesystem.remove(self._note)
            self._filesystem.remove(self._note.with_suffix(NEW))
            self._filesystem.remove(self._rows)

    def content(self) -> Iterable[Element | Pack]:
        return StagedRows(self._rows, self._layout, self._end, self._filesystem)

    def _flush(self) -> None:
        with self._busy:
            if self.dropped:
                return
            if self._fd < 0:
                self._fd = self._filesystem.create(self._rows)
            self._filesystem.write_all(self._fd, self._buffer, self._end)
            self._end += len(self._buffer)
            self._buffer.clear()

    def _finish(self) -> None:
        self._flush()
        with self._busy:
            if not self.dropped:
                self._write_note()

    def _write_note(self) -> None:
        self._filesystem.sync(self._fd)
        self._close()
        note = {"sink": self.sink, "partition": self.partition, "rows": self.rows, "elements": self.elements}
        note |= {"bytes": self._end, "size": self.size, "layout": self._layout.name.decode()}
        new = self._note.with_suffix(NEW)
        fd = self._filesystem.create(new)
        try:
            self._filesystem.write_all(fd, json.dumps(note).encode(), 0)
            self._filesystem.sync(fd)
        finally:
            self._filesystem.close(fd)
        self._filesystem.rename(new, self._note)
        self._filesystem.sync_directory(self._note.parent)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._filesystem.close(fd)

    def restore(self) -> None:
        """Load an attempt that an earlier process sealed.

        Raise ``ValueError``, ``KeyError`` or ``TypeError`` for no note.
        """
        note = json.loads(self._note.read_bytes())
        self.sink, self.partition = note["sink"], note["partition"]
        self.rows, self.elements, self._end, self.size = (note[name] for name in ("rows", "elements", "bytes", "size"))
        # A note without the name of a layout is older than the second one.
        self._layout = LAYOUTS[note.get("layout", FORMER.name.decode()).encode()]
        self.sealed = True


def restored_attempts(
    directory: Path, filesystem: FileSystem, charge: Callable[[int], None], epoch: float
) -> Iterator[FileStagedAttempt]:
    """Yield the attempts that an earlier process sealed, and delete its other files.

    ``charge`` is theirs from now on. ``epoch`` is the clock's time, in seconds, of the deadline of an attempt that was
    sealed at Unix time 0.
    """
    for attempt, sealed in sealed_attempts(directory, filesystem):
        stage = FileStagedAttempt(charge, "", attempt, 0, epoch + sealed, directory, filesystem)
        try:
            stage.restore()
        except (ValueError, KeyError, TypeError):
            stage.remove()
            continue
        yield stage


def sealed_attempts(directory: Path, filesystem: FileSystem) -> Iterator[tuple[str, float]]:
    """Yield the attempts that an earlier process sealed, each with the Unix time of its seal; delete its other
    files."""
    notes = {path.stem: path for path in directory.glob(f"*{NOTE}")}
    for path in directory.iterdir():
        if path.suffix != NOTE and (path.suffix != ROWS or path.stem not in notes):
            filesystem.remove(path)
    for attempt, path in notes.items():
        yield attempt, path.stat().st_mtime


def remove_all(stages: Iterable[StagedAttempt]) -> None:
    """Drop the rows of attempts. This blocks."""
    for stage in stages:
        stage.remove()
