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
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias
from zlib import crc32

import attrs

from rsocket_trio.replay.elements import (
    PACK_BYTES,
    PACK_ROWS,
    Element,
    Pack,
    Record,
    arrow,
    decode_headers,
    encode_headers,
    has_arrow,
)
from rsocket_trio.replay.errors import CorruptLog

if TYPE_CHECKING:
    from apsw import Connection

OVERHEAD = 200
"""Bytes that a body takes beside its content, about."""
ROW_FORM, ARROW_FORM = 0, 1
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
_LENGTHS = struct.Struct(">Bqqqq")


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


def rows(connection: Connection, table: str, condition: str = "", *values: Any) -> list[list[Any]]:
    """Return the rows of a table for which a condition holds. Raise ``CorruptLog`` for one with another CRC."""
    found = []
    for *columns, crc in connection.execute(f"SELECT * FROM {table} {condition}", values):
        if crc != crc_of(table, *columns):
            raise CorruptLog(None, f"a row of its {table} is damaged")
        found.append(columns)
    return found


def row(connection: Connection, table: str, key: str, value: object) -> list[Any]:
    """Return the row of a table with this key. Raise ``CorruptLog`` if it is damaged or missing."""
    for found in rows(connection, table, f"WHERE {key} = ?", value):
        return found
    raise CorruptLog(None, f"the row of {value} in its {table} is missing")


def counter(connection: Connection, name: str) -> int:
    """Return a number of ``counters``. Raise ``CorruptLog`` if it is damaged."""
    return int(row(connection, "counters", "name", name)[1])


def count(connection: Connection, name: str, by: int = 1) -> int:
    """Add to a number of ``counters``. Return the sum."""
    total = counter(connection, name) + by
    put(connection, "counters", name, total)
    return total


def whole(connection: Connection, table: str) -> list[list[Any]]:
    """Return all rows of a table that has a counter. Raise ``CorruptLog`` if some are damaged or missing."""
    found, number = rows(connection, table), counter(connection, table)
    if len(found) != number:
        raise CorruptLog(None, f"it has {len(found)} {table} instead of {number}")
    return found


@attrs.define
class Row:
    """A row of the table ``TABLE``: its attributes are the columns but the CRC, in order."""

    TABLE: ClassVar[str]

    @classmethod
    def where(cls, connection: Connection, condition: str, *values: object) -> list[Self]:
        """Return the rows for which a condition holds. Raise ``CorruptLog``."""
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


def crc_of_body(columns: Sequence[Any]) -> int:
    """Return the CRC of the columns of a body. Raise ``TypeError`` or ``struct.error`` if it is damaged or missing."""
    form, *contents = columns
    crc = crc32(_LENGTHS.pack(form, *[-1 if content is None else len(content) for content in contents]))
    for content in contents:
        if content:
            crc = crc32(content, crc)
    return crc


def bodies_of(elements: Iterable[Element | Pack]) -> Iterator[Body]:
    """Yield prepared elements as they are stored: those of one time together if pyarrow is installed."""
    together: list[Element] = []
    size = 0
    for one in elements:
        if together and (
            isinstance(one, Pack)
            or size + one.size > PACK_BYTES
            or len(together) >= PACK_ROWS
            or one.timestamp != together[0].timestamp
        ):
            yield from _joined(together)
            together, size = [], 0
        if isinstance(one, Pack):
            yield one.count, one.timestamp, ARROW_FORM, (one.data, None, None, None)
        else:
            together.append(one)
            size += one.size
    if together:
        yield from _joined(together)


def _joined(elements: list[Element]) -> Iterator[Body]:
    time = elements[0].timestamp
    if len(elements) > 1 and has_arrow():
        pack = arrow().pack_elements(elements)
        yield pack.count, time, ARROW_FORM, (pack.data, None, None, None)
        return
    for one in elements:
        headers = None if one.headers is None else encode_headers(one.headers)
        yield one.count, time, ROW_FORM, (one.data, one.metadata, one.key, headers)


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
        crc = crc_of_body((form, *contents))
        self.place(connection, number, connection.last_insert_rowid(), size_of(contents), crc)

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
    return Partition(*row(connection, "partitions", "number", number))


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
    for position, count, time, _, _, _, form, data, metadata, key, headers in places(
        connection, partition, start, "form, data, metadata, key, headers"
    ):
        if form == ARROW_FORM:
            found.append(Pack(data, count, position, time))
        else:
            pairs = None if headers is None else decode_headers(headers)
            found.append(Record(position, data, metadata, count, key, pairs, time))
        max_bytes -= size_of((data, metadata, key, headers))
        if max_bytes <= 0 or position + count >= end:
            break
    return found
