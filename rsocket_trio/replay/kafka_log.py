"""A log that is a topic of Kafka: positions are offsets, and several servers may serve and write the same topic."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

import outcome
import trio

from rsocket_trio.connection.parking_lot import ParkingLot
from rsocket_trio.errors import Rejected
from rsocket_trio.replay.appending import Appending, AppendQueue, Begins
from rsocket_trio.replay.elements import Element, Record
from rsocket_trio.replay.errors import NotWritten, TopicGone
from rsocket_trio.replay.kafka_blocks import pack_block, records_of
from rsocket_trio.replay.kafka_client import PATIENCE, PAUSE, Cluster, Topic, Topics, kafka
from rsocket_trio.replay.kafka_reading import SharedReading
from rsocket_trio.replay.kafka_writing import Rows, TransactionalProducer, check_record, until_known
from rsocket_trio.replay.log import READ_BYTES, ReplayableLog, check_partition
from rsocket_trio.replay.packs import Pack, arrow

T = TypeVar("T")

APPEND_SECONDS = 15.0
"""Seconds after which the broker aborts an append whose server is gone: so long it keeps readers waiting."""
GONE_SECONDS = 2.0
"""Seconds for which a topic that was there is looked for before it is gone: a broker may be about to learn of it."""
SHOW_SECONDS = 0.2
"""Seconds that an append waits until its records can be read: a moment after the commit, if nothing is in the way."""
SHORTEST_POLL = 0.005
LONGEST_POLL = 0.1
"""Seconds between two looks for new records while readers wait: few behind the last record, then more."""


class KafkaLog(ReplayableLog):
    """The topic ``topic`` of the Kafka cluster at ``servers``, ``host:port`` with commas between; extra ``kafka``.

    A topic that does not exist is made if ``partitions`` says with how many; ``replication`` is then the number of its
    replicas, by default the broker's. At most ``consumers`` read at a time, for all readers together. While no broker
    answers, requests wait for ``patience`` seconds and then raise ``Rejected``. ``settings`` are librdkafka's, for all
    clients: ``{"security.protocol": "SASL_SSL", ...}``.

    Only committed records are seen. Aborted and compacted ones, and the markers of transactions, leave gaps. A record
    is one row, so an element of several raises ``ValueError``; metadata is kept as a header. Timestamps are those of
    the topic: one that is made here has the broker's, at append. ``bounds`` are those of the last request, append or
    ``open``. Opening raises ``ValueError`` if there is no such topic or Kafka refuses the settings; the log raises
    ``ModuleNotFoundError`` without confluent-kafka.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        partitions: int | None = None,
        *,
        replication: int = -1,
        consumers: int = 4,
        patience: float = PATIENCE,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if partitions is not None and partitions < 1:
            raise ValueError(f"{partitions} partitions: there must be at least 1")
        if consumers < 1:
            raise ValueError(f"{consumers} consumers: there must be at least 1")
        kafka()
        self.topic = topic
        self._cluster = Cluster(servers, dict(settings or {}), patience)
        self._wanted = partitions
        self._replication = replication
        self._topics = Topics(self._cluster)
        self._consumers = consumers
        self._reading = SharedReading(self._cluster, topic, consumers)
        self._bounds: dict[int, tuple[int, int]] = {}
        self._seen = Topic("", 0)
        self._looks = 0
        self._looking = trio.Lock()
        self._opening = trio.Lock()
        self._changed = ParkingLot()
        self._moved_at = -LONGEST_POLL
        self._producer = TransactionalProducer(self._cluster, f"rsocket-trio.{topic}.{uuid.uuid4()}", APPEND_SECONDS)
        self._appends = AppendQueue(self._write)
        self._closed = False

    @property
    def has_gaps(self) -> bool:
        return True

    async def open(self) -> None:
        """Open the log; later calls learn the present bounds, so that every request does."""
        self._check_closed()
        async with self._opening:
            if not self._bounds:
                try:
                    config = {"message.timestamp.type": "LogAppendTime"}
                    self._seen = Topic("", await self._ensure_topic(self.topic, self._wanted, config))
                    await self._refresh()
                except BaseException:
                    # Raised again at once: a log that was not opened is not closed either, and leaves no client behind.
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(self._topics.close)
                    raise
                return
        await self._refresh()

    async def _ask(self, what: str, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a request about a topic finds, as ``Cluster.ask`` does."""
        self._check_closed()
        return await self._cluster.ask(partial(function, *arguments), what)

    async def _ensure_topic(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Return the number of partitions of ``topic``, which is made with ``config`` if there is none.

        Raise ``ValueError`` if there is none and ``partitions`` is ``None``.
        """
        count = (await self._ask(f"topic {topic!r}", self._topics.describe, topic)).partitions
        if not count:
            if partitions is None:
                raise ValueError(
                    f"Kafka at {self._cluster.servers} has no topic {topic!r}: give a number of partitions to make it"
                )
            making = self._topics.make, topic, partitions, self._replication, config
            await self._ask(f"to make topic {topic!r}", *making)
        return count or partitions or 0

    def partitions(self) -> Sequence[int]:
        return range(len(self._bounds))

    def bounds(self, partition: int) -> tuple[int, int]:
        self._find(partition)
        return self._bounds[partition]

    async def _refresh(self) -> None:
        """Learn the bounds as they are now, or later: calls at the same time share a request.

        Raise ``Rejected`` if no broker answers, ``TopicGone`` if the topic is not there, or smaller than it was.
        """
        ticket = self._looks
        async with self._looking:
            if self._looks > ticket:
                return  # a look that began after this call has ended
            self._looks += 1
            before = dict(self._bounds)
            found = await self._look()
            for partition, (_, seen) in self._bounds.items():
                # A reader may have seen more meanwhile than the answer knows of.
                if seen != before[partition][1]:
                    found[partition] = (found[partition][0], max(found[partition][1], seen))
            self._bounds = found
            if before != self._bounds:
                self._moved_at = trio.current_time()
                self._changed.wake_all()

    async def _show(self, written: Iterable[Rows]) -> None:
        """Wait for a moment until rows can be read: open transactions of others keep them hidden for longer."""
        with trio.move_on_after(SHOW_SECONDS), suppress(Rejected):
            # Without an answer the rows are there all the same, and the next request learns of them.
            for rows in written:
                while rows.first is not None and self._bounds[rows.partition][1] <= rows.first:
                    await self._refresh()

    async def _look(self) -> dict[int, tuple[int, int]]:
        """Return the bounds as they are now. Raise as `_refresh` does."""
        missing_since: float | None = None
        while True:
            what, before = f"the bounds of topic {self.topic!r}", self._seen
            topic, found = await self._ask(what, self._topics.look, self.topic, before)
            if not topic.partitions:
                missing_since = trio.current_time() if missing_since is None else missing_since
                if trio.current_time() >= missing_since + GONE_SECONDS:
                    raise TopicGone(f"topic {self.topic!r} is gone")
                await trio.sleep(PAUSE)
            elif before.id and topic.id != before.id:
                await self._change_to(topic)
            elif topic.id == before.id and topic.partitions <= before.partitions:
                # One that seems to have fewer partitions than before was made just now.
                return found
            else:
                self._seen = Topic(topic.id, max(topic.partitions, before.partitions))

    async def _change_to(self, topic: Topic) -> None:
        """Go on with a topic that was made anew. Raise ``TopicGone`` if it has fewer partitions."""
        if topic.partitions < (count := self._seen.partitions):
            raise TopicGone(f"topic {self.topic!r} was made anew, with {topic.partitions} of {count} partitions")
        reading, self._reading = self._reading, SharedReading(self._cluster, self.topic, self._consumers)
        self._bounds = dict.fromkeys(self._bounds, (0, 0))
        self._seen = topic
        # Readers that wait have positions of the former topic.
        self._changed.wake_all()
        with trio.CancelScope(shield=True):
            await reading.aclose(self._made_anew)

    def _made_anew(self) -> TopicGone:
        return TopicGone(f"topic {self.topic!r} was made anew: positions of before mean nothing")

    # Reading

    async def read(self, partition: int, start: int, end: int | None = None) -> AsyncGenerator[Record, None]:
        await self.open()
        async with aclosing(super().read(partition, start, end)) as records:
            async for record in records:
                yield record

    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Record]:
        return records_of(await self.read_packs(partition, start, end, max_bytes=max_bytes))

    async def read_packs(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Pack]:
        self.check_range(partition, start, None)
        if start == self._bounds[partition][1]:
            await trio.lowlevel.checkpoint()
            return iter(())
        reading = self._reading
        block = await reading.block(partition, start, max_bytes)
        if reading is not self._reading:
            raise self._made_anew()
        earliest, latest = self._bounds[partition]
        self._bounds[partition] = earliest, max(latest, block.end)
        return pack_block(block, start, end, max_bytes)

    async def wait_beyond(self, partition: int, position: int) -> None:
        self._find(partition)
        await trio.lowlevel.checkpoint()
        topic = self._seen.id
        while self._bounds[partition][1] <= position:
            self._check_closed()
            await self._refresh()
            if self._seen.id != topic:
                raise self._made_anew()
            if self._bounds[partition][1] <= position:
                idle = trio.current_time() - self._moved_at
                with trio.move_on_after(min(max(idle / 10, SHORTEST_POLL), LONGEST_POLL)):
                    # ``refresh`` wakes it, that of an append among others, and ``aclose``.
                    await self._changed.park()

    async def position_at(self, partition: int, timestamp: int) -> int:
        self._find(partition)
        # Kafka counts milliseconds: a record of the same millisecond may be older.
        time = partition, max(-(-timestamp // 1000), 0)
        found = await self._ask(f"the time {timestamp} of {self.topic!r}", self._topics.at_time, self.topic, *time)
        await self._refresh()
        earliest, latest = self._bounds[partition]
        return latest if found < 0 else min(max(found, earliest), latest)

    async def trim(self, partition: int, before: int) -> None:
        earliest, latest = self.bounds(partition)
        if before <= earliest:
            await trio.lowlevel.checkpoint()
            return
        below = partition, min(before, latest)
        await self._ask(f"to delete records of {self.topic!r}", self._topics.delete_below, self.topic, *below)
        self._reading.forget(partition)
        await self._refresh()

    # Writing: one task at a time writes, in one transaction, all that others appended meanwhile

    async def append_all(
        self, elements: Mapping[int, Iterable[Element | Pack]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Append ``elements`` in one transaction: ``at`` is compared with the broker's offsets before the commit.

        Raise ``NotWritten`` if no broker takes them; it says whether nothing was written or that is not known.
        """
        await trio.lowlevel.checkpoint()
        for partition, group in elements.items():
            self._find(partition)
            if isinstance(group, Sequence):
                for element in group:
                    if isinstance(element, Element):
                        check_record(element)
        return await self._appends.append(Appending(elements, at))

    async def _write(self, take: Callable[[], list[Appending]]) -> Sequence[Begins]:
        self._check_closed()
        return await self._write_together(take())

    async def _write_together(self, groups: Sequence[Appending]) -> list[Begins]:
        """Write what callers appended: in one transaction, or each alone if that fails."""
        try:
            with trio.CancelScope(shield=True):
                written = await self._write_once(groups)
            return [outcome.Value(begins) for begins in written]
        except (NotWritten, Rejected, trio.ClosedResourceError) as error:
            # Not the fault of one of them. Some of it may be written: a second try could write it twice.
            return [outcome.Error(error) for _ in groups]
        except Exception as error:
            # Raised in the task that appended: each caller gets the error of its own elements.
            if len(groups) == 1:
                return [outcome.Error(error)]
        return [result for one in groups for result in await self._write_together([one])]

    async def _write_once(self, groups: Sequence[Appending]) -> list[dict[int, int]]:
        """Write groups in one transaction. Return where each of them begins."""
        tried: list[Rows] = []

        def check() -> None:
            for rows, at in zip(tried, wanted, strict=True):
                if rows.first is not None and at is not None and rows.first != at:
                    raise ValueError(
                        f"partition {rows.partition} goes on at {rows.first}, not at {at}: somebody else wrote to it"
                    )

        async def write() -> None:
            try:
                await self._producer.begin()
            except Rejected as error:
                raise NotWritten(f"nothing was written: {error}") from error
            if not await self._is_committed(tried):
                tried[:] = [Rows(self.topic, number, unpacked(one.elements[number])) for one, number in places]
                await self._producer.write(tried, check)

        places = [(one, number) for one in groups for number in one.elements]
        wanted = [None if one.at is None else one.at.get(number) for one, number in places]
        await until_known(self._cluster.patience, write)
        await self._show(tried)
        ends = iter([self._bounds[rows.partition][1] if rows.first is None else rows.first for rows in tried])
        return [{number: next(ends) for number in one.elements} for one in groups]

    async def _is_committed(self, rows: Sequence[Rows]) -> bool:
        """Return whether a former try, which is settled, was committed: then its first record can be read."""
        for one in rows:
            if one.first is not None:
                await self.wait_beyond(one.partition, one.first)
                return one.first in await self._reading.block(one.partition, one.first, 1)
        return False

    async def aclose(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self._changed.wake_all()
        await self._reading.aclose()
        await self._producer.aclose()
        async with self._looking:
            await trio.to_thread.run_sync(self._topics.close)

    def _find(self, partition: int) -> None:
        self._check_closed()
        if not self._bounds:
            raise trio.ClosedResourceError("the log is not open: use it under 'async with'")
        check_partition(partition, len(self._bounds))

    def _check_closed(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the log was closed")


def unpacked(group: Iterable[Element | Pack]) -> Iterator[Element]:
    """Yield the elements of a group, those of packs one by one."""
    for one in group:
        if isinstance(one, Pack):
            yield from arrow().elements_of(one)
        else:
            yield one
