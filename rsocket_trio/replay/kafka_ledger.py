"""A ledger on Kafka: the rows of a batch and the number of the batch are one transaction.

The last batch of each sink is a record of a compacted topic, with the sink as its key and JSON as its value. A sink is
a transactional id. Whoever commits for a sink takes over that id first, which ends or settles the transactions of any
other server, and reads the sink's last batch then: so it is known, and only one server at a time commits.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import trio

from rsocket_trio.replay.elements import Element
from rsocket_trio.replay.errors import NotStaged, NotWritten
from rsocket_trio.replay.filesystem import SYSTEM
from rsocket_trio.replay.kafka_blocks import records_of_block
from rsocket_trio.replay.kafka_log import KafkaLog, Unpacked
from rsocket_trio.replay.kafka_reading import SharedReading
from rsocket_trio.replay.kafka_writing import Fenced, Rows, TransactionalProducer, UnknownOutcome, write_rows
from rsocket_trio.replay.ledger import STAGED_ATTEMPTS, STAGED_BYTES, STAGED_SECONDS, Commit, Ledger
from rsocket_trio.replay.locking import DirectoryLock
from rsocket_trio.replay.log import READ_BYTES
from rsocket_trio.replay.staged_attempts import FileStagedAttempt, StagedAttempt, remove_all, restored_attempts

T = TypeVar("T")

BATCH_PARTITIONS = 8
"""Partitions of a topic of batches that is made here: an unfinished commit holds up sinks of its own only."""
COMMIT_SECONDS = 60.0
"""Seconds after which the broker aborts a commit whose server is gone, unless another takes over the sink before."""
OWNED_SINKS = 16
"""Sinks whose producers are kept for the next batch; the one that was idle for longest is closed for another."""


class KafkaLedger(Ledger):
    """A ledger whose commits are transactions of Kafka, over the topic of ``log`` and a compacted topic of batches.

    ``topic`` is the topic of batches, by default that of the log with ``.batches`` behind it; it is made if there is
    none. Several servers may have ledgers of the same topics: a batch counts once, wherever it is committed. What is
    staged stays at its server, in memory or, with ``directory``, in files there, which survive a restart; a commit at
    another server raises ``NotStaged``, and the writer stages the batch again. ``staged_bytes``, ``staged_seconds`` and
    ``staged_attempts`` are those of ``Ledger``. A commit takes at most ``commit_seconds``, and that is how long readers
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
        commit_seconds: float = COMMIT_SECONDS,
    ) -> None:
        super().__init__(log, staged_bytes=staged_bytes, staged_seconds=staged_seconds, staged_attempts=staged_attempts)
        self.topic = topic or f"{log.topic}.batches"
        self.directory = None if directory is None else Path(directory)
        self._directory_lock: DirectoryLock | None = None
        self._commit_seconds = commit_seconds
        self._reading = SharedReading(log.cluster, self.topic, 1)
        self._read_to: dict[int, int] = {}
        self._owned: OrderedDict[str, TransactionalProducer] = OrderedDict()
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
                config = {"cleanup.policy": "compact"}
                count = await self.log.ensure_topic(self.topic, BATCH_PARTITIONS, config)
                self._read_to = {partition: self._read_to.get(partition, 0) for partition in range(count)}
                bounds = await self._ask(partial(self.log.topics.bounds, self.topic, self._read_to))
                for partition, (_, end) in bounds.items():
                    await self._read(partition, end)
                if self.directory is not None and self._directory_lock is None:
                    await trio.to_thread.run_sync(self._restore, self.directory, trio.current_time() - time.time())
                self._is_ready = True

    async def aclose(self) -> None:
        """Close the ledger. Do nothing the second time."""
        async with self._write_lock.exclusive():
            self._is_ready, self._closed = False, True
            for sink in list(self._owned):
                await self._give_up(sink)
            await self._reading.aclose()
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
        deadline = trio.current_time() + self.log.cluster.patience
        while True:
            try:
                return await super().commit(sink, batch, attempts, once=once)
            except (Fenced, UnknownOutcome) as error:
                # Another server took the sink over, or the broker went away. The next round takes it over again, which
                # settles what became of the transaction.
                if trio.current_time() > deadline:
                    raise NotWritten(f"nobody knows what was written: {error}") from error
            except NotWritten:
                # The broker aborted the transaction.
                if trio.current_time() > deadline:
                    raise

    # The parts of a commit: the base class holds the lock

    async def _prepare(self, sink: str, batch: int, attempts: Collection[str]) -> None:
        last = self.last(sink)
        if last is not None and batch <= last:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        # If an attempt is not staged here, another server may have committed it.
        if sink in self._owned and all(attempt in self._stages for attempt in attempts):
            self._owned.move_to_end(sink)
            return
        await self._give_up(sink)
        producer = await trio.to_thread.run_sync(
            TransactionalProducer, self.log.cluster, f"rsocket-trio.{self.topic}.{sink}", self._commit_seconds
        )
        self._owned[sink] = producer
        try:
            # From here on no other server can commit for this sink, and what it committed is in the topic.
            await producer.begin()
            place = self._place_of(sink)
            ends = await self._ask(partial(self.log.topics.ends, self.topic, [place]))
            await self._read(place, ends[place])
        except BaseException:
            await self._give_up(sink)
            raise
        while len(self._owned) > OWNED_SINKS:
            await self._give_up(next(iter(self._owned)))

    def _checked(self, sink: str, attempt: str, rows: int) -> StagedAttempt:
        try:
            return super()._checked(sink, attempt, rows)
        except NotStaged as error:
            raise NotStaged(f"{error}, at this server: stage the batch again") from None

    def _new_stage(self, sink: str, attempt: str, partition: int, deadline: float) -> StagedAttempt:
        if self.directory is None:
            return super()._new_stage(sink, attempt, partition, deadline)
        return FileStagedAttempt(self.charge, sink, attempt, partition, deadline, self._staged, SYSTEM)

    async def _remove(self, stages: Sequence[StagedAttempt]) -> None:
        if self.directory is None:
            await super()._remove(stages)
        else:
            await trio.to_thread.run_sync(remove_all, stages)

    async def _promote(self, sink: str, batch: int, stages: Sequence[StagedAttempt], once: bool) -> None:
        rows = [Rows(self.log.topic, partition, Unpacked(chain)) for partition, chain in self._chains(stages).items()]
        await self._write(sink, [*rows, self._note(sink, {"batch": batch, "once": once})])
        if once:
            await self._give_up(sink)
        await self.log.show({one.partition: one.first for one in rows if one.first is not None})

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
        return await self.log.cluster.ask(function, f"the bounds of topic {self.topic!r}")

    async def _read(self, partition: int, end: int) -> None:
        """Learn the batches that were written since the last time, up to the offset ``end``."""
        position = self._read_to[partition]
        while position < end:
            block = await self._reading.block(partition, position, READ_BYTES)
            for record in records_of_block(block, position, None, READ_BYTES):
                position = record.end
                if record.key is not None:
                    self._learn(record.key.decode(), record.data)
            self._read_to[partition] = position

    def _learn(self, sink: str, content: bytes) -> None:
        if not content:
            self._committed.forget(sink)
            return
        said = json.loads(content)
        self._committed.remember(sink, said["batch"], said["once"])

    # Attempts on files

    @property
    def _staged(self) -> Path:
        assert self.directory is not None
        return self.directory / "staged"

    def _restore(self, directory: Path, epoch: float) -> None:
        self._directory_lock = DirectoryLock(directory)
        self._staged.mkdir(exist_ok=True)
        for stage in restored_attempts(self._staged, SYSTEM, self.charge, epoch + self._seconds):
            self._stages[stage.attempt] = stage
            self.staged_bytes += stage.size
