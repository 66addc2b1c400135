"""Locks a directory for one writer at a time; the lock file holds the writer's process id."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rsocket_trio.replay.errors import LogLocked

NAME = "lock"


class DirectoryLock:
    """Locks a directory for this writer until ``release``, or until its process ends in any way.

    Make the directory if there is none. Raise ``LogLocked`` with the owner's process id, ``OSError`` for a directory
    that can't be used.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._take(directory)
        except BaseException:
            self.release()
            raise

    def _take(self, directory: Path) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # An owner that has just locked it may not have written its process id yet.
            said = os.pread(self._fd, 32, 0).strip()
            raise LogLocked(directory, int(said) if said.isdigit() else None) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Release the lock. Do nothing the second time."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
