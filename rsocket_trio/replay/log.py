"""The interface of replayable logs: partitions of records that can be read again from any position."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Self, TypeVar

import attrs
import outcome
import trio

from rsocket_trio.errors import Rejected
from rsocket_trio.payload import BytesLike, as_bytes
from rsocket_trio.replay.elements import Element, Pack, Record, arrow, now_us, reader_name
from rsocket_trio.replay.errors import PositionAhead, PositionExpired, UnknownPartition
from rsocket_trio.tools.parking_lot import ParkingLot
from rsocket_trio.values import between, value

T = TypeVar("T")

READ_BYTES = 256 * 2**10
"""Bytes that one reader has in memory at a time."""
READERS = 1000
"""Named readers of a log, at most."""


@value
class Reader:
    """The reader called ``name``: it needs nothing below ``ends`` any more, by partition.

    ``seen`` is the time of its last acknowledgement, in microseconds since 1970.
    """

    name: str
    ends: Mapping[int, int]
    seen: int


@attrs.frozen
class Retention:
    """Keeps records until all named readers have acknowledged them, but no longer than ``seconds``, up to ``bytes``.

    What is older, and the oldest of more bytes in all partitions, is dropped whether all readers have it or not; what
    was appended together is dropped together. Raise ``ValueError`` for 0 or less, and for more than 10^12 seconds.
    """

    seconds: float | None = attrs.field(default=None, validator=attrs.validators.optional(between(0.001, 1e12)))
    bytes: int | None = attrs.field(default=None, validator=attrs.validators.optional(between(1, whole=True)))


class OpenedByBlock(ABC):
    """The base class of what an ``async with`` block opens and closes."""

    async def open(self) -> None:
        """Open it. Do nothing the second time, and let no other task run then: every request calls this."""
        await trio.lowlevel.checkpoint_if_cancelled()

    @abstractmethod
    async def aclose(self) -> None:
        """Close it, and wake the tasks that wait. Do nothing the second time."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True):
            await self.aclose()


class ReplayableLog(OpenedByBlock):
    """Records by partition and position, appended at the end and read from anywhere.

    Positions of a partition count rows, from 0 on and, unless ``has_gaps``, without gaps. Use it under ``async with``,
    which opens it and closes it. Every method that names a partition raises ``UnknownPartition``.
    """

    has_gaps = False
    """True if some positions have no record, and never will: those of Kafka's markers, for one.

    Then ``read_some`` may end with a record of 0 rows: there is nothing before its position.
    """

    @abstractmethod
    def partitions(self) -> Sequence[int]:
        """Return the numbers of the partitions, from 0 on."""

    @abstractmethod
    def bounds(self, partition: int) -> tuple[int, int]:
        """Return the earliest position of ``partition`` that can be read, and the next that will be written."""

    @abstractmethod
    async def append_all(
        self, elements: Mapping[int, Iterable[Element | Pack]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Append ``elements`` to several partitions, all or nothing, and return the first new position of each.

        A ``Pack`` holds the rows of many elements: ``arrow_packs.elements_of`` yields them for logs of single records.
        ``at`` holds the positions at which the records must begin; raise ``ValueError`` if a partition ends elsewhere,
        ``OSError`` if there is no room. Then, and when cancelled, nothing was appended.
        """

    @abstractmethod
    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        """Return the next records of ``partition`` from ``start`` on that begin below ``end``, about ``max_bytes``.

        There is at least one, unless ``start`` is the end of the partition. The first may begin before ``start`` if it
        holds that row. Raise ``PositionExpired`` and ``PositionAhead``.
        """

    async def read_packs(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Pack]:
        """Return the records of ``partition`` that ``read_some`` returns for ``start``, ``end`` and ``max_bytes``, in
        packs. Together they span all positions from the start on; the first and the last may hold others beside them.
        Raise as it does.
        """
        stored = await self._read_stored(partition, start, end, max_bytes)
        packs: Iterator[Pack] = arrow().packed(stored, start)
        return packs

    async def _read_stored(
        self, partition: int, start: int, end: int | None, max_bytes: int
    ) -> Iterable[Record | Pack]:
        """Return the records as ``read_some`` does, or packs that have them."""
        return await self.read_some(partition, start, end, max_bytes=max_bytes)

    @abstractmethod
    async def wait_beyond(self, partition: int, position: int) -> None:
        """Wait until ``partition`` has a record at ``position``. Raise ``trio.ClosedResourceError`` if it is closed."""

    @abstractmethod
    async def trim(self, partition: int, before: int) -> None:
        """Drop the records of ``partition`` that lie below the position ``before``; more may stay, never fewer."""

    @abstractmethod
    async def position_at(self, partition: int, timestamp: int) -> int:
        """Return the position of the first record of ``partition`` with this ``timestamp`` or a later one, or its end.

        ``timestamp`` is in microseconds since 1970.
        """

    # Built on the methods above

    async def append(
        self,
        data: BytesLike | None,
        metadata: BytesLike | None = None,
        *,
        partition: int = 0,
        count: int = 1,
        key: BytesLike | None = None,
        headers: Iterable[tuple[str, BytesLike | None]] | None = None,
        timestamp: int | None = None,
    ) -> int:
        """Append one record of ``data`` and ``metadata`` to ``partition``. Return its position once it is safe.

        ``data`` is ``None`` for null. ``count`` is how many rows it holds, ``key`` what it is about, ``headers`` are
        pairs of a name and its content, ``None`` for null, in order. Its ``timestamp`` in microseconds since 1970 is
        the present time where none is given, and never less than that of the record before. Raise ``TypeError``,
        ``ValueError`` for a record above 64 MiB or a count below 1, and as ``append_all`` does.
        """
        contents = [None if content is None else as_bytes(content) for content in (data, metadata, key)]
        pairs = None if headers is None else [header(pair) for pair in headers]
        element = Element(contents[0], contents[1], count, contents[2], pairs, timestamp)
        return (await self.append_all({partition: (element,)}))[partition]

    async def read(self, partition: int, start: int, end: int | None = None) -> AsyncGenerator[Record, None]:
        """Yield the records of ``partition`` from ``start`` to below ``end``, in order and without gaps.

        Without ``end`` future records follow. A record of several rows comes whole. Raise ``PositionExpired`` for
        records that are gone, also while reading, and ``PositionAhead`` for a start or an end that is not written yet.
        """
        self.check_range(partition, start, end)
        position = start
        while end is None or position < end:
            before = position
            for record in await self.read_some(partition, position, end):
                position = record.end
                if record.count:
                    yield record
            if position == before:
                await self.wait_beyond(partition, position)

    def check_range(self, partition: int, start: int, end: int | None) -> None:
        """Raise ``PositionExpired`` or ``PositionAhead`` if ``partition`` cannot be read from ``start`` to ``end``."""
        for position in (start,) if end is None else (start, max(start, end)):
            self._check_position(partition, position, *self.bounds(partition))

    def _check_position(self, partition: int, position: int, earliest: int, latest: int) -> None:
        if position < earliest:
            problem = f"position {position} of partition {partition} has expired: the earliest is {earliest}"
            raise PositionExpired(problem)
        if position > latest:
            raise PositionAhead(f"position {position} is beyond partition {partition}: the latest is {latest}")

    def _check_partition(self, partition: int, count: int) -> None:
        """Raise ``UnknownPartition`` unless it is one of so many, ``TypeError`` for what is no number."""
        if type(partition) is not int:
            raise TypeError(f"a partition is a whole number, not {partition!r:.100}")
        if not 0 <= partition < count:
            known = f"they are 0 to {count - 1}" if count > 1 else "only 0"
            raise UnknownPartition(f"there is no partition {partition}: {known}")

    # Named readers

    @cached_property
    def _known_readers(self) -> dict[str, Reader]:
        return {}

    def readers(self) -> Mapping[str, Reader]:
        """Return the named readers by name, each with the ends that it has acknowledged."""
        return dict(self._known_readers)

    def lowest(self, partition: int) -> int | None:
        """Return the position of ``partition`` below which no named reader needs anything; ``None`` without readers."""
        return min((reader.ends.get(partition, 0) for reader in self.readers().values()), default=None)

    async def acknowledge(self, reader: str, ends: Mapping[int, int]) -> Reader:
        """Note that the named ``reader`` needs nothing below ``ends``, by partition, and return what is known of it.

        A lower end than before changes nothing. Without ends it is registered, and holds all records from then on.
        Raise ``ValueError`` for an invalid name, ``PositionAhead`` for an end that is not written yet, ``Rejected`` for
        one reader too many, and ``OSError``.
        """
        reader_name(reader)
        for partition, end in ends.items():
            self._check_position(partition, end, end, self.bounds(partition)[1])

        def change(readers: dict[str, Reader]) -> Reader:
            if reader not in readers and len(readers) >= READERS:
                raise Rejected(f"{READERS} readers have acknowledged: that is the limit, until one is forgotten")
            known = readers[reader].ends if reader in readers else {}
            kept = {**known, **{number: max(end, known.get(number, 0)) for number, end in ends.items()}}
            readers[reader] = Reader(reader, kept, now_us())
            return readers[reader]

        return await self._change_readers(change)

    async def forget_reader(self, reader: str) -> bool:
        """Forget the named ``reader``. Return whether it was known. Raise ``OSError``."""
        return await self._change_readers(lambda readers: readers.pop(reader, None) is not None)

    async def _change_readers(self, change: Callable[[dict[str, Reader]], T]) -> T:
        """Change the readers, as durably as the log is, and return what ``change`` returns."""
        await trio.lowlevel.checkpoint_if_cancelled()
        return change(self._known_readers)

    def set_retention(self, retention: Retention) -> None:
        """Drop records by ``retention`` from now on. Raise ``ValueError`` if this log can't, or has another one."""
        raise ValueError(f"a {type(self).__name__} has no retention: it is for a Log in a file")

    async def retain(self, *, in_full: bool = True) -> None:
        """Drop what the retention says. Without ``in_full``: only if it is due, and a failure is logged, not raised."""
        await trio.lowlevel.checkpoint_if_cancelled()


def header(pair: Any) -> tuple[str, bytes | None]:
    """Return a header as it is kept. Raise ``TypeError`` for anything but a name and its content."""
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise TypeError(f"a header is a pair of a name, a text, and its content, not {pair!r:.100}")
    return pair[0], None if pair[1] is None else as_bytes(pair[1])


def check_begin(partition: int, at: Mapping[int, int] | None, latest: int) -> None:
    """Raise ``ValueError`` unless the end of the partition is the position that the append asks for."""
    if at is not None and at.get(partition, latest) != latest:
        raise ValueError(f"partition {partition} ends at {latest}, not at {at[partition]}: somebody else wrote to it")


# Appends of many tasks, which one of them writes for all


@attrs.define(eq=False)
class Appending:
    """The elements of one ``append_all``, its ``at``, and once that is known the outcome: where they begin."""

    elements: Mapping[int, Sequence[Element | Pack]]
    at: Mapping[int, int] | None
    begins: outcome.Outcome[Sequence[dict[int, int]]] | None = None


class AppendQueue:
    """The appends that wait: the task of one of them writes all that are there.

    ``write(take)`` writes what ``take()`` returns, all or nothing, and returns where each begins. It calls ``take``, in
    any thread, once nothing can hinder it: an append can be cancelled until then, and has written nothing. If it raises
    ``ValueError``, because of one of them, each is written alone.
    """

    def __init__(self, write: Callable[[Callable[[], list[Appending]]], Awaitable[Sequence[dict[int, int]]]]) -> None:
        self._write = write
        self._pending: deque[Appending] = deque()
        self._is_writing = False
        self._written = ParkingLot()

    async def append(self, own: Appending) -> dict[int, int]:
        """Return where the elements begin, once they are written, or raise why they are not."""
        self._pending.append(own)
        try:
            while own.begins is None:
                await (self._written.park() if self._is_writing else self._write_all())
        except trio.Cancelled:
            if own in self._pending:
                self._pending.remove(own)
                raise
            with trio.CancelScope(shield=True):
                # It is being written: the caller learns the outcome first and is cancelled then.
                while own.begins is None:
                    await self._written.park()
        assert own.begins is not None
        [begins] = own.begins.unwrap()
        return begins

    async def _write_all(self) -> None:
        self._is_writing = True
        taken: list[Appending] = []

        def take() -> list[Appending]:
            with suppress(IndexError):
                while True:
                    # One by one: a task that is cancelled meanwhile removes its own, or finds it gone.
                    taken.append(self._pending.popleft())
            return taken

        failure: Exception = RuntimeError("interrupted: nobody knows what was written")
        try:
            # Tasks that the last append has woken append again: all of that is written together.
            await trio.lowlevel.checkpoint()
            try:
                for appending, begins in zip(taken, await self._write(take), strict=True):
                    appending.begins = outcome.Value([begins])
            except ValueError:
                with trio.CancelScope(shield=True):
                    for appending in taken:
                        appending.begins = await outcome.acapture(self._write, partial(list, (appending,)))
        except Exception as error:
            # Raised in every task that appended: the log was closed, or can't be written at all.
            failure = error
            take()
        finally:
            for appending in taken:
                appending.begins = appending.begins or outcome.Error(failure)
            self._is_writing = False
            self._written.wake_all()
