"""A ledger on Kafka: the rows of a batch and the number of the batch are one transaction.

The last batch of each sink is a record of a compacted topic, with the sink as its key and JSON as its value. A sink is
a transactional id. A server takes over that id before it commits, which ends or settles the transactions of any other
server, and reads the sink's last batch then: so it is known, and only one server at a time commits.

An attempt that is complete is written to a topic of attempts, and a note of it to that of the batches: its key is the
sink and the attempt, with a 0 between. So a server finds the attempts that another one has staged, when it takes over
the sink. A commit deletes the notes of its attempts.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import attrs
import trio

from rsocket_trio.errors import Invalid, Rejected, readable
from rsocket_trio.replay.elements import Element
from rsocket_trio.replay.errors import NotStaged, NotWritten, PositionExpired
from rsocket_trio.replay.filesystem import SYSTEM
from rsocket_trio.replay.kafka_blocks import records_of_block
from rsocket_trio.replay.kafka_log import KafkaLog, Unpacked
from rsocket_trio.replay.kafka_reading import SharedReading
from rsocket_trio.replay.kafka_writing import Fenced, Rows, TransactionalProducer, UnknownOutcome, begun, write_rows
from rsocket_trio.replay.ledger import (
    SINK_BYTES,
    SINK_SECONDS,
    STAGED_ATTEMPTS,
    STAGED_BYTES,
    STAGED_SECONDS,
    Commit,
    Ledger,
)
from rsocket_trio.replay.locking import DirectoryLock
from rsocket_trio.replay.log import READ_BYTES
from rsocket_trio.replay.packs import Pack, elements_of, pack_elements
from rsocket_trio.replay.staged_attempts import FileStagedAttempt, StagedAttempt, remove_all, restored_attempts

T = TypeVar("T")

BATCH_PARTITIONS = 8
"""Partitions of a topic of batches that is made here: an unfinished commit holds up sinks of its own only."""
COMMIT_SECONDS = 60.0
"""Seconds after which the broker aborts a commit whose server is gone, unless another takes over the sink before."""
PUBLISH_SECONDS = 10.0
"""The same for an attempt that is being written: so long it keeps other servers from taking over its sink."""
OWNED_SINKS = 16
"""Sinks whose producers are kept for the next batch; the one that was idle for longest is closed for another."""


SEPARATOR = "\0"
"""Between a sink and an attempt in the key of a note."""
COUNT = "rows"
"""The header of a pack in the topic of attempts: the number of its rows."""
PART_BYTES = 256 * 2**10
"""Bytes of a pack in the topic of attempts, about: brokers take 1 MiB by default."""


@attrs.frozen
class AttemptNote:
    """The place of an attempt: ``parts`` packs of its ``rows`` at ``begin`` or behind; ``time`` is its Unix time."""

    partition: int
    rows: int
    elements: int
    parts: int
    begin: int
    time: float

    def is_old(self, seconds: float) -> bool:
        """Return whether it was staged longer ago than that."""
        return self.time + seconds < time.time()


def packed_elements(attempt: str, elements: Iterable[Element | Pack]) -> list[Element]:
    """Return the records of an attempt: packs, with the attempt as their key."""
    packs: list[Pack] = []
    waiting: list[Element] = []
    size = 0

    def close() -> None:
        nonlocal size
        if waiting:
            packs.append(pack_elements(waiting))
            waiting.clear()
            size = 0

    for one in elements:
        if isinstance(one, Pack) and one.size <= 2 * PART_BYTES:
            close()
            packs.append(one)
            continue
        for element in elements_of(one) if isinstance(one, Pack) else (one,):
            waiting.append(element)
            size += element.size
            if size >= PART_BYTES:
                close()
    close()
    return [Element(pack.data, None, 1, attempt.encode(), {COUNT: b"%d" % pack.count}) for pack in packs]


class KafkaLedger(Ledger):
    """A ledger whose commits are transactions of Kafka, over the topic of ``log`` and a compacted topic of batches.

    ``topic`` is the topic of batches, by default that of the log with ``.batches`` behind it; it is made if there is
    none. Several servers may have ledgers of the same topics: a batch counts once, wherever it is committed. What is
    staged is in memory or, with ``directory``, in files there, and once it is complete also in a topic of its own, that
    of the batches with ``.staged`` behind it: any server commits what any other has staged. Without ``share`` a commit
    at another server raises ``NotStaged``, and the writer must stage the batch again. ``staged_bytes``,
    ``staged_seconds``, ``staged_attempts``, ``sink_bytes`` and ``sink_seconds`` are those of ``Ledger``. A commit takes
    at most ``commit_seconds``, and that is how long readers
    of the log wait for one whose server died. The ledger opens ``log`` and leaves it open.
    """

    log: KafkaLog

    def __init__(
        self,
        log: KafkaLog,
        topic: str | None = None,
        *,
        directory: str | PathLike[str] | None = None,
        staged_bytes: int = STAGED_BYTES,
        staged_seconds: float = STAGED_SECONDS,
        staged_attempts: int = STAGED_ATTEMPTS,
        sink_bytes: int = SINK_BYTES,
        sink_seconds: float = SINK_SECONDS,
        commit_seconds: float = COMMIT_SECONDS,
        share: bool = True,
    ) -> None:
        super().__init__(
            log,
            staged_bytes=staged_bytes,
            staged_seconds=staged_seconds,
            staged_attempts=staged_attempts,
            sink_bytes=sink_bytes,
            sink_seconds=sink_seconds,
        )
        self.topic = topic or f"{log.topic}.batches"
        self.directory = None if directory is None else Path(directory)
        self._directory_lock: DirectoryLock | None = None
        self._commit_seconds = commit_seconds
        self._reading = SharedReading(log._cluster, self.topic, 1)
        self._read_to: dict[int, int] = {}
        self._owned: OrderedDict[str, TransactionalProducer] = OrderedDict()
        self._is_shared = share
        self._attempts_topic = f"{self.topic}.staged"
        self._attempts = SharedReading(log._cluster, self._attempts_topic, 1)
        self._attempts_end = 0
        self._notes: dict[tuple[str, str], AttemptNote] = {}
        self._gone: set[str] = set()
        self._publisher: TransactionalProducer | None = None
        self._publishing = trio.Lock()
        self._opening = trio.Lock()
        self._is_ready = self._closed = False

    async def open(self) -> None:
        """Open the ledger and its log, and read the last batches. Do nothing the second time.

        Raise ``Rejected`` if no broker answers, ``LogLocked`` if another process has the directory.
        """
        if self._is_ready and not self._closed:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        async with self._opening:
            if self._closed:
                raise trio.ClosedResourceError("the ledger was closed")
            if not self._is_ready:
                await self.log.open()
                # Small segments: the last one is never compacted, and is read whenever a ledger is opened.
                config = {"cleanup.policy": "compact", "segment.bytes": str(2**24), "segment.ms": "3600000"}
                count = await self.log._ensure_topic(self.topic, BATCH_PARTITIONS, config)
                self._read_to = {partition: self._read_to.get(partition, 0) for partition in range(count)}
                bounds = await self._ask(partial(self.log._open_topics.bounds, self.topic, self._read_to))
                try:
                    for partition, (_, end) in bounds.items():
                        await self._read(partition, end)
                except BaseException:
                    # Raised again at once: a ledger that was not opened is not closed either, and leaves no consumer.
                    reading, self._reading = self._reading, SharedReading(self.log._cluster, self.topic, 1)
                    with trio.CancelScope(shield=True):
                        await reading.aclose()
                    raise
                if self._is_shared:
                    milliseconds = str(max(round(self._seconds * 1000), 1000))
                    config = {"retention.ms": milliseconds, "segment.ms": milliseconds, "segment.bytes": str(2**26)}
                    await self.log._ensure_topic(self._attempts_topic, 1, config)
                    ends = await self._ask(partial(self.log._open_topics.ends, self._attempts_topic, [0]))
                    self._attempts_end = ends[0]
                if self.directory is not None and self._directory_lock is None:
                    await trio.to_thread.run_sync(self._restore, self.directory, trio.current_time() - time.time())
                self._is_ready = True

    async def aclose(self) -> None:
        """Close the ledger. Do nothing the second time."""
        self._is_ready, self._closed = False, True
        # A commit that waits for a broker ends, and gives the lock back.
        for producer in (*self._owned.values(), *([self._publisher] if self._publisher is not None else [])):
            producer.stop()
        async with self._write_lock.exclusive():
            for sink in list(self._owned):
                await self._give_up(sink)
            await self._reading.aclose()
            await self._attempts.aclose()
            await self._close_publisher()
            lock, self._directory_lock = self._directory_lock, None
            if lock is not None:
                unfinished = [stage for stage in self._stages.values() if not stage.sealed]
                await trio.to_thread.run_sync(remove_all, unfinished)
                lock.release()
            self._stages.clear()

    async def commit(self, sink: str, batch: int, attempts: Mapping[str, int], *, once: bool = False) -> Commit:
        """Promote ``attempts`` as ``Ledger.commit`` does, in one transaction.

        ``sink`` and ``batch`` name the batch, ``once`` says that the sink has no other. Raise ``NotWritten`` if it is
        not known in time whether the batch counts, and ``Rejected`` if no broker answers.
        """
        deadline = trio.current_time() + self.log._cluster.patience
        unknown: Exception | None = None
        while True:
            try:
                return await super().commit(sink, batch, attempts, once=once)
            except (Fenced, UnknownOutcome) as error:
                # Another server took the sink over, or the broker went away. The next round takes it over again, which
                # settles what became of the transaction.
                unknown = error
                if trio.current_time() > deadline:
                    raise NotWritten(f"nobody knows what was written: {error}") from error
            except NotWritten:
                # The broker aborted the transaction.
                if trio.current_time() > deadline:
                    raise
            except (Rejected, trio.ClosedResourceError) as error:
                if unknown is None:
                    raise
                raise NotWritten(f"nobody knows what was written: {unknown}") from error

    # The parts of a commit: the base class holds the lock

    async def _prepare(self, sink: str, batch: int, attempts: Collection[str]) -> None:
        self._check(sink)
        last = self.last(sink)
        if last is not None and batch <= last:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        if sink in self._owned:
            # If another server took the sink over, the commit fails, and the next round comes here without a producer.
            self._owned.move_to_end(sink)
            if await self._are_staged(sink, attempts):
                return
        # If attempts are staged nowhere, another server may have committed them.
        await self._give_up(sink)
        name = f"rsocket-trio.{self.topic}.{sink}"
        # From here on no other server can commit for this sink, and what it committed is in the topic.
        self._owned[sink] = await begun(self.log._cluster, name, self._commit_seconds, partial(self._check, sink))
        try:
            await self._read_place(sink)
            last = self.last(sink)
            if last is None or batch > last:
                await self._are_staged(sink, attempts)
        except BaseException:
            # Raised again at once: the next commit begins with a new producer, and reads the topic anew.
            await self._give_up(sink)
            raise
        while len(self._owned) > OWNED_SINKS:
            await self._give_up(next(iter(self._owned)))

    def _check(self, sink: str) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the ledger was closed")
        if not self._is_ready:
            raise trio.ClosedResourceError("the ledger is not open: use it under 'async with'")
        if SEPARATOR in sink:
            raise Invalid(f"sink {readable(sink)!r}: a ledger on Kafka takes no name with a character 0")

    async def _are_staged(self, sink: str, attempts: Collection[str]) -> bool:
        """Stage here what other servers have staged. Return whether all attempts are staged here now."""
        missing = [attempt for attempt in attempts if attempt not in self._stages]
        if missing and self._is_shared:
            await self._read_place(sink)
            for attempt in missing:
                note = self._notes.get((sink, attempt))
                if note is not None:
                    await self._load(sink, attempt, note)
        return all(attempt in self._stages for attempt in attempts)

    def _checked(self, sink: str, attempt: str, rows: int) -> StagedAttempt:
        try:
            return super()._checked(sink, attempt, rows)
        except NotStaged as error:
            raise NotStaged(f"{error}, or no longer: stage the batch again") from None

    async def begin(self, sink: str, attempt: str, partition: int) -> StagedAttempt:
        """Begin to stage ``attempt`` for ``sink`` and ``partition``, as ``Ledger.begin`` does.

        Raise ``Rejected``, and ``Invalid`` for a sink with a character 0 in its name.
        """
        self._check(sink)
        if self._is_shared and self.staged_bytes > self._most_bytes // 2:
            # Attempts that other servers have committed take room here.
            async with self._write_lock.exclusive():
                for place, end in (
                    await self._ask(partial(self.log._open_topics.ends, self.topic, self._read_to))
                ).items():
                    await self._read(place, end)
                gone = [self._stages[one] for one in self._gone if one in self._stages]
                self._gone.clear()
                await self._drop(gone)
        return await super().begin(sink, attempt, partition)

    def _new_stage(self, sink: str, attempt: str, partition: int, deadline: float) -> StagedAttempt:
        stage: StagedAttempt
        if self.directory is None:
            stage = super()._new_stage(sink, attempt, partition, deadline)
        else:
            stage = FileStagedAttempt(self._charge, sink, attempt, partition, deadline, self._staged, SYSTEM)
        stage.share = self._share if self._is_shared else None
        return stage

    async def _remove(self, stages: Sequence[StagedAttempt]) -> None:
        if self.directory is None:
            await super()._remove(stages)
        else:
            await trio.to_thread.run_sync(remove_all, stages)

    async def _promote(self, sink: str, batch: int, stages: Sequence[StagedAttempt], once: bool) -> None:
        rows = [Rows(self.log.topic, partition, Unpacked(chain)) for partition, chain in self._chains(stages).items()]
        old = [
            attempt for (other, attempt), note in self._notes.items() if other == sink and note.is_old(self._seconds)
        ]
        done = dict.fromkeys([*(stage.attempt for stage in stages), *old])
        await self._write(sink, [*rows, self._note(sink, {"batch": batch, "once": once}), *self._deletions(sink, done)])
        for attempt in done:
            self._notes.pop((sink, attempt), None)
        if once:
            await self._give_up(sink)
        await self.log._show({one.partition: one.first for one in rows if one.first is not None})

    async def _note_forgotten(self, sink: str) -> None:
        await self._write(sink, [self._note(sink, None)])
        await self._give_up(sink)

    async def _write(self, sink: str, rows: Iterable[Rows]) -> None:
        try:
            await write_rows(self._owned[sink], rows)
        except (Fenced, UnknownOutcome, NotWritten):
            await self._give_up(sink)
            raise

    def _note(self, sink: str, content: Mapping[str, object] | None) -> Rows:
        """Return the record of a sink's last batch, or the one that forgets it."""
        element = Element(json.dumps(content).encode(), key=sink.encode())
        return Rows(self.topic, self._place_of(sink), [element], deletes=content is None)

    async def _give_up(self, sink: str) -> None:
        """Close the producer of a sink: the next commit takes the sink over anew."""
        producer = self._owned.pop(sink, None)
        if producer is not None:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(producer.close)

    # The topic of batches

    def _place_of(self, sink: str) -> int:
        return crc32(sink.encode()) % len(self._read_to)

    async def _ask(self, function: Callable[[], T]) -> T:
        return await self.log._cluster.ask(function, f"the bounds of topic {self.topic!r}")

    async def _read_place(self, sink: str) -> None:
        """Learn all that was written about a sink before this call."""
        place = self._place_of(sink)
        ends = await self._ask(partial(self.log._open_topics.ends, self.topic, [place]))
        await self._read(place, ends[place])

    async def _read(self, partition: int, end: int) -> None:
        """Learn the batches that were written since the last time, up to the offset ``end``."""
        position = self._read_to[partition]
        while position < end:
            block = await self._reading.block(partition, position, READ_BYTES)
            for record in records_of_block(block, position, None, READ_BYTES):
                position = record.end
                if record.key is not None:
                    try:
                        self._learn(record.key.decode(), record.data)
                    except (ValueError, KeyError, TypeError) as error:
                        raise ValueError(
                            f"topic {self.topic!r} is none of batches: no ledger wrote what is at {record.position} of "
                            f"its partition {partition}"
                        ) from error
            self._read_to[partition] = position

    def _learn(self, sink: str, content: bytes) -> None:
        if SEPARATOR in sink:
            sink, attempt = sink.split(SEPARATOR, 1)
            self._notes.pop((sink, attempt), None)
            if content:
                self._notes[sink, attempt] = AttemptNote(**json.loads(content))
                if len(self._notes) > STAGED_ATTEMPTS:
                    del self._notes[next(iter(self._notes))]
            elif attempt in self._stages:
                self._gone.add(attempt)
            return
        if not content:
            self._committed.forget(sink)
            return
        said = json.loads(content)
        self._committed.remember(sink, said["batch"], said["once"])

    # Attempts that other servers may commit

    async def _share(self, stage: StagedAttempt) -> None:
        """Write a complete attempt to the topic of attempts, and a note of it to that of the batches."""
        async with self._publishing:
            parts = await trio.to_thread.run_sync(packed_elements, stage.attempt, stage.content())
            note = AttemptNote(stage.partition, stage.rows, stage.elements, len(parts), self._attempts_end, time.time())
            said = Element(
                json.dumps(attrs.asdict(note)).encode(), key=f"{stage.sink}{SEPARATOR}{stage.attempt}".encode()
            )
            rows = Rows(self._attempts_topic, 0, parts)
            await self._publish([rows, Rows(self.topic, self._place_of(stage.sink), [said])])
            if rows.first is not None:
                # What is written from now on lies behind: there a reader begins to look.
                self._attempts_end = rows.first

    async def _publish(self, rows: Sequence[Rows]) -> None:
        deadline = trio.current_time() + self.log._cluster.patience
        while True:
            try:
                self._check("")
                if self._publisher is None:
                    name = f"rsocket-trio.{self._attempts_topic}.{uuid.uuid4()}"
                    self._publisher = await begun(self.log._cluster, name, PUBLISH_SECONDS, partial(self._check, ""))
                await write_rows(self._publisher, rows)
            except (Fenced, UnknownOutcome, NotWritten) as error:
                # Written twice, an attempt is found once: the reader counts its parts.
                await self._close_publisher()
                if trio.current_time() > deadline:
                    raise NotWritten(f"the attempt is not staged: {error}") from error
            except BaseException:
                # Raised again at once: a producer in an open transaction can't begin another one.
                with trio.CancelScope(shield=True):
                    await self._close_publisher()
                raise
            else:
                return

    async def _close_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await trio.to_thread.run_sync(publisher.close)

    async def _load(self, sink: str, attempt: str, note: AttemptNote) -> None:
        """Stage here what another server has staged. Leave it if its rows are gone: they were too old."""
        stage = StagedAttempt(self._charge, sink, attempt, note.partition, trio.current_time() + self._seconds)
        key, left, position = attempt.encode(), note.parts, note.begin
        try:
            while left:
                block = await self._attempts.block(0, position, READ_BYTES)
                if block.end <= position:
                    break
                for record in records_of_block(block, position, None, READ_BYTES):
                    position = record.end
                    if record.key == key and record.headers is not None and left:
                        left -= 1
                        await stage.add(Pack(record.data, int(record.headers[COUNT])))
        except PositionExpired:
            pass
        except BaseException:
            # Raised again at once: nobody will discard this stage, so its bytes are given back here.
            self.staged_bytes -= stage.size
            raise
        if left or stage.rows != note.rows:
            self.staged_bytes -= stage.size
            return
        stage.elements = note.elements
        await stage.seal()
        self._stages[attempt] = stage

    def _deletions(self, sink: str, attempts: Iterable[str]) -> list[Rows]:
        """Return the records that delete the notes of attempts."""
        keys = [f"{sink}{SEPARATOR}{attempt}".encode() for attempt in attempts if self._is_shared]
        return [Rows(self.topic, self._place_of(sink), [Element(b"", key=key) for key in keys], deletes=True)]

    # Attempts on files

    @property
    def _staged(self) -> Path:
        assert self.directory is not None
        return self.directory / "staged"

    def _restore(self, directory: Path, epoch: float) -> None:
        self._directory_lock = DirectoryLock(directory)
        self._staged.mkdir(exist_ok=True)
        for stage in restored_attempts(self._staged, SYSTEM, self._charge, epoch + self._seconds):
            self._stages[stage.attempt] = stage
            self.staged_bytes += stage.size
