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

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

import attrs
import msgspec
import trio

from rsocket_trio.errors import Invalid, readable
from rsocket_trio.replay import ledger
from rsocket_trio.replay.elements import Element, Pack, Record, arrow
from rsocket_trio.replay.errors import NotStaged, PositionExpired
from rsocket_trio.replay.kafka_client import Rows, TransactionalProducer, twice
from rsocket_trio.replay.kafka_log import KafkaLog
from rsocket_trio.replay.ledger import Attempt, Commit, Ledger, Sink, StagedAttempt
from rsocket_trio.replay.tables import OVERHEAD, bodies_of, count, stored

if TYPE_CHECKING:
    from apsw import Connection

BATCH_PARTITIONS = 8
"""Partitions of a topic of batches that is made here: an unfinished commit holds up sinks of its own only."""
OPEN_SECONDS = 2.0
"""Seconds that a commit waits for open transactions of others before it takes over its sink anew."""
SEPARATOR = "\0"
"""Between a sink and an attempt in the key of a note."""


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
        self._id = uuid.uuid4().hex
        milliseconds = str(max(round(self._seconds * 1000), 1000))
        expiring = {"retention.ms": milliseconds, "segment.ms": milliseconds, "segment.bytes": str(2**26)}
        self._attempts = log._beside(f"{self.topic}.staged", 1, expiring)
        # Small segments: the last one is never compacted, and is read whenever a ledger is opened.
        compacted = {"cleanup.policy": "compact", "segment.bytes": str(2**24), "segment.ms": "3600000"}
        self._batches = log._beside(self.topic, BATCH_PARTITIONS, compacted)
        self._read_to: dict[int, int] = {}
        self._notes: dict[tuple[str, str], AttemptNote] = {}
        self._committing, self._opening = trio.Lock(), trio.Lock()

    # Opening and closing

    async def open(self) -> None:
        """Open the ledger and its log, and read the last batches. Do nothing the second time.

        Raise ``Rejected`` if no broker answers, ``ValueError`` for a topic that no ledger has written.
        """
        await self._tables.open()
        async with self._opening:
            if not self._read_to:
                for log in (self.log, self._attempts, self._batches):
                    await log.open()
                self._read_to = dict.fromkeys(self._batches.partitions(), 0)
                try:
                    await self._learn(self._read_to, stable=True)
                except BaseException:
                    # Raised again at once: the next call reads all anew.
                    self._read_to = {}
                    raise

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
        return crc32(sink.encode()) % len(self._read_to)

    async def _learn(self, places: Iterable[int], *, stable: bool = False) -> None:
        """Learn all that was written to partitions before this call, or if ``stable`` before what is open."""
        for place in places:
            end = await self._batches._settled_end(place, stable=stable)
            while (position := self._read_to[place]) < end:
                some = list(await self._batches.read_some(place, position, end))
                changes = [decoded(self.topic, record) for record in some if record.key is not None]
                await self._tables._change(partial(self._apply, contents=changes))
                self._read_to[place] = some[-1].end

    def _apply(self, connection: Connection, contents: Iterable[tuple[str, Content]]) -> None:
        """Note last batches and attempts by the keys of their records."""
        for key, content in contents:
            sink, separator, attempt = key.partition(SEPARATOR)
            if isinstance(content, Sink):
                with suppress(NotStaged):
                    Sink.called(connection, sink).plan(connection, content.batch, content.epoch)
                self._remember(connection, content)
            elif content is not None:
                row = content.row
                with suppress(NotStaged):  # then its batch was planned anew
                    Sink.called(connection, sink).plan(connection, row.batch, row.epoch)
                    self._keep(content)
                    if not Attempt.where(connection, "WHERE sink = ? AND attempt = ?", sink, attempt):
                        number = -count(connection, "attempts")
                        attrs.evolve(row, number=number, earliest=row.latest, bytes=0, sealed=1).save(connection)
            elif separator and self._notes.pop((sink, attempt), None) is not None:
                # It was committed, or can't be any more.
                ledger.drop_attempts(connection, sink, [attempt])

    # Commits

    @asynccontextmanager
    async def _taken_over(self, sink: str) -> AsyncIterator[TransactionalProducer]:
        """Hold the producer of a sink: no other server commits for it, and what one has committed is known."""
        async with self._committing:
            place = self._place_of(sink)
            name = f"rsocket-trio.{self.topic}.{sink}"
            producer = TransactionalProducer(self.log._cluster, name, self._commit_seconds)
            try:
                for seconds in (OPEN_SECONDS, inf):
                    with trio.move_on_after(seconds):
                        await producer.begin()
                        await self._learn([place])
                        break
                    # An open transaction is in the way, perhaps of a server that took the sink over and died.
                    await producer.aclose()
                yield producer
            finally:
                await producer.aclose()

    async def _commit(self, wanted: Sink, attempts: Mapping[str, int], *, take_over: bool) -> Commit:
        return await twice(partial(self._commit_once, wanted, attempts, take_over))

    async def _commit_once(self, wanted: Sink, named: Mapping[str, int], take_over: bool) -> Commit:
        sink, batch = wanted.sink, wanted.batch
        async with self._taken_over(sink) as producer:
            end = await self._attempts._settled_end(0) if named else 0
            check = partial(self._checked, wanted=wanted, attempts=named, take_over=take_over)
            next_sink, attempts = await self._tables._change(check)
            if next_sink is None:
                return Commit(promoted=False, rows=0, last=batch)
            too_old = self._too_old(self._seconds)
            # Notes of attempts that can't be committed any more go, too.
            gone = [
                name
                for (other, name), note in self._notes.items()
                if other == sink and (note.row.batch == batch or note.row.time <= too_old)
            ]
            contents: dict[str, Content] = {sink: next_sink}
            for name in (*named, *gone, *[""] * wanted.once):
                contents[f"{sink}{SEPARATOR}{name}"] = None
            texts = {
                key: None if content is None else msgspec.json.encode(content) for key, content in contents.items()
            }
            records = [(self._place_of(sink), Element(text, key=key.encode())) for key, text in texts.items()]
            with trio.CancelScope(shield=True):
                await producer.write([Rows(self.log.topic, self._content(attempts, end)), Rows(self.topic, records)])
                await self._tables._change(partial(self._apply, contents=contents.items()))
        self.log._changed.wake_all()
        return Commit(promoted=True, rows=sum(row.latest for row in attempts), last=batch)

    def _content(self, attempts: Sequence[Attempt], end: int) -> Iterator[tuple[int, Element]]:
        """Yield the rows of attempts with their partitions, as they were staged below ``end``. In a thread of Trio's.

        Raise ``NotStaged`` if some are gone.
        """
        known = [self._notes.get((row.sink, row.attempt)) for row in attempts]
        notes = {note.id.encode(): note for note in known if note is not None}
        left = sum(row.latest for row in attempts)
        position = min([note.begin for note in notes.values() if note.row.latest], default=end)
        with suppress(PositionExpired):
            while left and position < end:
                for record in trio.from_thread.run(self._attempts.read_some, 0, position, end):
                    position = record.end
                    if record.data and (note := notes.get(record.key or b"")) is not None:
                        for element in arrow().elements_of(Pack(record.data, 1)):
                            left -= element.count
                            yield note.row.partition % len(self.log.partitions()), element
        if left:
            raise NotStaged("rows of the batch are staged no longer, they were too old: stage it again")

    async def epoch(self, sink: str) -> int:
        return await self._note(sink, "", b"{}")

    async def _note(self, sink: str, attempt: str, data: bytes | None) -> int:
        """Write a record that is no batch to the topic of batches. Return its offset."""
        place = self._place_of(sink)
        key = f"{sink}{SEPARATOR}{attempt}".encode()
        return (await self._batches.append_all({place: [Element(data, key=key)]}))[place]

    # Attempts

    async def begin(self, sink: str, attempt: str, partition: int, **plan: Any) -> StagedAttempt:
        """Begin to stage ``attempt`` of ``sink`` for ``partition``, as ``Ledger.begin`` does."""
        self._place_of(sink)
        if self.staged_bytes > self._most_bytes // 2:
            # Attempts that other servers have committed take room here.
            async with self._committing:
                await self._learn(self._read_to)
        return await super().begin(sink, attempt, partition, **plan)

    async def _store(self, stage: StagedAttempt, elements: Sequence[Element | Pack], *, sealed: bool = False) -> None:
        """Store rows of an attempt in the topic of attempts, or a note that it is complete."""
        row, own = stage.row, f"{self._id}.{stage.row.number}"
        note = self._notes.get((row.sink, row.attempt))
        if sealed:
            await super()._store(stage, ())  # raises if it is staged no longer
            note = AttemptNote(stage.row, own, 0 if note is None else note.begin)
            await self._note(row.sink, row.attempt, msgspec.json.encode(note))
        elif elements:
            # A row alone is a pack as well.
            bodies = [stored(0, number, 0, form, *contents) for number, _, form, contents in bodies_of(elements)]
            packs = [body if isinstance(body, Pack) else next(arrow().packs_of([body.element])) for body in bodies]
            parts = [Element(pack.data, key=own.encode()) for pack in packs]
            begins = await self._attempts.append_all({0: parts})
            if note is None or note.id != own:
                self._keep(AttemptNote(row, own, begins[0]))
        await super()._store(stage, elements, sealed=sealed)

    def _append(self, connection: Connection, row: Attempt, elements: Sequence[Element | Pack]) -> None:
        """Count rows of an attempt, which are in the topic of attempts."""
        row.latest += sum(element.count for element in elements)
        row.earliest = row.latest
        row.bytes += sum(element.size + OVERHEAD for element in elements)

    def _keep(self, note: AttemptNote) -> None:
        self._notes[note.row.sink, note.row.attempt] = note
        if len(self._notes) > self._most_attempts:
            del self._notes[next(iter(self._notes))]


def decoded(topic: str, record: Record) -> tuple[str, Content]:
    """Return the key of a record and its content. Raise ``ValueError`` if no ledger wrote it."""
    try:
        key = (record.key or b"").decode()
        _, separator, attempt = key.partition(SEPARATOR)
        if not record.data or (separator and not attempt):
            return key, None
        kind: type[Sink | AttemptNote] = AttemptNote if separator else Sink
        return key, msgspec.json.decode(record.data, type=kind)
    except ValueError as error:
        what = f"topic {topic!r} is none of batches: no ledger wrote what is at {record.position}"
        raise ValueError(what) from error
