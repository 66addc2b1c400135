"""A ledger on Kafka: the rows of a batch and the number of the batch are one transaction.

The last batch of each sink is a record of a compacted topic, with the sink as its key and JSON as its value. A sink is
a transactional id. A server takes over that id before it commits, which ends or settles the transactions of any other
server, and reads the sink's last batch then: so it is known, and only one server at a time commits.

What is staged is in a topic of attempts. When an attempt is complete, its row of ``attempts`` is written to the topic
of batches: its key is the sink and the attempt, with a 0 between. So any server commits it; a commit deletes it. The
row of the first attempt of an epoch is written when it is begun, with the sink and a 0 as its key: so no server forgets
the epoch. An epoch is the offset of a record without a value. All these rows are in a database in memory, too, that of
``Ledger``.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

import attrs
import msgspec
import trio

from rsocket_trio.errors import Invalid, readable
from rsocket_trio.replay import ledger
from rsocket_trio.replay.elements import Element, Name, Pack, Record, arrow
from rsocket_trio.replay.errors import NotStaged, PositionExpired
from rsocket_trio.replay.kafka_client import Rows, TransactionalProducer, twice
from rsocket_trio.replay.kafka_log import KafkaLog
from rsocket_trio.replay.ledger import Attempt, Commit, Ledger, Sink, StagedAttempt
from rsocket_trio.replay.tables import OVERHEAD, bodies_of, count, stored

if TYPE_CHECKING:
    from apsw import Connection

BATCH_PARTITIONS = 8
"""Partitions of a topic of batches that is made here: an unfinished commit holds up sinks of its own only."""
SEPARATOR = "\0"
"""Between a sink and an attempt in the key of a record."""

Content: TypeAlias = Sink | Attempt | None
"""The content of a record of the topic of batches: ``None`` for a deletion and for an epoch."""


class KafkaLedger(Ledger):
    """A ledger whose commits are transactions of Kafka, over the topic of ``log`` and a compacted topic of batches.

    ``topic`` is the topic of batches, by default that of the log with ``.batches`` behind it; it is made if there is
    none. Several servers may have ledgers of the same topics: a batch counts once, wherever it is committed. What is
    staged is in a topic of its own, that of the batches with ``.staged`` behind it: any server commits what any other
    has staged. ``limits`` are those of ``Ledger``, for what is staged by this server. A commit takes at most
    ``commit_seconds``, and that is how long readers of the log wait for one whose server died; it raises ``NotWritten``
    if it is not known in time whether the batch counts. The ledger opens ``log`` and leaves it open.
    """

    log: KafkaLog

    def __init__(self, log: KafkaLog, topic: str | None = None, *, commit_seconds: float = 60.0, **limits: Any) -> None:
        if not isinstance(log, KafkaLog):
            raise TypeError(f"a KafkaLedger writes to a KafkaLog, not to a {type(log).__name__}")
        super().__init__(**{"staged_bytes": 2**30, **limits})
        self.log = log
        self.topic = topic or f"{log.topic}.batches"
        self._commit_seconds = commit_seconds
        milliseconds = str(max(round(self._seconds * 1000), 1000))
        expiring = {"retention.ms": milliseconds, "segment.ms": milliseconds, "segment.bytes": str(2**26)}
        self._attempts = log._beside(f"{self.topic}.staged", 1, expiring)
        # Small segments: the last one is never compacted, and is read whenever a ledger is opened.
        compacted = {"cleanup.policy": "compact", "segment.bytes": str(2**24), "segment.ms": "3600000"}
        self._batches = log._beside(self.topic, BATCH_PARTITIONS, compacted)
        self._places: Sequence[int] = ()
        self._read_to: Counter[int] = Counter()
        self._committing, self._learning, self._opening = trio.Lock(), trio.Lock(), trio.Lock()

    # Opening and closing

    async def open(self) -> None:
        """Open the ledger and its log, and read the last batches. Do nothing the second time.

        Raise ``Rejected`` if no broker answers, ``ValueError`` for a topic that no ledger has written.
        """
        await self._tables.open()
        async with self._opening:
            if not self._places:
                for log in (self.log, self._attempts, self._batches):
                    await log.open()
                for place in self._batches.partitions():
                    await self._learn(place, self._batches.bounds(place)[1])
                # The numbers of attempts are those of no other server.
                await self._tables._change(partial(count, name="attempts", by=secrets.randbits(60)))
                self._places = self._batches.partitions()
                # Attempts that were too old to be committed when they were read.
                too_old = self._too_old(self._seconds)
                old = self._tables._ask("SELECT sink, attempt FROM attempts WHERE time <= ?", too_old)
                if old:
                    await self._write(*[(sink, attempt, None) for sink, attempt in old])

    async def aclose(self) -> None:
        await self._batches.aclose()
        await self._attempts.aclose()
        async with self._committing:
            await self._tables.aclose()

    # State: that of the topic of batches as it was read

    def _place_of(self, sink: str) -> int:
        """Return the partition of a sink. Raise ``Invalid`` for a name that no sink has here."""
        if SEPARATOR in sink:
            raise Invalid(f"sink {readable(sink)!r}: a ledger on Kafka takes no name with a character 0")
        self._tables._check_open()
        return self._places[crc32(sink.encode()) % len(self._places)]

    async def _learn(self, place: int, end: int) -> None:
        """Learn what was written to a partition of the topic of batches below ``end``."""
        async with self._learning:
            while self._read_to[place] < end:
                some = list(await self._batches.read_some(place, self._read_to[place], end))
                contents = [decoded(self.topic, record) for record in some if record.key is not None]
                await self._tables._change(partial(self._apply, contents=contents))
                self._read_to[place] = some[-1].end

    def _apply(self, connection: Connection, contents: Iterable[tuple[str, Content]]) -> None:
        """Note last batches, plannings and attempts by the keys of their records."""
        for key, content in contents:
            sink, _, attempt = key.partition(SEPARATOR)
            if content is None:
                # It was committed, or can't be any more.
                ledger.drop_attempts(connection, sink, [attempt])
                continue
            with suppress(NotStaged):  # then its batch was planned anew
                Sink.called(connection, sink).plan(connection, content.batch, content.epoch)
                present = Attempt.where(connection, "WHERE sink = ? AND attempt = ?", sink, attempt)
                if isinstance(content, Attempt) and content.sealed and not present:
                    content.save(connection)
            if isinstance(content, Sink):
                self._remember(connection, content)

    # Commits

    async def _commit(self, wanted: Sink, attempts: Mapping[str, int], *, take_over: bool) -> Commit:
        return await twice(partial(self._commit_once, wanted, attempts, take_over))

    async def _commit_once(self, wanted: Sink, named: Mapping[str, int], take_over: bool) -> Commit:
        sink, place = wanted.sink, self._place_of(wanted.sink)
        # No other server commits for the sink from then on, and what one has committed is there.
        producer = TransactionalProducer(self.log._cluster, f"rsocket-trio.{self.topic}.{sink}", self._commit_seconds)
        async with self._committing, producer:
            await self._learn(place, await self._batches._settled_end(place))
            end = await self._attempts._settled_end(0) if named else 0
            check = partial(self._checked, wanted=wanted, attempts=named, take_over=take_over)
            next_sink, attempts = await self._tables._change(check)
            if next_sink is None:
                return Commit(promoted=False, rows=0, last=wanted.batch)
            gone = [f"{sink}{SEPARATOR}{attempt}" for attempt in (*named, *[""] * wanted.once)]
            contents = [(sink, next_sink), *[(key, None) for key in gone]]
            records = Rows(self.topic, [(place, encoded(*content)) for content in contents])
            with trio.CancelScope(shield=True):
                await producer.write([Rows(self.log.topic, self._content(attempts, end)), records])
                async with self._learning:
                    # A stage may have learned of it meanwhile, and of later batches.
                    if self._read_to[place] <= records.firsts[place]:
                        await self._tables._change(partial(self._apply, contents=contents))
        self.log._changed.wake_all()
        return Commit(promoted=True, rows=sum(row.latest for row in attempts), last=wanted.batch)

    def _content(self, attempts: Sequence[Attempt], end: int) -> Iterator[tuple[int, Element]]:
        """Yield the rows of attempts with their partitions, as they were staged below ``end``. In a thread of Trio's.

        Raise ``NotStaged`` if some are gone.
        """
        by_key = {str(row.number).encode(): row for row in attempts}
        left = sum(row.latest for row in attempts)
        position = min([row.earliest for row in attempts if row.latest], default=end)
        with suppress(PositionExpired):
            while left and position < end:
                for record in trio.from_thread.run(self._attempts.read_some, 0, position, end):
                    position = record.end
                    if record.data and (row := by_key.get(record.key or b"")) is not None:
                        for element in arrow().elements_of(Pack(record.data, 1)):
                            left -= element.count
                            yield row.partition % len(self.log.partitions()), element
        if left:
            raise NotStaged("rows of the batch are staged no longer, they were too old: stage it again")

    async def epoch(self, sink: Name) -> int:
        return await self._write((sink, SEPARATOR, None))

    async def _write(self, *notes: tuple[str, str, Attempt | None]) -> int:
        """Write records of attempts of sinks to the topic of batches. Return the offset of the first."""
        records: dict[int, list[Element]] = {}
        for sink, attempt, row in notes:
            records.setdefault(self._place_of(sink), []).append(encoded(f"{sink}{SEPARATOR}{attempt}", row))
        return next(iter((await self._batches.append_all(records)).values()))

    # Attempts

    async def begin(self, sink: str, attempt: str, partition: int, **plan: Any) -> StagedAttempt:
        """Begin to stage ``attempt`` of ``sink`` for ``partition``, as ``Ledger.begin`` does."""
        place = self._place_of(sink)
        # Others may have planned the batch anew, or committed what takes room here.
        await self._batches.open()
        await self._learn(place, self._batches.bounds(place)[1])
        statement = "SELECT epoch FROM plans WHERE sink = ? AND batch = ?"
        known = self._tables._ask(statement, sink, plan.get("batch"))
        stage = await super().begin(sink, attempt, partition, **plan)
        if stage.row.epoch is not None and known != [(stage.row.epoch,)]:
            try:
                await self._write((sink, "", stage.row))
            except BaseException:
                # Raised again at once: nobody has the stage.
                await self.discard(stage)
                raise
        return stage

    async def _store(self, stage: StagedAttempt, elements: Sequence[Element | Pack], *, sealed: bool = False) -> None:
        """Store rows of an attempt in the topic of attempts, or let all servers know that it is complete."""
        row = stage.row
        # A row alone is a pack as well.
        bodies = [stored(0, number, 0, form, *contents) for number, _, form, contents in bodies_of(elements)]
        packs = [body if isinstance(body, Pack) else next(arrow().packs_of([body.element])) for body in bodies]
        if packs:
            key = str(row.number).encode()
            begins = await self._attempts.append_all({0: [Element(pack.data, key=key) for pack in packs]})
            packs[0] = attrs.evolve(packs[0], position=begins[0])
        await super()._store(stage, packs, sealed=sealed)
        if sealed:
            await self._write((row.sink, row.attempt, attrs.evolve(stage.row, bytes=0)))

    def _append(self, connection: Connection, row: Attempt, elements: Sequence[Element | Pack]) -> None:
        """Count rows of an attempt, which are in the topic of attempts, the first at ``row.earliest``."""
        for pack in elements:
            if isinstance(pack, Pack) and not row.latest:
                row.earliest = pack.position
            row.latest += pack.count
            row.bytes += pack.size + OVERHEAD


def encoded(key: str, content: Content) -> Element:
    """Return a record of the topic of batches."""
    return Element(None if content is None else msgspec.json.encode(content), key=key.encode())


def decoded(topic: str, record: Record) -> tuple[str, Content]:
    """Return the key of a record and its content. Raise ``ValueError`` if no ledger wrote it."""
    try:
        key = (record.key or b"").decode()
        kind: type[Sink | Attempt] = Attempt if SEPARATOR in key else Sink
        return key, msgspec.json.decode(record.data, type=kind) if record.data else None
    except ValueError as error:
        what = f"topic {topic!r} is none of batches: no ledger wrote what is at {record.position}"
        raise ValueError(what) from error
