"""The SQLite database of a log: its file, its connections, and who uses it when.

One connection writes, a few read, each in a thread of Trio's; one more answers short questions where they are asked.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
import trio

from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.tables import create

T = TypeVar("T")

APPLICATION_ID: Final = 0x52534B54
"""What ``PRAGMA application_id`` says of our files: "RSKT"."""
LAYOUT: Final = 1
"""The layout of the tables that this version writes: ``PRAGMA user_version``."""
LOCK_SECONDS = 30.0
"""Seconds that a write waits while somebody else holds the lock of the file."""
LOCK_TRY_MS = 50
"""Milliseconds that SQLite waits for the lock in one try: so long a cancelled write goes on."""
NORMAL, FULL = 1, 2
"""Values of ``PRAGMA synchronous``: with the second one each commit waits for the disk."""
PAGE_BYTES = 8192
"""Bytes of a page of a new file: packs take a quarter less CPU to write than with SQLite's 4096."""
CHECKPOINT_BYTES = 4 * 2**20
"""Bytes by which a write-ahead log grows until a writer copies it into the database."""
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
REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "ceph-fuse", "lustre", "afs", "gfs2", "ocfs2", "glusterfs"}
REMOTE |= {"ncpfs", "sshfs", "s3fs"}
"""Types of file systems on which several machines may write: SQLite's locks and shared memory do not reach that far."""

logger = logging.getLogger("rsocket_trio.replay")
_opening = threading.Lock()
"""Held by a thread that opens a file: two of a process would meet half a file."""


class Database:
    """The database of one log in the file ``path``, or in memory; ``sync`` says whether a commit waits for the disk.

    Its methods raise ``OSError`` and ``CorruptLog``, which name the file.
    """

    def __init__(self, path: Path | None, *, sync: bool) -> None:
        self.path = path
        self._synchronous = FULL if sync else NORMAL
        # SQLite's own files lie beside the file itself, wherever links lead to it.
        self._file = "" if path is None else os.path.realpath(path)
        self._turn = trio.Lock()
        self._reading = trio.CapacityLimiter(READERS)
        self._idle: list[apsw.Connection] = []
        self._is_closed = False
        self._copied_pages = 0
        self._pid = os.getpid()

    # Opening and closing

    async def open(self) -> None:
        """Open the file, or make it."""
        await self._patiently(self._open)

    def _open(self) -> None:
        if self.path is None:
            self._writer = self._asked = apsw.Connection(":memory:")
            self._create(self._writer)
            return
        with _opening, translated(self.path):
            check_filesystem(Path(self._file), self.path)
            self._check_kind()
            writer = self._connect()
            try:
                self._create(writer)
                if writer.pragma("journal_mode", "wal") != "wal":
                    raise OSError(errno.ENOTSUP, "the file system has no shared memory for a WAL", str(self.path))
                writer.set_wal_hook(self._copy_pages)  # in the place of SQLite's own, which waits for no reader
                writer.pragma("journal_size_limit", CHECKPOINT_BYTES)
                self._writer, self._asked = writer, self._connect()
            except BaseException:
                writer.close()
                raise
            self._take_reserve()

    def _check_kind(self) -> None:
        """Raise ``CorruptLog`` for a file that is not ours, which stays as it is: it is read as it lies there."""
        size = os.stat(self._file).st_size if os.path.exists(self._file) else 0
        if 0 < size < SMALLEST_FILE:
            raise CorruptLog(self.path, "it is no database")
        if size:
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            with closing(apsw.Connection(f"{Path(self._file).as_uri()}?immutable=1", flags)) as reader:
                self._check_owner(reader)

    def _check_owner(self, connection: apsw.Connection) -> int:
        """Return the application's id, 0 for an empty database. Raise ``CorruptLog`` for another program's."""
        number = connection.pragma("application_id")
        if number != APPLICATION_ID and (number or connection.execute("SELECT count(*) FROM sqlite_schema").get):
            raise CorruptLog(self.path, "it is a database of another program")
        return int(number)

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
            connection.pragma("page_size", PAGE_BYTES)
            connection.pragma("auto_vacuum", 2)
            with transaction_of(connection, "EXCLUSIVE"):
                # Another process may have made it meanwhile.
                if self._check_owner(connection) != APPLICATION_ID:
                    create(connection)
                    connection.pragma("application_id", APPLICATION_ID)
                    connection.pragma("user_version", LAYOUT)
        if (layout := connection.pragma("user_version")) != LAYOUT:
            raise CorruptLog(self.path, f"it has the layout {layout}, and this version knows {LAYOUT}")

    async def aclose(self) -> None:
        """Close all connections, once those that are in use are free. Do nothing the second time."""
        async with self._turn:
            if self._is_closed:
                return
            for number in range(READERS):
                await self._reading.acquire_on_behalf_of(number)
            self._is_closed = True
            await self._in_thread(self._close)
            for number in range(READERS):
                self._reading.release_on_behalf_of(number)  # reads that wait for their turn fail

    def _close(self) -> None:
        for connection in {self._writer, self._asked, *self._idle}:
            connection.close()

    # Whose thread, and whose turn

    async def _in_thread(self, function: Callable[[], T]) -> T:
        if self.path is None:
            await trio.lowlevel.checkpoint_if_cancelled()
            return function()
        return await trio.to_thread.run_sync(function)

    async def _patiently(self, function: Callable[[], T], since: float | None = None) -> T:
        """Run a function in a thread until the file is unlocked, for ``LOCK_SECONDS`` at most from ``since`` on."""
        deadline = (trio.current_time() if since is None else since) + LOCK_SECONDS
        while True:
            try:
                return await self._in_thread(function)
            except OSError as error:
                if error.errno != errno.EBUSY or trio.current_time() >= deadline:
                    raise
            await trio.lowlevel.checkpoint()

    def check_process(self) -> None:
        """Raise ``RuntimeError`` in a process that was forked after the file was opened, and if it was closed."""
        if os.getpid() != self._pid:
            raise RuntimeError(f"{self.path} was opened before this process was forked: open it here")
        if self._is_closed:
            raise trio.ClosedResourceError("the log was closed")

    def here(self, function: Callable[[apsw.Connection], T]) -> T:
        """Return what a short question finds as the file is now. It runs where it is asked."""
        self.check_process()
        with translated(self.path, self._asked):
            return function(self._asked)

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return what a statement finds that is a short question."""
        return self.here(lambda connection: connection.execute(statement, values).fetchall())

    async def read(self, function: Callable[[apsw.Connection], T]) -> T:
        """Return what ``function`` finds in one state of the file. No other read sees its connection meanwhile."""
        if self.path is None:
            await trio.lowlevel.checkpoint()
            return self.here(function)
        if self.wal_bytes > WAL_BYTES:
            # So that a writer finds a moment at which nobody reads the WAL.
            await trio.sleep(GAP_SECONDS)
        async with self._reading:
            self.check_process()
            return await self._patiently(partial(self._read, function))

    def _read(self, function: Callable[[apsw.Connection], T]) -> T:
        with translated(self.path):
            connection = self._idle.pop() if self._idle else self._connect()
        try:
            with translated(self.path, connection), transaction_of(connection):
                return function(connection)
        finally:
            self._idle.append(connection)

    async def write(self, function: Callable[[apsw.Connection], T], *, waits_for_disk: bool = True) -> T:
        """Run ``function`` in a transaction, commit it, and return what it returns.

        While it waits for the lock it can be cancelled. What does not wait for the disk is there with the next
        transaction that does, or not at all.
        """

        def run() -> T:
            if not waits_for_disk:
                self._writer.pragma("synchronous", NORMAL)
            try:
                return self.transaction(function)
            finally:
                if not waits_for_disk:
                    self._writer.pragma("synchronous", self._synchronous)

        return await self.alone(run)

    async def alone(self, function: Callable[[], T]) -> T:
        """Run a function that calls ``transaction`` while no other task writes; again if the file was locked."""
        # Tasks that wait for one lock give up together, and not one behind the other.
        since = trio.current_time()
        async with self._turn:
            self.check_process()
            return await self._patiently(function, since)

    def transaction(self, function: Callable[[apsw.Connection], T]) -> T:
        """Run ``function`` in a transaction and commit it. Raise ``OSError(EBUSY)`` if somebody else holds the lock."""
        with translated(self.path, self._writer), transaction_of(self._writer, "IMMEDIATE"):
            return function(self._writer)

    # Space

    @property
    def wal_bytes(self) -> int:
        """Return the bytes of the write-ahead log."""
        try:
            return os.stat(f"{self._file}-wal").st_size
        except FileNotFoundError:
            return 0

    def _copy_pages(self, connection: apsw.Connection, name: str, pages: int) -> int:
        """Copy the write-ahead log behind a commit, if that made it long; wait for readers if it became too long.

        The size of its file says only how long it was: SQLite calls this with its pages.
        """
        if pages < self._copied_pages:
            self._copied_pages = 0  # it has begun anew
        if (pages - self._copied_pages) * PAGE_BYTES >= CHECKPOINT_BYTES:
            self._copied_pages = pages
            is_long = pages * PAGE_BYTES > WAL_BYTES
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE if is_long else apsw.SQLITE_CHECKPOINT_PASSIVE)
        return apsw.SQLITE_OK

    def reset_wal(self) -> None:
        """Copy the write-ahead log whole and begin it anew, unless somebody reads it for too long."""
        if self.path is not None and self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE) and self._delete_reserve():
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _checkpoint(self, mode: int) -> bool:
        """Copy the write-ahead log. Return whether the disk is full.

        A failure is none of the commit that it comes with: the WAL stays, and is copied the next time.
        """
        self._writer.set_busy_timeout(RESET_MS)
        try:
            self._writer.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            pass  # another process copies it, or reads it
        except apsw.Error as error:
            logger.warning("%s: its write-ahead log could not be copied: %s", self.path, error)
            return isinstance(error, apsw.FullError)
        finally:
            self._writer.set_busy_timeout(LOCK_TRY_MS)
        return False

    async def shrink(self, function: Callable[[apsw.Connection], T]) -> T:
        """Run a function that makes room, as ``write`` does: on a full disk, in the room of the reserve."""

        def run() -> T:
            try:
                result = self.transaction(function)
            except OSError as error:
                if error.errno != errno.ENOSPC or not self._delete_reserve():
                    raise
                self.reset_wal()
                result = self.transaction(function)
            self.reset_wal()
            self._take_reserve()
            return result

        return await self.alone(run)

    async def give_back(self) -> None:
        """Give back to the disk what is free beyond a quarter of the file, in portions."""

        def vacuum(connection: apsw.Connection) -> int:
            pages = connection.pragma("page_count")
            # Then a quarter of what is left is free.
            surplus = (4 * connection.pragma("freelist_count") - pages) // 3
            if surplus > 0:
                # It frees a page for each row that is fetched.
                connection.execute(f"PRAGMA incremental_vacuum({min(surplus, PORTION_PAGES)})").fetchall()
            return int(pages - connection.pragma("page_count"))

        if self.path is not None:
            try:
                # In a damaged file there are fewer than it counts.
                while await self.shrink(vacuum) >= PORTION_PAGES:
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
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True


@contextmanager
def transaction_of(connection: apsw.Connection, kind: str = "DEFERRED") -> Iterator[None]:
    """Commit the transaction that the block writes, or roll it back if it fails."""
    connection.execute(f"BEGIN {kind}")
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
    """Translate SQLite's errors: what the disk did, and a lock, are ``OSError``, all others ``CorruptLog``."""
    try:
        yield
    except apsw.BusyError as error:
        raise OSError(errno.EBUSY, "somebody else holds its lock", str(path)) from error
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
    if kind.removeprefix("fuse.") in REMOTE:
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
