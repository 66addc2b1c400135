"""A ledger: attempts of a batch are staged, and one commit promotes them, so that each row counts once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import attrs
import trio

from rsocket_trio import Invalid, Rejected
from rsocket_trio.connection.parking_lot import ParkingLot
from rsocket_trio.errors import readable
from rsocket_trio.replay.bodies import check_numbers, crc_of, fetch
from rsocket_trio.replay.elements import Clock, Element, now_us
from rsocket_trio.replay.errors import CorruptLog, NotStaged
from rsocket_trio.replay.log import ReplayableLog
from rsocket_trio.replay.packs import Pack
from rsocket_trio.replay.route_requests import LARGEST, CommitRequest
from rsocket_trio.replay.sqlite_log import Log
from rsocket_trio.replay.staged_attempts import (
    WAITING_BYTES,
    Attempt,
    StagedAttempt,
    begin,
    check_epoch,
    checked,
    drop,
    drop_old,
    next_epoch,
    staged,
    staged_bodies,
    sweep,
)
from rsocket_trio.values import value

if TYPE_CHECKING:
    from apsw import Connection

    from rsocket_trio.replay.database import Database

SINK_BYTES = 16 * 2**20
"""Bytes of the names of remembered sinks, and ``NAME_BYTES`` more for each."""
SINK_SECONDS = 30 * 86400.0
"""Seconds for which a sink that goes on is remembered at least after its last batch."""
NAME_BYTES = 100
STAGED_BYTES = 2**30
"""Bytes that all attempts together may hold in a file."""
MEMORY_BYTES = 64 * 2**20
"""The same in memory."""
STAGED_SECONDS = 3600.0
"""Seconds after which an attempt that was not committed is dropped."""
STAGED_ATTEMPTS = 10_000
"""Attempts that may be staged at a time."""

logger = logging.getLogger("rsocket_trio.replay")


@value
class Commit:
    """The outcome of a commit: whether it ``promoted`` rows, how many ``rows``, and the ``last`` batch of its sink."""

    promoted: bool
    rows: int
    last: int


@value
class Owner:
    """The query that the batches of a sink belong to, ``None`` for writes outside of queries.

    ``former`` ones had it before, and never commit again.
    """

    query: str | None = None
    former: tuple[str, ...] = ()

    def next(self, sink: str, query: str | None, take_over: bool) -> Owner:
        """Return the owner once ``query`` commits for a sink that has this one. Raise ``Invalid`` if it may not."""
        if query == self.query:
            return self
        if query in self.former:
            raise Invalid(
                f"sink {readable(sink)!r} was taken over from {shown(query)} by {shown(self.query)}: write to another "
                "sink"
            )
        if not take_over or query is None:
            raise Invalid(
                f"sink {readable(sink)!r} belongs to {shown(self.query)}, not to {shown(query)}: use another sinkId, "
                "or for a new checkpoint of the same rows takeOver=true once"
            )
        return Owner(query, self.former if self.query is None else (*self.former, self.query))


def shown(query: str | None) -> str:
    """Return a query as errors name it."""
    return "writes outside of queries" if query is None else f"query {readable(query)}"


@attrs.define
class Sink:
    """A row of ``sinks``: the last batch, whether it is the only one, the owner, and the epoch that committed it.

    ``time`` is in microseconds since 1970; the epoch is -1 where none was named.
    """

    name: str
    batch: int
    once: bool
    time: int
    owner: Owner
    epoch: int = -1

    def next_owner(self, wanted: CommitRequest) -> Owner | None:
        """Return the owner behind the batch that is ``wanted``, ``None`` if it counted before. Raise ``Invalid``."""
        owner = self.owner.next(self.name, wanted.query, wanted.take_over)
        if owner != self.owner or wanted.batch > self.batch:
            return owner
        self._check_epoch(wanted.batch, wanted.epoch)
        if wanted.batch == self.batch or wanted.once:
            return None
        raise Invalid(
            f"batch {wanted.batch} of sink {readable(self.name)!r} is below the last one, {self.batch}: another "
            "checkpoint wrote to it"
        )

    def check_stage(self, batch: int | None, epoch: int | None, query: str | None) -> bool:
        """Return whether a stage of ``query`` is the owner's, or names none: another drops nothing of the owner's.

        Raise ``NotStaged`` if the batch was committed by a later epoch, ``Invalid`` for a former owner.
        """
        if query in self.owner.former:
            self.owner.next(self.name, query, take_over=False)
        is_owner = query is None or query == self.owner.query
        if is_owner and batch is not None:
            self._check_epoch(batch, epoch)
        return is_owner

    def _check_epoch(self, batch: int, epoch: int | None) -> None:
        if epoch is not None and batch <= self.batch and epoch < self.epoch:
            raise NotStaged(
                f"batch {self.batch} of sink {readable(self.name)!r} was committed by epoch {self.epoch}, which was "
                f"planned after this one, {epoch}"
            )


class Ledger:
    """Tracks which batches of which sinks are in a log, in its database: what is staged and committed survives with it.

    ``log`` receives the promoted rows: a ``Log`` in a file or in memory, one in memory if none is given. What is staged
    takes at most ``staged_bytes``, by default 1 GiB in a file and 64 MiB in memory, in at most ``staged_attempts``, and
    is dropped if it was not committed for ``staged_seconds``. The names of the sinks whose last batch it knows take up
    to ``sink_bytes``, and 100 bytes more for each. Beyond, it forgets sinks of a single batch, then those without a
    commit for ``sink_seconds``, the oldest first, and refuses new ones while there are none. Use it under ``async
    with``; a log that it made itself is opened and closed with it. Raise ``TypeError`` for another kind of log.
    """

    def __init__(
        self,
        log: Log | None = None,
        *,
        staged_bytes: int | None = None,
        staged_seconds: float = STAGED_SECONDS,
        staged_attempts: int = STAGED_ATTEMPTS,
        sink_bytes: int = SINK_BYTES,
        sink_seconds: float = SINK_SECONDS,
    ) -> None:
        self._owns_log = log is None
        self.log: ReplayableLog = self._checked_log(Log() if log is None else log)
        if staged_bytes is None:
            staged_bytes = MEMORY_BYTES if isinstance(self.log, Log) and self.log.path is None else STAGED_BYTES
        self._most_bytes = staged_bytes
        self._seconds = staged_seconds
        self._most_attempts = staged_attempts
        self._sink_bytes = sink_bytes
        self._sink_seconds = sink_seconds
        self._clock: Clock = now_us
        self._waiting = 0
        self._stored = 0
        self._storing = 0
        self._room = ParkingLot()
        self._is_checked = False

    def _checked_log(self, log: ReplayableLog) -> ReplayableLog:
        if not isinstance(log, Log):
            raise TypeError(f"a Ledger writes to a Log, not to a {type(log).__name__}: for Kafka there is KafkaLedger")
        return log

    async def open(self) -> None:
        """Open the ledger and its log. Do nothing the second time."""
        await self.log.open()
        if not self._is_checked:
            await self._database.read(check_sinks)
            self._is_checked = True

    async def aclose(self) -> None:
        """Close the ledger, and a log that it made itself. Do nothing the second time."""
        if self._owns_log:
            await self.log.aclose()
        else:
            await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with trio.CancelScope(shield=True):
            await self.aclose()

    @property
    def _database(self) -> Database:
        """Return the database of what is staged. Raise ``trio.ClosedResourceError`` unless the ledger is open."""
        assert isinstance(self.log, Log)
        return self.log._open_database

    # State: that of the database

    def last(self, sink: str) -> int | None:
        """Return the last promoted batch of ``sink``, ``None`` before the first."""
        found = self._known(sink)
        return None if found is None else found.batch

    def _known(self, sink: str) -> Sink | None:
        return read_sink(self._database.ask("SELECT * FROM sinks WHERE sink = ?", sink))

    @property
    def sinks(self) -> Mapping[str, int]:
        """Return the last batch of each sink, without sinks that write only once."""
        rows = self._database.ask("SELECT * FROM sinks WHERE NOT once ORDER BY time")
        return {sink.name: sink.batch for row in rows if (sink := read_sink([row])) is not None}

    @property
    def staged(self) -> Sequence[str]:
        """Return the names of the staged attempts, complete or not."""
        return [
            name for (name,) in self._database.ask("SELECT attempt FROM attempts WHERE attempt NOTNULL ORDER BY id")
        ]

    @property
    def staged_bytes(self) -> int:
        """Return the bytes that are staged, those that wait in memory included."""
        self._measure()
        return self._stored + self._waiting

    def _measure(self) -> None:
        [(self._stored,)] = self._database.ask("SELECT coalesce(sum(bytes), 0) FROM attempts")

    # Requests of writers

    async def write(self, elements: Mapping[int, Sequence[Element | Pack]]) -> None:
        """Append ``elements`` at once, by partition, without staging: a writer that tries again may write them twice.

        A partition number is taken modulo the partitions of the log. Raise the errors of the log's ``append_all``.
        """
        groups: dict[int, list[Element | Pack]] = {}
        for partition, some in elements.items():
            groups.setdefault(self._target(partition), []).extend(some)
        await self.log.append_all(groups)

    async def epoch(self, sink: str) -> int:
        """Return a number above all before: what is staged with it for a batch of ``sink`` drops what lower ones did.

        Each planning of a write takes one, so that a writer that was killed is in nobody's way.
        """
        return await self._database.write(next_epoch)

    async def begin(
        self,
        sink: str,
        attempt: str,
        partition: int,
        *,
        batch: int | None = None,
        epoch: int | None = None,
        query: str | None = None,
    ) -> StagedAttempt:
        """Begin to stage ``attempt`` for ``sink``: rows of one ``partition``, and of a ``batch`` planned at ``epoch``.

        Raise ``Rejected`` if it is staged already, or too many are, ``NotStaged`` if the batch was planned anew, and
        ``Invalid`` if the sink was taken over from ``query``.
        """
        check_plan(partition, batch, epoch)
        known = self._known(sink)
        is_owner = known is None or known.check_stage(batch, epoch, query)
        now = self._clock()
        deadline = now + int(self._seconds * 1e6)
        row = Attempt(0, attempt, sink, partition, or_none(batch), or_none(epoch), 0, 0, 0, 0, deadline)

        def store(connection: Connection) -> Attempt:
            drop_old(connection, now)
            if is_owner:
                check_epoch(connection, sink, row.batch, row.epoch)
            return begin(connection, row, self._most_attempts)

        found = StagedAttempt(self, await self._database.write(store))
        await self._sweep()
        return found

    async def discard(self, stage: StagedAttempt) -> None:
        """Drop the attempt of ``stage``, also while the task is being cancelled."""
        with trio.CancelScope(shield=True):
            stage.release()
            try:
                # By its number: another attempt may have the name by now.
                await self._database.write(partial(drop, ids=[(stage.number,)]), gives_way=True)
                await self._sweep()
            except (OSError, trio.ClosedResourceError) as error:
                logger.warning("attempt %s of sink %s stays until it expires: %s", stage.attempt, stage.sink, error)

    async def commit(
        self,
        sink: str,
        batch: int,
        attempts: Mapping[str, int],
        *,
        once: bool = False,
        query: str | None = None,
        take_over: bool = False,
        epoch: int | None = None,
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
        check_plan(0, batch, epoch)
        wanted = CommitRequest(sink, batch, attempts, once, query, take_over, epoch)
        done = await self._database.write(partial(self._commit, wanted=wanted))
        assert isinstance(self.log, Log)
        with trio.CancelScope(shield=True):
            # It is promoted, whatever becomes of what is due behind it.
            await self.log._notice()
            await self._sweep()
        return done

    def _commit(self, connection: Connection, wanted: CommitRequest) -> Commit:
        assert isinstance(self.log, Log)
        now = self._clock()
        drop_old(connection, now)
        owner = self._next_owner(connection, wanted)
        check_epoch(connection, wanted.sink, wanted.batch, or_none(wanted.epoch))
        if owner is None:
            drop_attempts(connection, wanted.sink, wanted.attempts)
            return Commit(promoted=False, rows=0, last=wanted.batch)
        rows = [checked(connection, wanted.sink, name, number) for name, number in wanted.attempts.items()]
        [(partitions,)] = fetch(connection, "SELECT count(*) FROM partitions")
        for row in rows:
            self.log._promote(connection, row.partition % partitions, staged_bodies(connection, row))
            connection.execute("DELETE FROM staged WHERE attempt = ?", (row.id,))
            connection.execute("DELETE FROM attempts WHERE id = ?", (row.id,))
        self._remember(connection, Sink(wanted.sink, wanted.batch, wanted.once, now, owner, or_none(wanted.epoch)))
        return Commit(promoted=True, rows=sum(row.rows for row in rows), last=wanted.batch)

    async def forget(self, sink: str) -> bool:
        """Forget the last batch of ``sink``, which will never be written to again. Return whether there was one.

        If it is written to all the same, its batches count anew from 0 on. Raise the ``OSError`` of the disk.
        """
        return await self._database.write(partial(forget_sink, sink=sink))

    async def abort(self, sink: str, attempts: Iterable[str]) -> int:
        """Drop ``attempts`` of ``sink``. Return how many were staged."""
        dropped = 0
        with trio.CancelScope(shield=True):
            dropped = await self._drop(sink, list(attempts))
        return dropped  # noqa: RET504  # mypy takes the scope for one that may swallow

    async def _drop(self, sink: str, attempts: Sequence[str]) -> int:
        dropped = await self._database.write(partial(drop_attempts, sink=sink, attempts=attempts), gives_way=True)
        await self._sweep()
        return dropped

    async def _sweep(self) -> None:
        """Delete what was dropped, in portions. A failure is none of the call it comes with: the next tries again."""
        try:
            while self._database.ask("SELECT 1 FROM attempts WHERE attempt IS NULL LIMIT 1"):
                await self._database.write(sweep, gives_way=True)
        except OSError as error:
            logger.warning("what was staged and dropped could not be deleted: %s", error)

    def _target(self, partition: int) -> int:
        return partition % len(self.log.partitions())

    # What attempts ask of their ledger

    def _charge(self, size: int) -> None:
        """Count ``size`` bytes that wait in memory. Raise ``Rejected`` if there is no room for them."""
        if (
            size > 0
            and self._stored + self._waiting + size > self._most_bytes
            and ((known := self.staged_bytes) + size > self._most_bytes)
        ):
            raise Rejected(f"{known} bytes are staged and {size} more do not fit: the limit is {self._most_bytes}")
        self._waiting += size

    @property
    def _is_full(self) -> bool:
        """Return whether too much waits in memory."""
        return self._waiting >= WAITING_BYTES

    async def _wait_room(self) -> None:
        """Wait while too much is in memory that others are storing: each wakes all when it has stored its own."""
        while self._is_full and self._storing:
            await self._room.park()

    async def _store(self, function: Callable[[Connection], Attempt]) -> Attempt:
        """Run ``function``, which stores what waits of an attempt."""
        self._storing += 1
        try:
            row = await self._database.write(function)
            self._measure()
            return row
        finally:
            self._storing -= 1
            self._room.wake_all()

    _is_shared = False
    """Whether other servers that have another database are shown what is complete."""

    async def _share(self, row: Attempt) -> None:
        """Show ``row``, a complete attempt, to them."""

    # The last batches

    def _next_owner(self, connection: Connection, wanted: CommitRequest) -> Owner | None:
        """Return who owns the sink behind the batch that is ``wanted``, ``None`` if it counted before."""
        known = read_sink(fetch(connection, "SELECT * FROM sinks WHERE sink = ?", wanted.sink))
        if known is not None:
            return known.next_owner(wanted)
        self._check_room(connection, wanted.sink)
        return Owner(wanted.query)

    def _check_room(self, connection: Connection, sink: str) -> None:
        """Forget old sinks where one more has no room. Raise ``Rejected`` if none can go."""
        while (size := size_of_sinks(connection)) + cost(sink) > self._sink_bytes:
            oldest = fetch(connection, "SELECT sink, once, time FROM sinks ORDER BY once DESC, time LIMIT 1")
            too_old = self._clock() - int(self._sink_seconds * 1e6)
            if not oldest or (not oldest[0][1] and oldest[0][2] > too_old):
                raise Rejected(
                    f"the names of the sinks that have committed take {size} bytes: the limit is {self._sink_bytes}. "
                    f"Tell Ledger.forget of one; one that has not committed for {self._sink_seconds:g} s goes"
                )
            name, once, time = oldest[0]
            if not once:
                seconds = (self._clock() - time) // 1_000_000
                logger.warning("sink %s is forgotten: it was not written to for %d s", name, seconds)
            forget_sink(connection, name)

    def _remember(self, connection: Connection, sink: Sink) -> None:
        known = fetch(connection, "SELECT 1 FROM sinks WHERE sink = ?", sink.name)
        save_sink(connection, sink)
        if not known:
            change_size(connection, cost(sink.name))
        connection.execute("DELETE FROM epochs WHERE sink = ? AND batch < ?", (sink.name, sink.batch))


def check_plan(partition: int, batch: int | None, epoch: int | None) -> None:
    """Raise ``ValueError`` for numbers that no partition, batch or epoch has."""
    for what, number in (("partition", partition), ("batch", batch), ("epoch", epoch)):
        if number is not None and not 0 <= number <= LARGEST:
            raise ValueError(f"{what} {number}: must be from 0 to 2^63 - 1")


def or_none(number: int | None) -> int:
    """Return a batch or an epoch as tables have it: -1 where none was named."""
    return -1 if number is None else number


def cost(sink: str) -> int:
    """Return the bytes that a remembered sink counts."""
    return len(sink.encode()) + NAME_BYTES


def size_of_sinks(connection: Connection) -> int:
    """Return the bytes that all remembered sinks count."""
    found = fetch(connection, "SELECT value FROM counters WHERE name = 'sink bytes'")
    check_numbers(*(value for (value,) in found))
    return found[0][0] if found else 0


def check_sinks(connection: Connection) -> None:
    """Raise ``CorruptLog`` if a sink is damaged or missing: it would not be found, and its last batch count twice."""
    size = 0
    for row in connection.execute("SELECT * FROM sinks"):
        sink = read_sink([row])
        size += 0 if sink is None else cost(sink.name)
    if size != size_of_sinks(connection):
        raise CorruptLog(None, "the rows of its sinks are damaged")


def change_size(connection: Connection, size: int) -> None:
    """Count bytes of remembered sinks."""
    connection.execute(
        "INSERT INTO counters VALUES ('sink bytes', ?1) ON CONFLICT (name) DO UPDATE SET value = value + ?1", (size,)
    )


def read_sink(rows: Sequence[tuple[Any, ...]]) -> Sink | None:
    """Return the sink of a row of ``sinks``, ``None`` without one. Raise ``CorruptLog``."""
    if not rows:
        return None
    *values, crc = rows[0]
    if crc != crc_of(*values):
        raise CorruptLog(None, "the row of a sink is damaged")
    name, batch, once, time, query, former, epoch = values
    return Sink(name, batch, bool(once), time, Owner(query, tuple(json.loads(former))), epoch)


def save_sink(connection: Connection, sink: Sink) -> None:
    """Store a row of ``sinks``."""
    owner = sink.owner.query, json.dumps(sink.owner.former)
    row = sink.name, sink.batch, int(sink.once), sink.time, *owner, sink.epoch
    connection.execute("INSERT OR REPLACE INTO sinks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, crc_of(*row)))


def forget_sink(connection: Connection, sink: str) -> bool:
    """Forget a sink. Return whether it was known."""
    connection.execute("DELETE FROM sinks WHERE sink = ?", (sink,))
    if not connection.changes():
        return False
    change_size(connection, -cost(sink))
    connection.execute("DELETE FROM epochs WHERE sink = ?", (sink,))
    return True


def drop_attempts(connection: Connection, sink: str, attempts: Iterable[str]) -> int:
    """Drop those of the attempts that are staged for a sink. Return how many they were."""
    found = [staged(connection, name) for name in dict.fromkeys(attempts)]
    return drop(connection, [(row.id,) for row in found if row is not None and row.sink == sink])
