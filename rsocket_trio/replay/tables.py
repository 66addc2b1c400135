"""The tables of a log's database, and their rows: each has a CRC, so that a damaged one is an error.

::

    partitions  a row for each: its first and its next position, the time of the last row, bytes
    places      rows in order: ``count`` positions from ``position`` on, appended at ``time``, are in ``body``
    bodies      what was appended together: one row (form 0), or many as an Arrow IPC stream in ``data`` (form 1)
    readers     the named readers, each with the ends that it has acknowledged, as JSON
    attempts    what writers stage until it is committed: a partition of its own, with a number below 0
    sinks       the last batch of each sink, and the query that it belongs to
    plans       the latest epoch that has staged or committed a batch of a sink, until that is committed
    counters    how many partitions, readers and sinks there are, and the last numbers of attempts, epochs and plans

The functions work in a transaction of the caller, and raise ``CorruptLog`` for rows that are damaged or missing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias
from zlib import crc32

import attrs

from rsocket_trio.replay import elements
from rsocket_trio.replay.elements import PACK_BYTES, PACK_ROWS, Element, Pack, Record
from rsocket_trio.replay.errors import CorruptLog

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
CREATE TABLE readers (name TEXT PRIMARY KEY, ends TEXT, seen INTEGER, crc INTEGER) WITHOUT ROWID;
CREATE TABLE attempts (number INTEGER PRIMARY KEY, earliest INTEGER, latest INTEGER, time INTEGER, bytes INTEGER,
    attempt TEXT UNIQUE, sink TEXT, partition INTEGER, batch INTEGER, epoch INTEGER, sealed INTEGER, crc INTEGER);
CREATE INDEX attempts_by_time ON attempts (time);
CREATE TABLE sinks (sink TEXT PRIMARY KEY, batch INTEGER, once INTEGER, time INTEGER, query TEXT, former TEXT,
    epoch INTEGER, crc INTEGER) WITHOUT ROWID;
CREATE INDEX sinks_by_age ON sinks (once DESC, time);
CREATE TABLE plans (number INTEGER PRIMARY KEY, sink TEXT, batch INTEGER, epoch INTEGER, crc INTEGER,
    UNIQUE (sink, batch));
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER, crc INTEGER) WITHOUT ROWID;
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
    """Return the rows of a table for which a condition holds."""
    checked = []
    for *columns, crc in connection.execute(f"SELECT * FROM {table} {condition}", values):
        if crc != crc_of(table, *columns):
            raise CorruptLog(None, f"a row of its {table} is damaged")
        checked.append(columns)
    return checked


def row(connection: Connection, table: str, key: str, value: object) -> list[Any]:
    """Return the row of a table with this key."""
    for values in rows(connection, table, f"WHERE {key} = ?", value):
        return values
    raise CorruptLog(None, f"the row of {value} in its {table} is missing")


def counter(connection: Connection, name: str) -> int:
    """Return a number of ``counters``."""
    return int(row(connection, "counters", "name", name)[1])


def count(connection: Connection, name: str, by: int = 1) -> int:
    """Add to a number of ``counters``. Return the sum."""
    total = counter(connection, name) + by
    put(connection, "counters", name, total)
    return total


def whole(connection: Connection, table: str) -> list[list[Any]]:
    """Return all rows of a table that has a counter."""
    stored, number = rows(connection, table), counter(connection, table)
    if len(stored) != number:
        raise CorruptLog(None, f"it has {len(stored)} {table} instead of {number}")
    return stored


@attrs.define
class Row:
    """A row of the table ``TABLE``: its attributes are the columns but the CRC, in order."""

    TABLE: ClassVar[str]

    @classmethod
    def where(cls, connection: Connection, condition: str, *values: object) -> list[Self]:
        """Return the rows for which a condition holds."""
        return [cls(*columns) for columns in rows(connection, cls.TABLE, condition, *values)]

    def save(self, connection: Connection) -> None:
        """Store the row."""
        put(connection, self.TABLE, *attrs.astuple(self, recurse=False))


# Bodies

Body: TypeAlias = tuple[int, int | None, int, tuple[bytes | None, ...]]
"""The number of its positions, the time of its rows, ``None`` for the log's, its form, and its contents: data,
metadata, key and headers."""


def size_of(contents: Iterable[bytes | None]) -> int:
    """Return the bytes that a body of these contents counts."""
    return OVERHEAD + sum([len(content) for content in contents if content is not None])


def crc_of_body(form: int, *contents: bytes | None) -> int:
    """Return the CRC of the columns of a body. Raise ``TypeError`` or ``struct.error`` if it is damaged or missing."""
    crc = crc32(_LENGTHS.pack(form, *[-1 if content is None else len(content) for content in contents]))
    for content in contents:
        if content:
            crc = crc32(content, crc)
    return crc


def bodies_of(group: Iterable[Element | Pack]) -> Iterator[Body]:
    """Yield prepared elements as they are stored: those of one time together if pyarrow is installed."""
    together: list[Element] = []
    size = 0
    for element in chain(group, [None]):
        if together and (
            not isinstance(element, Element)
            or size + element.size > PACK_BYTES
            or len(together) >= PACK_ROWS
            or element.timestamp != together[0].timestamp
        ):
            if len(together) > 1 and elements.has_arrow():
                pack = elements.arrow().pack_elements(together)
                yield pack.count, together[0].timestamp, ARROW_FORM, (pack.data, None, None, None)
            else:
                for single in together:
                    headers = None if single.headers is None else elements.encode_headers(single.headers)
                    contents = single.data, single.metadata, single.key, headers
                    yield single.count, single.timestamp, ROW_FORM, contents
            together, size = [], 0
        if isinstance(element, Element):
            together.append(element)
            size += element.size
        elif element is not None:
            yield element.count, element.timestamp, ARROW_FORM, (element.data, None, None, None)


def stored(position: int, count: int, time: int, *body: Any) -> Record | Pack:
    """Return what is stored at a place that ``places`` yields with the columns of its body."""
    *_, form, data, metadata, key, headers = body
    if form == ARROW_FORM:
        return Pack(data, count, position, time)
    pairs = None if headers is None else elements.decode_headers(headers)
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
        crc = crc_of_body(form, *contents)
        self.place(connection, number, connection.last_insert_rowid(), size_of(contents), crc)

    def place(self, connection: Connection, count: int, body: int, size: int, body_crc: int) -> None:
        """Give a body that is stored the next place."""
        place = self.number, self.latest, count, self.time, body, size, body_crc
        connection.execute("INSERT INTO places VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*place, crc32(_PLACE.pack(*place))))
        self.latest += count
        self.bytes += size

    def drop(self, connection: Connection, before: int, max_bytes: int, max_bodies: int) -> int:
        """Drop the first bodies that end at ``before`` or below, about so many, and store the row. Return their bytes.

        A place that is damaged or missing ends it, and is an error where it is the first.
        """
        bodies: list[tuple[int]] = []
        gone = 0
        for position, count, _, body, size, _ in places(connection, self, self.earliest):
            if gone >= max_bytes or len(bodies) >= max_bodies or position + count > before:
                break
            self.earliest = position + count
            bodies.append((body,))
            gone += size
        if bodies:
            connection.executemany("DELETE FROM bodies WHERE id = ?", bodies)
            connection.execute("DELETE FROM places WHERE partition = ? AND position < ?", (self.number, self.earliest))
            self.bytes -= gone
            self.save(connection)
        return gone


def partition_of(connection: Connection, number: int) -> Partition:
    """Return a row of ``partitions``."""
    return Partition(*row(connection, "partitions", "number", number))


def is_whole(place: tuple[object, ...], crc: object, columns: Sequence[Any]) -> bool:
    """Return whether a place has the CRC of what it says, and its body, if its columns are there, the one it names."""
    try:
        return crc == crc32(_PLACE.pack(*place)) and (not columns or place[-1] == crc_of_body(*columns))
    except (TypeError, struct.error):
        return False


def places(connection: Connection, partition: Partition, start: int, *, is_with_bodies: bool = False) -> Iterator[Any]:
    """Yield the places of a partition in order, from the one that holds ``start`` on, with the columns of their bodies.

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
        f"SELECT position, count, time, body, size, body_crc, crc{BODY_COLUMNS if is_with_bodies else ' FROM places'} "
        "WHERE partition = ? AND position >= ? ORDER BY position",
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
