"""A ledger: attempts of a batch are staged, and one commit promotes them, so that each row counts once."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import attrs
import msgspec
import trio
from msgspec import Meta

from rsocket_trio import Invalid, Rejected
from rsocket_trio.errors import readable
from rsocket_trio.replay import tables
from rsocket_trio.replay.elements import Element, Name, Pack, Whole, now_us, prepared
from rsocket_trio.replay.errors import CorruptLog, NotStaged
from rsocket_trio.replay.log import OpenedByBlock, ReplayableLog
from rsocket_trio.replay.sqlite_log import Log
from rsocket_trio.values import value

if TYPE_CHECKING:
    from apsw import Connection

MAX_PLANS = 100_000
"""Batches that are not committed whose latest epoch is remembered."""
SINK_SECONDS = 30 * 86400.0
"""Seconds without a commit after which a sink makes room for a new one."""

logger = logging.getLogger("rsocket_trio.replay")


@value
class Commit:
    """The outcome of a commit: whether it ``promoted`` rows, how many ``rows``, and the ``last`` batch of its sink."""

    promoted: bool
    rows: int
    last: int


T = TypeVar("T")
AttemptName = Annotated[str, Meta(pattern=r"^[0-9A-Za-z_-]{1,64}\Z")]


def validated(content: T) -> T:
    """Return what a caller has said, as it is declared: SQLite takes other types too. Raise ``ValueError``."""
    return msgspec.convert(msgspec.to_builtins(content, builtin_types=(bytes,)), type(content))


@attrs.define
class Sink(tables.Row):
    """A row of ``sinks``: its last ``batch``, whether it is the only one, when it was committed, and by which query.

    ``query`` is ``None`` for writes outside of queries; ``former`` ones, as JSON, had the sink before, and never commit
    again. ``epoch`` is that of the batch, if it has one.
    """

    TABLE = "sinks"

    sink: Name
    batch: Whole = -1
    once: int = 0
    time: int = 0
    query: Name | None = None
    former: str = "[]"
    epoch: Whole | None = None

    @classmethod
    def called(cls, connection: Connection, name: str, query: str | None = None) -> Sink:
        """Return a sink by its name. One that is not known has no batch yet, and belongs to ``query``."""
        return next(iter(cls.where(connection, "WHERE sink = ?", name)), cls(name, query=query))

    def check_former(self, query: str | None) -> None:
        """Raise ``Invalid`` for a query that the sink was taken over from."""
        if query != self.query and query in json.loads(self.former):
            raise Invalid(
                f"sink {readable(self.sink)!r} was taken over from {shown(query)} by {shown(self.query)}: write to "
                "another sink"
            )

    def passed_to(self, query: str | None, *, take_over: bool) -> Sink:
        """Return the sink as it is for a commit of ``query``: one that it takes over begins anew. Raise ``Invalid``."""
        self.check_former(query)
        if query == self.query:
            return self
        if not take_over or query is None:
            raise Invalid(
                f"sink {readable(self.sink)!r} belongs to {shown(self.query)}, not to {shown(query)}: use another "
                "sinkId, or for a new checkpoint of the same rows takeOver=true once"
            )
        former = json.loads(self.former) + ([] if self.query is None else [self.query])
        return Sink(self.sink, query=query, former=json.dumps(former))

    def plan(self, connection: Connection, batch: int | None, epoch: int | None) -> None:
        """Note the epoch of a write of a batch, and drop what earlier ones have staged for it.

        Raise ``NotStaged`` if a later one has staged rows, also if these are gone, or has committed.
        """
        if batch is None or epoch is None:
            return
        known = tables.rows(connection, "plans", "WHERE sink = ? AND batch = ?", self.sink, batch)
        latest = known[0][-1] if known else -1
        if self.epoch is not None and batch <= self.batch:
            latest = max(latest, self.epoch)
        if latest > epoch:
            raise NotStaged(
                f"batch {batch} of sink {readable(self.sink)!r} is written by epoch {latest}, which was planned after "
                f"this one, {epoch}"
            )
        if latest < epoch:
            number = tables.count(connection, "plans")
            tables.put(connection, "plans", number, self.sink, batch, epoch)
            connection.execute("DELETE FROM plans WHERE number <= ?", (number - MAX_PLANS,))
            Attempt.drop_all(connection, "sink = ? AND batch = ? AND epoch < ?", [self.sink, batch, epoch])


def shown(query: str | None) -> str:
    return "writes outside of queries" if query is None else f"query {readable(query)}"


@attrs.define
class Attempt(tables.Partition):
    """A row of ``attempts``, and the partition of its places: what is staged for a ``partition`` of a sink.

    ``attempt`` is its name. ``batch`` and ``epoch`` are those of its write, if it named them. ``time`` is when it was
    begun, and ``latest`` how many rows are stored. ``sealed`` is 1 once it is complete.
    """

    TABLE = "attempts"

    attempt: AttemptName = ""
    sink: Name = ""
    partition: Whole = 0
    batch: Whole | None = None
    epoch: Whole | None = None
    sealed: int = 0

    @classmethod
    def drop_all(cls, connection: Connection, condition: str, values: Iterable[object]) -> int:
        """Delete the attempts for which a condition holds, and their rows. Return how many they were."""
        attempts = cls.where(connection, f"WHERE {condition}", *values)
        for row in attempts:
            bodies = "SELECT body FROM places WHERE partition = ?"
            connection.execute(f"DELETE FROM bodies WHERE id IN ({bodies})", (row.number,))
            row.delete(connection)
        return len(attempts)

    def delete(self, connection: Connection) -> None:
        """Delete the attempt, but not the bodies of its rows."""
        connection.execute("DELETE FROM places WHERE partition = ?", (self.number,))
        connection.execute("DELETE FROM attempts WHERE number = ?", (self.number,))

    def take_bodies(self, connection: Connection) -> list[tuple[int, int, int, int]]:
        """Delete the attempt. Return its bodies in order: the count of each, its id, size and CRC.

        Raise ``CorruptLog`` unless they have its rows.
        """
        bodies = [(number, *body) for _, number, _, *body in tables.places(connection, self, 0)]
        if sum(number for number, *_ in bodies) != self.latest:
            raise CorruptLog(None, f"rows of attempt {self.attempt} are missing")
        self.delete(connection)
        return bodies


@attrs.define(eq=False)
class StagedAttempt:
    """An attempt that a writer stages: its rows, ``row.latest``, are not in the log until a commit names it."""

    _ledger: Ledger
    row: Attempt

    async def add(self, *elements: Element | Pack) -> None:
        """Stage elements, or packs of many, in one transaction.

        Raise ``Rejected`` if there is no room for them or the attempt has expired, ``NotStaged`` if its batch was
        planned anew, ``ValueError`` if one can't be a record, ``OSError`` if the disk is full.
        """
        await self._ledger._store(self, prepared(elements))

    async def seal(self) -> None:
        """Mark the attempt as complete: from now on a commit may name it. Raise as ``add`` does."""
        await self._ledger._store(self, (), sealed=True)


class Ledger(OpenedByBlock):
    """Tracks which batches of which sinks are in a log, in its database: what is staged and committed survives with it.

    ``log`` receives the promoted rows: a ``Log`` in a file or in memory, one in memory if none is given. What is staged
    takes at most ``staged_bytes``, by default 1 GiB in a file and 64 MiB in memory, in at most ``staged_attempts``, and
    is dropped if it was not committed for ``staged_seconds``. It knows the last batch of up to ``max_sinks`` sinks.
    Beyond, it forgets sinks of a single batch, then those without a commit for 30 days, and refuses new ones. Use it
    under ``async with``; a log that it made itself is opened and closed with it. Raise ``TypeError`` for another log.
    """

    log: ReplayableLog

    def __init__(
        self,
        log: Log | None = None,
        *,
        staged_bytes: int | None = None,
        staged_seconds: float = 3600.0,
        staged_attempts: int = 10_000,
        max_sinks: int = 100_000,
    ) -> None:
        if not isinstance(log, Log | None):
            raise TypeError(f"a Ledger writes to a Log, not to a {type(log).__name__}: for Kafka there is KafkaLedger")
        self._owns_log = log is None
        # The log whose database has what is staged and committed.
        self._tables = self.log = Log() if log is None else log
        self._most_bytes = staged_bytes or (2**26 if self._tables.path is None else 2**30)
        self._seconds = staged_seconds
        self._most_attempts = staged_attempts
        self._max_sinks = max_sinks
        self._clock = now_us
        self._is_checked = False

    async def open(self) -> None:
        """Open the ledger and its log. Do nothing the second time."""
        await self.log.open()

        def check(connection: Connection) -> None:
            # A sink that is damaged or missing would not be found, and its last batch count twice.
            if (known := len(Sink.where(connection, ""))) != (number := tables.counter(connection, "sinks")):
                raise CorruptLog(None, f"it has {known} sinks instead of {number}")

        if not self._is_checked:
            await self._tables._look_up(check)
            self._is_checked = True

    async def aclose(self) -> None:
        """Close the ledger, and a log that it made itself. Do nothing the second time."""
        if self._owns_log:
            await self.log.aclose()
        await trio.lowlevel.checkpoint()

    # State: that of the database

    def last(self, sink: str) -> int | None:
        """Return the last promoted batch of ``sink``, ``None`` before the first."""
        batch = self._tables._here(partial(Sink.called, name=sink)).batch
        return None if batch < 0 else batch

    @property
    def sinks(self) -> Mapping[str, int]:
        """Return the last batch of each sink, without sinks that write only once."""
        known = self._tables._here(partial(Sink.where, condition="WHERE NOT once ORDER BY time"))
        return {sink.sink: sink.batch for sink in known}

    @property
    def staged(self) -> Sequence[str]:
        """Return the names of the staged attempts, complete or not."""
        return [name for (name,) in self._tables._ask("SELECT attempt FROM attempts ORDER BY number DESC")]

    @property
    def staged_bytes(self) -> int:
        """Return the bytes that are staged."""
        return self._tables._here(stored_bytes)

    # Requests of writers

    async def epoch(self, sink: Name) -> int:
        """Return a number above all before: each planning of a write takes one.

        What is staged with it for a batch of ``sink`` drops what lower ones did: a killed writer is in nobody's way.
        """
        return await self._tables._change(partial(tables.count, name="epochs"))

    async def begin(
        self,
        sink: Name,
        attempt: AttemptName,
        partition: Whole,
        *,
        batch: Whole | None = None,
        epoch: Whole | None = None,
        query: Name | None = None,
    ) -> StagedAttempt:
        """Begin to stage ``attempt`` for ``sink``: rows of one ``partition``, and of a ``batch`` planned at ``epoch``.

        Raise ``Rejected`` if it is staged already, or too many are, ``NotStaged`` if the batch was planned anew,
        ``Invalid`` if the sink was taken over from ``query``, and ``ValueError`` for what no request may say.
        """
        row = validated(Attempt(0, 0, 0, self._clock(), 0, attempt, sink, partition, batch, epoch))

        def store(connection: Connection) -> Attempt:
            self._drop_old(connection)
            known = Sink.called(connection, sink, query)
            known.check_former(query)
            if query in (None, known.query):
                known.plan(connection, batch, epoch)
            else:
                row.epoch = None  # it drops nothing of the owner's
            if Attempt.where(connection, "WHERE sink = ? AND attempt = ?", sink, attempt):
                raise Rejected(f"attempt {attempt} is staged already")
            [(number,)] = connection.execute("SELECT count(*) FROM attempts")
            if number >= self._most_attempts:
                raise Rejected(f"{number} attempts are staged: that is the limit")
            row.number = -tables.count(connection, "attempts")  # no other's, not even of one that was dropped
            row.save(connection)
            return row

        return StagedAttempt(self, await self._tables._change(store))

    async def discard(self, stage: StagedAttempt) -> None:
        """Drop the attempt of ``stage``, also while the task is being cancelled."""
        # By its number: another attempt may have the name by now.
        drop = partial(Attempt.drop_all, condition="number = ?", values=[stage.row.number])
        try:
            with trio.CancelScope(shield=True):
                await self._tables._change(drop, makes_room=True)
        except (OSError, CorruptLog, trio.ClosedResourceError) as error:
            logger.warning("attempt %s stays until it expires: %s", stage.row.attempt, error)

    async def commit(
        self,
        sink: Name,
        batch: Whole,
        attempts: Mapping[AttemptName, Whole],
        *,
        once: bool = False,
        query: Name | None = None,
        take_over: bool = False,
        epoch: Whole | None = None,
    ) -> Commit:
        """Promote ``attempts`` of ``sink``, each with its number of rows, as the batch numbered ``batch``: all or
        nothing, and once.

        The batches of a sink belong to one ``query``, those of ``None`` to writes outside of queries. The last batch
        again promotes nothing, and its attempts are dropped; a lower one, and one of another query, raises ``Invalid``.
        ``take_over`` passes the sink to another query, whose batches count anew; the former never commits again.
        ``once``: this sink will never have another batch, and no other attempts, so that it may be forgotten after some
        thousand others. ``epoch`` is that of the planning. Once it has begun to promote it can't be cancelled. Raise
        ``NotStaged``, ``Rejected`` for one sink too many, and the errors of the log; then nothing was promoted, and the
        same may be tried again.
        """
        wanted = validated(Sink(sink, batch, int(once), self._clock(), query, epoch=epoch))
        return await self._commit(wanted, attempts, take_over=take_over)

    async def _commit(self, wanted: Sink, attempts: Mapping[str, int], *, take_over: bool) -> Commit:
        def promote(connection: Connection) -> Commit:
            sink, rows = self._checked(connection, wanted, attempts, take_over=take_over)
            partitions = tables.counter(connection, "partitions")
            for row in rows:
                self._tables._promote(connection, row.partition % partitions, row.take_bodies(connection))
            if sink is not None:
                self._remember(connection, sink)
            return Commit(promoted=sink is not None, rows=sum(row.latest for row in rows), last=wanted.batch)

        done = await self._tables._change(promote)
        self._tables._changed.wake_all()
        with trio.CancelScope(shield=True):
            await self._tables.retain(in_full=False)
        return done

    def _checked(
        self, connection: Connection, wanted: Sink, attempts: Mapping[str, int], *, take_over: bool
    ) -> tuple[Sink | None, list[Attempt]]:
        """Return the sink behind a commit, which is to be as ``wanted``, and its attempts.

        It is ``None`` if the batch counted before: then they are dropped. Raise ``Invalid``, ``NotStaged``, and
        ``Rejected`` for one sink too many.
        """
        self._drop_old(connection)
        known = Sink.called(connection, wanted.sink, wanted.query)
        if known.batch < 0:
            self._make_room(connection)
        sink = known.passed_to(wanted.query, take_over=take_over)
        sink.plan(connection, wanted.batch, wanted.epoch)
        if wanted.batch < sink.batch and not wanted.once:
            raise Invalid(
                f"batch {wanted.batch} of sink {readable(sink.sink)!r} is below the last one, {sink.batch}: another "
                "checkpoint wrote to it"
            )
        if wanted.batch <= sink.batch:
            drop_attempts(connection, sink.sink, attempts)
            return None, []
        staged = {row.attempt: row for row in Attempt.where(connection, "WHERE sink = ?", sink.sink)}
        rows = []
        for name, number in attempts.items():
            if (row := staged.get(name)) is None:
                raise NotStaged(f"attempt {name} is not staged for sink {sink.sink}")
            if not row.sealed:
                raise NotStaged(f"attempt {name} is not complete")
            if row.latest != number:
                raise NotStaged(f"attempt {name} has {row.latest} rows, not {number}")
            rows.append(row)
        return attrs.evolve(wanted, former=sink.former), rows

    async def abort(self, sink: Name, attempts: Sequence[AttemptName]) -> int:
        """Drop ``attempts`` of ``sink``. Return how many were staged."""
        return await self._tables._change(partial(drop_attempts, sink=sink, names=attempts), makes_room=True)

    async def _store(self, stage: StagedAttempt, elements: Sequence[Element | Pack], *, sealed: bool = False) -> None:
        """Store rows of an attempt, or that it is complete: only then wait for the disk."""

        def store(connection: Connection) -> Attempt:
            row = stage.row
            present = Attempt.where(connection, "WHERE number = ?", row.number)
            if not present:
                Sink.called(connection, row.sink).plan(connection, row.batch, row.epoch)
                raise Rejected(f"attempt {row.attempt} is staged no longer: it was too old, or was aborted")
            [row] = present
            known, before = stored_bytes(connection), row.bytes
            self._append(connection, row, elements)
            size = row.bytes - before
            if known + size > self._most_bytes:
                raise Rejected(f"{known} bytes are staged and {size} more do not fit: the limit is {self._most_bytes}")
            row.sealed = int(sealed)
            row.save(connection)
            return row

        stage.row = await self._tables._change(store, waits_for_disk=sealed)

    def _append(self, connection: Connection, row: Attempt, elements: Sequence[Element | Pack]) -> None:
        for body in tables.bodies_of(elements):
            row.append(connection, body)

    def _drop_old(self, connection: Connection) -> None:
        Attempt.drop_all(connection, "time <= ?", [self._too_old(self._seconds)])

    def _too_old(self, seconds: float) -> int:
        return self._clock() - int(seconds * 1e6)

    def _remember(self, connection: Connection, sink: Sink) -> None:
        tables.count(connection, "sinks", int(Sink.called(connection, sink.sink).batch < 0))
        sink.save(connection)
        connection.execute("DELETE FROM plans WHERE sink = ? AND batch <= ?", (sink.sink, sink.batch))

    def _make_room(self, connection: Connection) -> None:
        """Forget old sinks where one more has no room. Raise ``Rejected`` if none can go."""
        excess = tables.counter(connection, "sinks") + 1 - self._max_sinks
        condition = "WHERE once OR time <= ? ORDER BY once DESC, time LIMIT ?"
        old = Sink.where(connection, condition, self._too_old(SINK_SECONDS), max(excess, 0))
        if len(old) < excess:
            raise Rejected(f"{self._max_sinks} sinks have committed: that is the limit, until one has not for 30 days")
        for sink in old:
            connection.execute("DELETE FROM sinks WHERE sink = ?", (sink.sink,))
            tables.count(connection, "sinks", -connection.changes())
            logger.log(logging.DEBUG if sink.once else logging.WARNING, "sink %s is forgotten", sink.sink)


def drop_attempts(connection: Connection, sink: str, names: Iterable[str]) -> int:
    """Drop those of the attempts that are staged for a sink. Return how many they were."""
    condition = "sink = ? AND attempt IN (SELECT value FROM json_each(?))"
    return Attempt.drop_all(connection, condition, [sink, json.dumps(list(names))])


def stored_bytes(connection: Connection) -> int:
    return int(connection.execute("SELECT coalesce(sum(bytes), 0) FROM attempts").get)
