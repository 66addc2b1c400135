"""The database of a log: its tables, whose rows have a CRC each, so that a damaged one is an error; SQLite's errors in
our terms, and where its files may lie.

``docs/replay.md`` says what is in the tables. The functions for rows work in a transaction of the caller, and raise
``CorruptLog`` for rows that are damaged or missing.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias
from zlib import crc32

import attrs

from rsocket_trio.extras import install_command
from rsocket_trio.replay import elements
from rsocket_trio.replay.elements import Element, Pack, Record
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.tools import filesystems

if TYPE_CHECKING:
    from apsw import Connection

OVERHEAD = 200
"""Bytes that a body takes beside its content, about."""
ROW_FORM, ARROW_FORM = 0, 1
SCHEMA = """
CREATE TABLE partitions (number INTEGER PRIMARY KEY, earliest INTEGER, latest INTEGER, time INTEGER, bytes INTEGER,
    crc INTEGER);
CREATE TABLE bodies (id INTEGER PRIMARY KEY, form INTEGER, data BLOB, metadata BLOB, key BLOB, headers BLOB);
CREATE INDEX bodies_in_arrow ON bodies (form) WHERE form = 1;
CREATE TABLE places (partition INTEGER, position INTEGER, count INTEGER, time INTEGER, body INTEGER, size INTEGER,
    body_crc INTEGER, crc INTEGER, PRIMARY KEY (partition, position)) WITHOUT ROWID;
CREATE TABLE attempts (number INTEGER PRIMARY KEY, earliest INTEGER, latest INTEGER, time INTEGER, bytes INTEGER,
    attempt TEXT, sink TEXT, partition INTEGER, batch INTEGER, epoch INTEGER, sealed INTEGER, crc INTEGER);
CREATE INDEX attempts_by_time ON attempts (time);
CREATE TABLE sinks (sink TEXT PRIMARY KEY, batch INTEGER, once INTEGER, time INTEGER, query TEXT, former TEXT,
    epoch INTEGER, crc INTEGER) WITHOUT ROWID;
CREATE INDEX sinks_by_age ON sinks (once DESC, time);
CREATE TABLE plans (number INTEGER PRIMARY KEY, sink TEXT, batch INTEGER, epoch INTEGER, crc INTEGER,
    UNIQUE (sink, batch));
CREATE TABLE facts (name TEXT PRIMARY KEY, value, crc INTEGER) WITHOUT ROWID;
"""
BODY_COLUMNS = ", form, data, metadata, key, headers FROM places LEFT JOIN bodies ON id = body"
_PLACE = struct.Struct(">qQIqqqI")
_LENGTHS = struct.Struct(">Bqqqq")


# Rows of all tables but places and bodies


def crc_of(*values: object) -> int:
    """Return the CRC of the name of a table and the values of a row: texts, numbers, ``None``; damaged, anything."""
    return crc32(json.dumps(values, separators=(",", ":"), default=repr).encode())


def put(connection: Connection, table: str, *values: Any) -> None:
    """Store a row with its CRC, in the place of one with its key."""
    row = (*values, crc_of(table, *values))
    connection.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def rows(connection: Connection, table: str, condition: str = "", *values: Any) -> list[list[Any]]:
    checked = []
    for *columns, crc in connection.execute(f"SELECT * FROM {table} {condition}", values):
        if crc != crc_of(table, *columns):
            raise CorruptLog(None, f"a row of its {table} is damaged")
        checked.append(columns)
    return checked


def row(connection: Connection, table: str, key: str, value: object) -> list[Any]:
    if not (known := rows(connection, table, f"WHERE {key} = ?", value)):
        raise CorruptLog(None, f"the row of {value} in its {table} is missing")
    return known[0]


def counter(connection: Connection, name: str) -> int:
    return int(row(connection, "facts", "name", name)[1])


def count(connection: Connection, name: str, by: int = 1) -> int:
    """Add to a number of ``facts``. Return the sum."""
    total = counter(connection, name) + by
    put(connection, "facts", name, total)
    return total


@attrs.define
class Row:
    """A row of the table ``TABLE``: its attributes are the columns but the CRC, in order."""

    TABLE: ClassVar[str]

    @classmethod
    def where(cls, connection: Connection, condition: str, *values: object) -> list[Self]:
        return [cls(*columns) for columns in rows(connection, cls.TABLE, condition, *values)]

    def save(self, connection: Connection) -> None:
        put(connection, self.TABLE, *attrs.astuple(self, recurse=False))


# Bodies

Body: TypeAlias = tuple[int, int | None, int, tuple[bytes | None, ...]]
"""The number of its positions, the time of its rows, ``None`` for the log's, its form, and its contents: data,
metadata, key and headers."""


def crc_of_body(form: int, *contents: bytes | None) -> int:
    """Return the CRC of the columns of a body. Raise ``TypeError`` or ``struct.error`` if it is damaged or missing."""
    crc = crc32(_LENGTHS.pack(form, *[-1 if content is None else len(content) for content in contents]))
    for content in contents:
        if content:
            crc = crc32(content, crc)
    return crc


def bodies_of(group: Iterable[Element | Pack]) -> Iterator[Body]:
    """Yield prepared elements as they are stored: those of one time together if pyarrow is installed."""
    for (kind, time), run in groupby(group, attrgetter("__class__", "timestamp")):
        together = list(run)
        is_small = sum([body.count for body in together]) <= elements.MAX_RECORD_ROWS
        is_packed = kind is Element and len(together) > 1 and is_small and elements.has_arrow()
        for body in elements.arrow().packs_of(together) if is_packed else together:
            if isinstance(body, Pack):
                yield body.count, time, ARROW_FORM, (body.data, None, None, None)
            else:
                yield body.count, time, ROW_FORM, body.contents


def stored(position: int, count: int, time: int, *body: Any) -> Record | Pack:
    """Return what is stored at a place that ``places`` yields with the columns of its body."""
    *_, form, data, metadata, key, headers = body
    if form == ARROW_FORM:
        return Pack(data, count, position, time)
    pairs = None if headers is None else elements.decoded_headers(headers)
    return Record(position, data, metadata, count, key, pairs, time)


# Partitions and their places


@attrs.define
class Partition(Row):
    """A row of ``partitions``: the first position, the next one, the time of the last row, and bytes."""

    TABLE = "partitions"

    number: int
    earliest: int = 0
    latest: int = 0
    time: int = 0
    bytes: int = 0

    def append(self, connection: Connection, body: Body) -> None:
        """Store a body, and place it at the end."""
        number, _, form, contents = body
        connection.execute("INSERT INTO bodies VALUES (NULL, ?, ?, ?, ?, ?)", (form, *contents))
        size = OVERHEAD + sum([len(content) for content in contents if content is not None])
        self.place(connection, number, connection.last_insert_rowid(), size, crc_of_body(form, *contents))

    def place(self, connection: Connection, count: int, body: int, size: int, body_crc: int) -> None:
        """Give a body that is stored the next place."""
        place = self.number, self.latest, count, self.time, body, size, body_crc
        connection.execute("INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*place, crc32(_PLACE.pack(*place))))
        self.latest += count
        self.bytes += size

    def drop(self, connection: Connection, before: int, max_bytes: int) -> int:
        """Drop the first bodies that end at ``before`` or below, about so many bytes, and store the row. Return them.

        A place that is damaged or missing ends it, and is an error where it is the first.
        """
        gone = 0
        for position, count, _, _, size, _ in places(connection, self, self.earliest):
            if gone >= max_bytes or position + count > before:
                break
            self.earliest, gone = position + count, gone + size
        if gone:
            self.bytes -= gone
            below = "FROM places WHERE partition = ? AND position < ?"
            for statement in (f"DELETE FROM bodies WHERE id IN (SELECT body {below})", f"DELETE {below}"):
                connection.execute(statement, (self.number, self.earliest))
            self.save(connection)
        return gone


def partition_of(connection: Connection, number: int) -> Partition:
    return Partition(*row(connection, "partitions", "number", number))


def places(connection: Connection, partition: Partition, start: int, *, is_with_bodies: bool = False) -> Iterator[Any]:
    """Yield the places of a partition in order, from the one that holds ``start`` on, with the columns of their bodies.

    A place is its position, count, time, body, size, and the CRC of its body. Raise ``CorruptLog`` if the first is
    damaged or missing; end before one that is, behind others.
    """
    if start >= partition.latest:
        return
    expected, problem = None, "a row is missing"
    for position, count, time, body, size, body_crc, crc, *columns in connection.execute(
        f"SELECT position, count, time, body, size, body_crc, crc{BODY_COLUMNS if is_with_bodies else ' FROM places'} "
        "WHERE partition = ?1 AND position >= "
        "(SELECT max(position) FROM places WHERE partition = ?1 AND position <= ?2) ORDER BY position",
        (partition.number, start),
    ):
        try:
            is_whole = crc == crc32(_PLACE.pack(partition.number, position, count, time, body, size, body_crc))
            is_whole = is_whole and (not columns or body_crc == crc_of_body(*columns))
        except (TypeError, struct.error):
            is_whole = False
        if not is_whole:
            problem = "its CRC is wrong"
            break
        if position + count <= start or expected not in (None, position):
            break
        yield position, count, time, body, size, body_crc, *columns
        expected = position + count
        if expected >= partition.latest:
            return
    if expected is None:
        raise CorruptLog(None, problem, partition.number, start)


# SQLite itself

WHOLE_SQLITE: Final = (3, 51, 3)
"""From this version on SQLite does not lose pages when one connection begins the WAL anew."""
logger = logging.getLogger("rsocket_trio.replay")


def require_sqlite() -> None:
    """Raise ``ModuleNotFoundError`` without APSW, ``RuntimeError`` if its SQLite can lose committed pages."""
    try:
        import apsw
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"a log is a SQLite database: {install_command('log')}", name="apsw") from error
    version = apsw.sqlite_lib_version()
    if tuple(int(part) for part in version.split("."))[:3] < WHOLE_SQLITE:
        raise RuntimeError(
            f"SQLite {version} can lose rows that are safe, when its WAL begins anew while another process writes: "
            f"a log needs {'.'.join(map(str, WHOLE_SQLITE))} or later"
        )


@contextmanager
def translated(path: Path | None, connection: Connection | None = None) -> Iterator[None]:
    """Translate SQLite's errors: what the disk did, and a lock, are ``OSError``, all others ``CorruptLog``.

    The block is a transaction of the connection, if there is one: it is rolled back if the block fails.
    """
    import apsw

    try:
        with connection or nullcontext():
            yield
    except CorruptLog as error:
        error.file = error.file or path
        raise
    except apsw.BusyError as error:
        raise OSError(errno.EBUSY, "somebody else holds its lock", str(path)) from error
    except apsw.NoMemError as error:
        raise MemoryError(f"{path}: {error}") from error
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
        if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ:
            raise CorruptLog(path, "it is shorter than it says") from error
        by_class = {apsw.FullError: errno.ENOSPC, apsw.ReadOnlyError: errno.EROFS}
        number = by_class.get(type(error)) or (connection and connection.system_errno) or errno.EIO
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
    kind = filesystems.filesystem_of(file.parent)
    is_shared = filesystems.is_shared(kind)
    if is_shared:
        raise OSError(errno.ENOTSUP, f"a log has to be on a local disk, and this one is on {kind}", str(path))
    if is_shared is None:
        logger.warning(
            "%s: the file system (%s) may be shared with other machines, which a log does not bear", path, kind or "?"
        )
