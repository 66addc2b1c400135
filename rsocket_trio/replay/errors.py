"""The errors of replayable logs and ledgers, with the codes of those that are sent to peers."""

from __future__ import annotations

from pathlib import Path

from rsocket_trio.errors import ApplicationError, CodedError


class ReplayError(ApplicationError):
    """The base class of the errors that are sent to peers. Each class has its own code; ``data`` is bytes or text."""

    def __init__(self, data: bytes | str = b"") -> None:
        CodedError.__init__(self, data)


class PositionExpired(ReplayError):
    """The position has expired: its record was trimmed away."""

    default_code = 0x310


class PositionAhead(ReplayError):
    """The position has not been written yet."""

    default_code = 0x311


class UnknownPartition(ReplayError):
    """The log has no such partition."""

    default_code = 0x312


class CorruptLog(ReplayError):
    """A file is no log, or is damaged. Rows that are damaged are never returned.

    ``file`` and ``reason`` say what; ``partition`` and ``position`` where, ``None`` where that is not known. A peer is
    told the position and the reason, and none of our files; the server logs the rest.
    """

    default_code = 0x313
    is_fault = True

    def __init__(
        self, file: Path | None, reason: str, partition: int | None = None, position: int | None = None
    ) -> None:
        where = "" if position is None else f" in partition {partition} at position {position}"
        super().__init__(f"the log is damaged{where}: {reason}")
        self.args = file, reason, partition, position
        self.file = file
        self.reason = reason
        self.partition = partition
        self.position = position

    def __str__(self) -> str:
        return f"{self.file or 'in memory'}: {self.text}"


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
