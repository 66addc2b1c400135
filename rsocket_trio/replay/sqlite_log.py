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
from rsocket_trio.replay.appending import Appending, AppendQueue, Begins
from rsocket_trio.replay.bodies import bodies_of
from rsocket_trio.replay.elements import Clock, Element, Record, check_element, now_us
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.log import READ_BYTES, ReplayableLog, check_begin, check_partition, check_position
from rsocket_trio.replay.named_readers import Reader, lowest_of
from rsocket_trio.replay.packs import FOREVER, Pack, arrow, has_arrow
from rsocket_trio.replay.retention import SHARE, Retention
from rsocket_trio.replay.tables import (
    Partition,
    check_all,
    count,
    counter,
    partition_of,
    places,
    put,
    records_from,
    rows,
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
    ``retention_failure`` is the error of the last try to drop records, ``None`` after a success. The class raises
    ``ModuleNotFoundError`` without APSW.
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
        self._closed = False
        self._appends = AppendQueue(self._write)
        self._changed = ParkingLot()
        self._is_watched = False
        self._version: list[tuple[int]] = []
        self._retention: Retention | None = None
        self._retaining = trio.Lock()
        self._retained_at = -math.inf
        self._appended = 0
        self.retention_failure: OSError | CorruptLog | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("a log can't be pickled: open it where it is used, in any process")

    # Opening and closing

    async def open(self) -> None:
        if self._database is not None and not self._closed:
            self._database.check_process()
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        async with self._opening:
            self._check_closed()
            if self._database is None:
                self._database = await self._connected()

    async def _connected(self) -> Database:
        from rsocket_trio.replay.database import Database

        database = Database(self.path, sync=self._sync == "full")
        await database.open()
        try:
            if not has_arrow() and database.ask("SELECT 1 FROM bodies WHERE form = 1 LIMIT 1"):
                raise ModuleNotFoundError(
                    f"{self.path} has rows that are stored with Arrow: {install_command('arrow')}",
                    name="pyarrow",
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
        return database

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
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        async with self._opening:
            self._closed = True
            self._changed.wake_all()
            if self._database is not None:
                await self._database.aclose()

    @property
    def _open_database(self) -> Database:
        """Return the database. Raise ``trio.ClosedResourceError`` unless the log is open."""
        self._check_closed()
        if self._database is None:
            raise trio.ClosedResourceError("the log is not open: use it under 'async with'")
        return self._database

    def _check_closed(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the log was closed")

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

    # Writing

    async def append_all(
        self, elements: Mapping[int, Iterable[Element | Pack]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        self._check_partitions((*elements, *(at or ())))
        for number, group in elements.items():
            if not isinstance(group, list | tuple):
                # What may be read only once is kept: it is read again when another append fails beside it.
                elements = {**elements, number: list(group)}
            for element in elements[number]:
                if isinstance(element, Element):
                    check_element(element)
                elif not isinstance(element, Pack):
                    raise TypeError(f"elements are Element or Pack, not {type(element).__name__}")
        own = Appending(elements, at)
        begins = await self._appends.append(own)
        if own.has_written:
            await self._retain_when_due()
        return begins

    def _check_partitions(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if type(number) is not int or not 0 <= number < self._count:
                check_partition(number, len(self.partitions()))

    async def _write(self, take: Callable[[], list[Appending]]) -> Sequence[Begins]:
        begins = await self._open_database.alone(partial(self._write_all, take))
        self._changed.wake_all()
        return begins

    def _write_all(self, take: Callable[[], list[Appending]]) -> list[Begins]:
        """Write what is pending in one transaction or, if that fails, each append in one of its own."""
        database = self._open_database
        groups: list[Appending] = []

        def write(connection: Connection) -> list[dict[int, int]]:
            groups.extend(take())
            return self._append(connection, groups)

        def write_one(connection: Connection, group: Appending) -> dict[int, int]:
            [begins] = self._append(connection, [group])
            return begins

        try:
            return [outcome.Value(begins) for begins in database.transaction(write)]
        except Exception as error:
            if not groups:
                raise
            if len(groups) == 1:
                # Raised in the task that appended.
                return [outcome.Error(error)]
        return database.transactions(partial(write_one, group=group) for group in groups)

    def _append(self, connection: Connection, groups: Sequence[Appending]) -> list[dict[int, int]]:
        begins: list[dict[int, int]] = [{} for _ in groups]
        for group in groups:
            for number in () if group.at is None else group.at.keys() - group.elements.keys():
                check_begin(number, group.at, partition_of(connection, number).latest)
        now = self._clock()
        for number in sorted({number for group in groups for number in group.elements}):
            state = partition_of(connection, number)
            before = state.bytes
            for body in bodies_of(in_order(groups, number, state.latest, begins)):
                # The clock of the machine may be set back; the times of records never go back.
                state.time = max(state.time, now if body.time is None else body.time)
                state.append(connection, body)
            self._save_grown(connection, state, state.bytes - before)
        return begins

    def _promote(self, connection: Connection, number: int, staged: Iterable[tuple[int, int, int, int]]) -> None:
        """Give bodies that are stored, each with its count, size and CRC, the next places of a partition."""
        state = partition_of(connection, number)
        before = state.bytes
        state.time = max(state.time, self._clock())
        for body in staged:
            state.place(connection, *body)
        self._save_grown(connection, state, state.bytes - before)

    async def _notice(self) -> None:
        """Wake readers of what a ledger has promoted, and do what is due behind it."""
        self._changed.wake_all()
        await self._retain_when_due()

    def _save_grown(self, connection: Connection, state: Partition, added: int) -> None:
        """Store a partition to which so many bytes were added. In memory its oldest rows make room for them."""
        if self.path is None:
            limit = self._limit // self._count
            if added > limit:
                raise ValueError(f"{added} bytes for a partition in memory: the limit is {limit}")
            while state.bytes > limit:
                state.drop(connection, state.latest, state.bytes - limit, TRIM_BODIES)
        self._appended += added
        state.save(connection)

    # Reading

    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        found = await self._some(partition, start, end, max_bytes)
        return rows_in(found, start, FOREVER if end is None else end)

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
            check_position(start, partition, state.earliest, state.latest)
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

    async def _drop(self, partition: int, before: int, max_bytes: int = FOREVER) -> bool:
        """Drop what is below a position, about so many bytes, in portions. Return whether there was anything."""
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
        return dropped > 0

    def set_retention(self, retention: Retention) -> None:
        if self.path is None:
            raise ValueError("a log in memory has no retention: it has limit_bytes")
        if self._retention not in (None, retention):
            raise ValueError(f"{self.path} has another retention: {self._retention}")
        self._retention = retention

    async def retain(self, *, in_full: bool = True) -> None:
        if in_full:
            async with self._retaining:
                await self._apply_retention()
                self.retention_failure = None
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
            await self._retain_when_due()

    async def _retain_when_due(self) -> None:
        """Apply the retention with what another task asks: no task of the log could. A failure is none of its own."""
        if self._is_time_to_retain():
            try:
                with trio.CancelScope(shield=True):
                    await self.retain()
            except (OSError, CorruptLog) as error:
                if str(error) != str(self.retention_failure):
                    logger.exception("%s: the retention failed, and is tried again", self.path)
                self.retention_failure = error
            except trio.ClosedResourceError:
                pass  # there is nothing left to do in a log that was closed

    def _is_time_to_retain(self) -> bool:
        retention = self._retention
        if retention is None or self._retaining.locked():
            return False
        share = math.inf if retention.bytes is None else retention.bytes // SHARE
        return self._appended > share or self._clock() / 1e6 - self._retained_at >= retention._interval

    async def _apply_retention(self) -> None:
        retention = self._retention
        if retention is None:
            return
        now = self._clock()
        self._retained_at, self._appended = now / 1e6, 0
        readers = self.readers().values()
        for number in self.partitions():
            if retention.seconds is not None:
                old = await self.position_at(number, now - int(retention.seconds * 1e6))
                await self._expire(number, old, f"older than {retention.seconds:g} s")
            await self._drop(number, lowest_of(readers, number) or 0)
        while retention.bytes is not None:
            states = [self._state(number) for number in self.partitions()]
            over = sum(state.bytes for state in states) - retention.bytes
            largest = max(states, key=lambda state: state.bytes)
            reason = f"of more than {retention.bytes} bytes"
            if over <= 0 or not await self._expire(largest.number, largest.latest, reason, min(over, largest.bytes)):
                break

    async def _expire(self, number: int, before: int, reason: str, max_bytes: int = FOREVER) -> bool:
        earliest = self.bounds(number)[0]
        is_dropped = await self._drop(number, before, max_bytes)
        gone = self.bounds(number)[0]
        for reader in self.readers().values() if is_dropped else ():
            if (end := reader.ends.get(number, 0)) < gone:
                logger.warning(
                    "%s: %d rows of partition %d are gone that reader %s has not acknowledged: they were %s",
                    *(self.path, gone - max(earliest, end), number, reader.name, reason),
                )
        return is_dropped

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
        if self._retention is not None:
            readers = self.readers().values()
            if any((lowest_of(readers, number) or 0) > self.bounds(number)[0] for number in self.partitions()):
                self._retained_at = -math.inf
                await self._retain_when_due()
        return result


def load_readers(connection: Connection) -> dict[str, Reader]:
    """Return the named readers. Raise ``CorruptLog``."""
    check_all(connection, "readers")
    return {
        name: Reader(name, {int(partition): end for partition, end in json.loads(ends).items()}, seen)
        for name, ends, seen in rows(connection, "readers")
    }


def in_order(
    groups: Sequence[Appending], partition: int, end: int, begins: Sequence[dict[int, int]]
) -> Iterator[Element | Pack]:
    """Yield the elements of all groups for a partition that ends at ``end``, and note where each group begins."""
    for group, noted in zip(groups, begins, strict=True):
        elements = group.elements.get(partition)
        if elements is not None:
            check_begin(partition, group.at, end)
            noted[partition] = end
            for element in elements:
                end += element.count
                yield element


def rows_in(found: Iterable[Record | Pack], start: int, end: int) -> Iterator[Record]:
    """Yield the records that have rows from ``start`` to below ``end``, those of packs one by one."""
    for one in found:
        if isinstance(one, Pack):
            yield from arrow().rows_of(one, start, end)
        else:
            yield one
