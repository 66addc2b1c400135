"""A ledger: attempts of a batch are staged, and one commit promotes them, so that each row counts once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any

import trio

from rsocket_trio import Invalid, Rejected
from rsocket_trio.errors import readable
from rsocket_trio.replay.elements import Clock, Element, now_us
from rsocket_trio.replay.errors import CorruptLog, NotStaged
from rsocket_trio.replay.log import OpenedByBlock, ReplayableLog
from rsocket_trio.replay.packs import Pack
from rsocket_trio.replay.route_requests import LARGEST, CommitRequest
from rsocket_trio.replay.sqlite_log import Log
from rsocket_trio.replay.staged_attempts import (
    Attempt,
    StagedAttempt,
    attempts_where,
    check_epoch,
    checked,
    drop,
    drop_attempts,
    drop_old,
    staged,
    sweep,
    take_bodies,
)
from rsocket_trio.replay.tables import check_all, count, counter, put, rows, scan
from rsocket_trio.tools.parking_lot import ParkingLot
from rsocket_trio.values import value

if TYPE_CHECKING:
    from apsw import Connection

    from rsocket_trio.replay.database import Database

MAX_SINKS = 100_000
"""Sinks whose last batch is remembered."""
SINK_SECONDS = 30 * 86400.0
"""Seconds for which a sink that goes on is remembered at least after its last batch."""
STAGED_BYTES = 2**30
"""Bytes that all attempts together may hold in a file."""
MEMORY_BYTES = 64 * 2**20
"""The same in memory."""
WAITING_BYTES = 16 * 2**20
"""Bytes of all attempts that wait in memory: above, each writer stores what it has."""
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
class Sink:
    """A row of ``sinks``: the last batch, whether it is the only one, when it was committed, and by which query.

    ``time`` is in microseconds since 1970. ``query`` is ``None`` for writes outside of queries; ``former`` ones had the
    sink before, and never commit again. ``epoch`` is that of the batch, -1 where none was named.
    """

    name: str
    batch: int
    once: bool
    time: int
    query: str | None = None
    former: tuple[str, ...] = ()
    epoch: int = -1

    def after(self, request: CommitRequest, now: int) -> Sink | None:
        """Return the row behind the batch of a request, ``None`` if that counted before. Raise ``Invalid``."""
        former = self.former
        if self._passes_to(request.query, request.take_over):
            former += () if self.query is None else (self.query,)
        elif request.batch <= self.batch:
            self._check_epoch(request.batch, request.epoch)
            if request.batch == self.batch or request.once:
                return None
            raise Invalid(
                f"batch {request.batch} of sink {readable(self.name)!r} is below the last one, {self.batch}: another "
                "checkpoint wrote to it"
            )
        return Sink(self.name, request.batch, request.once, now, request.query, former, or_none(request.epoch))

    def _passes_to(self, query: str | None, take_over: bool) -> bool:
        """Return whether another query takes the sink over. Raise ``Invalid`` if it may not."""
        if query == self.query:
            return False
        if query in self.former:
            raise Invalid(
                f"sink {readable(self.name)!r} was taken over from {shown(query)} by {shown(self.query)}: write to "
                "another sink"
            )
        if not take_over or query is None:
            raise Invalid(
                f"sink {readable(self.name)!r} belongs to {shown(self.query)}, not to {shown(query)}: use another "
                "sinkId, or for a new checkpoint of the same rows takeOver=true once"
            )
        return True

    def check_stage(self, batch: int | None, epoch: int | None, query: str | None) -> bool:
        """Return whether a stage of ``query`` is the owner's, or names none: another drops nothing of the owner's.

        Raise ``NotStaged`` if the batch was committed by a later epoch, ``Invalid`` for a former owner.
        """
        if query in self.former:
            self._passes_to(query, take_over=False)
        is_owner = query is None or query == self.query
        if is_owner and batch is not None:
            self._check_epoch(batch, epoch)
        return is_owner

    def _check_epoch(self, batch: int, epoch: int | None) -> None:
        if epoch is not None and batch <= self.batch and epoch < self.epoch:
            raise NotStaged(
                f"batch {self.batch} of sink {readable(self.name)!r} was committed by epoch {self.epoch}, which was "
                f"planned after this one, {epoch}"
            )


def shown(query: str | None) -> str:
    """Return a query as errors name it."""
    return "writes outside of queries" if query is None else f"query {readable(query)}"


class Ledger(OpenedByBlock):
    """Tracks which batches of which sinks are in a log, in its database: what is staged and committed survives with it.

    ``log`` receives the promoted rows: a ``Log`` in a file or in memory, one in memory if none is given. What is staged
    takes at most ``staged_bytes``, by default 1 GiB in a file and 64 MiB in memory, in at most ``staged_attempts``, and
    is dropped if it was not committed for ``staged_seconds``. It knows the last batch of up to ``max_sinks`` sinks.
    Beyond, it forgets sinks of a single batch, then those without a commit for ``sink_seconds``, the oldest first, and
    refuses new ones while there are none. Use it under ``async with``; a log that it made itself is opened and closed
    with it. Raise ``TypeError`` for another kind of log.
    """

    def __init__(
        self,
        log: Log | None = None,
        *,
        staged_bytes: int | None = None,
        staged_seconds: float = STAGED_SECONDS,
        staged_attempts: int = STAGED_ATTEMPTS,
        max_sinks: int = MAX_SINKS,
        sink_seconds: float = SINK_SECONDS,
    ) -> None:
        self._owns_log = log is None
        self.log: ReplayableLog = self._checked_log(Log() if log is None else log)
        if staged_bytes is None:
            staged_bytes = MEMORY_BYTES if isinstance(self.log, Log) and self.log.path is None else STAGED_BYTES
        self._most_bytes = staged_bytes
        self._seconds = staged_seconds
        self._most_attempts = staged_attempts
        self._max_sinks = max_sinks
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

    @property
    def _rows(self) -> Log:
        assert isinstance(self.log, Log)
        return self.log

    @property
    def _database(self) -> Database:
        """Return the database of what is staged. Raise ``trio.ClosedResourceError`` unless the ledger is open."""
        return self._rows._open_database

    # State: that of the database

    def last(self, sink: str) -> int | None:
        """Return the last promoted batch of ``sink``, ``None`` before the first."""
        known = self._known(sink)
        return None if known is None else known.batch

    def _known(self, sink: str) -> Sink | None:
        return self._database.here(partial(read_sink, sink=sink))

    @property
    def sinks(self) -> Mapping[str, int]:
        """Return the last batch of each sink, without sinks that write only once."""
        return self._database.here(last_batches)

    @property
    def staged(self) -> Sequence[str]:
        """Return the names of the staged attempts, complete or not."""
        names = self._database.ask("SELECT attempt FROM attempts WHERE attempt NOTNULL ORDER BY number DESC")
        return [name for (name,) in names]

    @property
    def staged_bytes(self) -> int:
        """Return the bytes that are staged, those that wait in memory included."""
        self._measure()
        return self._stored + self._waiting

    def _measure(self) -> None:
        [(self._stored,)] = self._database.ask("SELECT coalesce(sum(bytes), 0) FROM attempts WHERE attempt NOTNULL")

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
        return await self._database.write(partial(count, name="epochs"))

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
        check_plan(partition, batch, epoch, [sink, attempt], query)
        row = Attempt(0, 0, 0, self._clock(), 0, attempt, sink, partition, or_none(batch), or_none(epoch))

        def store(connection: Connection) -> Attempt:
            drop_old(connection, self._too_old(self._seconds))
            known = read_sink(connection, sink)
            if known is None or known.check_stage(batch, epoch, query):
                check_epoch(connection, sink, row.batch, row.epoch)
            if staged(connection, attempt) is not None:
                raise Rejected(f"attempt {attempt} is staged already")
            [(number,)] = connection.execute("SELECT count(attempt) FROM attempts")
            if number >= self._most_attempts:
                raise Rejected(f"{number} attempts are staged: that is the limit")
            row.number = -count(connection, "attempts")  # no other's, not even of one that was dropped
            row.save(connection)
            return row

        stage = StagedAttempt(self, await self._database.write(store))
        try:
            await self._sweep()
        except BaseException:
            # Raised again at once: nobody gets the stage.
            await self.discard(stage)
            raise
        return stage

    async def discard(self, stage: StagedAttempt) -> None:
        """Drop the attempt of ``stage``, also while the task is being cancelled."""

        def change(connection: Connection) -> int:
            # By its number: another attempt may have the name by now.
            return drop(connection, attempts_where(connection, "number = ?", stage.row.number))

        stage.release()
        try:
            await self._drop(change)
        except (OSError, CorruptLog, trio.ClosedResourceError) as error:
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
        check_plan(0, batch, epoch, [sink, *attempts], query)
        request = CommitRequest(sink, batch, attempts, once, query, take_over, epoch)
        done = await self._database.write(partial(self._commit, request=request))
        with trio.CancelScope(shield=True):
            # It is promoted, whatever becomes of what is due behind it.
            await self._rows._notice()
            await self._sweep()
        return done

    def _commit(self, connection: Connection, request: CommitRequest) -> Commit:
        drop_old(connection, self._too_old(self._seconds))
        sink = self._next_sink(connection, request)
        check_epoch(connection, request.sink, request.batch, or_none(request.epoch))
        if sink is None:
            drop_attempts(connection, request.sink, request.attempts)
            return Commit(promoted=False, rows=0, last=request.batch)
        attempts = [checked(connection, request.sink, *attempt) for attempt in request.attempts.items()]
        partitions = counter(connection, "partitions")
        for row in attempts:
            self._rows._promote(connection, row.partition % partitions, take_bodies(connection, row))
        self._remember(connection, sink)
        return Commit(promoted=True, rows=sum(row.rows for row in attempts), last=request.batch)

    async def forget(self, sink: str) -> bool:
        """Forget the last batch of ``sink``, which will never be written to again. Return whether there was one.

        If it is written to all the same, its batches count anew from 0 on. Raise the ``OSError`` of the disk.
        """
        return await self._database.write(partial(forget_sink, sink=sink))

    async def abort(self, sink: str, attempts: Iterable[str]) -> int:
        """Drop ``attempts`` of ``sink``. Return how many were staged."""
        return await self._drop(partial(drop_attempts, sink=sink, attempts=list(attempts)))

    async def _drop(self, change: Callable[[Connection], int]) -> int:
        with trio.CancelScope(shield=True):
            dropped = await self._database.shrink(change)
            await self._sweep()
        return dropped

    async def _sweep(self) -> None:
        """Delete what was dropped, in portions. A failure is none of the call it comes with: the next tries again."""
        try:
            while self._database.ask("SELECT 1 FROM attempts WHERE attempt IS NULL LIMIT 1"):
                await self._database.shrink(sweep)
        except (OSError, CorruptLog) as error:
            logger.warning("what was staged and dropped could not be deleted: %s", error)
        except trio.ClosedResourceError:
            pass  # the next one that has the log open deletes it

    def _target(self, partition: int) -> int:
        return partition % len(self.log.partitions())

    # What attempts ask of their ledger

    async def _take_room(self, size: int) -> bool:
        """Count bytes that wait in memory, once others have stored theirs if that is too much.

        Return whether it is too much from now on. Raise ``Rejected`` if they are beyond the limit.
        """
        while self._waiting >= WAITING_BYTES and self._storing:
            await self._room.park()
        if self._stored + self._waiting + size > self._most_bytes:
            # Attempts may have gone meanwhile.
            known = self.staged_bytes
            if known + size > self._most_bytes:
                raise Rejected(f"{known} bytes are staged and {size} more do not fit: the limit is {self._most_bytes}")
        self._waiting += size
        return self._waiting >= WAITING_BYTES

    def _give_room(self, size: int) -> None:
        self._waiting -= size

    async def _store(self, function: Callable[[Connection], Attempt], *, sealed: bool) -> Attempt:
        """Run ``function``, which stores what waits of an attempt. Only for a complete one it waits for the disk."""
        self._storing += 1
        try:
            row = await self._database.write(function, waits_for_disk=sealed)
            await self._move(row)
            self._measure()
            return row
        finally:
            self._storing -= 1
            self._room.wake_all()

    async def _move(self, row: Attempt) -> None:
        """Move what is stored of an attempt to where it stays: here it is there already."""

    async def _seal(self, stage: StagedAttempt) -> None:
        """Store an attempt that is complete."""
        await stage.store(sealed=True)

    # The last batches

    def _too_old(self, seconds: float) -> int:
        """Return the time so many seconds ago, in microseconds since 1970."""
        return self._clock() - int(seconds * 1e6)

    def _next_sink(self, connection: Connection, request: CommitRequest) -> Sink | None:
        """Return the sink behind the batch of a request, ``None`` if that counted before.

        Raise ``Invalid``, and ``Rejected`` for one sink too many.
        """
        known = read_sink(connection, request.sink)
        if known is not None:
            return known.after(request, self._clock())
        self._check_room(connection)
        return Sink(
            request.sink, request.batch, request.once, self._clock(), request.query, epoch=or_none(request.epoch)
        )

    def _check_room(self, connection: Connection) -> None:
        """Forget old sinks where one more has no room. Raise ``Rejected`` if none can go."""
        while (number := counter(connection, "sinks")) >= self._max_sinks:
            oldest = [sink_of(row) for row in rows(connection, "sinks", "ORDER BY once DESC, time LIMIT 1")]
            if not oldest or (not oldest[0].once and oldest[0].time > self._too_old(self._sink_seconds)):
                raise Rejected(
                    f"{number} sinks have committed: that is the limit. Tell Ledger.forget of one; one that has not "
                    f"committed for {self._sink_seconds:g} s goes"
                )
            if not oldest[0].once:
                seconds = (self._clock() - oldest[0].time) // 1_000_000
                logger.warning("sink %s is forgotten: it was not written to for %d s", oldest[0].name, seconds)
            forget_sink(connection, oldest[0].name)

    def _remember(self, connection: Connection, sink: Sink) -> None:
        count(connection, "sinks", int(read_sink(connection, sink.name) is None))
        former = json.dumps(sink.former)
        put(connection, "sinks", sink.name, sink.batch, int(sink.once), sink.time, sink.query, former, sink.epoch)
        connection.execute("DELETE FROM epochs WHERE sink = ? AND batch < ?", (sink.name, sink.batch))


def check_plan(
    partition: int, batch: int | None, epoch: int | None, names: Iterable[str], query: str | None = None
) -> None:
    """Raise ``ValueError`` for numbers that no partition, batch or epoch has, and ``TypeError``.

    SQLite would store a value of another type as one of its column: a row that seems damaged from then on.
    """
    for what, number in (("partition", partition), ("batch", batch), ("epoch", epoch)):
        if type(number) not in (int, NoneType):
            raise TypeError(f"{what} is a whole number, not {number!r:.100}")
        if number is not None and not 0 <= number <= LARGEST:
            raise ValueError(f"{what} {number}: must be from 0 to 2^63 - 1")
    for name in (*names, "" if query is None else query):
        if not isinstance(name, str):
            raise TypeError(f"sinks, attempts and queries have texts as names, not {name!r:.100}")


def or_none(number: int | None) -> int:
    """Return a batch or an epoch as tables have it: -1 where none was named."""
    return -1 if number is None else number


def check_sinks(connection: Connection) -> None:
    """Raise ``CorruptLog`` if a sink is damaged or missing: it would not be found, and its last batch count twice."""
    check_all(connection, "sinks")
    for _ in scan(connection, "epochs"):
        pass  # a damaged key is not found either


def last_batches(connection: Connection) -> dict[str, int]:
    """Return the last batch of each sink that is not written only once."""
    sinks = map(sink_of, scan(connection, "sinks", "WHERE NOT once ORDER BY time"))
    return {sink.name: sink.batch for sink in sinks}


def read_sink(connection: Connection, sink: str) -> Sink | None:
    """Return a sink by its name, ``None`` if it is not known. Raise ``CorruptLog``."""
    found = rows(connection, "sinks", "WHERE sink = ?", sink)
    return sink_of(found[0]) if found else None


def sink_of(row: list[Any]) -> Sink:
    """Return the sink of a row of ``sinks``."""
    name, batch, once, time, query, former, epoch = row
    return Sink(name, batch, bool(once), time, query, tuple(json.loads(former)), epoch)


def forget_sink(connection: Connection, sink: str) -> bool:
    """Forget a sink. Return whether it was known."""
    connection.execute("DELETE FROM sinks WHERE sink = ?", (sink,))
    if not connection.changes():
        return False
    count(connection, "sinks", -1)
    connection.execute("DELETE FROM epochs WHERE sink = ?", (sink,))
    return True
