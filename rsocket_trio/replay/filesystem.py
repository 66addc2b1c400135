"""The calls to the operating system that a log on files makes, in one place, so that tests can make them fail."""

from __future__ import annotations

import os
from pathlib import Path


class FileSystem:
    """The files of the operating system. Every method blocks, and raises ``OSError``."""

    def create(self, path: Path) -> int:
        """Return a new file, to write and to read."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open(self, path: Path, *, writable: bool = False) -> int:
        """Return a file that exists."""
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Write at an offset. Return the number of bytes written."""
        return os.pwrite(fd, data, offset)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Return at most ``size`` bytes from an offset on."""
        return os.pread(fd, size, offset)

    def size(self, fd: int) -> int:
        """Return bytes of a file."""
        return os.fstat(fd).st_size

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def sync(self, fd: int) -> None:
        """Wait until the written bytes are on the disk."""
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        os.ftruncate(fd, size)

    def remove(self, path: Path) -> None:
        """Delete a file that may be gone already."""
        path.unlink(missing_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file; it replaces a file of the new name."""
        old.replace(new)

    def sync_directory(self, path: Path) -> None:
        """Wait until the names in a directory are on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def write_all(self, fd: int, data: bytes | bytearray, offset: int) -> None:
        """Write all of ``data``. If this raises, a part may have been written."""
        with memoryview(data) as view:
            done = 0
            while done < len(view):
                done += self.write(fd, view[done:], offset + done)


SYSTEM = FileSystem()
