"""What the tests of logs share: their rows, locks that others hold, and disks that are full or damaged."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import apsw

from rsocket_trio import Connection, Responder
from rsocket_trio.replay import Ledger, Log, Record, ReplayableLog, add_source
from rsocket_trio.replay.sqlite_log import RESERVE_BYTES
from rsocket_trio.testing import connected_pair

KINDS = ["memory", "file"]
PEER = Path(__file__).with_name("peer.py")
"""A program that appends to a log in a file."""


def new_log(kind: str, directory: Path, partitions: int | None = None, **options: Any) -> Log:
    """Return a log of this kind; one in a file is the same each time."""
    if kind == "memory":
        return Log(partitions=partitions, **options)
    return Log(directory / "rows.log", partitions, **{"sync": "never", **options})


def new_ledger(kind: str, directory: Path, partitions: int = 1, **options: Any) -> Ledger:
    """Return a ledger over such a log, which the test opens and closes."""
    return Ledger(new_log(kind, directory, partitions), **options)


@asynccontextmanager
async def source(log: ReplayableLog, **options: Any) -> AsyncGenerator[Connection, None]:
    """Yield a client of a server of this log, on the route ``rows``."""
    responder = Responder()
    add_source(responder, "rows", log, **options)
    async with log, connected_pair(responder) as (client, _):
        yield client


async def some_of(log: ReplayableLog, start: int, end: int | None, partition: int = 0) -> list[Record]:
    """Return the records of a range."""
    async with aclosing(log.read(partition, start, end)) as records:
        return [record async for record in records]


async def rows_of(log: ReplayableLog, partition: int = 0) -> list[Record]:
    """Return all records of a partition."""
    return await some_of(log, *log.bounds(partition), partition)


async def data_of(log: ReplayableLog, partition: int = 0) -> list[bytes | None]:
    """Return the data of all records of a partition."""
    return [record.data for record in await rows_of(log, partition)]


def beside(path: Path, what: str) -> Path:
    """Return the file that the database has beside it: ``wal``, ``shm`` or ``reserve``."""
    return path.with_name(f"{path.name}-{what}")


@contextmanager
def opened(path: Path) -> Iterator[apsw.Connection]:
    """Open the file as another program does, by SQLite."""
    connection = apsw.Connection(str(path))
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def locked(path: Path) -> Iterator[apsw.Connection]:
    """Hold the lock of the file, as another process does while it writes."""
    with opened(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("ROLLBACK")


class SmallDisk(apsw.VFS):
    """The disk of this process with room for so many bytes by which files grow, and more once ``reserve`` is gone."""

    room = 2**50
    reserve: Path | None = None

    def __init__(self) -> None:
        super().__init__("small", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> SmallFile:  # noqa: N802
        return SmallFile(self, name, flags)

    @property
    def has_reserve(self) -> bool:
        """Return whether the reserve is there."""
        return self.reserve is not None

    def grow(self, size: int) -> None:
        """Take room for so many bytes."""
        if self.reserve is not None and not self.reserve.exists():
            self.reserve, self.room = None, self.room + RESERVE_BYTES
        if size > self.room:
            raise apsw.FullError("no room")
        self.room -= max(size, 0)


class SmallFile(apsw.VFSFile):
    """A file on it."""

    def __init__(self, disk: SmallDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        self._disk.grow(offset + len(data) - self.xFileSize())
        super().xWrite(data, offset)


def failing(monkeypatch: Any, number: int = errno.ENOSPC) -> None:
    """Let all transactions of all databases fail with this error of the disk."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "/secret/place")

    monkeypatch.setattr(Log, "_transaction", fail)
