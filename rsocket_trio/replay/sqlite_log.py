"""A log in a SQLite database: in a file that any number of processes may open, or in memory."""

from __future__ import annotations

import errno
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, get_args

import attrs
import outcome
import trio

from rsocket_trio.connection.parking_lot import ParkingLot
from rsocket_trio.extras import install_command
from rsocket_trio.replay.appending import Appending, AppendQueue, Begins
from rsocket_trio.replay.bodies import bodies_of, check_numbers, crc_of, crc_of_place, fetch, some_places
from rsocket_trio.replay.elements import Clock, Element, Record, check_element, now_us
from rsocket_trio.replay.errors import CorruptLog, PositionAhead, PositionExpired
from rsocket_trio.replay.log import READ_BYTES, ReplayableLog, check_begin, check_partition
from rsocket_trio.replay.named_readers import Reader, lowest_of
from rsocket_trio.replay.packs import FOREVER, Pack, arrow, has_arrow
from rsocket_trio.replay.retention import SHARE, Retention

if TYPE_CHECKING:
    from apsw import Connection

    from rsocket_trio.replay.database import Database
    from rsocket_trio.replay.staged_attempts import StagedBody

T = TypeVar("T")
Sync: TypeAlias = Literal["full", "never"]

LIMIT_BYTES = 64 * 2**20
"""Bytes that a log in memory keeps."""
LOOK_SECONDS = 0.025
"""Seconds between two looks for rows of other processes, while a reader waits."""
TRIM_BYTES, TRIM_PLACES = 16 * 2**20, 1024
"""Bytes and bodies that are dropped in one transaction."""
WHOLE_SQLITE = (3, 51, 3)
"""From this version on SQLite does not lose pages when one connection begins the WAL anew; and two older ones."""
MENDED_SQLITE = ((3, 44, 6), (3, 50, 7))

READERS_QUERY = (
    "SELECT number, name, ends, seen, crc FROM "
    "(SELECT coalesce((SELECT value FROM counters WHERE name = 'readers'), 0) AS number) LEFT JOIN readers"
)
"""All readers, each behind their number, and one row without a name if there are none."""

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


@attrs.define
class Partition:
    """A row of ``partitions``: the first position, the next one, the time of the last row, and bytes."""

    number: int
    earliest: int = 0
    latest: int = 0
    time: int = 0
    bytes: int = 0

    def save(self, connection: Connection) -> None:
        """Store the row."""
        values = self.number, self.earliest, self.latest, self.time, self.bytes
        connection.execute("INSERT OR REPLACE INTO partitions VALUES (?, ?, ?, ?, ?, ?)", (*values, crc_of(*values)))


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
        self._wanted = partitions
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
            if not has_arrow() and database.ask("SELECT 1 FROM counters WHERE name = 'arrow'"):
                raise ModuleNotFoundError(
                    f"{self.path} has rows that are stored with Arrow: {install_command('arrow')}",
                    name="pyarrow",
                )
            [(found,)] = database.ask("SELECT count(*) FROM partitions")
            if found and self._wanted in (None, found):
                self._count = found  # no lock is waited for
            else:
                self._count = await database.write(self._add_partitions)
        except BaseException:
            # Raised again at once: a log that was not opened is not closed either.
            with trio.CancelScope(shield=True):
                await database.aclose()
            raise
        return database

    def _add_partitions(self, connection: Connection) -> int:
        [(found, noted)] = fetch(
            connection, "SELECT count(*), (SELECT value FROM counters WHERE name = 'partitions') FROM partitions"
        )
        if found != (noted or 0):
            raise CorruptLog(self.path, f"it has {found} partitions instead of {noted}")
        wanted = max(found, 1) if self._wanted is None else self._wanted
        if wanted < found:
            raise ValueError(f"{self.path} has {found} partitions, and {wanted} are asked for: none can be dropped")
        for number in range(found, wanted):
            Partition(number).save(connection)
        if wanted > found:
            connection.execute("INSERT OR REPLACE INTO counters VALUES ('partitions', ?)", (wanted,))
        return int(wanted)

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
        [(self._count,)] = self._open_database.ask("SELECT count(*) FROM partitions")
        return range(self._count)

    def bounds(self, partition: int) -> tuple[int, int]:
        found = self._state(self._open_database.ask, partition)
        return found.earliest, found.latest

    def _state(self, ask: Callable[..., list[tuple[Any, ...]]], number: int) -> Partition:
        """Return a row of ``partitions``. Raise ``UnknownPartition`` and ``CorruptLog``."""
        if not 0 <= number < self._count:
            [(self._count,)] = ask("SELECT count(*) FROM partitions")
            check_partition(number, self._count)
        rows = ask("SELECT * FROM partitions WHERE number = ?", number)
        if rows:
            *values, crc = rows[0]
            if crc == crc_of(*values):
                return Partition(*values)
        raise CorruptLog(self.path, "the row of its bounds is damaged", number)

    def _states(self) -> list[Partition]:
        ask = self._open_database.ask
        return [self._state(ask, number) for number in self.partitions()]

    def _state_in(self, connection: Connection, number: int) -> Partition:
        return self._state(partial(fetch, connection), number)

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
        own = Appending(elements, at)
        begins = await self._appends.append(own)
        if own.has_written:
            await self._tend()
        return begins

    def _check_partitions(self, numbers: Iterable[int]) -> None:
        database = self._open_database
        database.check_process()
        for number in numbers:
            if not 0 <= number < self._count:
                check_partition(number, len(self.partitions()))

    async def _write(self, take: Callable[[], list[Appending]]) -> Sequence[Begins]:
        begins = await self._open_database.alone(partial(self._write_all, take))
        self._changed.wake_all()
        return begins

    def _write_all(self, take: Callable[[], list[Appending]]) -> list[Begins]:
        """Write what is pending in one transaction or, if that fails, each append in one of its own."""
        groups: list[Appending] = []

        def write(connection: Connection) -> list[Begins]:
            groups.extend(take())
            connection.execute("SAVEPOINT together")
            try:
                return [outcome.Value(begins) for begins in self._append(connection, groups)]
            except (ValueError, CorruptLog):
                if len(groups) == 1:
                    raise
                connection.execute("ROLLBACK TO together")
            return [self._append_one(connection, group) for group in groups]

        try:
            return self._open_database.transaction(write)
        except Exception as error:
            # Raised in the task that appended.
            if not groups:
                raise
            if len(groups) == 1:
                return [outcome.Error(error)]
        # The disk has refused something: what fits is written.
        return [self._write_one(group) for group in groups]

    def _append_one(self, connection: Connection, group: Appending) -> Begins:
        connection.execute("SAVEPOINT one")
        try:
            [begins] = self._append(connection, [group])
        except (ValueError, CorruptLog) as error:
            connection.execute("ROLLBACK TO one")
            return outcome.Error(error)
        return outcome.Value(begins)

    def _write_one(self, group: Appending) -> Begins:
        from apsw import BusyError

        try:
            [begins] = self._open_database.transaction(partial(self._append, groups=[group]))
        except BusyError:
            # There is no second try: the others have been taken, and wait in this thread.
            text = "nothing was written: somebody else holds its lock"
            return outcome.Error(OSError(errno.EBUSY, text, str(self.path)))
        except Exception as error:
            # Raised in the task that appended.
            return outcome.Error(error)
        return outcome.Value(begins)

    def _append(self, connection: Connection, groups: Sequence[Appending]) -> list[dict[int, int]]:
        begins: list[dict[int, int]] = [{} for _ in groups]
        for group in groups:
            for number in () if group.at is None else group.at.keys() - group.elements.keys():
                check_begin(number, group.at, self._state_in(connection, number).latest)
        now = self._clock()
        for number in sorted({number for group in groups for number in group.elements}):
            state = self._state_in(connection, number)
            before = state.bytes
            for body in bodies_of(in_order(groups, number, state.latest, begins)):
                # The clock of the machine may be set back; the times of records never go back.
                state.time = max(state.time, now if body.time is None else body.time)
                place(connection, state, body.count, body.insert(connection), body.size, body.crc)
            self._save_grown(connection, state, state.bytes - before)
        return begins

    def _promote(self, connection: Connection, number: int, bodies: Sequence[StagedBody]) -> None:
        """Give staged bodies the next places of a partition, in a transaction of the database's ledger."""
        state = self._state_in(connection, number)
        before = state.bytes
        state.time = max(state.time, self._clock())
        for one in bodies:
            place(connection, state, one.count, one.body, one.size, one.crc)
        self._save_grown(connection, state, state.bytes - before)

    async def _notice(self) -> None:
        """Wake readers of what a ledger has promoted, and do what is due behind it."""
        self._changed.wake_all()
        await self._tend()

    def _save_grown(self, connection: Connection, state: Partition, added: int) -> None:
        """Store a partition to which so many bytes were added. In memory its oldest rows make room for them."""
        if self.path is None:
            limit = self._limit // self._count
            if added > limit:
                raise ValueError(f"{added} bytes for a partition in memory: the limit is {limit}")
            while state.bytes > limit:
                drop(connection, state, state.latest, state.bytes - limit, 1)
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
        database = self._open_database

        def fetch(connection: Connection) -> list[Record | Pack]:
            state = self._state_in(connection, partition)
            if start < state.earliest:
                raise PositionExpired.at(start, partition, state.earliest)
            if start > state.latest:
                raise PositionAhead.at(start, partition, state.latest)
            if start == state.latest or (end is not None and start >= end):
                return []
            stop = FOREVER - 1 if end is None else end
            return some_places(connection, self.path, partition, start, state.latest, stop, max_bytes)

        self._check_partitions((partition,))
        return await database.read(fetch)

    async def position_at(self, partition: int, timestamp: int) -> int:
        self._check_partitions((partition,))
        return await self._open_database.read(lambda connection: self._first_since(connection, partition, timestamp))

    def _first_since(self, connection: Connection, partition: int, timestamp: int) -> int:
        """Return the position of the first place of this time or later. Times never go back, so it is searched for."""
        state = self._state_in(connection, partition)
        low, high = state.earliest, state.latest
        while low < high:
            middle = (low + high) // 2
            # The place that holds the middle, with its body: its CRC says whether its time is right.
            [one] = some_places(connection, self.path, partition, middle, state.latest, middle + 1, 1)
            if one.timestamp is not None and one.timestamp >= timestamp:
                high = max(one.position, low)
            else:
                low = one.end
        return low

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
        if await self._drop(partition, before):
            await self._open_database.give_back()

    async def _drop(self, partition: int, before: int, bytes_: int | None = None) -> bool:
        """Drop what is below a position, up to so many bytes, in portions. Return whether there was anything."""
        database, dropped = self._open_database, False

        def drop_some(connection: Connection) -> int:
            state = self._state_in(connection, partition)
            gone = drop(connection, state, before, TRIM_BYTES if left is None else min(left, TRIM_BYTES), TRIM_PLACES)
            if gone:
                state.save(connection)
            return gone

        left = bytes_
        while left is None or left > 0:
            gone = await database.write(drop_some, gives_way=True)
            if not gone:
                break
            dropped = True
            left = None if left is None else left - gone
            await database.tend(in_full=True)
        return dropped

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
        elif self._is_time_to_retain():
            await self._retain_and_log()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    def _is_time_to_retain(self) -> bool:
        retention = self._retention
        if retention is None or self._retaining.locked():
            return False
        share = math.inf if retention.bytes is None else retention.bytes // SHARE
        return self._appended > share or self._clock() / 1e6 - self._retained_at >= retention._interval

    async def _tend(self) -> None:
        """Do what is due behind an append, whoever made it: no task of the log could. Its failure is none of it."""
        if self._database is not None and not self._closed:
            with trio.CancelScope(shield=True):
                await self._database.tend()
                if self._is_time_to_retain():
                    await self._retain_and_log()

    async def _retain_and_log(self) -> None:
        """Apply the retention; its failure is none of the append or the acknowledgement that it comes with."""
        try:
            await self.retain()
        except (OSError, CorruptLog) as error:
            if str(error) != str(self.retention_failure):
                logger.exception("%s: the retention failed, and is tried again", self.path)
            self.retention_failure = error
        except trio.ClosedResourceError:
            pass  # there is nothing left to do in a log that was closed

    async def _apply_retention(self) -> None:
        retention = self._retention
        if retention is None:
            return
        self._retained_at, self._appended = self._clock() / 1e6, 0
        dropped = False
        for number in self.partitions():
            if retention.seconds is not None:
                old = await self.position_at(number, self._clock() - int(retention.seconds * 1e6))
                dropped |= await self._expire(number, old, None, f"older than {retention.seconds:g} s")
        for number, lowest in self._dropped_by_readers().items():
            dropped |= await self._drop(number, lowest)
        while retention.bytes is not None:
            states = self._states()
            over = sum(state.bytes for state in states) - retention.bytes
            largest = max(states, key=lambda state: state.bytes)
            if over <= 0 or not await self._expire(
                largest.number, largest.latest, min(over, largest.bytes), f"of more than {retention.bytes} bytes"
            ):
                break
            dropped = True
        if dropped:
            await self._open_database.give_back()

    async def _expire(self, number: int, before: int, bytes_: int | None, reason: str) -> bool:
        earliest = self.bounds(number)[0]
        dropped = await self._drop(number, before, bytes_)
        gone = self.bounds(number)[0]
        for reader in self.readers().values() if dropped else ():
            if (end := reader.ends.get(number, 0)) < gone:
                logger.warning(
                    "%s: %d rows of partition %d are gone that reader %s has not acknowledged: they were %s",
                    *(self.path, gone - max(earliest, end), number, reader.name, reason),
                )
        return dropped

    # Named readers

    def readers(self) -> Mapping[str, Reader]:
        return load_readers(self._open_database.ask(READERS_QUERY), self.path)

    async def acknowledge(self, reader: str, ends: Mapping[int, int]) -> Reader:
        found = await super().acknowledge(reader, ends)
        await self._drop_acknowledged()
        return found

    async def forget_reader(self, reader: str) -> bool:
        found = await super().forget_reader(reader)
        await self._drop_acknowledged()
        return found

    async def _drop_acknowledged(self) -> None:
        if self._retention is not None and self._dropped_by_readers():
            await self._retain_and_log()

    def _dropped_by_readers(self) -> dict[int, int]:
        """Return the positions that all named readers have reached, by partition, where that drops something."""
        readers, found = self.readers().values(), {}
        for state in self._states():
            lowest = lowest_of(readers, state.number)
            if lowest is not None and lowest > state.earliest:
                found[state.number] = lowest
        return found

    async def _change_readers(self, change: Callable[[dict[str, Reader]], T]) -> T:
        def save(connection: Connection) -> T:
            before = load_readers(fetch(connection, READERS_QUERY), self.path)
            after = dict(before)
            result = change(after)
            for name in before.keys() - after.keys():
                connection.execute("DELETE FROM readers WHERE name = ?", (name,))
            for reader in after.values():
                known = before.get(reader.name)
                if known != reader:
                    save_reader(connection, reader)
            if len(after) != len(before):
                connection.execute("INSERT OR REPLACE INTO counters VALUES ('readers', ?)", (len(after),))
            return result

        return await self._open_database.write(save)


def load_readers(rows: Iterable[tuple[Any, ...]], path: Path | None) -> dict[str, Reader]:
    """Return the readers in the rows of ``READERS_QUERY``. Raise ``CorruptLog``."""
    found: dict[str, Reader] = {}
    number = 0
    for number, name, ends, seen, crc in rows:
        if crc is None and number == 0:
            break
        if crc != crc_of(name, ends, seen):
            raise CorruptLog(path, "the row of a reader is damaged")
        found[name] = Reader(name, {int(partition): end for partition, end in json.loads(ends).items()}, seen)
    if len(found) != number:
        raise CorruptLog(path, f"it has {len(found)} readers instead of {number}")
    return found


def save_reader(connection: Connection, reader: Reader) -> None:
    """Store a reader."""
    row = reader.name, json.dumps(dict(sorted(reader.ends.items()))), reader.seen
    connection.execute("INSERT OR REPLACE INTO readers VALUES (?, ?, ?, ?)", (*row, crc_of(*row)))


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


def place(connection: Connection, state: Partition, count: int, body: int, size: int, crc: int) -> None:
    """Give a body the next place of a partition; ``crc`` is that of the body."""
    connection.execute(
        "INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            *(state.number, state.latest, count, state.time, body, size),
            crc_of_place(state.number, state.latest, count, state.time, crc),
        ),
    )
    state.latest += count
    state.bytes += size


def drop(connection: Connection, state: Partition, before: int, bytes_: int, places: int) -> int:
    """Drop the first bodies of a partition that end at ``before`` or below, up to these numbers. Return their bytes."""
    bodies: list[tuple[int]] = []
    gone = 0
    for position, count, body, size in connection.execute(
        "SELECT position, count, body, size FROM places WHERE partition = ? ORDER BY position LIMIT ?",
        (state.number, places),
    ):
        check_numbers(position, count, body, size)
        if gone >= bytes_ or position + count > before or position != state.earliest:
            break
        state.earliest = position + count
        bodies.append((body,))
        gone += size
    connection.executemany("DELETE FROM bodies WHERE id = ?", bodies)
    connection.execute("DELETE FROM places WHERE partition = ? AND position < ?", (state.number, state.earliest))
    state.bytes -= gone
    return gone


def rows_in(found: Iterable[Record | Pack], start: int, end: int) -> Iterator[Record]:
    """Yield the records that have rows from ``start`` to below ``end``, those of packs one by one."""
    for one in found:
        if isinstance(one, Pack):
            yield from arrow().rows_of(one, start, end)
        else:
            yield one
