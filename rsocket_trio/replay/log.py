"""The interface of replayable logs: partitions of records that can be read again from any position."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import attrs
import outcome
import trio

from rsocket_trio.errors import Rejected, readable
from rsocket_trio.payload import BytesLike, as_bytes
from rsocket_trio.replay.elements import Element, Pack, Record, arrow, now_us
from rsocket_trio.replay.errors import PositionAhead, PositionExpired, UnknownPartition
from rsocket_trio.values import between, value

T = TypeVar("T")

READ_BYTES = 256 * 2**10
"""Bytes that one reader has in memory at a time."""
READERS = 1000
"""Named readers of a log, at most."""
LONGEST_TIME = 1e12
"""Seconds that a log keeps its records at most, if it does not keep them for ever."""
_READER_NAME = re.compile(r"[0-9A-Za-z._-]{1,64}", re.ASCII)


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

    Records that are older than ``seconds``, and the oldest of more than ``bytes`` in all partitions, are dropped
    whether all readers have them or not; what was appended together is dropped together. Raise ``ValueError`` for a
    number that is not above 0, and for more than 10^12 seconds.
    """

    seconds: float | None = attrs.field(default=None, validator=attrs.validators.optional(between(0.001, LONGEST_TIME)))
    bytes: int | None = attrs.field(default=None, validator=attrs.validators.optional(between(1, whole=True)))


class OpenedByBlock(ABC):
    """The base class of what an ``async with`` block opens and closes."""

    @abstractmethod
    async def open(self) -> None:
        """Open it. Do nothing the second time."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close it. Do nothing the second time."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            await self.aclose()


class ReplayableLog(OpenedByBlock):
    """Records by partition and position, appended at the end and read from anywhere.

    Positions of a partition count rows, from 0 on and, unless ``has_gaps``, without gaps. Use it under ``async with``,
    which opens it and closes it. Every method that names a partition raises ``UnknownPartition``.
    """

    has_gaps = False
    """True if some positions have no record, and never will: those of Kafka's markers, for one.

    Then ``read_some`` may end with a record of 0 rows: there is nothing between the record before, or the start, and
    its position.
    """

    async def open(self) -> None:
        """Open the log. Do nothing the second time, and let no other task run then: every request calls this."""
        await trio.lowlevel.checkpoint_if_cancelled()

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
        Readers see no record before all are written. ``at`` holds the positions at which the records must begin; raise
        ``ValueError`` if a partition ends elsewhere. When cancelled, nothing was appended. Raise ``OSError`` if there
        is no room; then, too, nothing was appended.
        """

    @abstractmethod
    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        """Return the next records of ``partition`` from ``start`` on that begin below ``end``.

        They are about ``max_bytes`` together, and at least one record. There is none only if ``start`` is the end of
        the partition. The first may begin before ``start`` if it holds that row. Raise ``PositionExpired`` and
        ``PositionAhead``.
        """

    @abstractmethod
    async def wait_beyond(self, partition: int, position: int) -> None:
        """Wait until ``partition`` has a record at ``position``.

        Raise ``trio.ClosedResourceError`` if the log was closed.
        """

    @abstractmethod
    async def trim(self, partition: int, before: int) -> None:
        """Drop the records of ``partition`` that lie below the position ``before``; more may stay, never fewer."""

    @abstractmethod
    async def position_at(self, partition: int, timestamp: int) -> int:
        """Return the position of the first record of ``partition`` with this ``timestamp`` or a later one.

        That is the next position to be written where there is none. ``timestamp`` is in microseconds since 1970.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the log and wake the tasks that wait. Do nothing the second time."""

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
        pairs of a name and its content, ``None`` for null, in order. Its
        ``timestamp`` in microseconds since 1970 is the present time where none is given, and that of the record before
        where it would be less. When cancelled, nothing was appended. Raise ``TypeError``, and ``ValueError`` for a
        record above 64 MiB or a count below 1, ``OSError`` if there is no room.
        """
        pairs = None if headers is None else [header(pair) for pair in headers]
        element = Element(optional(data), optional(metadata), count, optional(key), pairs, timestamp)
        return (await self.append_all({partition: (element,)}))[partition]

    async def read(self, partition: int, start: int, end: int | None = None) -> AsyncGenerator[Record, None]:
        """Yield the records of ``partition`` from ``start`` to below ``end``, in order and without gaps.

        Without ``end`` future records follow. If a record of several rows holds the first or the last row, the whole
        record comes. Only a log that ``has_gaps`` leaves positions out. Raise ``PositionExpired`` for records that are
        gone, also while reading, and ``PositionAhead`` for a start or an end that is not written yet.
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

    async def read_packs(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Pack]:
        """Return the records of ``partition`` that ``read_some`` returns for ``start``, ``end`` and ``max_bytes``, in
        packs; together they span all positions from the start on. Raise as it does.
        """
        packs: Iterator[Pack] = arrow().packed(await self.read_some(partition, start, end, max_bytes=max_bytes), start)
        return packs

    def check_range(self, partition: int, start: int, end: int | None) -> None:
        """Raise ``PositionExpired`` or ``PositionAhead`` if ``partition`` cannot be read from ``start`` to ``end``."""
        check_position(partition, start, self.bounds(partition))
        if end is not None:
            check_position(partition, max(start, end), self.bounds(partition))

    # Named readers

    _known_readers: Mapping[str, Reader] = {}  # replaced as a whole, never changed

    def readers(self) -> Mapping[str, Reader]:
        """Return the named readers by name, each with the ends that it has acknowledged."""
        return dict(self._known_readers)

    def lowest(self, partition: int) -> int | None:
        """Return the position of ``partition`` below which no named reader needs anything; ``None`` without readers."""
        return min((reader.ends.get(partition, 0) for reader in self.readers().values()), default=None)

    async def acknowledge(self, reader: str, ends: Mapping[int, int]) -> Reader:
        """Note that the named ``reader`` needs nothing below ``ends``, by partition, and return what is known of it.

        An end below one that it has acknowledged before changes nothing. Without ends it is registered, and holds all
        records from then on. Raise ``ValueError`` for a name that is not 1 to 64 letters, digits, ``-``, ``_`` and
        ``.``, ``PositionAhead`` for an end that is not written yet, ``Rejected`` for one reader too many, and
        ``OSError``.
        """
        reader_name(reader)
        for partition, end in ends.items():
            latest = self.bounds(partition)[1]
            check_position(partition, end, (end, latest))

        def change(readers: dict[str, Reader]) -> Reader:
            if reader not in readers and len(readers) >= READERS:
                raise Rejected(f"{READERS} readers have acknowledged: that is the limit, until one is forgotten")
            known = readers[reader].ends if reader in readers else {}
            kept = {**known, **{number: max(end, known.get(number, 0)) for number, end in ends.items()}}
            readers[reader] = Reader(reader, kept, now_us())
            return readers[reader]

        return await self._change_readers(change)

    async def forget_reader(self, reader: str) -> bool:
        """Forget the named ``reader``, for which nothing is kept any more. Return whether it was known.

        Raise ``OSError``.
        """
        return await self._change_readers(lambda readers: readers.pop(reader, None) is not None)

    async def _change_readers(self, change: Callable[[dict[str, Reader]], T]) -> T:
        """Let ``change`` change the readers by name, as durable as the log is. Return what it returns."""
        await trio.lowlevel.checkpoint_if_cancelled()
        readers = dict(self._known_readers)
        result = change(readers)
        self._known_readers = readers
        return result

    def set_retention(self, retention: Retention) -> None:
        """Drop records by ``retention`` from now on. Raise ``ValueError`` if this log can't, or has another one."""
        raise ValueError(f"a {type(self).__name__} has no retention: it is for a Log in a file")

    async def retain(self, *, in_full: bool = True) -> None:
        """Drop what the retention says, if there is one. Without ``in_full``: only if it is time for it.

        Then a failure is logged, not raised.
        """
        await trio.lowlevel.checkpoint_if_cancelled()


def reader_name(name: object) -> str:
    """Return ``name`` if it is one of a reader. Raise ``ValueError``."""
    if not isinstance(name, str) or not _READER_NAME.fullmatch(name):
        shown = readable(str(name)[:100])
        raise ValueError(f"the name of a reader has 1 to 64 letters, digits, '-', '_' and '.', not {shown!r}")
    return name


def optional(content: BytesLike | None) -> bytes | None:
    """Return bytes or text as bytes, and null as it is. Raise ``TypeError`` for anything else."""
    return None if content is None else as_bytes(content)


def header(pair: Any) -> tuple[str, bytes | None]:
    """Return a header as it is kept. Raise ``TypeError`` for anything but a name and its content."""
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
        raise TypeError(f"a header is a pair of a name, a text, and its content, not {pair!r:.100}")
    return pair[0], optional(pair[1])


def check_partition(partition: int, partitions: int) -> None:
    """Raise ``UnknownPartition`` unless there is this partition, ``TypeError`` for what is no number."""
    if type(partition) is not int:
        raise TypeError(f"a partition is a whole number, not {partition!r:.100}")
    if not 0 <= partition < partitions:
        last = partitions - 1
        raise UnknownPartition(f"there is no partition {partition}: " + (f"they are 0 to {last}" if last else "only 0"))


def check_position(partition: int, position: int, bounds: tuple[int, int]) -> None:
    """Raise ``PositionExpired`` or ``PositionAhead`` unless a partition with these bounds can be read from there."""
    earliest, latest = bounds
    if position < earliest:
        raise PositionExpired(f"position {position} of partition {partition} has expired: the earliest is {earliest}")
    if position > latest:
        raise PositionAhead(f"position {position} is beyond partition {partition}: the latest is {latest}")


def check_begin(partition: int, at: Mapping[int, int] | None, latest: int) -> None:
    """Raise ``ValueError`` unless the end of the partition is the position that the append asks for."""
    if at is not None and at.get(partition, latest) != latest:
        raise ValueError(f"partition {partition} ends at {latest}, not at {at[partition]}: somebody else wrote to it")


# Appends of many tasks, which one of them writes for all

Begins: TypeAlias = dict[int, int]
"""The first new position of each partition."""


@attrs.define(eq=False)
class Appending:
    """The elements of one ``append_all`` and its ``at``, and the task that waits until another has written them.

    ``begins`` is the outcome once that is known.
    """

    elements: Mapping[int, Sequence[Element | Pack]]
    at: Mapping[int, int] | None
    task: trio.lowlevel.Task | None = None
    begins: outcome.Outcome[Begins] | None = None

    def wake(self, begins: outcome.Outcome[Begins] | None = None) -> None:
        """Wake the task that waits, with an outcome or to write itself."""
        self.begins = self.begins or begins
        task, self.task = self.task, None
        if task is not None:
            trio.lowlevel.reschedule(task)


class AppendQueue:
    """The appends that wait. The task of the first writes them all, and then wakes the first of those that came since.

    ``write(take)`` writes what ``take()`` returns, all or nothing, and returns where each begins. It calls ``take``, in
    any thread, once nothing can hinder it: an append can be cancelled until then, and has written nothing. If it raises
    ``ValueError``, because of one of them, each is written alone.
    """

    def __init__(self, write: Callable[[Callable[[], list[Appending]]], Awaitable[Sequence[Begins]]]) -> None:
        self._write = write
        self._pending: deque[Appending] = deque()
        self._is_writing = False

    async def append(self, own: Appending) -> dict[int, int]:
        """Return where the elements begin, once they are written, or raise why they are not."""
        self._pending.append(own)
        if self._is_writing:
            own.task = trio.lowlevel.current_task()

            def abort(_: object) -> trio.lowlevel.Abort:
                try:
                    self._pending.remove(own)
                except ValueError:
                    # It is being written: the caller learns the outcome first and is cancelled then.
                    return trio.lowlevel.Abort.FAILED
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(abort)
        if own.begins is None:
            # No task writes, or the one that did has woken this one to go on.
            await self._write_all(own)
        assert own.begins is not None
        return own.begins.unwrap()

    async def _write_all(self, own: Appending) -> None:
        self._is_writing = True
        taken: list[Appending] = []

        def take() -> list[Appending]:
            while self._pending:
                # One by one: a task that is cancelled meanwhile removes its own, or finds it gone.
                taken.append(self._pending.popleft())
            return taken

        failure: Exception = RuntimeError("interrupted: nobody knows what was written")
        try:
            # Tasks that the last append has woken append again: all of that is written together.
            await trio.lowlevel.checkpoint()
            try:
                for one, begins in zip(taken, await self._write(take), strict=True):
                    one.wake(outcome.Value(begins))
            except ValueError:
                with trio.CancelScope(shield=True):
                    # Their tasks can't be cancelled any more: each gets the outcome of its own.
                    for one in taken:
                        one.wake(await outcome.acapture(self._write_one, one))
        except Exception as error:
            # Raised in every task that appended: the log was closed, or can't be written at all.
            failure = error
            take()
        finally:
            for one in taken:
                if one.begins is None:
                    one.wake(outcome.Error(failure))
            if own in self._pending:
                self._pending.remove(own)  # it was cancelled while the log was locked
            self._is_writing = bool(self._pending)
            if self._pending:
                self._pending[0].wake()

    async def _write_one(self, own: Appending) -> Begins:
        [begins] = await self._write(lambda: [own])
        return begins
