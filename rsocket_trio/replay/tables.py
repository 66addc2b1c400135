"""The tables of a log's database, and their rows: each has a CRC, so that a damaged one is an error.

::

    partitions  a row for each: its first and its next position, the time of the last row, bytes
    places      rows in order: ``count`` positions from ``position`` on, appended at ``time``, are in ``body``
    bodies      what was appended together: one row (form 0), or many as an Arrow IPC stream in ``data`` (form 1)
    readers     the named readers, each with the ends that it has acknowledged, as JSON
    attempts    what writers stage until it is committed: a partition of its own, with a number below 0
    sinks       the last batch of each sink, and the query that it belongs to
    epochs      the writes that were planned for a batch of a sink: the latest counts
    counters    how many partitions, readers and sinks there are, and the last numbers of attempts and epochs

The functions work in a transaction of the caller.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

import attrs

from rsocket_trio.replay.bodies import CONTENTS, Body, crc_of_body, size_of, stored
from rsocket_trio.replay.elements import Record
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.packs import Pack

if TYPE_CHECKING:
    from apsw import Connection

COUNTERS = "partitions", "readers", "sinks", "attempts", "epochs"
SCHEMA = """
CREATE TABLE partitions (number INTEGER PRIMARY KEY, earliest INTEGER, latest INTEGER, time INTEGER, bytes INTEGER,
    crc INTEGER);
CREATE TABLE bodies (id INTEGER PRIMARY KEY, form INTEGER, data BLOB, metadata BLOB, key BLOB, headers BLOB);
CREATE INDEX bodies_in_arrow ON bodies (form) WHERE form = 1;
CREATE TABLE places (partition INTEGER, position INTEGER, count INTEGER, time INTEGER, body INTEGER, size INTEGER,
    body_crc INTEGER, crc INTEGER, PRIMARY KEY (partition, position)) WITHOUT ROWID;
CREATE TABLE readers (name TEXT PRIMARY KEY, ends TEXT, seen INTEGER, crc INTEGER) WITHOUT ROWID;
CREATE TABLE attempts (number INTEGER PRIMARY KEY, earliest INTEGER, latest INTEGER, time INTEGER, bytes INTEGER,
    attempt TEXT UNIQUE, sink TEXT, partition INTEGER, batch INTEGER, epoch INTEGER, sealed INTEGER, crc INTEGER);
CREATE INDEX attempts_by_time ON attempts (time);
CREATE TABLE sinks (sink TEXT PRIMARY KEY, batch INTEGER, once INTEGER, time INTEGER, query TEXT, former TEXT,
    epoch INTEGER, crc INTEGER) WITHOUT ROWID;
CREATE INDEX sinks_by_age ON sinks (once DESC, time);
CREATE TABLE epochs (sink TEXT, batch INTEGER, epoch INTEGER, crc INTEGER, PRIMARY KEY (sink, batch)) WITHOUT ROWID;
CREATE INDEX epochs_by_age ON epochs (epoch);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER, crc INTEGER) WITHOUT ROWID;
"""
_PLACE = struct.Struct(">qQIqqqI")


def create(connection: Connection) -> None:
    """Make the tables."""
    connection.execute(SCHEMA)
    for name in COUNTERS:
        put(connection, "counters", name, 0)


# Rows of all tables but places and bodies


def crc_of(*values: Any) -> int:
    """Return the CRC of the name of a table and the values of a row: texts, numbers, ``None``; damaged, anything."""
    return crc32(json.dumps(values, separators=(",", ":"), default=repr).encode())


def put(connection: Connection, table: str, *values: Any) -> None:
    """Store a row with its CRC, in the place of one with its key."""
    connection.execute(
        f"INSERT OR REPLACE INTO {table} VALUES ({'?, ' * len(values)}?)", (*values, crc_of(table, *values))
    )


def scan(connection: Connection, table: str, condition: str = "", *values: Any) -> Iterator[list[Any]]:
    """Yield the rows of a table for which a condition holds. Raise ``CorruptLog`` for one with another CRC."""
    for *columns, crc in connection.execute(f"SELECT * FROM {table} {condition}", values):
        if crc != crc_of(table, *columns):
            raise CorruptLog(None, f"a row of its {table} is damaged")
        yield columns


def rows(connection: Connection, table: str, condition: str = "", *values: Any) -> list[list[Any]]:
    """Return the rows of a table for which a condition holds. Raise ``CorruptLog`` as ``scan`` does."""
    return list(scan(connection, table, condition, *values))


def counter(connection: Connection, name: str) -> int:
    """Return a number of ``counters``. Raise ``CorruptLog`` if it is damaged."""
    found = rows(connection, "counters", "WHERE name = ?", name)
    if not found:
        raise CorruptLog(None, f"the number of its {name} is missing")
    return int(found[0][1])


def count(connection: Connection, name: str, by: int = 1) -> int:
    """Add to a number of ``counters``. Return the sum."""
    total = counter(connection, name) + by
    put(connection, "counters", name, total)
    return total


def check_all(connection: Connection, table: str) -> None:
    """Raise ``CorruptLog`` if rows of a table that has a counter are damaged or missing."""
    found, number = sum(1 for _ in scan(connection, table)), counter(connection, table)
    if found != number:
        raise CorruptLog(None, f"it has {found} {table} instead of {number}")


# Partitions and their places


@attrs.define
class Partition:
    """A row of ``partitions``: the first position, the next one, the time of the last row, and bytes."""

    TABLE: ClassVar = "partitions"

    number: int
    earliest: int = 0
    latest: int = 0
    time: int = 0
    bytes: int = 0

    def save(self, connection: Connection) -> None:
        """Store the row."""
        put(connection, self.TABLE, *attrs.astuple(self, recurse=False))

    def append(self, connection: Connection, body: Body) -> None:
        """Store a body, and place it at the end."""
        connection.execute("INSERT INTO bodies VALUES (NULL, ?, ?, ?, ?, ?)", (body.form, *body.contents))
        self.place(connection, body.count, connection.last_insert_rowid(), body.size, body.crc)

    def place(self, connection: Connection, count: int, body: int, size: int, body_crc: int) -> None:
        """Give a body that is stored the next place."""
        place = self.number, self.latest, count, self.time, body, size, body_crc
        connection.execute("INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*place, crc32(_PLACE.pack(*place))))
        self.latest += count
        self.bytes += size

    def drop(self, connection: Connection, before: int, max_bytes: int, max_bodies: int) -> int:
        """Drop the first bodies that end at ``before`` or below, about so many. Return their bytes.

        Raise ``CorruptLog`` if the first is damaged or missing. The row is to be saved by the caller.
        """
        bodies: list[tuple[int]] = []
        gone = 0
        for position, count, _, body, size, _ in places(connection, self, self.earliest):
            if gone >= max_bytes or len(bodies) >= max_bodies or position + count > before:
                break
            self.earliest = position + count
            bodies.append((body,))
            gone += size
        connection.executemany("DELETE FROM bodies WHERE id = ?", bodies)
        connection.execute("DELETE FROM places WHERE partition = ? AND position < ?", (self.number, self.earliest))
        self.bytes -= gone
        return gone


def partition_of(connection: Connection, number: int) -> Partition:
    """Return a row of ``partitions``. Raise ``CorruptLog``."""
    found = rows(connection, "partitions", "WHERE number = ?", number)
    if not found:
        raise CorruptLog(None, f"the row of partition {number} is missing")
    return Partition(*found[0])


def is_whole(place: tuple[Any, ...], crc: Any, columns: Sequence[Any]) -> bool:
    """Return whether a place has the CRC of what it says, and its body, if its columns are there, the one it names."""
    try:
        return bool(crc == crc32(_PLACE.pack(*place)) and (not columns or place[-1] == crc_of_body(columns)))
    except (TypeError, struct.error):
        return False


def places(connection: Connection, partition: Partition, start: int, contents: str = "") -> Iterator[Any]:
    """Yield the places of a partition in order, from the one that holds ``start`` on, with columns of their bodies.

    A place is its position, count, time, body, size, and the CRC of its body. Raise ``CorruptLog`` if the first is
    damaged or missing; end before one that is, behind others.
    """
    number, problem, is_first = partition.number, "a row is missing", True
    if start >= partition.latest:
        return
    expected = connection.execute(
        "SELECT max(position) FROM places WHERE partition = ? AND position <= ?", (number, start)
    ).get
    for position, count, time, body, size, body_crc, crc, *columns in connection.execute(
        f"SELECT position, count, time, body, size, body_crc, crc{contents and f', {contents}'} FROM places "
        f"{contents and 'LEFT JOIN bodies ON id = body'} WHERE partition = ? AND position >= ? ORDER BY position",
        (number, start if expected is None else expected),
    ):
        if not is_whole((number, position, count, time, body, size, body_crc), crc, columns):
            problem = "its CRC is wrong"
            break
        if position != expected or position + count <= start:
            break
        yield position, count, time, body, size, body_crc, *columns
        is_first, expected = False, position + count
        if expected >= partition.latest:
            return
    if is_first:
        raise CorruptLog(None, problem, number, start)


def records_from(
    connection: Connection, partition: Partition, start: int, end: int, max_bytes: int
) -> list[Record | Pack]:
    """Return what is stored from ``start`` to below ``end``, about ``max_bytes`` and at least one body.

    Raise ``CorruptLog`` if the first is damaged or missing; what is damaged behind others is left out.
    """
    found: list[Record | Pack] = []
    for position, count, time, _, _, _, form, *contents in places(connection, partition, start, CONTENTS):
        found.append(stored(position, count, time, form, contents))
        max_bytes -= size_of(contents)
        if max_bytes <= 0 or position + count >= end:
            break
    return found
