"""A ledger on Kafka: the rows of a batch and the number of the batch are one transaction.

The last batch of each sink is a record of a compacted topic, with the sink as its key and JSON as its value. A sink is
a transactional id. A server takes over that id before it commits, which ends or settles the transactions of any other
server, and reads the sink's last batch then: so it is known, and only one server at a time commits.

An attempt that is complete is written to a topic of attempts, and a note of it to that of the batches: its key is the
sink and the attempt, with a 0 between. So a server finds the attempts that another one has staged. A commit deletes the
notes of its attempts. An epoch is the offset of a record whose key is the sink and a 0.
"""

from __future__ import annotations

import json
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from os import PathLike
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

import attrs
import trio

from rsocket_trio.errors import Invalid, Rejected, readable
from rsocket_trio.replay import staged_attempts
from rsocket_trio.replay.elements import Element, Record
from rsocket_trio.replay.errors import NotStaged, PositionExpired
from rsocket_trio.replay.kafka_blocks import pack_block, records_of
from rsocket_trio.replay.kafka_log import KafkaLog, unpacked
from rsocket_trio.replay.kafka_reading import SharedReading
from rsocket_trio.replay.kafka_writing import Rows, TransactionalProducer, until_known
from rsocket_trio.replay.ledger import Commit, Ledger, Owner, Sink, drop_attempts, forget_sink, or_none, read_sink
from rsocket_trio.replay.log import READ_BYTES, ReplayableLog
from rsocket_trio.replay.packs import Pack, arrow
from rsocket_trio.replay.route_requests import CommitRequest
from rsocket_trio.replay.sqlite_log import require_sqlite
from rsocket_trio.replay.staged_attempts import Attempt, StagedAttempt

if TYPE_CHECKING:
    from apsw import Connection

    from rsocket_trio.replay.database import Database

    Change: TypeAlias = Callable[[Connection], object]

BATCH_PARTITIONS = 8
"""Partitions of a topic of batches that is made here: an unfinished commit holds up sinks of its own only."""
COMMIT_SECONDS = 60.0
"""Seconds after which the broker aborts a commit whose server is gone, unless another takes over the sink before."""
PUBLISH_SECONDS = 10.0
"""The same for an attempt that is being written: so long it keeps other servers from taking over its sink."""
OPEN_SECONDS = 2.0
"""Seconds that a commit waits for open transactions of others before it takes over its sink anew."""
OWNED_SINKS = 16
"""Sinks whose producers are kept for the next batch; the one that was idle for longest is closed for another."""
SHARED_BYTES = 4 * 2**20
"""Bytes of an attempt that are in memory, and in one transaction, while it is shared."""
NOTES = 10_000
"""Attempts of other servers that are known, at most."""
SEPARATOR = "\0"
"""Between a sink and an attempt in the key of a note."""
PART, COUNT = "part", "rows"
"""The headers of a pack in the topic of attempts: its number within the attempt, and its rows."""


@attrs.frozen
class AttemptNote:
    """The place of an attempt: ``parts`` packs of its ``rows`` at ``begin`` or behind; ``time`` is its Unix time."""

    partition: int
    rows: int
    parts: int
    begin: int
    time: float
    batch: int
    epoch: int

    def is_past(self, batch: int, seconds: float) -> bool:
        """Return whether it can't be committed behind ``batch``, or was staged longer ago than that."""
        return 0 <= self.batch <= batch or self.time + seconds < time.time()


class KafkaLedger(Ledger):
    """A ledger whose commits are transactions of Kafka, over the topic of ``log`` and a compacted topic of batches.

    ``topic`` is the topic of batches, by default that of the log with ``.batches`` behind it; it is made if there is
    none. Several servers may have ledgers of the same topics: a batch counts once, wherever it is committed. What is
    staged is in the file ``path``, a SQLite database, by default one that is deleted at the end, and once it is
    complete also in a topic of its own, that of the batches with ``.staged`` behind it: any server commits what any
    other has staged. Without ``share`` a commit at another server raises ``NotStaged``, and the writer must stage the
    batch again. ``limits`` are those of ``Ledger``. A commit takes at most ``commit_seconds``, and that is how long
    readers of the log wait for one whose server died. The ledger opens ``log`` and leaves it open.
    """

    log: KafkaLog

    def __init__(
        self,
        log: KafkaLog,
        topic: str | None = None,
        *,
        path: str | PathLike[str] | None = None,
        commit_seconds: float = COMMIT_SECONDS,
        share: bool = True,
        **limits: Any,
    ) -> None:
        require_sqlite()
        super().__init__(log, **limits)  # type: ignore[arg-type]  # another kind than the base class takes
        self.topic = topic or f"{log.topic}.batches"
        self.path = None if path is None else Path(path).absolute()
        self._delete_folder: Callable[[], object] = bool
        self._staging: Database | None = None
        self._batches: Database
        self._commit_seconds = commit_seconds
        self._is_shared = share
        self._attempts_topic = f"{self.topic}.staged"
        self._attempts_end = 0
        self._reading = self._new_reading()
        self._attempts = SharedReading(log._cluster, self._attempts_topic, 1)
        self._read_to: dict[int, int] = {}
        self._notes: dict[tuple[str, str], AttemptNote] = {}
        self._owned: OrderedDict[str, TransactionalProducer] = OrderedDict()
        name = f"rsocket-trio.{self._attempts_topic}.{uuid.uuid4()}"
        self._publisher = TransactionalProducer(log._cluster, name, PUBLISH_SECONDS)
        self._publishing, self._committing, self._opening = trio.Lock(), trio.Lock(), trio.Lock()
        self._closed = False

    def _new_reading(self) -> SharedReading:
        # Each commit waits until it is known that nothing is behind the last marker.
        return SharedReading(self.log._cluster, self.topic, 1, wait_ms=20)

    def _checked_log(self, log: ReplayableLog) -> ReplayableLog:
        if not isinstance(log, KafkaLog):
            raise TypeError(f"a KafkaLedger writes to a KafkaLog, not to a {type(log).__name__}")
        return log

    # Opening and closing

    async def open(self) -> None:
        """Open the ledger and its log, and read the last batches. Do nothing the second time.

        Raise ``Rejected`` if no broker answers, ``OSError`` and ``CorruptLog`` of the file.
        """
        if self._staging is not None and not self._opening.locked():
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        async with self._opening:
            if self._closed:
                raise trio.ClosedResourceError("the ledger was closed")
            if self._staging is None:
                try:
                    await self._connect()
                except BaseException:
                    # Raised again at once: a ledger that was not opened is not closed either, and leaves nothing.
                    reading, self._reading = self._reading, self._new_reading()
                    with trio.CancelScope(shield=True):
                        await reading.aclose()
                        await self._close_database()
                    raise

    async def _connect(self) -> None:
        from rsocket_trio.replay.database import Database

        await self.log.open()
        # Small segments: the last one is never compacted, and is read whenever a ledger is opened.
        config = {"cleanup.policy": "compact", "segment.bytes": str(2**24), "segment.ms": "3600000"}
        places = range(await self.log._ensure_topic(self.topic, BATCH_PARTITIONS, config))
        if self._is_shared:
            milliseconds = str(max(round(self._seconds * 1000), 1000))
            config = {"retention.ms": milliseconds, "segment.ms": milliseconds, "segment.bytes": str(2**26)}
            await self.log._ensure_topic(self._attempts_topic, 1, config)
            self._attempts_end = (await self._ends(self._attempts_topic, [0]))[0]
        path = self.path
        if path is None:
            folder = mkdtemp(prefix="rsocket-trio-")
            # At the end of the process, too: nobody has to close a ledger.
            self._delete_folder = weakref.finalize(self, rmtree, folder, ignore_errors=True)
            path = Path(folder, "staged")
        # The last batches as the topic has them: other processes may have the file, and have read more or less of it.
        self._batches, self._read_to = Database(None, sync=False), dict.fromkeys(places, 0)
        await self._batches.open()
        database = Database(path, sync=self.path is not None)
        await database.open()
        self._staging = database
        await self._read_places(places, stable=True)

    async def aclose(self) -> None:
        """Close the ledger. Do nothing the second time."""
        self._closed = True
        # A commit that waits for a broker ends, and gives the lock back.
        for producer in (*self._owned.values(), self._publisher):
            producer.stop()
        async with self._committing, self._publishing:
            while self._owned:
                await self._owned.popitem()[1].aclose()
            await self._publisher.aclose()
            await self._reading.aclose()
            await self._attempts.aclose()
            await self._close_database()

    async def _close_database(self) -> None:
        database, self._staging = self._staging, None
        if database is not None:
            await database.aclose()
        await trio.to_thread.run_sync(self._delete_folder)

    @property
    def _database(self) -> Database:
        """Return the database of what is staged. Raise ``trio.ClosedResourceError`` unless the ledger is open."""
        if self._staging is None or self._closed:
            reason = "was closed" if self._closed else "is not open: use it under 'async with'"
            raise trio.ClosedResourceError(f"the ledger {reason}")
        return self._staging

    def _check(self, sink: str) -> Database:
        """Return the database. Raise ``Invalid`` for a name that no sink has here, and as ``database`` does."""
        if SEPARATOR in sink:
            raise Invalid(f"sink {readable(sink)!r}: a ledger on Kafka takes no name with a character 0")
        return self._database

    # State: that of the topic of batches as it was read

    def _known(self, sink: str) -> Sink | None:
        self._check(sink)
        return read_sink(self._batches.ask("SELECT * FROM sinks WHERE sink = ?", sink))

    @property
    def sinks(self) -> Mapping[str, int]:
        self._check("")
        return dict(self._batches.ask("SELECT sink, batch FROM sinks WHERE NOT once ORDER BY time"))

    def _place_of(self, sink: str) -> int:
        return crc32(sink.encode()) % len(self._read_to)

    async def _ends(self, topic: str, places: Iterable[int], *, stable: bool = False) -> dict[int, int]:
        return await self.log._ask(f"the bounds of {topic!r}", self.log._topics.ends, topic, places, stable)

    async def _read_places(self, places: Iterable[int], *, stable: bool = False) -> None:
        """Learn all that was written to partitions before this call, or if ``stable`` before what is open."""
        for place, end in (await self._ends(self.topic, places, stable=stable)).items():
            while (position := self._read_to[place]) < end:
                block = await self._reading.block(place, position, READ_BYTES)
                changes: list[Change] = []
                for record in records_of(pack_block(block, position, None, READ_BYTES)):
                    position = record.end
                    try:
                        if record.key is not None:
                            self._learn(record.key.decode(), record, changes)
                    except (ValueError, KeyError, TypeError) as error:
                        raise ValueError(
                            f"topic {self.topic!r} is none of batches: no ledger wrote what is at {record.position} of "
                            f"its partition {place}"
                        ) from error
                if changes:
                    await self._database.write(partial(make_changes, changes=changes))
                self._read_to[place] = position

    def _learn(self, key: str, record: Record, changes: list[Change]) -> None:
        """Note a last batch or an attempt, and append what that changes in the database of the staged."""
        sink, separator, attempt = key.partition(SEPARATOR)
        said: Any = json.loads(record.data) if record.data else None
        if not separator and said is None:
            self._batches.transaction(partial(forget_sink, sink=sink))
        elif not separator:
            owner = Owner(said["query"], tuple(said["former"]))
            found = Sink(sink, said["batch"], said["once"], record.timestamp or self._clock(), owner, said["epoch"])
            self._batches.transaction(partial(self._learn_sink, sink=found))
        elif attempt:
            self._notes.pop((sink, attempt), None)
            if said is None:
                # It was committed, or can't be any more.
                changes.append(partial(drop_attempts, sink=sink, attempts=[attempt]))
            else:
                self._notes[sink, attempt] = AttemptNote(**said)
                if len(self._notes) > NOTES:
                    del self._notes[next(iter(self._notes))]
        if said:
            terms = {"batch": said["batch"], "epoch": said["epoch"]}
            changes.append(partial(staged_attempts.check_epoch, sink=sink, **terms))

    def _learn_sink(self, connection: Connection, sink: Sink) -> None:
        with suppress(Rejected):
            # Then it takes more room than it should.
            self._check_room(connection, sink.name)
        self._remember(connection, sink)

    # Commits

    @asynccontextmanager
    async def _taken_over(self, sink: str) -> AsyncIterator[TransactionalProducer]:
        """Hold the producer of a sink: no other server commits for it, and what one has committed is known."""
        async with self._committing:
            self._check(sink)
            name = f"rsocket-trio.{self.topic}.{sink}"
            new = TransactionalProducer(self.log._cluster, name, self._commit_seconds)
            self._owned[sink] = producer = self._owned.pop(sink, new)
            while len(self._owned) > OWNED_SINKS:
                await self._owned.popitem(last=False)[1].aclose()
            for seconds in (OPEN_SECONDS, inf):
                with trio.move_on_after(seconds):
                    await producer.begin()
                    await self._read_places([self._place_of(sink)])
                    break
                # An open transaction is in the way, perhaps of a server that took the sink over and died.
                await producer.drop()
            yield producer

    async def commit(self, sink: str, batch: int, attempts: Mapping[str, int], **terms: Any) -> Commit:
        """Promote ``attempts`` of ``sink`` as ``batch`` in one transaction of Kafka; ``terms`` as in ``Ledger.commit``.

        Raise ``NotWritten`` if it is not known in time whether the batch counts, and ``Rejected`` if no broker answers.
        """
        wanted = CommitRequest(sink, batch, attempts, **terms)
        done = await until_known(self.log._cluster.patience, partial(self._commit_once, wanted))
        await self._sweep()
        return done

    async def _commit_once(self, wanted: CommitRequest) -> Commit:
        sink, batch = wanted.sink, wanted.batch
        async with self._taken_over(sink) as producer:
            owner = self._batches.transaction(partial(self._next_owner, wanted=wanted))
            await self._database.write(partial(expire, wanted=wanted, now=self._clock()))
            if owner is None:
                await self._database.write(partial(drop_attempts, sink=sink, attempts=wanted.attempts))
                return Commit(promoted=False, rows=0, last=batch)
            rows = await self._gathered(wanted)
            groups: dict[int, list[Attempt]] = {}
            for row in rows:
                groups.setdefault(self._target(row.partition), []).append(row)
            written = [Rows(self.log.topic, number, self._content(some)) for number, some in groups.items()]
            gone = [
                attempt
                for (other, attempt), note in self._notes.items()
                if other == sink and (attempt in wanted.attempts or note.is_past(batch, self._seconds))
            ]
            said = {"batch": batch, "once": wanted.once, **attrs.asdict(owner), "epoch": or_none(wanted.epoch)}
            # The last epoch of a sink that is written once goes, too.
            names = [f"{SEPARATOR}{one}" for one in (*gone, *[""] * wanted.once)]
            about = self._about(sink, {"": said, **dict.fromkeys(names)})
            found = Sink(sink, batch, wanted.once, self._clock(), owner, or_none(wanted.epoch))
            with trio.CancelScope(shield=True):
                await producer.write([*written, about])
                self._batches.transaction(partial(self._remember, sink=found))
                await self._database.write(partial(drop_attempts, sink=sink, attempts=[*wanted.attempts, *gone]))
                if wanted.once:
                    await self._owned.pop(sink).aclose()
            for attempt in gone:
                del self._notes[sink, attempt]
        await self.log._show(written)
        return Commit(promoted=True, rows=sum(row.rows for row in rows), last=batch)

    async def _gathered(self, wanted: CommitRequest) -> list[Attempt]:
        """Return the attempts of a commit, staged here if another server has staged them. Raise ``NotStaged``."""
        try:
            for attempt in wanted.attempts:
                note = self._notes.get((wanted.sink, attempt))
                if note is not None and not self._database.ask("SELECT 1 FROM attempts WHERE attempt = ?", attempt):
                    await self._load(wanted.sink, attempt, note)
            return await self._database.read(
                lambda reader: [staged_attempts.checked(reader, wanted.sink, *one) for one in wanted.attempts.items()]
            )
        except NotStaged as error:
            raise NotStaged(f"{error}, or no longer: stage the batch again") from None

    def _content(self, rows: Sequence[Attempt]) -> Iterator[Element]:
        """Yield the elements of attempts. Raise ``NotStaged`` for one that was dropped meanwhile. It blocks."""
        for row in rows:
            left = row.rows
            for element in unpacked(staged_attempts.elements_of(self._database, row)):
                left -= 1
                yield element
            if left:
                raise NotStaged(f"attempt {row.attempt} was dropped: stage the batch again")

    def _about(self, sink: str, contents: Mapping[str, Mapping[str, object] | None]) -> Rows:
        """Return records of a sink by what is behind its name in their keys; without content they delete others."""
        elements = [
            Element(None if content is None else json.dumps(content).encode(), key=f"{sink}{name}".encode())
            for name, content in contents.items()
        ]
        return Rows(self.topic, self._place_of(sink), elements)

    async def forget(self, sink: str) -> bool:
        return await until_known(self.log._cluster.patience, partial(self._forget_once, sink))

    async def _forget_once(self, sink: str) -> bool:
        async with self._taken_over(sink) as producer:
            if self.last(sink) is None:
                return False
            with trio.CancelScope(shield=True):
                await producer.write([self._about(sink, {"": None, SEPARATOR: None})])
                self._batches.transaction(partial(forget_sink, sink=sink))
                await self._owned.pop(sink).aclose()
        return True

    async def epoch(self, sink: str) -> int:
        self._check(sink)
        rows = self._about(sink, {SEPARATOR: {}})
        await self._publish(rows)
        assert rows.first is not None
        return rows.first

    async def _publish(self, *rows: Rows) -> None:
        async with self._publishing:
            await until_known(self.log._cluster.patience, partial(self._publisher.write, rows))

    # Attempts, which other servers may commit

    async def begin(self, sink: str, attempt: str, partition: int, **plan: Any) -> StagedAttempt:
        """Begin to stage ``attempt`` of ``sink`` for ``partition``, as ``Ledger.begin`` does.

        Raise ``Invalid`` for a sink with a character 0.
        """
        self._check(sink)
        if self._is_shared and self.staged_bytes > self._most_bytes // 2:
            # Attempts that other servers have committed take room here.
            async with self._committing:
                await self._read_places(self._read_to)
        return await super().begin(sink, attempt, partition, **plan)

    async def _share(self, row: Attempt) -> None:
        """Write a complete attempt to the topic of attempts, and a note of it to that of the batches.

        Written twice, a part is found once: the reader counts them.
        """
        if not self._is_shared or (row.sink, row.attempt) in self._notes:
            return
        begin, number, left = self._attempts_end, 0, row.rows
        content = partial(staged_attempts.content_of, row=row, max_bytes=SHARED_BYTES)
        while True:
            some = await self._database.read(partial(content, number=number))
            parts = Rows(self._attempts_topic, 0, [part(row, at, one) for at, one in enumerate(some, number)])
            number, left = number + len(some), left - sum(one.count for one in some)
            if left and some:
                await self._publish(parts)
            elif left:
                return  # it is too old, or was aborted, which the caller finds
            else:
                break
        note = AttemptNote(row.partition, row.rows, number, begin, time.time(), row.batch, row.epoch)
        await self._publish(parts, self._about(row.sink, {SEPARATOR + row.attempt: attrs.asdict(note)}))
        if parts.first is not None:
            # What is written from now on lies behind: there a reader begins to look.
            self._attempts_end = parts.first

    async def _load(self, sink: str, attempt: str, note: AttemptNote) -> None:
        """Stage here what another server has staged. Leave it if its rows are gone: they were too old."""
        stage = await super().begin(sink, attempt, note.partition, batch=named(note.batch), epoch=named(note.epoch))
        number, position = 0, note.begin
        try:
            with suppress(PositionExpired):
                while number < note.parts:
                    block = await self._attempts.block(0, position, READ_BYTES)
                    for record in records_of(pack_block(block, position, None, READ_BYTES)):
                        position = record.end
                        headers = dict(record.headers or ())
                        if record.key == attempt.encode() and headers[PART] == b"%d" % number and record.data:
                            number += 1
                            await stage.add(Pack(record.data, int(headers[COUNT] or b"")))
            if number == note.parts and stage.rows == note.rows:
                await stage.seal()
        finally:
            if not stage.sealed:
                await self.discard(stage)


def named(number: int) -> int | None:
    """Return a batch or an epoch of a note, ``None`` where none was named."""
    return None if number < 0 else number


def part(row: Attempt, number: int, one: Element | Pack) -> Element:
    """Return the record of a part of an attempt: a pack, with the attempt as its key."""
    pack = one if isinstance(one, Pack) else arrow().pack_elements([one])
    return Element(pack.data, key=row.attempt.encode(), headers=[(PART, b"%d" % number), (COUNT, b"%d" % pack.count)])


def make_changes(connection: Connection, changes: Iterable[Change]) -> None:
    """Make changes to what is staged. An epoch that is not the latest changes nothing."""
    for change in changes:
        with suppress(NotStaged):
            change(connection)


def expire(connection: Connection, wanted: CommitRequest, now: int) -> None:
    """Drop what is too old, or of a lower epoch than a commit. Raise ``NotStaged`` if the commit has a lower one."""
    staged_attempts.drop_old(connection, now)
    staged_attempts.check_epoch(connection, wanted.sink, wanted.batch, or_none(wanted.epoch))
