"""Bodies: what is stored together, one row or many as a pack, and the places that they have in a log."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import attrs

from rsocket_trio.replay.elements import (
    LARGEST_COUNT,
    Element,
    Record,
    check_element,
    decode_headers,
    encode_headers,
)
from rsocket_trio.replay.errors import CorruptLog
from rsocket_trio.replay.packs import PACK_BYTES, PACK_ROWS, Pack, arrow, has_arrow

if TYPE_CHECKING:
    from apsw import Connection

OVERHEAD = 200
"""Bytes that a body takes beside its content, about."""
ROW, ARROW = 0, 1
"""The forms of a body."""
_LENGTHS = struct.Struct(">Bqqqq")
_PLACE = struct.Struct(">IQIQI")


@attrs.frozen
class Body:
    """A body of ``count`` positions. ``headers`` are encoded; ``time`` is that of its rows, ``None`` for the log's."""

    count: int
    form: int
    data: bytes | None
    metadata: bytes | None = None
    key: bytes | None = None
    headers: bytes | None = None
    time: int | None = None

    @property
    def contents(self) -> tuple[bytes | None, ...]:
        """Return what is stored beside its form."""
        return self.data, self.metadata, self.key, self.headers

    @property
    def size(self) -> int:
        """Return the bytes that it counts."""
        return OVERHEAD + sum([len(content) for content in self.contents if content is not None])

    @property
    def crc(self) -> int:
        """Return the CRC of its form and its contents."""
        return crc_of_body(self.form, self.contents)

    def insert(self, connection: Connection) -> int:
        """Store it. Return its id."""
        connection.execute("INSERT INTO bodies VALUES (NULL, ?, ?, ?, ?, ?)", (self.form, *self.contents))
        body = connection.last_insert_rowid()
        if self.form == ARROW:
            connection.execute("INSERT OR IGNORE INTO counters VALUES ('arrow', 1)")
        return body


def crc_of_body(form: int, contents: Iterable[Any]) -> int:
    """Return the CRC of a body. Raise ``TypeError`` or ``struct.error`` if it is none."""
    some = tuple(contents)
    crc = crc32(_LENGTHS.pack(form, *[-1 if content is None else len(content) for content in some]))
    for content in some:
        if content:
            crc = crc32(content, crc)
    return crc


def fetch(connection: Connection, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Return all rows that a statement finds."""
    return connection.execute(statement, values).fetchall()


def crc_of(*values: Any) -> int:
    """Return the CRC of the values of a row: texts, numbers and ``None``, and in a damaged one anything."""
    return crc32(json.dumps(values, separators=(",", ":"), default=repr).encode())


def crc_of_place(partition: int, position: int, count: int, time: int, body: int) -> int:
    """Return the CRC of a place; ``body`` is that of its body."""
    return crc32(_PLACE.pack(partition, position, count, time, body))


def is_whole(
    partition: int, position: Any, count: Any, time: Any, crc: Any, form: Any, contents: Iterable[Any]
) -> bool:
    """Return whether a place has the CRC of what it says and of its body."""
    try:
        return bool(crc == crc_of_place(partition, position, count, time, crc_of_body(form, contents)))
    except (TypeError, struct.error):
        return False


def check_numbers(*values: object) -> None:
    """Raise ``CorruptLog`` unless all are whole numbers, as the columns of their names say."""
    if any(type(value) is not int for value in values):
        raise CorruptLog(None, f"a number is damaged: {values!r:.200}")


def bodies_of(elements: Iterable[Element | Pack]) -> Iterator[Body]:
    """Yield elements as they are stored: those of one time together if pyarrow is installed.

    Raise ``ValueError`` for an element that can't be a record.
    """
    together: list[Element] = []
    size = 0
    for one in elements:
        if isinstance(one, Element):
            own = check_element(one)
            grown = size + own
            if together and (
                grown > PACK_BYTES or len(together) >= PACK_ROWS or one.timestamp != together[0].timestamp
            ):
                yield from _bodies(together)
                together, grown = [], own
            together.append(one)
            size = grown
            continue
        if not 1 <= one.count <= LARGEST_COUNT:
            raise ValueError(f"a pack of {one.count} rows: must be between 1 and {LARGEST_COUNT}")
        if together:
            yield from _bodies(together)
            together, size = [], 0
        if arrow().is_placed(one):
            # A log gives places itself, and what is stored together has one time.
            yield from bodies_of(arrow().elements_of(one))
        else:
            yield from (Body(part.count, ARROW, part.data, time=one.timestamp) for part in arrow().divided(one))
    if together:
        yield from _bodies(together)


def _bodies(elements: list[Element]) -> Iterator[Body]:
    time = elements[0].timestamp
    if len(elements) > 1 and has_arrow():
        pack = arrow().pack_elements(elements)
        yield Body(pack.count, ARROW, pack.data, time=time)
        return
    for one in elements:
        headers = None if one.headers is None else encode_headers(one.headers)
        yield Body(one.count, ROW, one.data, one.metadata, one.key, headers, time)


# Reading

COLUMNS = "b.form, b.data, b.metadata, b.key, b.headers"


def stored(position: int, count: int, time: int | None, form: int, contents: tuple[Any, ...]) -> Record | Pack:
    """Return a body at its place, as it is read."""
    data, metadata, key, headers = contents
    if form == ARROW:
        return Pack(data, count, position, time)
    return Record(position, data, metadata, count, key, None if headers is None else decode_headers(headers), time)


def some_places(
    connection: Connection, path: Path | None, partition: int, start: int, latest: int, end: int, max_bytes: int
) -> list[Record | Pack]:
    """Return what is stored of a partition from ``start`` to below ``end``, about ``max_bytes`` and at least one body.

    Raise ``CorruptLog`` if the first is damaged or missing; what is damaged behind others is left out.
    """
    [(first,)] = fetch(
        connection, "SELECT max(position) FROM places WHERE partition = ? AND position <= ?", partition, start
    )
    found: list[Record | Pack] = []
    expected = first
    problem = "a row is missing"
    for position, count, time, crc, form, *contents in connection.execute(
        f"SELECT p.position, p.count, p.time, p.crc, {COLUMNS} FROM places p LEFT JOIN bodies b ON b.id = p.body "
        "WHERE p.partition = ? AND p.position >= ? ORDER BY p.position",
        (partition, start if first is None else first),
    ):
        if expected == position and position >= end:
            return found
        if not is_whole(partition, position, count, time, crc, form, contents):
            problem = "its CRC is wrong"
            break
        if position != expected or (not found and position + count <= start):
            break
        found.append(stored(position, count, time, form, tuple(contents)))
        expected = position + count
        max_bytes -= OVERHEAD + sum([len(content) for content in contents if content is not None])
        if max_bytes <= 0 or expected == latest:
            return found
    if not found:
        raise CorruptLog(path, problem, partition, start if expected is None else max(expected, start))
    return found
