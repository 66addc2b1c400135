"""What can go wrong with a log or a ledger, and the code with which a peer hears of it."""

from __future__ import annotations

from pathlib import Path

from rsocket_trio.errors import ApplicationError, RSocketError


class ReplayError(ApplicationError):
    """The root of what travels: each class has a code of its own."""

    def __init__(self, data: bytes | str = b"") -> None:
        self._say(data, self.default_code)


class PositionExpired(ReplayError):
    """The position was asked for too late: it was trimmed away."""

    default_code = 0x310

    @classmethod
    def at(cls, position: int, partition: int, earliest: int) -> PositionExpired:
        """The error for this position."""
        return cls(f"position {position} of partition {partition} has expired: the earliest is {earliest}")


class PositionAhead(ReplayError):
    """The position has not been written yet."""

    default_code = 0x311

    @classmethod
    def at(cls, position: int, partition: int, latest: int) -> PositionAhead:
        """The error for this position."""
        return cls(f"position {position} is beyond partition {partition}: the latest is {latest}")


class UnknownPartition(ReplayError):
    """The log has no such partition."""

    default_code = 0x312


class DamagedPartition(ReplayError):
    """What a reader hears of a ``CorruptLog``: the position, and nothing of our files. The log has the rest."""

    default_code = 0x313
    is_fault = True


class NotStaged(ReplayError):
    """A commit names an attempt that is not staged, or not with so many rows. Nothing was promoted."""

    default_code = 0x320


class NotWritten(ReplayError):
    """The disk is full, and nothing was written; or it failed. The same may be tried again."""

    default_code = 0x321
    is_fault = True


class CorruptLog(RSocketError):
    """A log's file is damaged where it was complete once. Nothing beyond is read, and nothing is dropped.

    ``file``, ``offset`` (bytes) and ``position`` say where; ``reason`` what was found there.
    """

    def __init__(self, file: Path, offset: int, position: int, reason: str) -> None:
        self.file = file
        self.offset = offset
        self.position = position
        self.reason = reason
        super().__init__(file, offset, position, reason)

    def __str__(self) -> str:
        return f"{self.file} is damaged at offset {self.offset}, position {self.position}: {self.reason}"


class LogLocked(RSocketError):
    """Another writer has the directory. ``pid`` is its process, None where that can't be told."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        self.directory = directory
        self.pid = pid
        super().__init__(directory, pid)

    def __str__(self) -> str:
        return f"{self.directory} has a writer already: process {'unknown' if self.pid is None else self.pid}"
