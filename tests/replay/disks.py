"""Disks that are quick, that are full, that fail, and that belong to a process which dies."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from rsocket_trio.replay.filesystem import FileSystem


class Died(BaseException):
    """The process is dead: nothing that it still does reaches the disk."""


class QuickDisk(FileSystem):
    """A disk that does not wait for itself: no test cuts the power."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class FullDisk(QuickDisk):
    """A disk that takes so many bytes more, and then a part of what does not fit."""

    def __init__(self, room: int = 2**40) -> None:
        self.room = room

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        taken = min(len(data), self.room)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= taken
        return super().write(fd, data[:taken], offset)


class BadDisk(QuickDisk):
    """A disk whose calls can be told to fail, by name."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.syncs = 0

    def check(self, name: str) -> None:
        if name in self.failing:
            raise OSError(self.failing[name], os.strerror(self.failing[name]))

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self.check("write")
        return super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        self.check("sync")
        super().sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self.check("truncate")
        super().truncate(fd, size)

    def create(self, path: Path) -> int:
        self.check("create")
        return super().create(path)


class MortalDisk(QuickDisk):
    """The disk of a process that dies with its call number ``life``: of a write half is done, of others nothing."""

    def __init__(self, life: int) -> None:
        self.life = life
        self.calls = 0

    @property
    def is_dead(self) -> bool:
        return self.calls >= self.life

    def live(self) -> None:
        if self.is_dead:
            raise Died
        self.calls += 1
        if self.is_dead:
            raise Died

    def create(self, path: Path) -> int:
        self.live()
        return super().create(path)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        was_dead = self.is_dead
        try:
            self.live()
        except Died:
            if not was_dead:
                super().write(fd, data[: len(data) // 2], offset)
            raise
        return super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self.live()
        super().sync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self.live()
        super().truncate(fd, size)

    def remove(self, path: Path) -> None:
        self.live()
        super().remove(path)

    def rename(self, old: Path, new: Path) -> None:
        self.live()
        super().rename(old, new)


class UnpluggedDisk(MortalDisk):
    """The same on a machine that loses its power then: of each file what was not synced is gone."""

    def __init__(self, life: int) -> None:
        super().__init__(life)
        self.safe: dict[str, int] = {}

    def live(self) -> None:
        was_dead = self.is_dead
        try:
            super().live()
        except Died:
            if not was_dead:
                for path, size in self.safe.items():
                    if os.path.exists(path) and os.path.getsize(path) > size:
                        os.truncate(path, size)
            raise

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self.safe[str(path)] = 0
        return fd

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self.safe.setdefault(name_of(fd), offset)
        self.live()
        return FileSystem.write(self, fd, data, offset)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.safe[name_of(fd)] = os.fstat(fd).st_size

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.safe[str(new)] = self.safe.pop(str(old))


def name_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")
