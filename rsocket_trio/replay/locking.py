"""Locks: a directory's, for one writing process, and a shared one, for the tasks that write to a ledger's log."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

import trio

from rsocket_trio.connection.parking_lot import ParkingLot
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


class SharedLock:
    """A lock that many tasks can hold shared, or one exclusively.

    A task that waits to hold it exclusively keeps new shared holders out, so that it is not overtaken for ever.
    """

    def __init__(self) -> None:
        self._shared = 0
        self._turn = trio.Lock()
        self._released = ParkingLot()

    def shared(self) -> Shared:
        """Return a context that holds the lock shared. To enter it is no checkpoint unless it has to wait."""
        return Shared(self)

    @asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None, None]:
        """Hold the lock exclusively for the block."""
        async with self._turn:
            # New shared holders now queue at ``_turn``; those that hold the lock leave one by one.
            while self._shared:
                await self._released.park()
            yield

    async def enter(self) -> None:
        """Take the lock shared.

        Without a checkpoint while no task holds it exclusively: each written row passes here.
        """
        if self._turn.locked():
            # Behind the task that holds the lock exclusively or waits to; ``_turn`` is fair.
            async with self._turn:
                self._shared += 1
        else:
            self._shared += 1

    def leave(self) -> None:
        """Release a shared hold. The last one wakes the task that waits to hold the lock exclusively."""
        self._shared -= 1
        if not self._shared:
            self._released.wake_all()


class Shared:
    """One shared hold of a lock; use it under ``async with``, once."""

    __slots__ = ("_lock",)

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    async def __aenter__(self) -> None:
        await self._lock.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.leave()
