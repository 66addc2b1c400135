"""A log that is a topic of Kafka: positions are offsets, and several servers may serve and write the same topic."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from rsocket_trio.replay import elements, kafka_client
from rsocket_trio.replay.elements import RECORD_METADATA, Element, Pack, Record, arrow, prepared
from rsocket_trio.replay.errors import PositionExpired, TopicGone
from rsocket_trio.replay.kafka_client import CONSUMER, Cluster, Rows, Topic, TransactionalProducer, failed, kafka
from rsocket_trio.replay.log import READ_BYTES, Appending, AppendQueue, ReplayableLog
from rsocket_trio.tools.parking_lot import ParkingLot

if TYPE_CHECKING:
    from confluent_kafka import Message

T = TypeVar("T")

APPEND_SECONDS = 15.0
"""Seconds after which the broker aborts an append whose server is gone: so long it keeps readers waiting."""
LOOK_SECONDS = 0.02
"""Seconds between two looks for new records while readers wait."""
POLL_SECONDS = 0.1
"""Seconds that a consumer blocks its thread while nothing comes: a cancelled reader waits for it."""


def packs_of(start: int, end: int, messages: Sequence[Message]) -> Iterator[Pack]:
    """Return packs of the records among messages; they span all positions from ``start`` to below ``end``."""
    import pyarrow as pa

    kind = kafka().Message
    rows = [message for message in messages if message.error() is None and (message.offset() or 0) < end]
    headers = list(map(kind.headers, rows))
    columns: dict[str, list[Any]] = {
        "position": list(map(kind.offset, rows)),
        "data": list(map(kind.value, rows)),
        "key": list(map(kind.key, rows)),
        "timestamp": [time * 1000 if time >= 0 else None for _, time in map(kind.timestamp, rows)],
    }
    if any(headers):
        columns["metadata"] = [dict(pairs or ()).get(RECORD_METADATA) for pairs in headers]
        columns["headers"] = [[pair for pair in pairs or () if pair[0] != RECORD_METADATA] or None for pairs in headers]
    schema = pa.schema([arrow().PACK_SCHEMA.field(name) for name in columns])
    batch = pa.RecordBatch.from_pydict(columns, schema)
    packs: Iterator[Pack] = arrow().spanning(batch, start, end)
    return packs


@attrs.define(eq=False)
class PartitionConsumer:
    """A consumer that reads one partition at a time: its client, and the partition and offset that it reads next."""

    client: Any = None
    place: tuple[int, int] | None = None


class KafkaLog(ReplayableLog):
    """The topic ``topic`` of the Kafka cluster at ``servers``, ``host:port`` with commas between; extra ``kafka``.

    A topic that does not exist is made if ``partitions`` says with how many; ``replication`` is then the number of its
    replicas, by default the broker's. At most ``consumers`` read at a time, for all readers together. While no broker
    answers, requests wait for ``patience`` seconds and then raise ``Rejected``. ``settings`` are librdkafka's, for all
    clients: ``{"security.protocol": "SASL_SSL", ...}``.

    Only committed records are seen. Aborted and compacted ones, and the markers of transactions, leave gaps. A
    record is one row, so an element of several raises ``ValueError``; metadata is kept as a header. Timestamps are
    those of the topic: one that is made here has the broker's, at append. ``bounds`` are those of the last request
    or ``open``: a record can be read a moment after its append. Opening raises ``ValueError`` if there is no such
    topic or Kafka refuses the settings; the log raises ``ModuleNotFoundError`` without confluent-kafka.
    """

    has_gaps = True
    _config: Mapping[str, str] = {"message.timestamp.type": "LogAppendTime"}
    """The settings of a topic that is made."""

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int | None = None,
        *,
        replication: int = -1,
        consumers: int = 4,
        patience: float = kafka_client.MAX_ANSWER_SECONDS,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        for what, number in (("partitions", partitions), ("consumers", consumers)):
            if number is not None and number < 1:
                raise ValueError(f"{number} {what}: there must be at least 1")
        kafka()
        self.topic = topic
        self._cluster = Cluster(servers, dict(settings or {}), patience)
        self._wanted = partitions
        self._replication = replication
        self._limiter = trio.CapacityLimiter(consumers)
        # The consumer that was idle for longest first.
        self._idle = [PartitionConsumer() for _ in range(consumers)]
        # What was fetched last, with the partition, for readers that follow close behind.
        self._packs: deque[tuple[int, list[Pack]]] = deque(maxlen=2 * consumers)
        self._bounds: dict[int, tuple[int, int]] = {}
        self._seen = Topic()
        self._looks = 0
        self._looking = trio.Lock()
        self._changed = ParkingLot()
        self._producer = TransactionalProducer(self._cluster, f"rsocket-trio.{topic}.{uuid.uuid4()}", APPEND_SECONDS)
        self._appends = AppendQueue(self._write)
        self._closed = self._is_other = False

    def _beside(self, topic: str, partitions: int, config: Mapping[str, str]) -> KafkaLog:
        """Return the log of a topic of a ledger, which is made with ``config`` if there is none."""
        cluster = self._cluster
        # So long they wait to learn that nothing is behind the marker of a transaction.
        settings = {**cluster.settings, "fetch.wait.max.ms": 2}
        log = KafkaLog(cluster.servers, topic, partitions, consumers=1, patience=cluster.patience, settings=settings)
        log._replication, log._config = self._replication, config
        return log

    async def open(self) -> None:
        """Open the log; later calls learn the bounds as they are now, or later, so that every request does.

        Calls at the same time share a request. Raise ``Rejected`` if no broker answers, ``TopicGone`` if the topic is
        not there any more, or was made anew.
        """
        self._check_closed()
        ticket = self._looks
        async with self._looking:
            if self._looks > ticket and self._bounds:
                return  # a look that began after this call has ended
            self._looks += 1
            try:
                if not self._bounds:
                    self._seen = await self._find_topic()
                topic, bounds = await self._ask("the bounds of topic", self._cluster.look, self._seen)
            except BaseException:
                # Raised again at once: a log that was not opened is not closed either, and leaves no client behind.
                if not self._bounds:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(self._cluster.close)
                raise
            self._is_other = topic.id != self._seen.id
            self._check_closed()
            if bounds != self._bounds:
                self._bounds = bounds
                self._changed.wake_all()

    async def aclose(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self._changed.wake_all()
        for _ in range(int(self._limiter.total_tokens)):
            # A fetch returns within POLL_SECONDS.
            await self._limiter.acquire_on_behalf_of(object())
        for consumer in self._idle:
            if consumer.client is not None:
                await trio.to_thread.run_sync(consumer.client.close)
        self._packs.clear()
        await self._producer.aclose()
        async with self._looking:
            await trio.to_thread.run_sync(self._cluster.close)

    def _check_closed(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the log was closed")
        if self._is_other:
            raise TopicGone(f"topic {self.topic!r} was made anew: positions of before mean nothing")

    # The topic, and its bounds

    async def _ask(self, what: str, function: Callable[..., T], *arguments: object) -> T:
        """Return what a request about the topic finds, as ``Cluster.ask`` does."""
        self._check_closed()
        return await self._cluster.ask(partial(function, self.topic, *arguments), f"{what} {self.topic!r}")

    async def _find_topic(self) -> Topic:
        """Return the topic, which is made if there is none. Raise ``ValueError``."""
        topic = await self._ask("topic", self._cluster.describe)
        if topic.partitions:
            return topic
        if self._wanted is None:
            raise ValueError(
                f"Kafka at {self._cluster.servers} has no topic {self.topic!r}: give a number of partitions to make it"
            )
        await self._ask("to make topic", self._cluster.make, self._wanted, self._replication, self._config)
        return await self._ask("the new topic", self._cluster.describe, self._wanted)

    def partitions(self) -> Sequence[int]:
        return range(len(self._bounds))

    def bounds(self, partition: int) -> tuple[int, int]:
        self._check_closed()
        if not self._bounds:
            raise trio.ClosedResourceError("the log is not open: use it under 'async with'")
        self._check_partition(partition, len(self._bounds))
        return self._bounds[partition]

    # Reading

    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        packs = await self._read_stored(partition, start, end, max_bytes)
        return (record for pack in packs for record in arrow().rows_of(pack))

    async def _read_stored(self, partition: int, start: int, end: int | None, max_bytes: int) -> list[Pack]:
        self.check_range(partition, start, None)
        await trio.lowlevel.checkpoint()
        latest = self._bounds[partition][1]
        stop = latest if end is None else min(end, latest)
        if start >= stop:
            return []
        if (pack := self._kept(partition, start, stop)) is None:
            async with self._limiter:
                # Another reader of the same place may have fetched it meanwhile.
                pack = self._kept(partition, start, stop) or await self._fetched(partition, start, stop)
        return [pack]

    def _kept(self, partition: int, start: int, stop: int) -> Pack | None:
        self._check_closed()
        kept = (pack for place, packs in self._packs if place == partition for pack in packs)
        return next((pack for pack in kept if pack.position == start and pack.end <= stop), None)

    async def _fetched(self, partition: int, start: int, stop: int) -> Pack:
        """Return the next rows from ``start`` to below ``stop``, and keep those behind them.

        Raise ``PositionExpired`` if the offset is not there any more, ``Rejected`` if no broker answers.
        """
        consumer = next((idle for idle in self._idle if idle.place == (partition, start)), self._idle[0])
        self._idle.remove(consumer)
        fetch = partial(self._fetch, consumer, partition, start, stop)
        try:
            packs = await self._cluster.ask(fetch, f"partition {partition} of topic {self.topic!r} at {start}")
        except PositionExpired:
            await self.open()  # raises if the topic is another one by now
            raise
        finally:
            self._idle.append(consumer)
        self._packs.append((partition, packs))
        return packs[0]

    def _fetch(self, consumer: PartitionConsumer, partition: int, start: int, stop: int) -> list[Pack]:
        """Return packs from ``start`` to below ``stop``. Raise ``KafkaException`` if none came in time. It blocks."""
        self._check_closed()
        if consumer.client is None:
            settings = {"isolation.level": "read_committed"}
            consumer.client = self._cluster.client(kafka().Consumer, CONSUMER, settings)
        if consumer.place != (partition, start):
            consumer.client.assign([kafka().TopicPartition(self.topic, partition, start)])
        # What fails below may have taken messages that nobody gets.
        consumer.place = None
        # The others are those that are here already: without a timeout it does not wait for more.
        most = min(stop - start, elements.PACK_ROWS) - 1
        messages = consumer.client.consume(1, POLL_SECONDS) + consumer.client.consume(most, 0)
        for error in filter(None, map(kafka().Message.error, messages)):
            if kafka_client.is_any(error, "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
                raise PositionExpired(f"position {start} of partition {partition} is gone")
            if not kafka_client.is_any(error, "_PARTITION_EOF"):
                raise kafka().KafkaException(error)
        # Behind the last record, or where the end of the partition is.
        behind = max([start, *[(last.offset() or 0) + (last.error() is None) for last in messages[-1:]]])
        if behind < self._bounds[partition][1]:
            consumer.place = (partition, behind)
        else:
            # It would ask the broker for more all the time.
            consumer.client.unassign()
        if behind == start:
            raise failed("_TIMED_OUT", "no records came")
        return list(packs_of(start, min(behind, stop), messages))

    async def _settled_end(self, partition: int) -> int:
        """Return the end of what was written before this call, once all of it can be read or never will be."""
        latest = kafka().admin.OffsetSpec.latest()
        end = (await self._ask("the end of topic", self._cluster.offsets, [partition], latest, False))[partition]
        await self.wait_beyond(partition, end - 1)
        return end

    async def wait_beyond(self, partition: int, position: int) -> None:
        await trio.lowlevel.checkpoint()
        while self.bounds(partition)[1] <= position:
            await self.open()
            if self.bounds(partition)[1] <= position:
                with trio.move_on_after(LOOK_SECONDS):
                    # ``open`` wakes it, an append, and ``aclose``.
                    await self._changed.park()

    async def position_at(self, partition: int, timestamp: int) -> int:
        self.bounds(partition)
        # Kafka counts milliseconds: a record of the same millisecond may be older.
        time = kafka().admin.OffsetSpec.for_timestamp(max(-(-timestamp // 1000), 0))
        found = await self._ask(f"the time {timestamp} of topic", self._cluster.offsets, [partition], time)
        await self.open()
        earliest, latest = self.bounds(partition)
        return latest if found[partition] < 0 else min(max(found[partition], earliest), latest)

    async def trim(self, partition: int, before: int) -> None:
        earliest, latest = self.bounds(partition)
        if before > earliest:
            await self._ask("to delete records of topic", self._cluster.delete_below, partition, min(before, latest))
        await self.open()

    # Writing: one task at a time writes, in one transaction, all that others appended meanwhile

    async def append_all(
        self, elements: Mapping[int, Iterable[Element | Pack]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Append ``elements`` in one transaction: ``at`` is compared with the broker's offsets before the commit.

        Raise ``NotWritten`` if no broker takes them; it says whether nothing was written or that is not known.
        """
        await trio.lowlevel.checkpoint()
        for partition in elements:
            self.bounds(partition)
        own = Appending({partition: prepared(group) for partition, group in elements.items()}, at)
        return await self._appends.append(own)

    async def _write(self, take: Callable[[], list[Appending]]) -> Sequence[dict[int, int]]:
        self._check_closed()
        return await kafka_client.twice(partial(self._write_once, take()))

    async def _write_once(self, groups: Sequence[Appending]) -> list[dict[int, int]]:
        written = [Rows(self.topic, rows_of(group), group.at) for group in groups]
        with trio.CancelScope(shield=True):
            await self._producer.write(written)
        self._changed.wake_all()
        return [
            {number: rows.firsts.get(number, self._bounds[number][1]) for number in group.elements}
            for group, rows in zip(groups, written, strict=True)
        ]


def rows_of(appending: Appending) -> Iterator[tuple[int, Element]]:
    for partition, group in appending.elements.items():
        for stored in group:
            for element in arrow().elements_of(stored) if isinstance(stored, Pack) else (stored,):
                yield partition, element
