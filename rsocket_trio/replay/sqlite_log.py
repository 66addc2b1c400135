"""A log in a SQLite database: in a file that any number of processes may open, or in memory.

One connection writes, a few read, each in a thread of Trio's; one more answers short questions where they are asked.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, TypeVar, get_args

import trio

from rsocket_trio.extras import install_command
from rsocket_trio.replay import tables
from rsocket_trio.replay.elements import FOREVER, Element, Pack, Record, arrow, has_arrow, now_us, prepared, rows_in
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.log import READ_BYTES, Appending, AppendQueue, Reader, ReplayableLog, Retention, check_begin
from rsocket_trio.replay.tables import OVERHEAD, Partition, check_filesystem, partition_of, require_sqlite, translated
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
PORTION_PAGES = 1024
"""Pages that are given back to the disk at a time."""
LOOK_SECONDS = 0.025
"""Seconds between two looks for rows of other processes, while a reader waits."""
TRIM_BYTES, TRIM_BODIES = 16 * 2**20, 1024
"""Bytes and bodies that are dropped in one transaction."""

logger = logging.getLogger("rsocket_trio.replay")
_opening = threading.Lock()
"""Held by a thread that opens a file: two of a process would meet half a file."""


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
        self._file = "" if path is None else os.path.realpath(path)
        self._asked_partitions = partitions
        self._limit = 64 * 2**20 if limit_bytes is None else limit_bytes
        # With "full" each commit waits for the disk.
        self._synchronous = "full" if sync == "full" else "normal"
        self._clock = now_us
        self._count = 0
        # The process that has opened it.
        self._pid = 0
        self._is_closed = False
        self._opening, self._turn, self._retaining = trio.Lock(), trio.Lock(), trio.Lock()
        self._reading = trio.Semaphore(READERS)
        self._idle: list[Connection] = []
        self._copied_pages = 0
        self._appends = AppendQueue(self._write)
        self._changed = ParkingLot()
        self._is_watched = False
        self._version: list[tuple[int]] = []
        self._retention: Retention | None = None
        self._retained_at = -math.inf

    def __reduce__(self) -> NoReturn:
        raise TypeError("a log can't be pickled: open it where it is used, in any process")

    # Opening and closing

    async def open(self) -> None:
        async with self._opening if not self._pid else nullcontext():
            if not self._pid:
                await self._patiently(self._open, trio.current_time())
        self._check_open()
        await trio.lowlevel.checkpoint_if_cancelled()

    def _open(self) -> None:
        """Open the file, or make it. Raise ``OSError(EBUSY)`` if somebody else writes it."""
        with nullcontext() if self.path is None else _opening, translated(self.path):
            if self.path is not None:
                check_filesystem(Path(self._file), self.path)
                self._check_kind()
            self._writer = self._asked = self._connect()
            try:
                self._writer.transaction_mode = "IMMEDIATE"
                self._create()
                if self.path is not None:
                    if self._writer.pragma("journal_mode", "wal") != "wal":
                        raise OSError(errno.ENOTSUP, "the file system has no shared memory for a WAL", str(self.path))
                    self._writer.set_wal_hook(self._copy_pages)  # in the place of SQLite's, which waits for no reader
                    self._writer.pragma("journal_size_limit", CHECKPOINT_BYTES)
                    self._asked = self._connect()
                self._add_partitions()
            except BaseException:
                # Raised again at once: a log that was not opened is not closed either.
                self._close()
                raise
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
        """Return whether a database is that of a log, or empty. Raise ``CorruptLog`` for another program's."""
        # In one statement: another process may make the file just now.
        number, size = connection.execute(
            "SELECT application_id, (SELECT count(*) FROM sqlite_schema) FROM pragma_application_id"
        ).get
        if number != APPLICATION_ID and (number or size):
            raise CorruptLog(self.path, "it is a database of another program")
        return bool(number)

    def _connect(self) -> Connection:
        import apsw

        connection = apsw.Connection(":memory:" if self.path is None else str(self.path))
        connection.set_busy_timeout(LOCK_TRY_MS)
        connection.pragma("synchronous", self._synchronous)
        connection.pragma("secure_delete", 0)
        connection.pragma("cache_size", -2048)
        return connection

    def _create(self) -> None:
        """Make the tables of a new file. Raise ``CorruptLog`` for one of another layout."""
        connection = self._writer
        if not self._is_ours(connection):
            # Before the file has its first table, and before the WAL: later it has no effect.
            connection.pragma("page_size", PAGE_BYTES)
            connection.pragma("auto_vacuum", 2)
            with connection:
                if not self._is_ours(connection):  # another process may have made it meanwhile
                    connection.execute(tables.SCHEMA)
                    for name in ("partitions", "readers", "sinks", "attempts", "epochs", "plans"):
                        tables.put(connection, "counters", name, 0)
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", LAYOUT)
        if (layout := connection.pragma("user_version")) != LAYOUT:
            raise CorruptLog(self.path, f"it has the layout {layout}, and this version knows {LAYOUT}")

    def _add_partitions(self) -> None:
        """Add the partitions that are missing. Raise ``ModuleNotFoundError`` for rows that can't be read here."""
        if not has_arrow() and self._asked.execute("SELECT 1 FROM bodies WHERE form = 1 LIMIT 1").get:
            raise ModuleNotFoundError(
                f"{self.path} has rows that are stored with Arrow: {install_command('arrow')}", name="pyarrow"
            )
        self._count = tables.counter(self._asked, "partitions")
        if self._count and self._asked_partitions in (None, self._count):
            return  # no lock is waited for
        with self._writer as connection:
            present = tables.counter(connection, "partitions")
            partitions = self._asked_partitions or max(present, 1)
            if partitions < present:
                raise ValueError(
                    f"{self.path} has {present} partitions, and {partitions} are asked for: none can be dropped"
                )
            for number in range(present, partitions):
                Partition(number).save(connection)
            self._count = tables.count(connection, "partitions", partitions - present)

    async def aclose(self) -> None:
        async with self._turn:
            if self._pid and not self._is_closed:
                self._is_closed = True
                for _ in range(READERS):
                    await self._reading.acquire()
                await self._in_thread(self._close)
                for _ in range(READERS):
                    self._reading.release()  # reads that wait for their turn fail
        self._changed.wake_all()

    def _close(self) -> None:
        for connection in {self._writer, self._asked, *self._idle}:
            connection.close()

    def _check_open(self) -> None:
        """Raise ``RuntimeError`` in a process that was forked since, and if the log is not open."""
        if not self._pid:
            raise trio.ClosedResourceError("the log is not open: use it under 'async with'")
        if os.getpid() != self._pid:
            raise RuntimeError(f"{self.path} was opened before this process was forked: open it here")
        if self._is_closed:
            raise trio.ClosedResourceError("the log was closed")

    # The database: whose thread, and whose turn

    async def _in_thread(self, function: Callable[[], T]) -> T:
        if self.path is None:
            await trio.lowlevel.checkpoint_if_cancelled()
            return function()
        return await trio.to_thread.run_sync(function)

    async def _patiently(self, function: Callable[[], T], since: float) -> T:
        """Run a function in a thread until the file is unlocked, for ``LOCK_SECONDS`` at most from ``since`` on."""
        while True:
            try:
                return await self._in_thread(function)
            except OSError as error:
                if error.errno != errno.EBUSY or trio.current_time() >= since + LOCK_SECONDS:
                    raise
            await trio.lowlevel.checkpoint()

    def _here(self, function: Callable[[Connection], T]) -> T:
        """Return what a short question finds as the file is now. It runs where it is asked."""
        self._check_open()
        with translated(self.path, self._asked):
            return function(self._asked)

    def _ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._here(lambda connection: connection.execute(statement, values).fetchall())

    async def _look_up(self, function: Callable[[Connection], T]) -> T:
        """Return what ``function`` finds in one state of the file. No other read sees its connection meanwhile."""

        def run() -> T:
            with translated(self.path):
                connection = self._idle.pop() if self._idle else self._connect()
            try:
                with translated(self.path, connection, is_transaction=True):
                    return function(connection)
            finally:
                self._idle.append(connection)

        if self.path is None:
            await trio.lowlevel.checkpoint()
            return self._here(function)
        if self._wal_bytes > WAL_BYTES:
            # So that a writer finds a moment at which nobody reads the WAL.
            await trio.sleep(GAP_SECONDS)
        async with self._reading:
            self._check_open()
            return await self._patiently(run, trio.current_time())

    async def _change(
        self, function: Callable[[Connection], T], *, waits_for_disk: bool = True, makes_room: bool = False
    ) -> T:
        """Run ``function`` in a transaction, commit it, and return what it returns; again if the file was locked.

        While it waits for the lock it can be cancelled. What does not wait for the disk is there with the next
        transaction that does, or not at all. What makes room has that of the reserve on a full disk.
        """

        def run() -> T:
            if not waits_for_disk:
                self._writer.pragma("synchronous", "normal")
            try:
                return self._shrink(function) if makes_room else self._transaction(function)
            finally:
                if not waits_for_disk:
                    self._writer.pragma("synchronous", self._synchronous)

        # Tasks that wait for one lock give up together, and not one behind the other.
        since = trio.current_time()
        async with self._turn:
            self._check_open()
            return await self._patiently(run, since)

    def _transaction(self, function: Callable[[Connection], T]) -> T:
        """Run ``function`` in a transaction and commit it. Raise ``OSError(EBUSY)`` if somebody else holds the lock."""
        with translated(self.path, self._writer, is_transaction=True):
            return function(self._writer)

    # Space

    def _shrink(self, function: Callable[[Connection], T]) -> T:
        """Run a function that makes room in a transaction: on a full disk, in the room of the reserve."""
        try:
            result = self._transaction(function)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self._delete_reserve():
                raise
            self._reset_wal()
            result = self._transaction(function)
        self._reset_wal()
        self._take_reserve()
        return result

    @property
    def _wal_bytes(self) -> int:
        with suppress(FileNotFoundError):
            return os.stat(f"{self._file}-wal").st_size
        return 0

    def _copy_pages(self, connection: Connection, name: str, pages: int) -> int:
        """Copy the write-ahead log behind a commit, if that made it long; wait for readers if it became too long.

        The size of its file says only how long it was: SQLite calls this with its pages.
        """
        if pages < self._copied_pages:
            self._copied_pages = 0  # it has begun anew
        if (pages - self._copied_pages) * PAGE_BYTES >= CHECKPOINT_BYTES:
            self._copied_pages = pages
            self._checkpoint(begins_anew=pages * PAGE_BYTES > WAL_BYTES)
        return 0

    def _reset_wal(self) -> None:
        """Copy the write-ahead log whole and begin it anew, unless somebody reads it for too long."""
        if self.path is not None and self._checkpoint(begins_anew=True) and self._delete_reserve():
            self._checkpoint(begins_anew=True)

    def _checkpoint(self, *, begins_anew: bool) -> bool:
        """Copy the write-ahead log. Return whether the disk is full.

        A failure is none of the commit that it comes with: the WAL stays, and is copied the next time.
        """
        import apsw

        self._writer.set_busy_timeout(RESET_MS)
        try:
            mode = apsw.SQLITE_CHECKPOINT_TRUNCATE if begins_anew else apsw.SQLITE_CHECKPOINT_PASSIVE
            self._writer.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            pass  # another process copies it, or reads it
        except apsw.Error as error:
            logger.warning("%s: its write-ahead log could not be copied: %s", self.path, error)
            return isinstance(error, apsw.FullError)
        finally:
            self._writer.set_busy_timeout(LOCK_TRY_MS)
        return False

    async def _give_back(self) -> None:
        """Give back to the disk what is free beyond a quarter of the file, in portions."""

        def vacuum(connection: Connection) -> int:
            pages = connection.pragma("page_count")
            # Then a quarter of what is left is free.
            surplus = (4 * connection.pragma("freelist_count") - pages) // 3
            if surplus > 0:
                # It frees a page for each row that is fetched.
                connection.execute(f"PRAGMA incremental_vacuum({min(surplus, PORTION_PAGES)})").fetchall()
            return int(pages - connection.pragma("page_count"))

        try:
            # In a damaged file there are fewer than it counts.
            while self.path is not None and await self._change(vacuum, makes_room=True) >= PORTION_PAGES:
                pass
        except OSError as error:
            # It takes some room; the log itself uses again what is free.
            if error.errno != errno.ENOSPC:
                raise

    @property
    def _reserve(self) -> Path:
        return Path(f"{self._file}-reserve")

    def _take_reserve(self) -> None:
        """Take room on the disk for a trim on a full one, but leave some for the write-ahead log."""
        if self.path is None or self._reserve.exists():
            return
        with suppress(OSError):
            left = os.statvfs(self._reserve.parent)
            if left.f_bavail * left.f_frsize < RESERVE_BYTES + 2 * CHECKPOINT_BYTES:
                return
            with self._reserve.open("ab") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
                except OSError:
                    self._reserve.unlink()

    def _delete_reserve(self) -> bool:
        """Give the reserve back to the disk. Return whether there was one."""
        with suppress(OSError):
            self._reserve.unlink()
            return True
        return False

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
        for group in own.elements.values() if self.path is None else ():
            self._check_room(sum([element.size + OVERHEAD for element in group]))
        begins = await self._appends.append(own)
        if self._retention is not None:
            with trio.CancelScope(shield=True):  # the rows are there, whatever becomes of that
                await self.retain(in_full=False)
        return begins

    def _check_room(self, size: int) -> None:
        if self.path is None and size > (limit := self._limit // self._count):
            raise ValueError(f"{size} bytes for a partition in memory: the limit is {limit}")

    async def _write(self, take: Callable[[], list[Appending]]) -> Sequence[dict[int, int]]:
        begins = await self._change(lambda connection: self._append(connection, take()))
        self._changed.wake_all()
        return begins

    def _append(self, connection: Connection, groups: Sequence[Appending]) -> list[dict[int, int]]:
        """Store what was appended together. Return where each begins. Raise ``ValueError`` if one can't be there."""
        numbers = {number for group in groups for number in (*group.elements, *(group.at or ()))}
        states = {number: partition_of(connection, number) for number in sorted(numbers)}
        ends = {number: state.latest for number, state in states.items()}
        together: dict[int, list[Element | Pack]] = {}
        begins: list[dict[int, int]] = []
        for group in groups:
            for number in group.at or ():
                check_begin(number, group.at, ends[number])
            begins.append({number: ends[number] for number in group.elements})
            for number, elements in group.elements.items():
                together.setdefault(number, []).extend(elements)
                ends[number] += sum([element.count for element in elements])
        now = self._clock()
        for number, elements in together.items():
            state = states[number]
            for body in tables.bodies_of(elements):
                # The clock of the machine may be set back; the times of records never go back.
                state.time = max(state.time, now if body[1] is None else body[1])
                state.append(connection, body)
            self._save_grown(connection, state)
        return begins

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
        state.save(connection)
        while self.path is None and (over := state.bytes - self._limit // self._count) > 0:
            state.drop(connection, state.latest, over, TRIM_BODIES)

    # Reading

    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        entries, stop = await self._some(partition, start, end, max_bytes), FOREVER if end is None else end
        return (row for entry in entries for row in rows_in(entry, start, stop))

    async def read_packs(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Pack]:
        entries = await self._some(partition, start, end, max_bytes)
        packs: Iterator[Pack] = arrow().packed(entries, start)
        return packs

    async def _some(self, partition: int, start: int, end: int | None, max_bytes: int) -> list[Record | Pack]:
        """Return what is stored from ``start`` to below ``end``, about ``max_bytes`` and at least one body.

        What is damaged is an error where it is the first, and left out behind others.
        """
        entries: list[Record | Pack] = []
        stop = FOREVER - 1 if end is None else end

        def look(connection: Connection) -> None:
            state, size = partition_of(connection, partition), 0
            self._check_position(partition, start, state.earliest, state.latest)
            entries.clear()
            for place in tables.places(connection, state, start, is_with_bodies=True) if start < stop else ():
                entries.append(tables.stored(*place))
                size += tables.size_of(place[7:])
                if size >= max_bytes or entries[-1].end >= stop:
                    break

        self._check_partitions(partition)
        await self._look_up(look)
        return entries

    async def position_at(self, partition: int, timestamp: int) -> int:
        def first_since(connection: Connection) -> int:
            # Times never go back, so it is searched for.
            state = partition_of(connection, partition)
            low, high = state.earliest, state.latest
            while low < high:
                middle = (low + high) // 2
                # The place that holds the middle: its CRC says whether its time is right.
                position, number, time, *_ = next(tables.places(connection, state, middle))
                low, high = (low, max(position, low)) if time >= timestamp else (position + number, high)
            return low

        self._check_partitions(partition)
        return await self._look_up(first_since)

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
            version = self._ask("PRAGMA data_version")
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
        self._check_partitions(partition)
        await self._drop(partition, before)

    async def _drop(self, partition: int, before: int, max_bytes: int = FOREVER) -> int:
        """Drop what is below a position, about so many bytes, in portions. Return the bytes."""
        dropped = 0

        def drop_some(connection: Connection) -> int:
            most = min(max_bytes - dropped, TRIM_BYTES)
            return partition_of(connection, partition).drop(connection, before, most, TRIM_BODIES)

        while dropped < max_bytes and (gone := await self._change(drop_some, makes_room=True)):
            dropped += gone
        if dropped:
            await self._give_back()
        return dropped

    def set_retention(self, retention: Retention) -> None:
        if self.path is None:
            raise ValueError("a log in memory has no retention: it has limit_bytes")
        if self._retention not in (None, retention):
            raise ValueError(f"{self.path} has another retention: {self._retention}")
        self._retention = retention

    async def retain(self, *, in_full: bool = True) -> None:
        if self._retention is None:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        now = self._clock() / 1e6
        if not in_full and (now < self._retained_at + 1 or self._retaining.locked()):
            return
        try:
            with trio.CancelScope(shield=not in_full):
                # A task of the log could not: one that asks for something else does it.
                async with self._retaining:
                    self._retained_at = now
                    await self._apply(self._retention)
        except (OSError, CorruptLog, trio.ClosedResourceError):
            if in_full:
                raise
            logger.exception("%s: the retention failed, and is tried again", self.path)

    async def _apply(self, retention: Retention) -> None:
        for number in self.partitions():
            before = self.lowest(number) or 0
            if retention.seconds is not None:
                old = await self.position_at(number, self._clock() - int(retention.seconds * 1e6))
                before = max(before, old)
            await self._drop(number, before)
        while retention.bytes is not None:
            states = [self._here(partial(partition_of, number=number)) for number in self.partitions()]
            over = sum(state.bytes for state in states) - retention.bytes
            largest = max(states, key=lambda state: state.bytes)
            if over <= 0 or not await self._drop(largest.number, largest.latest, min(over, largest.bytes)):
                break

    # Named readers

    def readers(self) -> Mapping[str, Reader]:
        return self._here(load_readers)

    async def _change_reader(self, name: str, change: Callable[[Mapping[str, Reader]], Reader | None]) -> bool:
        def save(connection: Connection) -> bool:
            readers = load_readers(connection)
            if (reader := change(readers)) is None:
                connection.execute("DELETE FROM readers WHERE name = ?", (name,))
            else:
                tables.put(connection, "readers", name, json.dumps(dict(reader.ends)), reader.seen)
            tables.count(connection, "readers", (reader is not None) - (name in readers))
            return name in readers

        was_known = await self._change(save)
        self._retained_at = -math.inf  # there may be rows that none needs any more
        await self.retain(in_full=False)
        return was_known


def load_readers(connection: Connection) -> dict[str, Reader]:
    return {
        name: Reader(name, {int(partition): end for partition, end in json.loads(ends).items()}, seen)
        for name, ends, seen in tables.whole(connection, "readers")
    }
