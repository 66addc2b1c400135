"""An attempt on files: its rows, and beside them, once they are all there and safe, a note of what they are.

A file of rows without a note is what a writer, or a server, left behind that did not finish.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import trio

from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.layer import FileLayer
from rsocket_trio.replay.ledger import Ledger, Stage
from rsocket_trio.replay.log import READ_BYTES, Element
from rsocket_trio.replay.reading import FOREVER
from rsocket_trio.replay.records import Damage, encode_record, records
from rsocket_trio.replay.recovery import read_block
from rsocket_trio.replay.segments import WRITE_BYTES

ROWS = ".rows"
NOTE = ".json"
NEW = ".new"


@attrs.frozen
class StagedRows:
    """The elements in a file of rows. Reading them blocks, and raises ``CorruptLog``."""

    path: Path
    size: int
    layer: FileLayer

    def __iter__(self) -> Iterator[Element]:
        fd = self.layer.open(self.path)
        offset = position = 0
        try:
            while offset < self.size:
                block = read_block(self.layer, fd, offset, self.size, READ_BYTES)
                found = records(block, offset, self.size, position, position, FOREVER)
                while True:
                    try:
                        record = next(found)
                    except StopIteration as stop:
                        offset, position = stop.value
                        break
                    yield Element(record.data, record.metadata, record.count)
        except Damage as damage:
            raise CorruptLog(self.path, damage.offset, damage.position, damage.reason) from None
        finally:
            self.layer.close(fd)


class FileStage(Stage):
    """An attempt whose rows are on the disk once it is sealed; before, up to 1 MiB of them is in memory."""

    def __init__(
        self,
        ledger: Ledger,
        sink: str,
        attempt: str,
        partition: int,
        deadline: float,
        directory: Path,
        layer: FileLayer,
    ) -> None:
        super().__init__(ledger, sink, attempt, partition, deadline)
        self._layer = layer
        self._rows = directory / f"{attempt}{ROWS}"
        self._note = directory / f"{attempt}{NOTE}"
        self._buffer = bytearray()
        self._end = 0
        self._fd = -1
        # An abort may come while its rows are written.
        self._busy = threading.Lock()

    async def keep(self, element: Element) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        encode_record(self._buffer, self.rows - element.count, element, 0)
        if len(self._buffer) >= WRITE_BYTES:
            await trio.to_thread.run_sync(self._flush)

    async def finish(self) -> None:
        await trio.to_thread.run_sync(self._finish)

    def remove(self) -> None:
        with self._busy:
            self._close()
            # The note goes first: without it the rows are nothing.
            self._layer.remove(self._note)
            self._layer.remove(self._note.with_suffix(NEW))
            self._layer.remove(self._rows)

    def content(self) -> Iterable[Element]:
        return StagedRows(self._rows, self._end, self._layer)

    def _flush(self) -> None:
        with self._busy:
            if self.dropped:
                return
            if self._fd < 0:
                self._fd = self._layer.create(self._rows)
            self._layer.write_all(self._fd, self._buffer, self._end)
            self._end += len(self._buffer)
            self._buffer.clear()

    def _finish(self) -> None:
        self._flush()
        with self._busy:
            if not self.dropped:
                self._write_note()

    def _write_note(self) -> None:
        self._layer.sync(self._fd)
        self._close()
        note = {"sink": self.sink, "partition": self.partition, "rows": self.rows, "elements": self.elements}
        note |= {"bytes": self._end, "size": self.size}
        new = self._note.with_suffix(NEW)
        fd = self._layer.create(new)
        try:
            self._layer.write_all(fd, json.dumps(note).encode(), 0)
            self._layer.sync(fd)
        finally:
            self._layer.close(fd)
        self._layer.rename(new, self._note)
        self._layer.sync_directory(self._note.parent)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._layer.close(fd)

    def restore(self) -> None:
        """Take up what an earlier process sealed. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for no note."""
        note = json.loads(self._note.read_bytes())
        self.sink, self.partition = note["sink"], note["partition"]
        self.rows, self.elements, self._end, self.size = (note[name] for name in ("rows", "elements", "bytes", "size"))
        self.sealed = True


def sealed_attempts(directory: Path, layer: FileLayer) -> Iterator[tuple[str, float]]:
    """The attempts that an earlier process sealed, with the time of day; the rest of what it left is deleted."""
    notes = {path.stem: path for path in directory.glob(f"*{NOTE}")}
    for path in directory.iterdir():
        if path.suffix != NOTE and (path.suffix != ROWS or path.stem not in notes):
            layer.remove(path)
    for attempt, path in notes.items():
        yield attempt, path.stat().st_mtime
