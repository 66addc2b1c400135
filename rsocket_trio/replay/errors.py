"""The errors of replayable logs and ledgers, with the codes of those that are sent to peers."""

from __future__ import annotations

from pathlib import Path

from rsocket_trio.errors import ApplicationError, RSocketError


class ReplayError(ApplicationError):
    """The base class of the errors that are sent to peers. Each class has its own code; ``data`` is bytes or text."""

    def __init__(self, data: bytes | str = b"") -> None:
        self._say(data, self.default_code)


class PositionExpired(ReplayError):
    """The position has expired: its record was trimmed away."""

    default_code = 0x310

    @classmethod
    def at(cls, position: int, partition: int, earliest: int) -> PositionExpired:
        """Return the error for ``position`` of ``partition``, whose first record is at ``earliest``."""
        return cls(f"position {position} of partition {partition} has expired: the earliest is {earliest}")


class PositionAhead(ReplayError):
    """The position has not been written yet."""

    default_code = 0x311

    @classmethod
    def at(cls, position: int, partition: int, latest: int) -> PositionAhead:
        """Return the error for ``position`` of ``partition``, whose next position is ``latest``."""
        return cls(f"position {position} is beyond partition {partition}: the latest is {latest}")


class UnknownPartition(ReplayError):
    """The log has no such partition."""

    default_code = 0x312


class DamagedPartition(ReplayError):
    """The error that a peer gets for a ``CorruptLog``.

    It says the position to readers and names none of our files; the server logs the rest.
    """

    default_code = 0x313
    is_fault = True


class TopicGone(ReplayError):
    """The topic of Kafka was deleted, or another one has its name by now: positions of before mean nothing."""

    default_code = 0x314


class NotStaged(ReplayError):
    """A commit names an attempt that is not staged, or not with so many rows. Nothing was promoted."""

    default_code = 0x320


class NotWritten(ReplayError):
    """The disk is full, so that nothing was written, or it failed. The same request may be tried again."""

    default_code = 0x321
    is_fault = True


class CorruptLog(RSocketError):
    """A file of a log is damaged where it was complete once. No record beyond is read, and none is dropped.

    ``file``, ``offset`` (bytes) and ``position`` name the place; ``reason`` describes the damage.
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
    """Another writer has ``directory``. ``pid`` is its process, ``None`` if that is unknown."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        self.directory = directory
        self.pid = pid
        super().__init__(directory, pid)

    def __str__(self) -> str:
        return f"{self.directory} has a writer already: process {'unknown' if self.pid is None else self.pid}"
