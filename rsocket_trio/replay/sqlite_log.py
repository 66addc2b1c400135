"""A log in a SQLite database: in a file that any number of processes may open, or in memory."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, TypeAlias, TypeVar, get_args

import outcome
import trio

from rsocket_trio.extras import install_command
from rsocket_trio.replay.elements import (
    FOREVER,
    Clock,
    Element,
    Pack,
    Record,
    arrow,
    has_arrow,
    now_us,
    prepared,
    rows_in,
)
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.log import (
    READ_BYTES,
    Appending,
    AppendQueue,
    Begins,
    Reader,
    ReplayableLog,
    Retention,
    check_begin,
    check_partition,
    check_position,
)
from rsocket_trio.replay.tables import (
    OVERHEAD,
    Partition,
    bodies_of,
    count,
    counter,
    partition_of,
    places,
    put,
    records_from,
    whole,
)
from rsocket_trio.tools.parking_lot import ParkingLot

if TYPE_CHECKING:
    from apsw import Connection

    from rsocket_trio.replay.database import Database

T = TypeVar("T")
Sync: TypeAlias = Literal["full", "never"]

LIMIT_BYTES = 64 * 2**20
"""Bytes that a log in memory keeps."""
LOOK_SECONDS = 0.025
"""Seconds between two looks for rows of other processes, while a reader waits."""
TRIM_BYTES, TRIM_BODIES = 16 * 2**20, 1024
"""Bytes and bodies that are dropped in one transaction."""
RETAIN_SECONDS = 1.0
"""Seconds after which a log looks again for records that its retention drops."""
WHOLE_SQLITE = (3, 51, 3)
"""From this version on SQLite does not lose pages when one connection begins the WAL anew; and two older ones."""
MENDED_SQLITE = ((3, 44, 6), (3, 50, 7))

logger = logging.getLogger("rsocket_trio.replay")


def require_sqlite() -> None:
    """Raise ``ModuleNotFoundError`` without APSW, ``RuntimeError`` if its SQLite can lose rows."""
    try:
        import apsw
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"a log is a SQLite database: {install_command('log')}", name="apsw") from error
    check_sqlite(apsw.sqlite_lib_version())


def check_sqlite(version: str) -> None:
    """Raise ``RuntimeError`` for a version of SQLite that can lose committed pages."""
    numbers = tuple(int(part) for part in version.split("."))[:3]
    if numbers < WHOLE_SQLITE and numbers not in MENDED_SQLITE:
        raise RuntimeError(
            f"SQLite {version} can lose rows that are safe, when its WAL begins anew while another process writes: "
            f"a log needs {'.'.join(map(str, WHOLE_SQLITE))} or later"
        )


class Log(ReplayableLog):
    """A log in the file ``path``, a SQLite database with ``partitions`` partitions; without a path it is in memory.

    ``partitions`` is by default what the file has, 1 in a new one; more are added. Any number of processes may open a
    file, on one machine. ``sync`` says when an append returns: ``"full"``, when it is on the disk; ``"never"``, when
    the operating system has it, which survives the end of the process but not that of the machine. A log in memory
    keeps the newest ``limit_bytes``, 64 MiB by default, an equal share of each partition; what is appended together and
    is larger raises ``ValueError``.

    Opening raises ``CorruptLog`` for a file that is no log, ``ValueError`` if it has more partitions, and ``OSError``.
    The class raises ``ModuleNotFoundError`` without APSW.
    """

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        partitions: int | None = None,
        *,
        limit_bytes: int | None = None,
        sync: Sync = "full",
    ) -> None:
        if partitions is not None and partitions < 1:
            raise ValueError(f"{partitions} partitions: there must be at least 1")
        if sync not in get_args(Sync):
            raise ValueError(f"sync {sync!r}: must be one of {', '.join(get_args(Sync))}")
        if path is not None and limit_bytes is not None:
            raise ValueError("limit_bytes is for a log in memory: a file has a retention, see add_source")
        if limit_bytes is not None and limit_bytes < 1:
            raise ValueError(f"a limit of {limit_bytes} bytes: must be at least 1")
        require_sqlite()
        self.path = None if path is None else Path(path).absolute()
        self._asked_partitions = partitions
        self._limit = LIMIT_BYTES if limit_bytes is None else limit_bytes
        self._sync = sync
        self._clock: Clock = now_us
        self._database: Database | None = None
        self._count = 0
        self._opening = trio.Lock()
        self._appends = AppendQueue(self._write)
        self._changed = ParkingLot()
        self._is_watched = False
        self._version: list[tuple[int]] = []
        self._retention: Retention | None = None
        self._retaining = trio.Lock()
        self._retained_at = -math.inf

    def __reduce__(self) -> NoReturn:
        raise TypeError("a log can't be pickled: open it where it is used, in any process")

    # Opening and closing

    async def open(self) -> None:
        if self._database is None:
            async with self._opening:
                await self._connect()
        assert self._database is not None
        self._database.check_process()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _connect(self) -> None:
        from rsocket_trio.replay.database import Database

        if self._database is not None:
            return
        database = Database(self.path, sync=self._sync == "full")
        await database.open()
        try:
            if not has_arrow() and database.ask("SELECT 1 FROM bodies WHERE form = 1 LIMIT 1"):
                raise ModuleNotFoundError(
                    f"{self.path} has rows that are stored with Arrow: {install_command('arrow')}", name="pyarrow"
                )
            self._count = database.here(partial(counter, name="partitions"))
            if not self._count or self._asked_partitions not in (None, self._count):
                # Otherwise no lock is waited for.
                self._count = await database.write(self._add_partitions)
        except BaseException:
            # Raised again at once: a log that was not opened is not closed either.
            with trio.CancelScope(shield=True):
                await database.aclose()
            raise
        self._database = database

    def _add_partitions(self, connection: Connection) -> int:
        present = counter(connection, "partitions")
        partitions = self._asked_partitions or max(present, 1)
        if partitions < present:
            raise ValueError(
                f"{self.path} has {present} partitions, and {partitions} are asked for: none can be dropped"
            )
        for number in range(present, partitions):
            Partition(number).save(connection)
        return count(connection, "partitions", partitions - present)

    async def aclose(self) -> None:
        if self._database is not None:
            await self._database.aclose()
        self._changed.wake_all()

    @property
    def _open_database(self) -> Database:
        """Return the database. Raise ``trio.ClosedResourceError`` if the log was not opened."""
        if self._database is None:
            raise trio.ClosedResourceError("the log is not open: use it under 'async with'")
        return self._database

    # State: that of the file

    def partitions(self) -> Sequence[int]:
        self._count = self._open_database.here(partial(counter, name="partitions"))
        return range(self._count)

    def bounds(self, partition: int) -> tuple[int, int]:
        state = self._state(partition)
        return state.earliest, state.latest

    def _state(self, partition: int) -> Partition:
        self._check_partitions((partition,))
        return self._open_database.here(partial(partition_of, number=partition))

    def _check_partitions(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if type(number) is not int or not 0 <= number < self._count:
                check_partition(number, len(self.partitions()))

    # Writing

    async def append_all(
        self, elements: Mapping[int, Iterable[Element | Pack]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        self._check_partitions((*elements, *(at or ())))
        own = Appending({number: prepared(group) for number, group in elements.items()}, at)
        for group in own.elements.values():
            self._check_room(sum([one.size + OVERHEAD for one in group]) if self.path is None else 0)
        begins = await self._appends.append(own)
        if own.has_written:
            await self.retain(in_full=False)
        return begins

    def _check_room(self, size: int) -> None:
        """Raise ``ValueError`` for bytes that a partition in memory can't hold."""
        if self.path is None and size > (limit := self._limit // self._count):
            raise ValueError(f"{size} bytes for a partition in memory: the limit is {limit}")

    async def _write(self, take: Callable[[], list[Appending]]) -> Sequence[Begins]:
        def write(connection: Connection) -> Sequence[Begins]:
            return self._append(connection, take())

        database = self._open_database
        begins = await database.alone(partial(database.transaction, write))
        self._changed.wake_all()
        return begins

    def _append(self, connection: Connection, groups: Sequence[Appending]) -> Sequence[Begins]:
        """Store what was appended together. Return where each begins, or that a partition ends elsewhere."""
        numbers = {number for group in groups for number in (*group.elements, *(group.at or ()))}
        states = {number: partition_of(connection, number) for number in sorted(numbers)}
        ends = {number: state.latest for number, state in states.items()}
        together: dict[int, list[Element | Pack]] = {}
        outcomes: list[Begins] = []
        for group in groups:
            try:
                for number in group.at or ():
                    check_begin(number, group.at, ends[number])
            except ValueError as error:
                # Raised in the task that appended; the others are none the worse for it.
                outcomes.append(outcome.Error(error))
                continue
            outcomes.append(outcome.Value({number: ends[number] for number in group.elements}))
            for number, elements in group.elements.items():
                together.setdefault(number, []).extend(elements)
                ends[number] += sum([one.count for one in elements])
        now = self._clock()
        for number, elements in together.items():
            state = states[number]
            for body in bodies_of(elements):
                # The clock of the machine may be set back; the times of records never go back.
                state.time = max(state.time, now if body[1] is None else body[1])
                state.append(connection, body)
            self._save_grown(connection, state)
        return outcomes

    def _promote(self, connection: Connection, number: int, staged: Sequence[tuple[int, int, int, int]]) -> None:
        """Give bodies that are stored, each with its count, id, size and CRC, the next places of a partition."""
        self._check_room(sum(size for _, _, size, _ in staged))
        state = partition_of(connection, number)
        state.time = max(state.time, self._clock())
        for body in staged:
            state.place(connection, *body)
        self._save_grown(connection, state)

    def _save_grown(self, connection: Connection, state: Partition) -> None:
        """Store a partition that has grown. In memory its oldest rows make room for the new ones."""
        while self.path is None and state.bytes > self._limit // self._count:
            state.drop(connection, state.latest, state.bytes - self._limit // self._count, TRIM_BODIES)
        state.save(connection)

    async def _notice(self) -> None:
        """Wake readers of what a ledger has promoted, and do what is due behind it."""
        self._changed.wake_all()
        await self.retain(in_full=False)

    # Reading

    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        found, stop = await self._some(partition, start, end, max_bytes), FOREVER if end is None else end
        return (row for one in found for row in rows_in(one, start, stop))

    async def read_packs(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Pack]:
        found = await self._some(partition, start, end, max_bytes)
        packs: Iterator[Pack] = arrow().packed(found, start, FOREVER if end is None else end)
        return packs

    async def _some(self, partition: int, start: int, end: int | None, max_bytes: int) -> list[Record | Pack]:
        stop = FOREVER - 1 if end is None else end

        def records(connection: Connection) -> list[Record | Pack]:
            state = partition_of(connection, partition)
            check_position(partition, start, (state.earliest, state.latest))
            return [] if start >= stop else records_from(connection, state, start, stop, max_bytes)

        self._check_partitions((partition,))
        return await self._open_database.read(records)

    async def position_at(self, partition: int, timestamp: int) -> int:
        def first_since(connection: Connection) -> int:
            # Times never go back, so it is searched for.
            state = partition_of(connection, partition)
            low, high = state.earliest, state.latest
            while low < high:
                middle = (low + high) // 2
                # The place that holds the middle: its CRC says whether its time is right.
                position, number, time, *_ = next(places(connection, state, middle))
                low, high = (low, max(position, low)) if time >= timestamp else (position + number, high)
            return low

        self._check_partitions((partition,))
        return await self._open_database.read(first_since)

    async def wait_beyond(self, partition: int, position: int) -> None:
        await trio.lowlevel.checkpoint()
        while self.bounds(partition)[1] <= position:
            if self.path is None or self._is_watched:
                # An append wakes it, or the task that looks for what other processes wrote, and ``aclose``.
                await self._changed.park()
            else:
                await self._look()

    async def _look(self) -> None:
        """Look for changes that another connection made, for all readers that wait, until this task is to go on."""
        self._is_watched = True
        try:
            with trio.move_on_after(LOOK_SECONDS):
                await self._changed.park()
            version = self._open_database.ask("PRAGMA data_version")
            if version != self._version:
                # Since the last look, and not only since this one began: a reader may have parked in between.
                self._version = version
                self._changed.wake_all()
        finally:
            # The next task that wakes looks on.
            self._is_watched = False
            self._changed.wake_one()

    # Dropping

    async def trim(self, partition: int, before: int) -> None:
        self._check_partitions((partition,))
        await self._drop(partition, before)

    async def _drop(self, partition: int, before: int, max_bytes: int = FOREVER) -> int:
        """Drop what is below a position, about so many bytes, in portions. Return the bytes."""
        database, dropped = self._open_database, 0

        def drop_some(connection: Connection) -> int:
            state = partition_of(connection, partition)
            gone = state.drop(connection, before, min(max_bytes - dropped, TRIM_BYTES), TRIM_BODIES)
            if gone:
                state.save(connection)
            return gone

        while dropped < max_bytes and (gone := await database.shrink(drop_some)):
            dropped += gone
        if dropped:
            await database.give_back()
        return dropped

    def set_retention(self, retention: Retention) -> None:
        if self.path is None:
            raise ValueError("a log in memory has no retention: it has limit_bytes")
        if self._retention not in (None, retention):
            raise ValueError(f"{self.path} has another retention: {self._retention}")
        self._retention = retention

    async def retain(self, *, in_full: bool = True) -> None:
        if (retention := self._retention) is None or not (in_full or self._is_time_to_retain):
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        try:
            with trio.CancelScope(shield=not in_full):
                # A task of the log could not: one that asks for something else does it.
                async with self._retaining:
                    await self._apply(retention)
        except (OSError, CorruptLog, trio.ClosedResourceError):
            if in_full:
                raise
            logger.exception("%s: the retention failed, and is tried again", self.path)

    @property
    def _is_time_to_retain(self) -> bool:
        return self._clock() / 1e6 - self._retained_at >= RETAIN_SECONDS and not self._retaining.locked()

    async def _apply(self, retention: Retention) -> None:
        self._retained_at = self._clock() / 1e6
        for number in self.partitions():
            before = self.lowest(number) or 0
            if retention.seconds is not None:
                old = await self.position_at(number, self._clock() - int(retention.seconds * 1e6))
                before = max(before, old)
            await self._drop(number, before)
        while retention.bytes is not None:
            states = [self._state(number) for number in self.partitions()]
            over = sum(state.bytes for state in states) - retention.bytes
            largest = max(states, key=lambda state: state.bytes)
            if over <= 0 or not await self._drop(largest.number, largest.latest, min(over, largest.bytes)):
                break

    # Named readers

    def readers(self) -> Mapping[str, Reader]:
        return self._open_database.here(load_readers)

    async def _change_readers(self, change: Callable[[dict[str, Reader]], T]) -> T:
        def save(connection: Connection) -> T:
            before = load_readers(connection)
            after = dict(before)
            result = change(after)
            for name in before.keys() - after.keys():
                connection.execute("DELETE FROM readers WHERE name = ?", (name,))
            for reader in after.values():
                if before.get(reader.name) != reader:
                    put(connection, "readers", reader.name, json.dumps(dict(reader.ends)), reader.seen)
            count(connection, "readers", len(after) - len(before))
            return result

        result = await self._open_database.write(save)
        self._retained_at = -math.inf  # there may be rows that none needs any more
        await self.retain(in_full=False)
        return result


def load_readers(connection: Connection) -> dict[str, Reader]:
    """Return the named readers. Raise ``CorruptLog``."""
    return {
        name: Reader(name, {int(partition): end for partition, end in json.loads(ends).items()}, seen)
        for name, ends, seen in whole(connection, "readers")
    }
