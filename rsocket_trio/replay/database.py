"""The SQLite database of a log: its file, its tables, and who uses it when.

Tables, all with the CRC 32 of what a row says::

    partitions  a row for each: its first and its next position, the time of the last row, bytes
    places      rows in order: ``count`` positions from ``position`` on, appended at ``time``, are in ``body``
    bodies      what was appended together: one row (form 0), or many as an Arrow IPC stream in ``data`` (form 1)
    readers     the named readers, each with the ends that it has acknowledged, as JSON
    attempts    what writers stage, until it is committed; ``staged`` has the places of its bodies
    sinks       the last batch of each sink, and the query that it belongs to
    epochs      the writes that were planned for a batch of a sink: the latest counts

One connection writes, a few read, each in a thread of Trio's; one more answers short questions where they are asked.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import trio

from rsocket_trio.replay.errors import CorruptLog

T = TypeVar("T")

APPLICATION_ID: Final = 0x52534B54
"""What ``PRAGMA application_id`` says of our files: "RSKT"."""
LAYOUT: Final = 1
"""The layout of the tables that this version writes: ``PRAGMA user_version``."""
LOCK_SECONDS = 30.0
"""Seconds that a write waits while somebody else holds the lock of the file."""
LOCK_TRY_MS = 50
"""Milliseconds that SQLite waits for the lock in one try: so long a cancelled write goes on."""
CHECKPOINT_BYTES = 4 * 2**20
"""Bytes of a write-ahead log from which on a writer copies it into the database."""
WAL_BYTES = 16 * 2**20
"""Bytes of a write-ahead log above which readers leave gaps, and a writer waits for one to begin it anew."""
RESET_MS = 300
"""Milliseconds that a writer waits for such a gap."""
GAP_SECONDS = 0.02
READERS = 4
"""Reads of a log at a time."""
RESERVE_BYTES = 8 * 2**20
"""Bytes of the file that is given up on a full disk, so that trimming has room."""
SMALLEST_FILE = 512
"""Bytes of a database at least: SQLite takes a file of one byte for an empty one."""
PORTION_PAGES = 1024
"""Pages that are given back to the disk at a time."""
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "afs", "gfs2", "ocfs2", "glusterfs", "ncpfs"}
"""Types of file systems on which several machines may write: SQLite's locks and shared memory do not reach that far."""

SCHEMA = """
CREATE TABLE partitions (number INTEGER PRIMARY KEY, earliest INTEGER, latest INTEGER, time INTEGER, bytes INTEGER,
    crc INTEGER);
CREATE TABLE bodies (id INTEGER PRIMARY KEY, form INTEGER, data BLOB, metadata BLOB, key BLOB, headers BLOB);
CREATE TABLE places (partition INTEGER, position INTEGER, count INTEGER, time INTEGER, body INTEGER, size INTEGER,
    crc INTEGER, PRIMARY KEY (partition, position)) WITHOUT ROWID;
CREATE TABLE readers (name TEXT PRIMARY KEY, ends TEXT, seen INTEGER, crc INTEGER) WITHOUT ROWID;
CREATE TABLE attempts (id INTEGER PRIMARY KEY, attempt TEXT UNIQUE, sink TEXT, partition INTEGER, batch INTEGER,
    epoch INTEGER, rows INTEGER, elements INTEGER, bytes INTEGER, sealed INTEGER, deadline INTEGER, crc INTEGER);
CREATE TABLE staged (attempt INTEGER, number INTEGER, count INTEGER, body INTEGER, size INTEGER, body_crc INTEGER,
    crc INTEGER, PRIMARY KEY (attempt, number)) WITHOUT ROWID;
CREATE INDEX attempts_by_deadline ON attempts (deadline);
CREATE TABLE sinks (sink TEXT PRIMARY KEY, batch INTEGER, once INTEGER, time INTEGER, query TEXT, former TEXT,
    epoch INTEGER, crc INTEGER) WITHOUT ROWID;
CREATE INDEX sinks_by_age ON sinks (once, time);
CREATE TABLE epochs (sink TEXT, batch INTEGER, epoch INTEGER, PRIMARY KEY (sink, batch)) WITHOUT ROWID;
CREATE INDEX epochs_by_age ON epochs (epoch);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
"""

logger = logging.getLogger("rsocket_trio.replay")
_opening = threading.Lock()
"""Held by a thread that opens a file: two of a process would meet half a file."""


class Database:
    """The database of one log in the file ``path``, or in memory; ``sync`` says whether a commit waits for the disk.

    Its methods raise ``OSError`` and ``CorruptLog``, which name the file.
    """

    def __init__(self, path: Path | None, *, sync: bool) -> None:
        self.path = path
        self._synchronous = 2 if sync else 1
        # SQLite's own files lie beside the file itself, wherever links lead to it.
        self._file = "" if path is None else os.path.realpath(path)
        self._turn = trio.Lock()
        self._reading = trio.CapacityLimiter(READERS)
        self._idle: list[apsw.Connection] = []
        self._is_checkpointing = self._is_closed = False
        self._page_bytes = self._pages = self._copied_pages = 0
        self._failed = ""
        self._pid = os.getpid()

    # Opening and closing

    async def open(self) -> None:
        """Open the file, or make it."""
        if self.path is None:
            self._writer = self._asked = apsw.Connection(":memory:")
            self._create(self._writer)
        else:
            await self._patiently(self._open)

    async def aclose(self) -> None:
        """Close all connections, once those that are in use are free."""
        async with self._turn:
            while self._reading.borrowed_tokens:  # noqa: ASYNC110  # a read is a thread's, and short
                await trio.sleep(0.001)
            await self._in_thread(self._close)

    def _open(self) -> None:
        try:
            self._open_file()
        except OSError:
            if not self._reserve.exists() or self._free_bytes() >= RESERVE_BYTES // 8 or not self._delete_reserve():
                raise
            # The disk is full: a trim may be what it is opened for.
            self._open_file()

    def _open_file(self) -> None:
        assert self.path is not None
        with _opening, translated(self.path):
            check_filesystem(Path(self._file), self.path)
            if self.path.exists() and self.path.stat().st_size:
                self._check_kind()
            writer = self._connect()
            try:
                self._create(writer)
                if writer.pragma("journal_mode", "wal") != "wal":
                    raise OSError(errno.ENOTSUP, "the file system has no shared memory for a WAL", str(self.path))
                self._page_bytes = writer.pragma("page_size")
                writer.set_wal_hook(self._note_pages)  # in the place of SQLite's own, which copies when it commits
                writer.pragma("journal_size_limit", CHECKPOINT_BYTES)
                self._writer, self._asked = writer, self._connect()
            except BaseException:
                writer.close()
                raise
            self._take_reserve()

    def _check_kind(self) -> None:
        """Raise ``CorruptLog`` for a file that is not ours, which stays as it is."""
        if os.stat(self._file).st_size < SMALLEST_FILE:
            raise CorruptLog(self.path, "it is no database")
        try:
            self._check_kind_of(apsw.Connection(self._file, apsw.SQLITE_OPEN_READONLY))
        except (apsw.ReadOnlyError, apsw.CantOpenError):
            # It has to be recovered first, and nobody but its own program does that: look at the file as it lies there.
            uri = f"{Path(self._file).as_uri()}?immutable=1"
            self._check_kind_of(apsw.Connection(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI))

    def _check_kind_of(self, reader: apsw.Connection) -> None:
        try:
            if is_foreign(reader):
                raise CorruptLog(self.path, "it is a database of another program")
        finally:
            reader.close()

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self.path))
        connection.set_busy_timeout(LOCK_TRY_MS)
        connection.pragma("synchronous", self._synchronous)
        connection.pragma("secure_delete", 0)
        connection.pragma("cache_size", -2048)
        return connection

    def _create(self, connection: apsw.Connection) -> None:
        if connection.pragma("application_id") != APPLICATION_ID:
            # Before the file has its first table, and before the WAL: later it has no effect.
            connection.pragma("auto_vacuum", 2)
            connection.execute("BEGIN EXCLUSIVE")
            with rolled_back(connection):
                if is_foreign(connection):
                    raise CorruptLog(self.path, "it is a database of another program")
                # Another process may have made it meanwhile.
                if connection.pragma("application_id") != APPLICATION_ID:
                    connection.execute(SCHEMA)
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", LAYOUT)
        if (layout := connection.pragma("user_version")) != LAYOUT:
            raise CorruptLog(self.path, f"it has the layout {layout}, and this version knows {LAYOUT}")

    def _close(self) -> None:
        self._is_closed = True
        for connection in {self._writer, self._asked, *self._idle}:
            connection.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("the log was closed")

    # Whose thread, and whose turn

    async def _in_thread(self, function: Callable[[], T]) -> T:
        if self.path is None:
            await trio.lowlevel.checkpoint_if_cancelled()
            return function()
        return await trio.to_thread.run_sync(function)

    async def _patiently(self, function: Callable[[], T], deadline: float | None = None) -> T:
        """Run a function in a thread until it finds the file unlocked, or the ``deadline`` is over."""
        deadline = trio.current_time() + LOCK_SECONDS if deadline is None else deadline
        while True:
            try:
                return await self._in_thread(function)
            except apsw.BusyError as error:
                if trio.current_time() >= deadline:
                    raise OSError(
                        errno.EBUSY, f"somebody else holds its lock for {LOCK_SECONDS:g} s", str(self.path)
                    ) from error
            await trio.lowlevel.checkpoint()

    def check_process(self) -> None:
        """Raise ``RuntimeError`` in a process that was forked after the file was opened."""
        if os.getpid() != self._pid:
            raise RuntimeError(f"{self.path} was opened before this process was forked: open it here")

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return what a short question finds as the file is now. It runs where it is asked."""
        self.check_process()
        try:
            with translated(self.path, self._asked):
                return self._asked.execute(statement, values).fetchall()
        except apsw.BusyError as error:
            raise OSError(errno.EBUSY, "somebody else holds its lock", str(self.path)) from error

    async def read(self, function: Callable[[apsw.Connection], T]) -> T:
        """Return what ``function`` finds in one state of the file. No other read sees its connection meanwhile."""
        self.check_process()
        if self.path is None:
            await trio.lowlevel.checkpoint()
            return self._read(self._asked, function)
        if self.wal_bytes > WAL_BYTES:
            # So that a writer finds a moment at which nobody reads the WAL.
            await trio.sleep(GAP_SECONDS)
        async with self._reading:
            self._check_open()
            connection = self._idle.pop() if self._idle else None

            def read() -> T:
                nonlocal connection
                if connection is None:
                    with translated(self.path):
                        connection = self._connect()
                return self._read(connection, function)

            try:
                return await self._patiently(read)
            finally:
                if connection is not None:
                    self._idle.append(connection)

    def read_here(self, function: Callable[[apsw.Connection], T]) -> T:
        """Return what ``function`` finds in one state of the file, in a thread of the caller."""
        if self.path is None:
            return self._read(self._asked, function)
        connection = self._connect()
        try:
            return self._read(connection, function)
        finally:
            connection.close()

    def _read(self, connection: apsw.Connection, function: Callable[[apsw.Connection], T]) -> T:
        with translated(self.path, connection):
            if self.path is None:
                return function(connection)
            connection.execute("BEGIN")
            try:
                return function(connection)
            finally:
                connection.execute("ROLLBACK")

    async def write(self, function: Callable[[apsw.Connection], T], *, gives_way: bool = False) -> T:
        """Run ``function`` in a transaction, commit it, and return what it returns.

        While it waits for the lock it can be cancelled. ``gives_way``: on a full disk, give up the reserve and try
        again.
        """
        result = await self.alone(partial(self.transaction, function, gives_way=gives_way))
        with trio.CancelScope(shield=True):
            await self.tend()
        return result

    async def alone(self, function: Callable[[], T]) -> T:
        """Run a function that calls ``transaction`` while no other task writes; again if the file was locked."""
        self.check_process()
        deadline = trio.current_time() + LOCK_SECONDS
        async with self._turn:
            self._check_open()
            return await self._patiently(function, deadline)

    def transaction(self, function: Callable[[apsw.Connection], T], *, gives_way: bool = False) -> T:
        """Run ``function`` in a transaction and commit it. Raise ``apsw.BusyError`` if somebody else holds the lock."""
        connection = self._writer
        try:
            with translated(self.path, connection):
                connection.execute("BEGIN IMMEDIATE")
                with rolled_back(connection):
                    return function(connection)
        except OSError as error:
            if not (gives_way and error.errno == errno.ENOSPC and self.give_up_reserve()):
                raise
        return self.transaction(function)

    # Space

    @property
    def wal_bytes(self) -> int:
        """Return the bytes of the write-ahead log."""
        try:
            return os.stat(f"{self._file}-wal").st_size if self._file else 0
        except FileNotFoundError:
            return 0

    def _note_pages(self, connection: apsw.Connection, name: str, pages: int) -> int:
        """Note how long the write-ahead log is behind a commit: the size of its file says only how long it was."""
        if pages < self._pages:
            self._copied_pages = 0  # it has begun anew
        self._pages = pages
        return apsw.SQLITE_OK

    async def tend(self, *, in_full: bool = False) -> None:
        """Copy the write-ahead log into the database when it is long, or ``in_full``: whoever wrote does it.

        Other tasks write meanwhile, unless it became too long.
        """
        grown = (self._pages - self._copied_pages) * self._page_bytes
        if self._is_checkpointing or self._is_closed or (grown < CHECKPOINT_BYTES and not in_full):
            return
        self._is_checkpointing = True
        try:
            self._copied_pages = self._pages
            await self._in_thread(self._checkpoint)
            if in_full or self._pages * self._page_bytes > WAL_BYTES:
                with suppress(trio.ClosedResourceError):  # then there is nothing left to do
                    async with self._turn:
                        self._check_open()
                        await self._in_thread(partial(self.reset_wal, gives_way=in_full))
        finally:
            self._is_checkpointing = False

    def _checkpoint(self) -> None:
        if self.path is None:
            return
        connection = None
        try:
            connection = self._connect()
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            pass  # another process copies it
        except apsw.Error as error:
            # None of the append that it comes with; the WAL stays, and is copied the next time.
            self._note(f"its write-ahead log could not be copied: {error}")
        finally:
            if connection is not None:
                connection.close()

    def reset_wal(self, *, gives_way: bool = False) -> None:
        """Copy the write-ahead log whole and begin it anew, unless somebody reads it for too long.

        ``gives_way``: on a full disk, give up the reserve and try again.
        """
        if self.path is None:
            return
        connection = self._writer
        connection.set_busy_timeout(RESET_MS)
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            pass
        except apsw.Error as error:
            if not (gives_way and isinstance(error, apsw.FullError) and self.give_up_reserve()):
                self._note(f"its write-ahead log could not be copied: {error}")
        finally:
            connection.set_busy_timeout(LOCK_TRY_MS)

    def _note(self, problem: str) -> None:
        if problem != self._failed:
            logger.warning("%s: %s", self.path, problem)
        self._failed = problem

    async def give_back(self) -> None:
        """Give back to the disk what is free beyond a quarter of the file, in portions."""
        if self.path is not None:
            try:
                while await self.alone(self._give_back_some):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                # It takes some room; the log itself uses again what is free.
                self._note(f"what is free could not be given back: {error.strerror}")
            await trio.to_thread.run_sync(self._take_reserve)

    def _give_back_some(self) -> bool:
        connection = self._writer
        with translated(self.path, connection):
            pages, free = connection.pragma("page_count"), connection.pragma("freelist_count")
        # Then a quarter of what is left is free.
        some = min((4 * free - pages) // 3, PORTION_PAGES)
        if some > 0:
            # It frees a page for each row that is fetched.
            self.transaction(
                lambda connection: connection.execute(f"PRAGMA incremental_vacuum({some})").fetchall(), gives_way=True
            )
        with translated(self.path, connection):
            freed = pages - connection.pragma("page_count")
        self.reset_wal(gives_way=True)
        # In a damaged file there are fewer than it counts.
        return bool(some == PORTION_PAGES and freed > 0)

    @property
    def _reserve(self) -> Path:
        return Path(f"{self._file}-reserve")

    def _take_reserve(self) -> None:
        """Take room on the disk for a trim on a full one, where there is plenty."""
        with suppress(OSError):
            if self._reserve.exists() or self._free_bytes() < 2 * RESERVE_BYTES:
                return
            fd = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            except OSError:
                self._reserve.unlink()
            finally:
                os.close(fd)

    def _free_bytes(self) -> int:
        left = os.statvfs(self._reserve.parent)
        return left.f_bavail * left.f_frsize

    def _delete_reserve(self) -> bool:
        """Give the reserve back to the disk. Return whether there was one."""
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def give_up_reserve(self) -> bool:
        """Give the reserve back to the disk, and use the room for the WAL. Return whether there was one."""
        if not self._delete_reserve():
            return False
        self.reset_wal()
        return True


def is_foreign(connection: apsw.Connection) -> bool:
    """Return whether a database that holds something is another program's."""
    found = connection.pragma("application_id")
    return found != APPLICATION_ID and bool(found or connection.execute("SELECT count(*) FROM sqlite_schema").get)


@contextmanager
def rolled_back(connection: apsw.Connection) -> Iterator[None]:
    """Commit the transaction that the block writes, or roll it back if it fails."""
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # Raised again at once. SQLite itself may have rolled back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def translated(path: Path | None, connection: apsw.Connection | None = None) -> Iterator[None]:
    """Translate SQLite's errors: ``BusyError`` stays, what the disk did is ``OSError``, all others ``CorruptLog``."""
    try:
        yield
    except (apsw.BusyError, apsw.ThreadingViolationError, apsw.ConnectionClosedError):
        raise
    except CorruptLog as error:
        error.file = error.file or path
        raise
    except apsw.FullError as error:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
    except apsw.NoMemError as error:
        raise MemoryError(f"{path}: {error}") from error
    except (apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
        if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ:
            raise CorruptLog(path, "it is shorter than it says") from error
        number = (0 if connection is None else connection.system_errno) or (
            errno.EROFS if isinstance(error, apsw.ReadOnlyError) else errno.EIO
        )
        raise OSError(number, os.strerror(number), str(path)) from error
    except (apsw.Error, UnicodeDecodeError) as error:
        raise CorruptLog(path, str(error) or type(error).__name__) from error


def check_filesystem(file: Path, path: Path) -> None:
    """Raise ``OSError`` for a file that can't be opened or is on a network file system; warn where that is unknown.

    ``path`` is what errors name, a link perhaps to the ``file``.
    """
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a log is a file, and this is a folder", str(path))
    if not file.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no folder for it", str(path))
    if not os.access(file if file.exists() else file.parent, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    kind = filesystem_of(file.parent)
    if kind in REMOTE or (kind.startswith("fuse.") and kind[5:] in {"sshfs", "glusterfs", "ceph-fuse", "s3fs"}):
        raise OSError(errno.ENOTSUP, f"a log has to be on a local disk, and this one is on {kind}", str(path))
    if not kind or kind.startswith("fuse") or kind in {"9p", "virtiofs"}:
        logger.warning(
            "%s: the file system (%s) may be shared with other machines, which a log does not bear", path, kind or "?"
        )


def filesystem_of(folder: Path) -> str:
    """Return the type of the file system of a folder, as Linux tells it; empty where that is not known."""
    found, longest = "", -1
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields = line.split()
            point = fields[4].encode().decode("unicode_escape")
            if folder.is_relative_to(point) and len(point) >= longest:
                found, longest = fields[fields.index("-") + 1], len(point)
    return found
