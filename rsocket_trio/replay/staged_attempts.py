"""Staged attempts: the rows that a task of a writer has sent and no commit has promoted, in a database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from rsocket_trio.errors import Rejected
from rsocket_trio.replay.bodies import (
    COLUMNS,
    OVERHEAD,
    bodies_of,
    check_numbers,
    crc_of,
    crc_of_body,
    fetch,
    stored,
)
from rsocket_trio.replay.elements import Element, check_element
from rsocket_trio.replay.errors import CorruptLog, NotStaged
from rsocket_trio.replay.packs import Pack

if TYPE_CHECKING:
    from apsw import Connection

    from rsocket_trio.replay.database import Database

WRITER_BYTES = 2**20
"""Bytes of an attempt that wait in memory, at most."""
WAITING_BYTES = 16 * 2**20
"""Bytes of all attempts that wait in memory: above, each writer writes what it has."""
SWEPT_BODIES = 64
"""Bodies of dropped attempts that are deleted in one transaction."""
EPOCHS = 10_000
"""Batches whose latest epoch is known, at most."""


@attrs.define
class Attempt:
    """A row of ``attempts``: what is staged for a partition of a sink; ``id`` is 0 until it is stored.

    ``batch`` and ``epoch`` are those of its write, -1 where it named none. ``deadline`` is in microseconds since 1970.
    """

    id: int
    attempt: str
    sink: str
    partition: int
    batch: int
    epoch: int
    rows: int
    elements: int
    bytes: int
    sealed: int
    deadline: int

    def save(self, connection: Connection) -> None:
        """Store the row."""
        values = attrs.astuple(self)
        connection.execute(
            "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, crc_of(*values))
        )


class Holder(Protocol):
    """The view that an attempt has of its ledger."""

    @property
    def _database(self) -> Database:
        """Return the database of what is staged."""

    def _charge(self, size: int) -> None:
        """Count bytes that wait in memory, or -``size`` fewer. Raise ``Rejected`` if there is no room for them."""

    @property
    def _is_full(self) -> bool:
        """Return whether too much waits in memory."""

    @property
    def _is_shared(self) -> bool:
        """Return whether other servers that have another database are shown what is complete."""

    async def _share(self, row: Attempt) -> None:
        """Show a complete attempt to them."""

    async def _wait_room(self) -> None:
        """Wait while too much is in memory that others are storing."""

    async def _store(self, function: Callable[[Connection], Attempt]) -> Attempt:
        """Run ``function``, which stores what waits of an attempt."""


class StagedAttempt:
    """An attempt that a writer stages: its rows are not in the log until a commit names it.

    ``rows`` and ``elements`` count its content so far, ``sealed`` says whether it is complete.
    """

    def __init__(self, holder: Holder, row: Attempt) -> None:
        self._holder = holder
        self._row = row
        self._waiting: list[Element | Pack] = []
        self._size = 0
        self.attempt = row.attempt
        self.sink = row.sink
        self.rows = self.elements = 0
        self.sealed = False

    async def add(self, element: Element | Pack) -> None:
        """Stage one element, or a pack of many.

        Raise ``Rejected`` if there is no room for it or the attempt has expired, ``NotStaged`` if its batch was planned
        anew, ``ValueError`` if it can't be a record, ``OSError`` if the disk is full.
        """
        if isinstance(element, Element):
            check_element(element)
        size = element.size + OVERHEAD
        await self._holder._wait_room()
        self._holder._charge(size)
        self._waiting.append(element)
        self._size += size
        self.rows += element.count
        self.elements += 1
        if self._size >= WRITER_BYTES or self._holder._is_full:
            await self._store(sealed=False)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def seal(self) -> None:
        """Mark the attempt as complete: from now on a commit may name it. Raise as ``add`` does."""
        if self._holder._is_shared:
            await self._store(sealed=False)
            await self._holder._share(self._row)
        await self._store(sealed=True)
        self.sealed = True

    @property
    def number(self) -> int:
        """Return the number of the attempt in the database, which no other has."""
        return self._row.id

    def release(self) -> None:
        """Let go of what waits in memory."""
        self._holder._charge(-self._size)
        self._size = 0
        self._waiting.clear()

    async def _store(self, *, sealed: bool) -> None:
        self._row = await self._holder._store(partial(self._store_in, sealed=sealed))
        self.release()

    def _store_in(self, connection: Connection, *, sealed: bool) -> Attempt:
        row = attrs.evolve(self._row, rows=self.rows, elements=self.elements, sealed=int(sealed))
        if not connection.execute("SELECT 1 FROM attempts WHERE id = ?1 AND attempt = ?2", (row.id, row.attempt)).get:
            check_epoch(connection, row.sink, row.batch, row.epoch)
            raise Rejected(f"attempt {self.attempt} is staged no longer: it was too old, or was aborted")
        [(first,)] = fetch(connection, "SELECT coalesce(max(number), -1) + 1 FROM staged WHERE attempt = ?", row.id)
        for number, body in enumerate(bodies_of(self._waiting), first):
            values = row.id, number, body.count, body.insert(connection), body.size, body.crc
            connection.execute("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, crc_of(*values)))
            row.bytes += body.size
        row.save(connection)
        return row


# The tables, in a transaction of the caller


def staged(connection: Connection, attempt: str) -> Attempt | None:
    """Return an attempt by its name, ``None`` if it is not there. Raise ``CorruptLog``."""
    rows = fetch(connection, "SELECT * FROM attempts WHERE attempt = ?", attempt)
    if not rows:
        return None
    *values, crc = rows[0]
    # A damaged index leads to another attempt.
    if crc != crc_of(*values) or values[1] != attempt:
        raise CorruptLog(None, "the row of a staged attempt is damaged")
    return Attempt(*values)


def begin(connection: Connection, row: Attempt, most: int) -> Attempt:
    """Store a new attempt. Raise ``Rejected`` if it is staged already, or ``most`` are."""
    if staged(connection, row.attempt) is not None:
        raise Rejected(f"attempt {row.attempt} is staged already")
    [(count,)] = fetch(connection, "SELECT count(attempt) FROM attempts")
    if count >= most:
        raise Rejected(f"{count} attempts are staged: that is the limit")
    row.id = next_number(connection, "attempt")  # no other's, not even of one that was dropped and had this name
    row.save(connection)
    return row


def next_epoch(connection: Connection) -> int:
    """Return a number above all before."""
    return next_number(connection, "epoch")


def next_number(connection: Connection, counter: str) -> int:
    """Count one more. Return the number, which is above all before."""
    connection.execute(
        "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1", (counter,)
    )
    [(number,)] = fetch(connection, "SELECT value FROM counters WHERE name = ?", counter)
    check_numbers(number)
    return int(number)


def check_epoch(connection: Connection, sink: str, batch: int, epoch: int) -> None:
    """Raise ``NotStaged`` if a later write of the batch was planned; if this is the latest, drop what others staged."""
    if batch < 0 or epoch < 0:
        return
    found = fetch(connection, "SELECT epoch FROM epochs WHERE sink = ? AND batch = ?", sink, batch)
    check_numbers(*(known for (known,) in found))
    if found and found[0][0] > epoch:
        raise NotStaged(
            f"batch {batch} of sink {sink} is written by epoch {found[0][0]}, which was planned after this one, {epoch}"
        )
    if not found or found[0][0] < epoch:
        connection.execute("INSERT OR REPLACE INTO epochs VALUES (?, ?, ?)", (sink, batch, epoch))
        # Lower ones are older.
        connection.execute(
            "DELETE FROM epochs WHERE epoch < (SELECT epoch FROM epochs ORDER BY epoch DESC LIMIT 1 OFFSET ?)",
            (EPOCHS,),
        )
        drop(
            connection,
            fetch(
                connection,
                "SELECT id FROM attempts WHERE sink = ? AND batch = ? AND epoch < ? AND attempt IS NOT NULL",
                sink,
                batch,
                epoch,
            ),
        )


def drop(connection: Connection, ids: Iterable[tuple[int]]) -> int:
    """Drop attempts: their rows are deleted by ``sweep``. Return how many they were."""
    dropped = list(ids)
    connection.executemany("UPDATE attempts SET attempt = NULL, bytes = 0 WHERE id = ?", dropped)
    return len(dropped)


def drop_old(connection: Connection, now: int) -> int:
    """Drop the attempts that are too old."""
    return drop(
        connection,
        fetch(connection, "SELECT id FROM attempts WHERE deadline <= ? AND attempt IS NOT NULL", now),
    )


def sweep(connection: Connection) -> bool:
    """Delete some of the rows of dropped attempts. Return whether there may be more."""
    found = fetch(connection, "SELECT id FROM attempts WHERE attempt IS NULL LIMIT 1")
    if not found:
        return False
    [(attempt,)] = found
    some = fetch(
        connection, "SELECT number, body FROM staged WHERE attempt = ? ORDER BY number LIMIT ?", attempt, SWEPT_BODIES
    )
    connection.executemany("DELETE FROM bodies WHERE id = ?", [(body,) for _, body in some])
    connection.executemany("DELETE FROM staged WHERE attempt = ? AND number = ?", [(attempt, one) for one, _ in some])
    if len(some) < SWEPT_BODIES:
        connection.execute("DELETE FROM attempts WHERE id = ?", (attempt,))
        if not connection.changes():
            raise CorruptLog(None, "the index of staged attempts is damaged")
    return True


def checked(connection: Connection, sink: str, attempt: str, rows: int) -> Attempt:
    """Return an attempt that a commit names. Raise ``NotStaged`` unless it is complete, and has so many rows."""
    row = staged(connection, attempt)
    if row is None or row.sink != sink:
        raise NotStaged(f"attempt {attempt} is not staged for sink {sink}")
    if not row.sealed:
        raise NotStaged(f"attempt {attempt} is not complete")
    if row.rows != rows:
        raise NotStaged(f"attempt {attempt} has {row.rows} rows, not {rows}")
    return row


@attrs.frozen
class StagedBody:
    """A row of ``staged``: ``count`` positions are in ``body``, whose CRC is ``crc``."""

    count: int
    body: int
    size: int
    crc: int


def staged_bodies(connection: Connection, row: Attempt) -> list[StagedBody]:
    """Return the bodies of an attempt in order. Raise ``CorruptLog`` unless they have its rows."""
    found: list[StagedBody] = []
    for *values, crc in connection.execute("SELECT * FROM staged WHERE attempt = ? ORDER BY number", (row.id,)):
        if crc != crc_of(*values) or values[1] != len(found):
            raise CorruptLog(None, f"a row of attempt {row.attempt} is damaged or missing")
        found.append(StagedBody(*values[2:]))
    if sum(one.count for one in found) != row.rows:
        raise CorruptLog(None, f"rows of attempt {row.attempt} are missing")
    return found


def content_of(connection: Connection, row: Attempt, number: int, max_bytes: int) -> list[Element | Pack]:
    """Return elements of an attempt from its body ``number`` on, one for each body. Raise ``CorruptLog``."""
    found: list[Element | Pack] = []
    for count, crc, form, *contents in connection.execute(
        f"SELECT s.count, s.body_crc, {COLUMNS} FROM staged s LEFT JOIN bodies b ON b.id = s.body "
        "WHERE s.attempt = ? AND s.number >= ? ORDER BY s.number",
        (row.id, number),
    ):
        if form is None or crc_of_body(form, contents) != crc:
            raise CorruptLog(None, f"a row of attempt {row.attempt} is damaged")
        one = stored(0, count, None, form, tuple(contents))
        found.append(one if isinstance(one, Pack) else one.element)
        max_bytes -= OVERHEAD + (one.size if isinstance(one, Pack) else one.element.size)
        if max_bytes <= 0:
            break
    return found


def elements_of(database: Database, row: Attempt, max_bytes: int = 2**20) -> Iterator[Element | Pack]:
    """Yield the elements of an attempt, read in parts. To iterate blocks."""
    number = 0
    while some := database.read_here(partial(content_of, row=row, number=number, max_bytes=max_bytes)):
        yield from some
        number += len(some)
