"""A log in a SQLite database: in a file that any number of processes may open, or in memory.

One connection writes, a few read, each in a thread of Trio's; one more answers short questions where they are asked.
"""

from __future__ import annotations

import errno
import logging
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, TypeVar, get_args

import msgspec
import trio

from rsocket_trio.extras import install_command
from rsocket_trio.replay import tables
from rsocket_trio.replay.elements import FOREVER, Element, Pack, Record, has_arrow, now_us, prepared, rows_in
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.log import READ_BYTES, Appending, AppendQueue, Reader, ReplayableLog, Retention, check_begin
from rsocket_trio.replay.tables import Partition, check_filesystem, partition_of, require_sqlite, translated
from rsocket_trio.tools.parking_lot import ParkingLot

if TYPE_CHECKING:
    from apsw import Connection

T = TypeVar("T")
Sync: TypeAlias = Literal["full", "never"]

APPLICATION_ID: Final = 0x52534B54
"""``PRAGMA application_id`` of our files: "RSKT"."""
LAYOUT: Final = 3
"""The layout of the tables that this version writes: ``PRAGMA user_version``."""
LOCK_SECONDS = 30.0
"""Seconds that a write waits while somebody else holds the lock of the file."""
LOCK_TRY_MS = 50
"""Milliseconds that SQLite waits for the lock in one try: so long a cancelled write goes on."""
PAGE_BYTES = 8192
"""Bytes of a page of a new file: packs take a quarter less CPU to write than with SQLite's 4096."""
CHECKPOINT_BYTES = 4 * 2**20
"""Bytes by which a write-ahead log grows until a writer copies it into the database."""
WAL_BYTES = 16 * 2**20
"""Bytes of a write-ahead log above which readers leave gaps, and a writer waits for one to begin it anew."""
RESET_MS, GAP_SECONDS = 300, 0.02
"""Milliseconds that a writer waits for such a gap, and its length."""
READERS = 4
"""Reads of a log at a time."""
RESERVE_BYTES = 8 * 2**20
"""Bytes of the file that is given up on a full disk, so that trimming has room."""
PORTION_BYTES = 2 * 2**20
"""Bytes that are dropped, or given back to the disk, in one transaction."""
LOOK_SECONDS = 0.025
"""Seconds between two looks for rows of other processes, while a reader waits."""

logger = logging.getLogger("rsocket_trio.replay")


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
        # SQLite's own files lie beside the file itself, wherever links lead to it.
        self._file = ":memory:" if path is None else os.path.realpath(path)
        self._reserve = Path(f"{self._file}-reserve")
        self._asked_partitions = partitions
        self._limit = 64 * 2**20 if limit_bytes is None else limit_bytes
        # With "full" each commit waits for the disk.
        self._synchronous = "full" if sync == "full" else "normal"
        self._clock = now_us
        self._count = 0
        # The process that has opened it.
        self._pid = 0
        self._is_closed = False
        self._writes, self._reads = trio.CapacityLimiter(1), trio.CapacityLimiter(READERS)
        self._reset_at = WAL_BYTES
        self._appends = AppendQueue(self._write)
        self._changed = ParkingLot()
        self._is_watched = False
        self._versions: dict[Connection, int] = {}
        self._retention: Retention | None = None
        self._retained_at = -math.inf

    def __reduce__(self) -> NoReturn:
        raise TypeError("a log can't be pickled: open it where it is used, in any process")

    # Opening and closing

    async def open(self) -> None:
        if not self._pid:
            await self._in_thread(self._open, self._writes)
        self._check_open()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _open(self) -> None:
        """Open the file, or make it. Raise ``OSError(EBUSY)`` if somebody else writes it."""
        if self._pid:
            return  # by another task, while this one waited for its turn
        with translated(self.path), ExitStack() as opened:
            if self.path is not None:
                check_filesystem(Path(self._file), self.path)
                self._check_kind()
            self._writer = self._connect(opened)
            self._idle = [self._writer]
            self._writer.transaction_mode = "IMMEDIATE"
            self._prepare(self._writer)
            if self.path is not None:
                if self._writer.pragma("journal_mode", "wal") != "wal":
                    raise OSError(errno.ENOTSUP, "the file system has no shared memory for a WAL", str(self.path))
                self._writer.pragma("wal_autocheckpoint", CHECKPOINT_BYTES // PAGE_BYTES)
                self._writer.pragma("journal_size_limit", CHECKPOINT_BYTES)
                # One more than may be in threads.
                self._idle = [self._connect(opened) for _ in range(READERS + 1)]
            self._connections = opened.pop_all()
        self._take_reserve()
        self._pid = os.getpid()

    def _check_kind(self) -> None:
        """Raise ``CorruptLog`` for a file that is not ours, which stays as it is: it is read as it lies there."""
        import apsw

        size = os.stat(self._file).st_size if os.path.exists(self._file) else 0
        if 0 < size < 512:  # SQLite takes a file of one byte for an empty one
            raise CorruptLog(self.path, "it is no database")
        if size:
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            with closing(apsw.Connection(f"{Path(self._file).as_uri()}?immutable=1", flags)) as reader:
                # One that another process makes or grows just now may be shorter than it says: that is no damage here.
                reader.pragma("writable_schema", 1)
                self._is_ours(reader)

    def _is_ours(self, connection: Connection) -> bool:
        """Return whether a database is a log's, or empty. Raise ``CorruptLog`` for another program's, or layout."""
        # In one statement: another process may make the file just now.
        number, layout, size = connection.execute(
            "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) "
            "FROM pragma_application_id, pragma_user_version"
        ).get
        if number != APPLICATION_ID and (number or size):
            raise CorruptLog(self.path, "it is a database of another program")
        if number and layout != LAYOUT:
            raise CorruptLog(self.path, f"it has the layout {layout}, and this version knows {LAYOUT}")
        return bool(number)

    def _connect(self, opened: ExitStack) -> Connection:
        import apsw

        connection = opened.enter_context(closing(apsw.Connection(self._file)))
        connection.set_busy_timeout(LOCK_TRY_MS)
        for name, value in (("synchronous", self._synchronous), ("secure_delete", 0), ("cache_size", -2048)):
            connection.pragma(name, value)
        return connection

    def _prepare(self, connection: Connection) -> None:
        """Make what a file lacks, its tables and partitions. Raise ``ValueError`` for one of more partitions, and
        ``ModuleNotFoundError`` for rows that can't be read here.
        """

        def present() -> int:
            return tables.counter(connection, "partitions") if self._is_ours(connection) else 0

        if not present():
            # Before the file has its first table, and before the WAL: later it has no effect.
            connection.pragma("page_size", PAGE_BYTES)
            connection.pragma("auto_vacuum", 2)
        self._count = wanted = self._asked_partitions or max(present(), 1)
        if wanted > present():  # else no lock is waited for
            with connection:
                if not self._is_ours(connection):
                    connection.execute(tables.SCHEMA)
                    for name in ("partitions", "sinks", "attempts", "epochs", "plans"):
                        tables.put(connection, "facts", name, 0)
                    tables.put(connection, "facts", "readers", "{}")
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", LAYOUT)
                for number in range(present(), wanted):
                    Partition(number).save(connection)
                    tables.count(connection, "partitions")
        if wanted < (known := present()):
            raise ValueError(f"{self.path} has {known} partitions, and {wanted} are asked for: none can be dropped")
        if not has_arrow() and connection.execute("SELECT 1 FROM bodies WHERE form = 1 LIMIT 1").get:
            raise ModuleNotFoundError(
                f"{self.path} has rows that are stored with Arrow: {install_command('arrow')}", name="pyarrow"
            )

    async def aclose(self) -> None:
        if self._pid and not self._is_closed:
            self._is_closed = True
            for limiter in [self._writes, *[self._reads] * READERS]:
                await limiter.acquire_on_behalf_of(object())
            await trio.to_thread.run_sync(self._connections.close)
            self._writes.total_tokens = self._reads.total_tokens = math.inf  # who waits for a turn fails
        self._changed.wake_all()

    def _check_open(self) -> None:
        """Raise ``RuntimeError`` in a process that was forked since, and if the log is not open."""
        if not self._pid:
            raise trio.ClosedResourceError("the log is not open: use it under 'async with'")
        if os.getpid() != self._pid:
            raise RuntimeError(f"{self.path} was opened before this process was forked: open it here")
        if self._is_closed:
            raise trio.ClosedResourceError("the log was closed")

    # The database: whose thread, and whose turn

    async def _in_thread(self, function: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """Run a function in a thread, in memory here, again while the file is locked, for ``LOCK_SECONDS`` at most."""
        since = trio.current_time()
        while True:
            try:
                if self.path is not None:
                    return await trio.to_thread.run_sync(function, limiter=limiter)
                await trio.lowlevel.checkpoint()
                return function()
            except OSError as error:
                if error.errno != errno.EBUSY or trio.current_time() >= since + LOCK_SECONDS:
                    raise

    def _transaction(self, connection: Connection, function: Callable[[Connection], T]) -> T:
        with translated(self.path, connection):
            return function(connection)

    def _here(self, function: Callable[[Connection], T]) -> T:
        """Return what a question finds in one state of the file: a short one where it is asked.

        No other question sees its connection meanwhile.
        """
        self._check_open()
        connection = self._idle.pop()
        try:
            return self._transaction(connection, function)
        finally:
            self._idle.append(connection)

    def _ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._here(lambda connection: connection.execute(statement, values).fetchall())

    async def _look_up(self, function: Callable[[Connection], T]) -> T:
        """Return what a longer question finds, in a thread."""
        if self._wal_bytes > WAL_BYTES:
            # So that a writer finds a moment at which nobody reads the WAL.
            await trio.sleep(GAP_SECONDS)
        return await self._in_thread(partial(self._here, function), self._reads)

    async def _change(
        self, function: Callable[[Connection], T], *, waits_for_disk: bool = True, makes_room: bool = False
    ) -> T:
        """Run ``function`` in a transaction, commit it, and return what it returns; again if the file was locked.

        While it waits for the lock it can be cancelled. What does not wait for the disk is there with the next
        transaction that does, or not at all. What makes room has that of the reserve on a full disk.
        """

        def run() -> T:
            self._check_open()
            self._writer.pragma("synchronous", self._synchronous if waits_for_disk else "normal")
            try:
                result = self._transaction(self._writer, function)
            except OSError as error:
                if not makes_room or error.errno != errno.ENOSPC or not self._delete_reserve():
                    raise
                self._reset_wal()
                result = self._transaction(self._writer, function)
            if makes_room or self._wal_bytes > self._reset_at:
                self._reset_wal(gives_reserve=makes_room)
                # Where somebody reads on, it waits for that again some MiB later.
                self._reset_at = max(WAL_BYTES, self._wal_bytes + CHECKPOINT_BYTES)
                self._take_reserve()
            return result

        return await self._in_thread(run, self._writes)

    # Space

    @property
    def _wal_bytes(self) -> int:
        with suppress(FileNotFoundError):
            return os.stat(f"{self._file}-wal").st_size
        return 0

    def _reset_wal(self, *, gives_reserve: bool = False) -> None:
        """Copy the write-ahead log and begin it anew, on a full disk in the room of the reserve if that may go.

        Where somebody reads it for too long, or the disk fails, it stays, and is copied the next time: that is no
        failure of the commit that it comes with.
        """
        import apsw

        self._writer.set_busy_timeout(RESET_MS)
        try:
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            pass  # another process copies it, or reads it
        except apsw.Error as error:
            logger.warning("%s: its write-ahead log could not be copied: %s", self.path, error)
            if gives_reserve and isinstance(error, apsw.FullError) and self._delete_reserve():
                self._reset_wal()
        finally:
            self._writer.set_busy_timeout(LOCK_TRY_MS)

    async def _give_back(self) -> None:
        """Give back to the disk what is free beyond a quarter of the file, in portions."""
        portion = PORTION_BYTES // PAGE_BYTES

        def vacuum(connection: Connection) -> bool:
            pages = connection.pragma("page_count")
            # Then a quarter of what is left is free.
            surplus = (4 * connection.pragma("freelist_count") - pages) // 3
            if surplus > 0:
                # It frees a page for each row that is fetched.
                connection.execute(f"PRAGMA incremental_vacuum({min(surplus, portion)})").fetchall()
            # In a damaged file there are fewer than it counts.
            return bool(pages - connection.pragma("page_count") >= portion)

        try:
            while await self._change(vacuum, makes_room=True):
                pass
        except OSError as error:
            # It takes some room; the log itself uses again what is free.
            if error.errno != errno.ENOSPC:
                raise

    def _take_reserve(self) -> None:
        """Take room on the disk for a trim on a full one, but leave some for the write-ahead log."""
        if self.path is None or self._reserve.exists():
            return
        with suppress(OSError), self._reserve.open("ab") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES + 2 * CHECKPOINT_BYTES)
                file.truncate(RESERVE_BYTES)
            except OSError:
                self._reserve.unlink()

    def _delete_reserve(self) -> bool:
        """Give the reserve back to the disk. Return whether there was one."""
        is_there = self._reserve.exists()
        self._reserve.unlink(missing_ok=True)
        return is_there

    # State: that of the file

    def partitions(self) -> Sequence[int]:
        self._count = self._here(partial(tables.counter, name="partitions"))
        return range(self._count)

    def bounds(self, partition: int) -> tuple[int, int]:
        self._check_partitions(partition)
        state = self._here(partial(partition_of, number=partition))
        return state.earliest, state.latest

    def _check_partitions(self, *numbers: int) -> None:
        for number in numbers:
            if type(number) is not int or not 0 <= number < self._count:
                self._check_partition(number, len(self.partitions()))

    # Writing

    async def append_all(
        self, elements: Mapping[int, Iterable[Element | Pack]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        self._check_partitions(*elements, *(at or ()))
        own = Appending({number: prepared(group) for number, group in elements.items()}, at)
        begins = await self._appends.append(own)
        if self._retention is not None:
            await self.retain(in_full=False)
        return begins

    async def _write(self, take: Callable[[], list[Appending]]) -> Sequence[dict[int, int]]:
        begins = await self._change(lambda connection: self._append(connection, take()))
        self._changed.wake_all()
        return begins

    def _append(self, connection: Connection, groups: Sequence[Appending]) -> list[dict[int, int]]:
        """Store what was appended together. Return where each begins. Raise ``ValueError`` if one can't be there."""
        ends: dict[int, int] = {}
        together: dict[int, tuple[Partition, list[Element | Pack]]] = {}
        begins: list[dict[int, int]] = []
        for group in groups:
            own = {}
            for number in group.at or ():
                check_begin(number, group.at, ends.get(number) or partition_of(connection, number).latest)
            for number, elements in group.elements.items():
                if number not in ends:
                    state = partition_of(connection, number)
                    together[number], ends[number] = (state, []), state.latest
                own[number] = ends[number]
                ends[number] += sum([element.count for element in elements])
                together[number][1].extend(elements)
            begins.append(own)
        now = self._clock()
        for state, elements in together.values():
            begin = state.latest
            for body in tables.bodies_of(elements):
                # The clock of the machine may be set back; the times of records never go back.
                state.time = max(state.time, now if body[1] is None else body[1])
                state.append(connection, body)
            self._save_grown(connection, state, begin)
        return begins

    def _promote(self, connection: Connection, number: int, staged: Sequence[tuple[int, int, int, int]]) -> None:
        """Give bodies that are stored, each with its count, id, size and CRC, the next places of a partition."""
        state = partition_of(connection, number)
        begin, state.time = state.latest, max(state.time, self._clock())
        for body in staged:
            state.place(connection, *body)
        self._save_grown(connection, state, begin)

    def _save_grown(self, connection: Connection, state: Partition, begin: int) -> None:
        """Store a partition that has grown. In memory its rows below ``begin`` make room for the new ones.

        Raise ``ValueError`` if these are too large for it.
        """
        state.save(connection)
        limit = self._limit // self._count
        if self.path is None and state.bytes > limit:
            state.drop(connection, begin, state.bytes - limit)
            if state.bytes > limit:
                raise ValueError(f"{state.bytes} bytes for a partition in memory: the limit is {limit}")

    # Reading

    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        entries, stop = await self._read_stored(partition, start, end, max_bytes), FOREVER if end is None else end
        return (row for entry in entries for row in rows_in(entry, start, stop))

    async def _read_stored(self, partition: int, start: int, end: int | None, max_bytes: int) -> list[Record | Pack]:
        """Return what is stored from ``start`` to below ``end``, about ``max_bytes`` and at least one body.

        What is damaged is an error where it is the first, and left out behind others.
        """
        stop = FOREVER - 1 if end is None else end

        def look(connection: Connection) -> list[Record | Pack]:
            state, size, entries = partition_of(connection, partition), 0, list[Record | Pack]()
            self._check_position(partition, start, state.earliest, state.latest)
            for place in tables.places(connection, state, start, is_with_bodies=True) if start < stop else ():
                entries.append(tables.stored(*place))
                size += place[4]
                if size >= max_bytes or entries[-1].end >= stop:
                    break
            return entries

        self._check_partitions(partition)
        return await self._look_up(look)

    async def position_at(self, partition: int, timestamp: int) -> int:
        def first_since(connection: Connection) -> int:
            # Times never go back. Those of places are searched, whose CRC says whether they are right.
            state = partition_of(connection, partition)
            positions = range(state.earliest, state.latest)
            return state.earliest + bisect_left(
                positions, timestamp, key=lambda position: next(tables.places(connection, state, position))[2]
            )

        self._check_partitions(partition)
        return await self._look_up(first_since)

    async def wait_beyond(self, partition: int, position: int) -> None:
        await trio.lowlevel.checkpoint()
        while self.bounds(partition)[1] <= position:
            if self.path is None or self._is_watched:
                # An append wakes it, or the task that looks for what other processes wrote, and ``aclose``.
                await self._changed.park()
                continue
            self._is_watched = True
            try:
                with trio.move_on_after(LOOK_SECONDS):
                    await self._changed.park()
                if self._here(self._sees_change):
                    self._changed.wake_all()
            finally:
                # The next task that wakes looks on.
                self._is_watched = False
                self._changed.wake_one()

    def _sees_change(self, connection: Connection) -> bool:
        """Return whether others have written since the last look, and not only since somebody waits."""
        before = self._versions.get(connection)
        self._versions[connection] = connection.pragma("data_version")
        return before != self._versions[connection]

    # Dropping

    async def trim(self, partition: int, before: int) -> None:
        self._check_partitions(partition)
        await self._drop(lambda connection: (partition_of(connection, partition), before, FOREVER))

    async def _drop(self, wanted: Callable[[Connection], tuple[Partition, int, int]]) -> None:
        """Drop in portions what is ``wanted`` in each: of a partition, below a position, about so many bytes."""
        dropped = 0

        def drop_some(connection: Connection) -> int:
            state, before, most = wanted(connection)
            return state.drop(connection, before, min(most, PORTION_BYTES))

        while gone := await self._change(drop_some, makes_room=True):
            dropped += gone
        if dropped:
            await self._give_back()

    def set_retention(self, retention: Retention) -> None:
        if self.path is None:
            raise ValueError("a log in memory has no retention: it has limit_bytes")
        if self._retention not in (None, retention):
            raise ValueError(f"{self.path} has another retention: {self._retention}")
        self._retention = retention

    async def retain(self, *, in_full: bool = True) -> None:
        if self._retention is None or (not in_full and self._clock() < self._retained_at + 1_000_000):
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        self._retained_at = math.inf  # who comes meanwhile does not begin again
        try:
            # A task of the log could not: one that asks for something else does it.
            with trio.CancelScope(shield=not in_full):
                await self._apply(self._retention)
        except (OSError, CorruptLog, trio.ClosedResourceError):
            if in_full:
                raise
            logger.exception("%s: the retention failed, and is tried again", self.path)
        finally:
            self._retained_at = self._clock()

    async def _apply(self, retention: Retention) -> None:
        def largest(connection: Connection) -> tuple[Partition, int, int]:
            states = Partition.where(connection, "ORDER BY bytes DESC")
            return states[0], states[0].latest, sum(state.bytes for state in states) - (retention.bytes or 0)

        for number in self.partitions():
            before = self.lowest(number) or 0
            if retention.seconds is not None:
                old = await self.position_at(number, self._clock() - int(retention.seconds * 1e6))
                before = max(before, old)
            await self.trim(number, before)
        if retention.bytes is not None:
            await self._drop(largest)

    # Named readers

    def readers(self) -> Mapping[str, Reader]:
        return self._here(load_readers)

    async def _change_readers(self, change: Callable[[dict[str, Reader]], T]) -> T:
        def save(connection: Connection) -> T:
            readers = load_readers(connection)
            result = change(readers)
            tables.put(connection, "facts", "readers", msgspec.json.encode(dict(sorted(readers.items()))).decode())
            return result

        result = await self._change(save)
        self._retained_at = -math.inf  # there may be rows that none needs any more
        await self.retain(in_full=False)
        return result


def load_readers(connection: Connection) -> dict[str, Reader]:
    return msgspec.json.decode(tables.row(connection, "facts", "name", "readers")[1], type=dict[str, Reader])
