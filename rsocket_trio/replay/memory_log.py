"""A log in memory: the oldest records make room for the newest."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

import trio

from rsocket_trio.connection.parking_lot import ParkingLot
from rsocket_trio.replay.elements import Clock, Element, Record, check_element, now_us
from rsocket_trio.replay.errors import PositionAhead, PositionExpired
from rsocket_trio.replay.log import READ_BYTES, ReplayableLog, check_begin, check_partition
from rsocket_trio.replay.packs import FOREVER, Pack, flattened, packed
from rsocket_trio.replay.taken_packs import as_taken

OVERHEAD = 200
"""Bytes that a record takes beside its data and metadata, about."""
CHECKPOINT_CALLS = 128
"""Calls of ``append_all`` after which one lets other tasks run."""
SLACK = 1024
"""Dropped records at which the list is cut."""


class MemoryLog(ReplayableLog):
    """A log that ends with its process, with ``partitions`` partitions.

    ``limit_bytes`` bounds all partitions together. Above it each partition drops its oldest records; reading them
    raises ``PositionExpired``. A record above the limit raises ``ValueError``. ``clock`` gives the times of records, in
    microseconds since 1970.
    """

    def __init__(self, partitions: int = 1, *, limit_bytes: int = 64 * 2**20, clock: Clock = now_us) -> None:
        if partitions < 1:
            raise ValueError(f"{partitions} partitions: there must be at least 1")
        self._partitions = [_Partition() for _ in range(partitions)]
        self._limit = limit_bytes // partitions
        self._clock = clock
        self._closed = False
        self._calls = 0

    def partitions(self) -> Sequence[int]:
        return range(len(self._partitions))

    def bounds(self, partition: int) -> tuple[int, int]:
        found = self._find(partition)
        return found.earliest, found.latest

    async def append_all(
        self, elements: Mapping[int, Iterable[Element | Pack]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        self._calls += 1
        if self._calls % CHECKPOINT_CALLS:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await trio.lowlevel.checkpoint()
        groups = {partition: list(as_taken(group)) for partition, group in elements.items()}
        for partition, group in groups.items():
            check_begin(partition, at, self._find(partition).latest)
            for element in group:
                if isinstance(element, Element):
                    check_element(element)
            size = sum(element.size + OVERHEAD for element in group)
            if size > self._limit:
                raise ValueError(f"{size} bytes for a partition in memory: the limit is {self._limit}")
        begins = {partition: self._partitions[partition].latest for partition in groups}
        now = self._clock()
        for partition, group in groups.items():
            self._partitions[partition].extend(group, self._limit, now)
        return begins

    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        await trio.lowlevel.checkpoint()
        return flattened(
            self._find(partition).some(partition, start, end, max_bytes), start, FOREVER if end is None else end
        )

    async def read_packs(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Pack]:
        await trio.lowlevel.checkpoint()
        return packed(
            self._find(partition).some(partition, start, end, max_bytes), start, FOREVER if end is None else end
        )

    async def position_at(self, partition: int, timestamp: int) -> int:
        await trio.lowlevel.checkpoint()
        return self._find(partition).position_at(timestamp)

    async def wait_beyond(self, partition: int, position: int) -> None:
        found = self._find(partition)
        await trio.lowlevel.checkpoint()
        while found.latest <= position:
            if self._closed:
                raise trio.ClosedResourceError("the log was closed")
            await found.readers.park()

    async def trim(self, partition: int, before: int) -> None:
        found = self._find(partition)
        await trio.lowlevel.checkpoint()
        found.trim(before)

    async def aclose(self) -> None:
        self._closed = True
        for partition in self._partitions:
            partition.readers.wake_all()
        await trio.lowlevel.checkpoint()

    def _find(self, partition: int) -> _Partition:
        check_partition(partition, len(self._partitions))
        return self._partitions[partition]


def placed(element: Element | Pack, position: int, time: int) -> Record | Pack:
    """Return what is kept of an element at a position, with its time."""
    if isinstance(element, Pack):
        return Pack(element.data, element.count, position, time)
    return Record(position, element.data, element.metadata, element.count, element.key, element.headers, time)


class _Partition:
    """The records of a partition in order; the first ``gone`` entries of the list were dropped."""

    def __init__(self) -> None:
        self.records: list[Record | Pack | None] = []
        self.positions: list[int] = []
        self.gone = 0
        self.size = 0
        self.earliest = self.latest = 0
        self.time = 0
        self.readers = ParkingLot()

    def extend(self, elements: Iterable[Element | Pack], limit: int, now: int) -> None:
        for element in elements:
            # The clock of the machine may be set back; the times of records never go back.
            self.time = max(self.time, now if element.timestamp is None else element.timestamp)
            self.records.append(placed(element, self.latest, self.time))
            self.positions.append(self.latest)
            self.latest += element.count
            self.size += element.size + OVERHEAD
        while self.size > limit:
            self._drop_first()
        self._cut()
        self.readers.wake_all()

    def trim(self, before: int) -> None:
        while self.gone < len(self.records):
            record = self.records[self.gone]
            if record is None or record.end > before:
                break
            self._drop_first()
        self._cut()

    def some(self, partition: int, start: int, end: int | None, max_bytes: int) -> list[Record | Pack]:
        if start < self.earliest:
            raise PositionExpired.at(start, partition, self.earliest)
        if start > self.latest:
            raise PositionAhead.at(start, partition, self.latest)
        found: list[Record | Pack] = []
        if start < self.latest:
            for index in range(bisect_right(self.positions, start) - 1, len(self.records)):
                record = self.records[index]
                if record is None or max_bytes <= 0 or (end is not None and record.position >= end):
                    break
                max_bytes -= len(record.data) + OVERHEAD
                found.append(record)
        return found

    def position_at(self, timestamp: int) -> int:
        found = bisect_left(
            self.records, timestamp, self.gone, key=lambda one: 0 if one is None else one.timestamp or 0
        )
        if found == len(self.records):
            return self.latest
        return self.positions[found]

    def _drop_first(self) -> None:
        record = self.records[self.gone]
        if record is not None:
            self.records[self.gone] = None
            self.gone += 1
            self.size -= (record.size if isinstance(record, Pack) else record.element.size) + OVERHEAD
            self.earliest = record.end

    def _cut(self) -> None:
        if self.gone >= SLACK and self.gone * 2 >= len(self.records):
            del self.records[: self.gone], self.positions[: self.gone]
            self.gone = 0
