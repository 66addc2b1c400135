"""A ledger on Kafka: the rows of a batch and the number of the batch are one transaction.

The last batch of each sink is a record of a compacted topic, with the sink as its key and JSON as its value. A sink is
a transactional id. A server takes over that id before it commits, which ends or settles the transactions of any other
server, and reads the sink's last batch then: so it is known, and only one server at a time commits.

What is staged is in a topic of attempts. When an attempt is complete, a note of it is written to the topic of batches:
its key is the sink and the attempt, with a 0 between. So any server commits it; a commit deletes the notes of its
attempts. An epoch is the offset of a record whose key is the sink and a 0. All notes and the attempts that are staged
here are in a database in memory, that of ``Ledger``, without their rows.
"""

from __future__ import annotations

import json
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from zlib import crc32

import attrs
import trio

from rsocket_trio.errors import Invalid, Rejected, readable
from rsocket_trio.replay.elements import Element, Record
from rsocket_trio.replay.errors import NotStaged, NotWritten, PositionExpired
from rsocket_trio.replay.kafka_log import KafkaLog
from rsocket_trio.replay.kafka_producer import Rows, TransactionalProducer
from rsocket_trio.replay.ledger import Commit, Ledger, Sink, check_plan, forget_sink, or_none
from rsocket_trio.replay.log import ReplayableLog
from rsocket_trio.replay.packs import FOREVER, Pack, arrow
from rsocket_trio.replay.route_requests import CommitRequest
from rsocket_trio.replay.sqlite_log import require_sqlite
from rsocket_trio.replay.staged_attempts import (
    Attempt,
    StagedAttempt,
    attempts_where,
    check_epoch,
    checked,
    content_of,
    drop_attempts,
    drop_old,
    staged,
)
from rsocket_trio.replay.tables import count

if TYPE_CHECKING:
    from apsw import Connection

    from rsocket_trio.replay.database import Database

T = TypeVar("T")

BATCH_PARTITIONS = 8
"""Partitions of a topic of batches that is made here: an unfinished commit holds up sinks of its own only."""
COMMIT_SECONDS = 60.0
"""Seconds after which the broker aborts a commit whose server is gone, unless another takes over the sink before."""
OPEN_SECONDS = 2.0
"""Seconds that a commit waits for open transactions of others before it takes over its sink anew."""
OWNED_SINKS = 16
"""Sinks whose producers are kept for the next batch; the one that was idle for longest is closed for another."""
SEPARATOR = "\0"
"""Between a sink and an attempt in the key of a note."""
ROWS = "rows"
"""The header of a pack in the topic of attempts: its rows."""


@attrs.frozen
class AttemptNote:
    """A complete attempt: ``row`` as its server has it; its packs have the key ``id``, the first is at ``begin``."""

    row: Attempt
    id: str
    begin: int


Content: TypeAlias = Sink | AttemptNote | None
"""The content of a record of the topic of batches: ``None`` for a deletion and for an epoch."""


class KafkaLedger(Ledger):
    """A ledger whose commits are transactions of Kafka, over the topic of ``log`` and a compacted topic of batches.

    ``topic`` is the topic of batches, by default that of the log with ``.batches`` behind it; it is made if there is
    none. Several servers may have ledgers of the same topics: a batch counts once, wherever it is committed. What is
    staged is in a topic of its own, that of the batches with ``.staged`` behind it: any server commits what any other
    has staged. ``limits`` are those of ``Ledger``, for what is staged by this server. A commit takes at most
    ``commit_seconds``, and that is how long readers of the log wait for one whose server died. The ledger opens ``log``
    and leaves it open.
    """

    log: KafkaLog

    def __init__(
        self, log: KafkaLog, topic: str | None = None, *, commit_seconds: float = COMMIT_SECONDS, **limits: Any
    ) -> None:
        require_sqlite()
        super().__init__(log, **limits)  # type: ignore[arg-type]  # another kind than the base class takes
        self.topic = topic or f"{log.topic}.batches"
        self._commit_seconds = commit_seconds
        self._id = uuid.uuid4().hex
        milliseconds = str(max(round(self._seconds * 1000), 1000))
        expiring = {"retention.ms": milliseconds, "segment.ms": milliseconds, "segment.bytes": str(2**26)}
        self._attempts = log._beside(f"{self.topic}.staged", 1, expiring)
        # Small segments: the last one is never compacted, and is read whenever a ledger is opened.
        compacted = {"cleanup.policy": "compact", "segment.bytes": str(2**24), "segment.ms": "3600000"}
        self._batches = log._beside(self.topic, BATCH_PARTITIONS, compacted)
        self._opened: Database | None = None
        self._read_to: dict[int, int] = {}
        self._notes: dict[tuple[str, str], AttemptNote] = {}
        self._owned: OrderedDict[str, TransactionalProducer] = OrderedDict()
        self._committing, self._opening = trio.Lock(), trio.Lock()
        self._closed = False

    def _checked_log(self, log: ReplayableLog) -> ReplayableLog:
        if not isinstance(log, KafkaLog):
            raise TypeError(f"a KafkaLedger writes to a KafkaLog, not to a {type(log).__name__}")
        return log

    # Opening and closing

    async def open(self) -> None:
        """Open the ledger and its log, and read the last batches. Do nothing the second time.

        Raise ``Rejected`` if no broker answers, ``ValueError`` for a topic that no ledger has written.
        """
        from rsocket_trio.replay.database import Database

        async with self._opening:
            if self._closed:
                raise trio.ClosedResourceError("the ledger was closed")
            if self._opened is None:
                for log in (self.log, self._attempts, self._batches):
                    await log.open()
                self._opened = Database(None, sync=False)
                self._read_to = dict.fromkeys(self._batches.partitions(), 0)
                try:
                    await self._opened.open()
                    await self._learn(self._read_to, stable=True)
                except BaseException:
                    # Raised again at once: the next call reads all anew.
                    self._opened = None
                    raise

    async def aclose(self) -> None:
        """Close the ledger. Do nothing the second time."""
        self._closed = True
        # A commit that waits for a broker ends, and gives the lock back.
        for producer in self._owned.values():
            producer.stop()
        await self._batches.aclose()
        await self._attempts.aclose()
        async with self._committing:
            while self._owned:
                await self._owned.popitem()[1].aclose()
            opened, self._opened = self._opened, None
            if opened is not None:
                await opened.aclose()

    @property
    def _database(self) -> Database:
        """Return the database of what is staged. Raise ``trio.ClosedResourceError`` unless the ledger is open."""
        if self._opened is None:
            reason = "was closed" if self._closed else "is not open: use it under 'async with'"
            raise trio.ClosedResourceError(f"the ledger {reason}")
        return self._opened

    # State: that of the topic of batches as it was read

    def _place_of(self, sink: str) -> int:
        """Return the partition of a sink. Raise ``Invalid`` for a name that no sink has here."""
        if SEPARATOR in sink:
            raise Invalid(f"sink {readable(sink)!r}: a ledger on Kafka takes no name with a character 0")
        _ = self._database  # raises unless it is open
        return crc32(sink.encode()) % len(self._read_to)

    async def _learn(self, places: Iterable[int], *, stable: bool = False) -> None:
        """Learn all that was written to partitions before this call, or if ``stable`` before what is open."""
        for place in places:
            end = await self._batches._settled_end(place, stable=stable)
            while (position := self._read_to[place]) < end:
                some = list(await self._batches.read_some(place, position, end))
                found = [decoded(self.topic, record) for record in some if record.key is not None]
                await self._database.write(partial(self._apply, contents=found))
                self._read_to[place] = some[-1].end

    def _apply(self, connection: Connection, contents: Iterable[tuple[str, Content]]) -> None:
        """Note last batches and attempts by the keys of their records."""
        for key, content in contents:
            sink, separator, attempt = key.partition(SEPARATOR)
            if isinstance(content, Sink):
                with suppress(Rejected):
                    # Then there are more than there should be.
                    self._check_room(connection)
                self._remember(connection, content)
                with suppress(NotStaged):
                    check_epoch(connection, sink, content.batch, content.epoch)
            elif content is not None:
                row = content.row
                with suppress(NotStaged):  # then its batch was planned anew
                    check_epoch(connection, sink, row.batch, row.epoch)
                    self._keep(content)
                    if staged(connection, attempt) is None:
                        number = -count(connection, "attempts")
                        attrs.evolve(row, number=number, earliest=row.latest, bytes=0, sealed=1).save(connection)
            elif not separator:
                forget_sink(connection, sink)
            elif self._notes.pop((sink, attempt), None) is not None:
                # It was committed, or can't be any more.
                drop_attempts(connection, sink, [attempt])

    # Commits

    @asynccontextmanager
    async def _taken_over(self, sink: str) -> AsyncIterator[TransactionalProducer]:
        """Hold the producer of a sink: no other server commits for it, and what one has committed is known."""
        async with self._committing:
            place = self._place_of(sink)
            name = f"rsocket-trio.{self.topic}.{sink}"
            new = TransactionalProducer(self.log._cluster, name, self._commit_seconds)
            self._owned[sink] = producer = self._owned.pop(sink, new)
            while len(self._owned) > OWNED_SINKS:
                await self._owned.popitem(last=False)[1].aclose()
            for seconds in (OPEN_SECONDS, inf):
                with trio.move_on_after(seconds):
                    await producer.begin()
                    await self._learn([place])
                    break
                # An open transaction is in the way, perhaps of a server that took the sink over and died.
                await producer.drop()
            yield producer

    async def commit(self, sink: str, batch: int, attempts: Mapping[str, int], **terms: Any) -> Commit:
        """Promote ``attempts`` of ``sink`` as ``batch`` in one transaction of Kafka; ``terms`` as in ``Ledger.commit``.

        Raise ``NotWritten`` if it is not known in time whether the batch counts, and ``Rejected`` if no broker answers.
        """
        check_plan(0, batch, terms.get("epoch"), [sink, *attempts], terms.get("query"))
        done = await twice(partial(self._commit_once, CommitRequest(sink, batch, attempts, **terms)))
        await self._sweep()
        return done

    async def _commit_once(self, wanted: CommitRequest) -> Commit:
        sink, batch = wanted.sink, wanted.batch
        async with self._taken_over(sink) as producer:
            end = await self._attempts._settled_end(0) if wanted.attempts else 0
            next_sink, attempts = await self._database.write(partial(self._checked, wanted=wanted))
            if next_sink is None:
                return Commit(promoted=False, rows=0, last=batch)
            rows = Rows(self.log.topic, self._content(attempts, end))
            too_old = self._too_old(self._seconds)
            # Notes of attempts that can't be committed any more go, too: those of batches since the last one.
            # Lower ones may be of a query that is about to take the sink over.
            last = self.last(sink)
            since = batch if last is None else min(last + 1, batch)
            gone = [
                name
                for (other, name), note in self._notes.items()
                if other == sink and (since <= note.row.batch <= batch or note.row.time <= too_old)
            ]
            names = dict.fromkeys((*wanted.attempts, *gone, *[""] * wanted.once))
            contents = {sink: next_sink, **dict.fromkeys([f"{sink}{SEPARATOR}{name}" for name in names])}
            try:
                await self._write_with(producer, sink, contents, rows)
            finally:
                self._attempts._rest()
            if wanted.once:
                await self._owned.pop(sink).aclose()
        await self.log._show(rows)
        return Commit(promoted=True, rows=sum(row.rows for row in attempts), last=batch)

    def _checked(self, connection: Connection, wanted: CommitRequest) -> tuple[Sink | None, list[Attempt]]:
        """Return the sink behind a commit, ``None`` if it counted before, and its attempts."""
        drop_old(connection, self._too_old(self._seconds))
        next_sink = self._next_sink(connection, wanted)
        check_epoch(connection, wanted.sink, wanted.batch, or_none(wanted.epoch))
        if next_sink is None:
            drop_attempts(connection, wanted.sink, wanted.attempts)
            return None, []
        return next_sink, [checked(connection, wanted.sink, *one) for one in wanted.attempts.items()]

    def _content(self, attempts: Sequence[Attempt], end: int) -> Iterator[tuple[int, Element]]:
        """Yield the rows of attempts with their partitions, as they were staged below ``end``. In a thread of Trio's.

        Raise ``NotStaged`` if some are gone.
        """
        found = [note for row in attempts if (note := self._notes.get((row.sink, row.attempt or ""))) is not None]
        notes = {note.id.encode(): note for note in found}
        left = sum(row.rows for row in attempts)
        position = min([note.begin for note in found if note.row.rows], default=end)
        with suppress(PositionExpired):
            while left and position < end:
                for record in trio.from_thread.run(self._attempts.read_some, 0, position, end):
                    position = record.end
                    if record.data and (note := notes.get(record.key or b"")) is not None:
                        pack = Pack(record.data, int(dict(record.headers or ())[ROWS] or b""))
                        left -= pack.count
                        for element in arrow().elements_of(pack):
                            yield self._target(note.row.partition), element
        if left:
            raise NotStaged("rows of the batch are staged no longer, they were too old: stage it again")

    async def _write_with(
        self, producer: TransactionalProducer, sink: str, contents: Mapping[str, Content], *rows: Rows
    ) -> None:
        """Write ``rows`` and the contents of records of the topic of batches in one transaction, and note them."""
        place = self._place_of(sink)
        records = [(place, Element(encoded(one), key=key.encode())) for key, one in contents.items()]
        with trio.CancelScope(shield=True):
            await producer.write([*rows, Rows(self.topic, records)])
            await self._database.write(partial(self._apply, contents=contents.items()))

    async def forget(self, sink: str) -> bool:
        return await twice(partial(self._forget_once, sink))

    async def _forget_once(self, sink: str) -> bool:
        async with self._taken_over(sink) as producer:
            if self.last(sink) is None:
                return False
            await self._write_with(producer, sink, {sink: None, f"{sink}{SEPARATOR}": None})
            await self._owned.pop(sink).aclose()
        return True

    async def epoch(self, sink: str) -> int:
        return await self._note(sink, "", b"{}")

    async def _note(self, sink: str, attempt: str, data: bytes | None) -> int:
        """Write a record that is no batch to the topic of batches. Return its offset."""
        place = self._place_of(sink)
        key = f"{sink}{SEPARATOR}{attempt}".encode()
        return (await self._batches.append_all({place: [Element(data, key=key)]}))[place]

    # Attempts

    async def begin(self, sink: str, attempt: str, partition: int, **plan: Any) -> StagedAttempt:
        """Begin to stage ``attempt`` of ``sink`` for ``partition``, as ``Ledger.begin`` does.

        Raise ``Invalid`` for a sink with a character 0.
        """
        self._place_of(sink)
        if self.staged_bytes > self._most_bytes // 2:
            # Attempts that other servers have committed take room here.
            async with self._committing:
                await self._learn(self._read_to)
        return await super().begin(sink, attempt, partition, **plan)

    async def _move(self, row: Attempt) -> None:
        """Move what is stored of an attempt to the topic of attempts."""
        content = await self._database.read(partial(content_of, row=row, start=row.earliest, max_bytes=FOREVER))
        if content:
            own = self._id_of(row)
            begins = await self._attempts.append_all({0: [part(own, one) for one in content]})
            await self._database.write(partial(delete_content, row=row))
            known = self._notes.get((row.sink, row.attempt or ""))
            if known is None or known.id != own:
                self._keep(AttemptNote(row, own, begins[0]))

    async def _seal(self, stage: StagedAttempt) -> None:
        """Store an attempt that is complete, and write a note of it."""
        await stage.store()
        row, attempt = stage.row, stage.row.attempt or ""
        known = self._notes.get((row.sink, attempt))
        note = AttemptNote(row, self._id_of(row), 0 if known is None else known.begin)
        await self._note(row.sink, attempt, encoded(note))
        await super()._seal(stage)

    def _id_of(self, row: Attempt) -> str:
        return f"{self._id}.{row.number}"

    def _keep(self, note: AttemptNote) -> None:
        """Keep a note, and not too many."""
        self._notes[note.row.sink, note.row.attempt or ""] = note
        if len(self._notes) > self._most_attempts:
            del self._notes[next(iter(self._notes))]


async def twice(function: Callable[[], Awaitable[T]]) -> T:
    """Run a function that takes over a sink, once more if it writes nothing: it looks again at what was written.

    Another server took over the sink, or a broker went away.
    """
    try:
        return await function()
    except NotWritten:
        return await function()


def encoded(content: Content) -> bytes | None:
    """Return the content of a record as JSON."""
    return None if content is None else json.dumps(attrs.asdict(content)).encode()


def decoded(topic: str, record: Record) -> tuple[str, Content]:
    """Return the key of a record and its content. Raise ``ValueError`` if no ledger wrote it."""
    try:
        key = (record.key or b"").decode()
        _, separator, attempt = key.partition(SEPARATOR)
        content: Any = json.loads(record.data) if record.data else None
        if content is None or (separator and not attempt):
            return key, None
        if separator:
            return key, AttemptNote(Attempt(**content["row"]), content["id"], content["begin"])
        return key, Sink(**content | {"former": tuple(content["former"])})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"topic {topic!r} is none of batches: no ledger wrote what is at {record.position}"
        raise ValueError(what) from error


def part(key: str, one: Element | Pack) -> Element:
    """Return the record of a part of an attempt: a pack, with what the attempt is known by as its key."""
    pack = one if isinstance(one, Pack) else arrow().pack_elements([one])
    return Element(pack.data, key=key.encode(), headers=[(ROWS, b"%d" % pack.count)])


def delete_content(connection: Connection, row: Attempt) -> None:
    """Delete the rows that are stored of an attempt, whose bytes still count, unless it was dropped."""
    if not attempts_where(connection, "number = ?", row.number):
        return
    size = row.bytes
    row.drop(connection, row.latest, FOREVER, FOREVER)
    row.bytes = size
    row.save(connection)
