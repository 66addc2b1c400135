"""Staged attempts: the rows that a task of a writer has sent and no commit has promoted, in a database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import attrs
import trio

from rsocket_trio.errors import Rejected
from rsocket_trio.replay.bodies import OVERHEAD, bodies_of
from rsocket_trio.replay.elements import Element, check_element
from rsocket_trio.replay.errors import CorruptLog, NotStaged
from rsocket_trio.replay.packs import Pack
from rsocket_trio.replay.tables import Partition, places, put, records_from, rows

if TYPE_CHECKING:
    from apsw import Connection

    from rsocket_trio.replay.ledger import Ledger

WRITER_BYTES = 2**20
"""Bytes of an attempt that wait in memory, at most."""
SWEPT_BYTES, SWEPT_BODIES = 16 * 2**20, 64
"""Bytes and bodies of dropped attempts that are deleted in one transaction."""
EPOCHS = 10_000
"""Batches whose latest epoch is known, at most."""


@attrs.define
class Attempt(Partition):
    """A row of ``attempts``, and the partition of its places: what is staged for a ``partition`` of a sink.

    ``attempt`` is its name, ``None`` once it is dropped. ``batch`` and ``epoch`` are those of its write, -1 where it
    named none. ``time`` is when it was begun.
    """

    TABLE: ClassVar = "attempts"

    attempt: str | None = None
    sink: str = ""
    partition: int = 0
    batch: int = -1
    epoch: int = -1
    sealed: int = 0

    @property
    def rows(self) -> int:
        """Return how many rows are stored."""
        return self.latest


class StagedAttempt:
    """An attempt that a writer stages: its rows are not in the log until a commit names it.

    ``rows`` and ``elements`` count its content so far, ``sealed`` says whether it is complete.
    """

    def __init__(self, ledger: Ledger, row: Attempt) -> None:
        self._ledger = ledger
        self._waiting: list[Element | Pack] = []
        self._size = 0
        self.row = row
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
        is_full = await self._ledger._take_room(size)
        self._waiting.append(element)
        self._size += size
        self.rows += element.count
        self.elements += 1
        if self._size >= WRITER_BYTES or is_full:
            await self.store()
        else:
            await trio.lowlevel.checkpoint_if_cancelled()

    async def seal(self) -> None:
        """Mark the attempt as complete: from now on a commit may name it. Raise as ``add`` does."""
        await self._ledger._seal(self)
        self.sealed = True

    async def store(self, *, sealed: bool = False) -> None:
        """Store what waits in memory. Raise as ``add`` does."""
        self.row = await self._ledger._store(partial(self._store_in, sealed=sealed), sealed=sealed)
        self.release()

    def release(self) -> None:
        """Let go of what waits in memory."""
        self._ledger._give_room(self._size)
        self._size = 0
        self._waiting.clear()

    def _store_in(self, connection: Connection, *, sealed: bool) -> Attempt:
        row = self.row
        present = attempts_where(connection, "number = ?", row.number)
        if not present:
            check_epoch(connection, row.sink, row.batch, row.epoch)
            raise Rejected(f"attempt {self.attempt} is staged no longer: it was too old, or was aborted")
        [row] = present
        for body in bodies_of(self._waiting):
            row.append(connection, body)
        row.sealed = int(sealed)
        row.save(connection)
        return row


# The tables, in a transaction of the caller


def attempts_where(connection: Connection, condition: str, *values: object) -> list[Attempt]:
    """Return the attempts that are staged and for which a condition holds. Raise ``CorruptLog``."""
    return [Attempt(*row) for row in rows(connection, "attempts", f"WHERE attempt NOTNULL AND {condition}", *values)]


def staged(connection: Connection, attempt: str) -> Attempt | None:
    """Return an attempt by its name, ``None`` if it is not there. Raise ``CorruptLog``."""
    found = attempts_where(connection, "attempt = ?", attempt)
    if found and found[0].attempt != attempt:
        raise CorruptLog(None, "the index of its attempts is damaged")
    return found[0] if found else None


def check_epoch(connection: Connection, sink: str, batch: int, epoch: int) -> None:
    """Raise ``NotStaged`` if a later write of the batch was planned; if this is the latest, drop what others staged."""
    if batch < 0 or epoch < 0:
        return
    latest = max(
        [row[2] for row in rows(connection, "epochs", "WHERE sink = ? AND batch = ?", sink, batch)], default=-1
    )
    if latest > epoch:
        raise NotStaged(
            f"batch {batch} of sink {sink} is written by epoch {latest}, which was planned after this one, {epoch}"
        )
    if latest < epoch:
        put(connection, "epochs", sink, batch, epoch)
        # Lower ones are older.
        connection.execute(
            "DELETE FROM epochs WHERE epoch < (SELECT epoch FROM epochs ORDER BY epoch DESC LIMIT 1 OFFSET ?)",
            (EPOCHS,),
        )
        drop(connection, attempts_where(connection, "sink = ? AND batch = ? AND epoch < ?", sink, batch, epoch))


def drop(connection: Connection, attempts: Sequence[Attempt]) -> int:
    """Drop attempts: their rows are deleted by ``sweep``. Return how many they are."""
    for row in attempts:
        row.attempt = None
        row.save(connection)
    return len(attempts)


def drop_attempts(connection: Connection, sink: str, attempts: Iterable[str]) -> int:
    """Drop those of the attempts that are staged for a sink. Return how many they were."""
    present = [staged(connection, name) for name in dict.fromkeys(attempts)]
    return drop(connection, [row for row in present if row is not None and row.sink == sink])


def drop_old(connection: Connection, too_old: int) -> None:
    """Drop the attempts that were begun at a time or before."""
    drop(connection, attempts_where(connection, "time <= ?", too_old))


def sweep(connection: Connection) -> bool:
    """Delete some of the rows of dropped attempts. Return whether there may be more. Raise ``CorruptLog``."""
    dropped = rows(connection, "attempts", "WHERE attempt IS NULL LIMIT 1")
    for row in [Attempt(*columns) for columns in dropped]:
        row.drop(connection, row.latest, SWEPT_BYTES, SWEPT_BODIES)
        if row.earliest < row.latest:
            row.save(connection)
        else:
            delete(connection, row)
    return bool(dropped)


def delete(connection: Connection, row: Attempt) -> None:
    """Delete an attempt whose bodies are deleted, or promoted."""
    connection.execute("DELETE FROM places WHERE partition = ?", (row.number,))
    connection.execute("DELETE FROM attempts WHERE number = ?", (row.number,))
    if not connection.changes():
        raise CorruptLog(None, "the index of its attempts is damaged")


def checked(connection: Connection, sink: str, attempt: str, number: int) -> Attempt:
    """Return an attempt that a commit names. Raise ``NotStaged`` unless it is complete, and has so many rows."""
    row = staged(connection, attempt)
    if row is None or row.sink != sink:
        raise NotStaged(f"attempt {attempt} is not staged for sink {sink}")
    if not row.sealed:
        raise NotStaged(f"attempt {attempt} is not complete")
    if row.rows != number:
        raise NotStaged(f"attempt {attempt} has {row.rows} rows, not {number}")
    return row


def take_bodies(connection: Connection, row: Attempt) -> list[tuple[int, int, int, int]]:
    """Take the bodies of an attempt, which is deleted: the count of each, its id, size and CRC, in order.

    Raise ``CorruptLog`` unless they have its rows.
    """
    bodies = [(count, *body) for _, count, _, *body in places(connection, row, 0)]
    if sum(count for count, *_ in bodies) != row.rows:
        raise CorruptLog(None, f"rows of attempt {row.attempt} are missing")
    delete(connection, row)
    return bodies


def content_of(connection: Connection, row: Attempt, start: int, max_bytes: int) -> list[Element | Pack]:
    """Return elements of an attempt from its row ``start`` on, one for each body; none if it was dropped.

    Raise ``CorruptLog``.
    """
    if not attempts_where(connection, "number = ?", row.number):
        return []
    return [
        Pack(one.data, one.count)
        if isinstance(one, Pack)
        else Element(one.data, one.metadata, one.count, one.key, one.headers)
        for one in records_from(connection, row, start, row.rows, max_bytes)
    ]
