"""What a replayable log is: partitions of records that have positions, and can be read from any of them again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import trio

from rsocket_trio.payload import BytesLike, as_bytes
from rsocket_trio.replay.errors import PositionAhead, PositionExpired, UnknownPartition
from rsocket_trio.values import value

LONGEST_RECORD = 64 * 2**20
"""Bytes of data and metadata: what one payload may hold by default at its receiver."""
LARGEST_COUNT = 2**31 - 1
READ_BYTES = 2**20
"""Bytes that one reader has in memory at a time."""


@value
class Element:
    """What a record holds, before it has a position: ``count`` rows in one piece of data."""

    data: bytes
    metadata: bytes | None = None
    count: int = 1

    @property
    def size(self) -> int:
        """Bytes of data and metadata together."""
        return len(self.data) + (0 if self.metadata is None else len(self.metadata))


@value
class Record:
    """What stands in a log: ``count`` rows, the first of them at ``position``."""

    position: int
    data: bytes
    metadata: bytes | None = None
    count: int = 1

    @property
    def end(self) -> int:
        """The position of the record that follows."""
        return self.position + self.count


class ReplayableLog(ABC):
    """Records by partition and position, appended at the end and read from anywhere.

    Positions of a partition count rows, from 0 on and without gaps. Use it under ``async with``, which opens it and
    closes it. Every method that names a partition raises ``UnknownPartition``.
    """

    async def open(self) -> None:
        """Make it ready. Does nothing the second time, and lets nobody else run: every request asks for it."""
        await trio.lowlevel.checkpoint_if_cancelled()

    @abstractmethod
    def partitions(self) -> Sequence[int]:
        """The numbers of the partitions, from 0 on."""

    @abstractmethod
    def bounds(self, partition: int) -> tuple[int, int]:
        """The earliest position that can be read, and the next that will be written."""

    @property
    def failure(self) -> OSError | None:
        """What failed so that nobody knows what the disk holds: no more is written until the log is opened anew."""
        return None

    @abstractmethod
    async def append_all(
        self, elements: Mapping[int, Iterable[Element]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Append to several partitions, all or nothing, and return the first new position of each.

        Nothing is seen by readers before all of it is written. ``at`` are the positions where it must begin; if a
        partition's end is elsewhere, ``ValueError``. The iterables may be read in a thread, and more than once. When
        cancelled, nothing was appended. Raises ``OSError`` where there is no room; then, too, nothing was appended,
        unless ``failure`` says that this is not known.
        """

    @abstractmethod
    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        """The next records from ``start`` on that begin below ``end``: about ``max_bytes`` of them, at least one.

        None at all only if ``start`` is the end of the partition. The first may begin before ``start``, when it holds
        that row. Raises ``PositionExpired`` and ``PositionAhead``.
        """

    @abstractmethod
    async def wait_beyond(self, partition: int, position: int) -> None:
        """Wait until there is something at ``position``. Raises ``trio.ClosedResourceError`` when it was closed."""

    @abstractmethod
    async def trim(self, partition: int, before: int) -> None:
        """Let go of what stands below a position. More than asked may stay, never less."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close it, and wake who waits. Does nothing the second time."""

    # What these are made into

    async def append(
        self, data: BytesLike, metadata: BytesLike | None = None, *, partition: int = 0, count: int = 1
    ) -> int:
        """Append one record, and return its position once it is safe.

        ``count`` is how many rows it holds. When cancelled, nothing was appended. Raises ``ValueError`` for a record
        above 64 MiB or a count below 1, ``OSError`` where there is no room.
        """
        element = Element(as_bytes(data), None if metadata is None else as_bytes(metadata), count)
        return (await self.append_all({partition: (element,)}))[partition]

    async def read(self, partition: int, start: int, end: int | None = None) -> AsyncGenerator[Record, None]:
        """The records from ``start`` to below ``end``, in order and without gaps; without an end, also those to come.

        Where a record of several rows holds the first or the last of them, the whole record comes. Raises
        ``PositionExpired`` for what is gone, also while reading, and ``PositionAhead`` for a start or an end beyond
        what is written.
        """
        self.check_range(partition, start, end)
        position = start
        while end is None or position < end:
            found = False
            for record in await self.read_some(partition, position, end):
                found = True
                position = record.end
                yield record
            if not found:
                await self.wait_beyond(partition, position)

    def check_range(self, partition: int, start: int, end: int | None) -> None:
        """Raise what is wrong with a range that somebody wants to read."""
        earliest, latest = self.bounds(partition)
        if start < earliest:
            raise PositionExpired.at(start, partition, earliest)
        for position in (start, end):
            if position is not None and position > latest:
                raise PositionAhead.at(position, partition, latest)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            await self.aclose()


def check_element(element: Element) -> None:
    """Raise ``ValueError`` for what can't be a record."""
    if element.size > LONGEST_RECORD:
        raise ValueError(f"a record of {element.size} bytes: the limit is {LONGEST_RECORD}")
    if not 1 <= element.count <= LARGEST_COUNT:
        raise ValueError(f"a record of {element.count} rows: must be between 1 and {LARGEST_COUNT}")


def check_partition(partition: int, partitions: int) -> None:
    """Raise ``UnknownPartition`` unless there is such a one."""
    if not 0 <= partition < partitions:
        last = partitions - 1
        raise UnknownPartition(f"there is no partition {partition}: " + (f"they are 0 to {last}" if last else "only 0"))


def check_begin(partition: int, at: Mapping[int, int] | None, latest: int) -> None:
    """Raise ``ValueError`` unless what is appended may begin at the partition's end."""
    if at is not None and at.get(partition, latest) != latest:
        raise ValueError(f"partition {partition} ends at {latest}, not at {at[partition]}: somebody else wrote to it")
