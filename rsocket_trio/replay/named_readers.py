"""Named readers of a log: how far each has acknowledged, so that nothing is dropped before all of them have it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs
import trio

from rsocket_trio.errors import Rejected, readable
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.filesystem import FileSystem
from rsocket_trio.values import value

NEW = ".new"
READERS = 1000
"""Named readers of a log, at most."""
logger = logging.getLogger("rsocket_trio.replay")
_NAME = re.compile(r"[0-9A-Za-z._-]{1,64}", re.ASCII)


@value
class Reader:
    """The reader called ``name``: it needs nothing below ``ends`` any more, by partition.

    ``seen`` is the time of its last acknowledgement, in microseconds since 1970.
    """

    name: str
    ends: Mapping[int, int]
    seen: int


def reader_name(name: object) -> str:
    """Return ``name`` if it is one of a reader. Raise ``ValueError``."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        shown = readable(str(name)[:100])
        raise ValueError(f"the name of a reader has 1 to 64 letters, digits, '-', '_' and '.', not {shown!r}")
    return name


@attrs.define(eq=False)
class ReaderTable:
    """The named readers of one log. A task changes it while it has the ``lock``."""

    readers: dict[str, Reader] = attrs.field(factory=dict)
    lock: trio.Lock = attrs.field(factory=trio.Lock)

    def acknowledged(self, name: str, ends: Mapping[int, int], now: int) -> Reader:
        """Return the reader with these ends: none goes back. Raise ``Rejected`` for one reader too many."""
        known = self.readers.get(name)
        if known is None:
            if len(self.readers) >= READERS:
                raise Rejected(f"{READERS} readers have acknowledged: that is the limit, until one is forgotten")
            return Reader(name, dict(ends), now)
        kept = dict(known.ends)
        for partition, end in ends.items():
            kept[partition] = max(end, kept.get(partition, 0))
        return Reader(name, kept, now)

    def lowest(self, partition: int) -> int | None:
        """Return the position of ``partition`` that all readers have reached, ``None`` without readers."""
        if not self.readers:
            return None
        return min(reader.ends.get(partition, 0) for reader in self.readers.values())

    def behind(self, partition: int, position: int) -> list[Reader]:
        """Return the readers that have not reached ``position`` of ``partition``."""
        return [reader for reader in self.readers.values() if reader.ends.get(partition, 0) < position]


def encode_readers(readers: Iterable[Reader]) -> bytes:
    """Return readers as they are in a file."""
    return json.dumps(
        {one.name: {"ends": {str(key): end for key, end in one.ends.items()}, "seen": one.seen} for one in readers},
        separators=(",", ":"),
    ).encode()


def decode_readers(data: bytes) -> dict[str, Reader]:
    """Return the readers in a file. Raise ``ValueError`` for anything else."""
    try:
        found = json.loads(data)
        return {
            reader_name(name): Reader(name, {int(key): int(end) for key, end in one["ends"].items()}, int(one["seen"]))
            for name, one in found.items()
        }
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a list of readers: {error!r}") from None


def load_readers(filesystem: FileSystem, path: Path) -> list[Reader]:
    """Return the readers in a file, none if there is no file. Raise ``CorruptLog``."""
    filesystem.remove(path.with_suffix(NEW))
    try:
        fd = filesystem.open(path)
    except FileNotFoundError:
        return []
    try:
        data = filesystem.read(fd, filesystem.size(fd), 0)
    finally:
        filesystem.close(fd)
    try:
        return list(decode_readers(data).values())
    except ValueError as error:
        raise CorruptLog(path, 0, 0, str(error)) from None


def save_readers(filesystem: FileSystem, path: Path, readers: Iterable[Reader]) -> None:
    """Replace the file by one with these readers, and wait until it is on the disk."""
    new = path.with_suffix(NEW)
    filesystem.remove(new)
    fd = filesystem.create(new)
    try:
        filesystem.write_all(fd, encode_readers(readers), 0)
        filesystem.sync(fd)
    finally:
        filesystem.close(fd)
    filesystem.rename(new, path)
    filesystem.sync_directory(path.parent)


def within(reader: Reader, latest: Sequence[int], directory: Path) -> Reader:
    """Return a reader whose ends are in the log, whose partitions end at ``latest``.

    What a log without ``sync`` has lost, it needs again; the ``directory`` is for the warning.
    """
    ends = {number: end for number, end in reader.ends.items() if number < len(latest)}
    for number, end in ends.items():
        if end > latest[number]:
            logger.warning(
                "%s: reader %s has acknowledged partition %d up to %d, but the log ends at %d",
                *(directory, reader.name, number, end, latest[number]),
            )
            ends[number] = latest[number]
    return Reader(reader.name, ends, reader.seen)
