"""A log that is a topic of Kafka: positions are offsets, and several servers may serve and write the same topic."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import attrs
import outcome
import trio

from rsocket_trio.connection.parking_lot import ParkingLot
from rsocket_trio.errors import Rejected
from rsocket_trio.replay.elements import Element, Record
from rsocket_trio.replay.errors import NotWritten, PositionAhead, PositionExpired, TopicGone
from rsocket_trio.replay.kafka_blocks import Block, pack_block, records_of_block
from rsocket_trio.replay.kafka_client import PATIENCE, PAUSE, Cluster, Topic, Topics, require_kafka
from rsocket_trio.replay.kafka_reading import SharedReading
from rsocket_trio.replay.kafka_writing import (
    Fenced,
    Rows,
    TransactionalProducer,
    UnknownOutcome,
    begun,
    check_record,
    write_rows,
)
from rsocket_trio.replay.log import READ_BYTES, Appending, ReplayableLog, check_partition
from rsocket_trio.replay.packs import Pack, elements_of

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
        require_kafka()
        self.topic = topic
        self._cluster = Cluster(servers, dict(settings or {}), patience)
        self._wanted = partitions
        self._replication = replication
        self._topics: Topics | None = None
        self._consumers = consumers
        self._reading = SharedReading(self._cluster, topic, consumers)
        self._bounds: dict[int, tuple[int, int]] = {}
        self._seen = Topic("", 0)
        self._looks = 0
        self._looking = trio.Lock()
        self._opening = trio.Lock()
        self._changed = ParkingLot()
        self._moved_at = -LONGEST_POLL
        self._producer: TransactionalProducer | None = None
        self._writer_id = f"rsocket-trio.{topic}.{uuid.uuid4()}"
        self._pending: list[Appending] = []
        self._is_writing = False
        self._closed = False

    @property
    def has_gaps(self) -> bool:
        return True

    @property
    def _open_topics(self) -> Topics:
        """Return the client that asks about topics. Raise ``trio.ClosedResourceError`` unless the log is open."""
        self._check_closed()
        if self._topics is None:
            raise trio.ClosedResourceError("the log is not open: use it under 'async with'")
        return self._topics

    async def open(self) -> None:
        """Open the log; later calls learn the present bounds, so that every request does."""
        self._check_closed()
        if not self._bounds:
            async with self._opening:
                if not self._bounds:
                    await self._connect()
                    return
        await self._refresh()

    async def _connect(self) -> None:
        self._topics = await trio.to_thread.run_sync(Topics, self._cluster)
        try:
            config = {"message.timestamp.type": "LogAppendTime"}
            self._seen = Topic("", await self._ensure_topic(self.topic, self._wanted, config))
            await self._refresh()
        except BaseException:
            # Raised again at once: a log that was not opened is not closed either, and leaves no client behind.
            with trio.CancelScope(shield=True):
                await self._disconnect()
            raise

    async def _disconnect(self) -> None:
        topics, self._topics = self._topics, None
        if topics is not None:
            await trio.to_thread.run_sync(topics.close)

    async def _ensure_topic(self, topic: str, partitions: int | None, config: Mapping[str, str]) -> int:
        """Return the number of partitions of ``topic``, which is made with ``config`` if there is none.

        Raise ``ValueError`` if there is none and ``partitions`` is ``None``.
        """
        topics = self._open_topics
        count = (await self._cluster.ask(partial(topics.describe, topic), f"topic {topic!r}")).partitions
        if not count:
            if partitions is None:
                raise ValueError(
                    f"Kafka at {self._cluster.servers} has no topic {topic!r}: give a number of partitions to make it"
                )
            make = partial(topics.make, topic, partitions, self._replication, config)
            await self._cluster.ask(make, f"to make topic {topic!r}")
            count = partitions
        return count

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

    async def _show(self, committed: Mapping[int, int]) -> None:
        """Wait for a moment until the positions ``committed``, by partition, can be read.

        An open transaction of others, begun before, keeps them hidden for longer.
        """
        with trio.move_on_after(SHOW_SECONDS):
            try:
                for partition, position in committed.items():
                    while self._bounds[partition][1] <= position:
                        await self._refresh()
            except Rejected:
                # The rows are there all the same, and the next request learns of them.
                pass

    async def _look(self) -> dict[int, tuple[int, int]]:
        """Return the bounds as they are now. Raise as `_refresh` does."""
        missing_since: float | None = None
        while True:
            look = partial(self._open_topics.look, self.topic, self._seen)
            topic, found = await self._cluster.ask(look, f"the bounds of topic {self.topic!r}")
            if topic.partitions:
                if topic.id == self._seen.id and topic.partitions <= self._seen.partitions:
                    # One that seems to have fewer partitions than before was made just now.
                    return found
                await self._change_to(topic)
                continue
            now = trio.current_time()
            missing_since = now if missing_since is None else missing_since
            if now >= missing_since + GONE_SECONDS:
                raise TopicGone(f"topic {self.topic!r} is gone")
            await trio.sleep(PAUSE)

    async def _change_to(self, topic: Topic) -> None:
        """Note that the topic is another one by now, or has more partitions. Raise ``TopicGone`` if it has fewer."""
        before = self._seen
        if before.id and topic.id != before.id:
            if topic.partitions < before.partitions:
                raise TopicGone(
                    f"topic {self.topic!r} was made anew, with {topic.partitions} of {before.partitions} partitions"
                )
            reading, self._reading = self._reading, SharedReading(self._cluster, self.topic, self._consumers)
            self._bounds = dict.fromkeys(self._bounds, (0, 0))
            self._seen = topic
            # Readers that wait have positions of the former topic.
            self._changed.wake_all()
            with trio.CancelScope(shield=True):
                await reading.aclose(self._made_anew)
        else:
            self._seen = Topic(topic.id, max(topic.partitions, before.partitions))

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
        block = await self._block(partition, start, max_bytes)
        return iter(()) if block is None else records_of_block(block, start, end, max_bytes)

    async def read_packs(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = READ_BYTES
    ) -> Iterator[Pack]:
        block = await self._block(partition, start, max_bytes)
        return iter(()) if block is None else pack_block(block, start, end, max_bytes)

    async def _block(self, partition: int, start: int, max_bytes: int) -> Block | None:
        earliest, latest = self.bounds(partition)
        if start < earliest:
            raise PositionExpired.at(start, partition, earliest)
        if start > latest:
            raise PositionAhead.at(start, partition, latest)
        if start == latest:
            await trio.lowlevel.checkpoint()
            return None
        reading = self._reading
        block = await reading.block(partition, start, max_bytes)
        if reading is not self._reading:
            raise self._made_anew()
        earliest, latest = self._bounds[partition]
        self._bounds[partition] = earliest, max(latest, block.end)
        return block

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
        ask = partial(self._open_topics.at_time, self.topic, partition, max(-(-timestamp // 1000), 0))
        found = await self._cluster.ask(ask, f"the time {timestamp} of topic {self.topic!r}")
        await self._refresh()
        earliest, latest = self._bounds[partition]
        return latest if found < 0 else min(max(found, earliest), latest)

    async def trim(self, partition: int, before: int) -> None:
        earliest, latest = self.bounds(partition)
        if before <= earliest:
            await trio.lowlevel.checkpoint()
            return
        delete = partial(self._open_topics.delete_below, self.topic, partition, min(before, latest))
        await self._cluster.ask(delete, f"to delete records of topic {self.topic!r}")
        self._reading.forget(partition)
        await self._refresh()

    # Writing: one task at a time writes, in one transaction, all that others appended meanwhile

    async def append_all(
        self, elements: Mapping[int, Iterable[Element | Pack]], *, at: Mapping[int, int] | None = None
    ) -> dict[int, int]:
        """Append ``elements`` in one transaction, as ``ReplayableLog.append_all`` says.

        ``at`` is compared with the offsets that the broker gave them, before the commit. Raise ``NotWritten`` if no
        broker takes them; it says whether nothing was written or that is not known.
        """
        await trio.lowlevel.checkpoint()
        for partition, group in elements.items():
            self._find(partition)
            if isinstance(group, Sequence):
                for element in Unpacked(group):
                    check_record(element)
        appending = Appending(elements, at)
        self._pending.append(appending)
        if self._is_writing:
            await self._wait_for(appending)
        if appending.begins is None:
            with trio.CancelScope(shield=True):
                await self._write_pending()
        assert appending.begins is not None
        return appending.begins.unwrap()

    async def _wait_for(self, appending: Appending) -> None:
        """Wait until ``appending`` is settled, or until it is this task's turn to write."""
        appending.task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            if appending not in self._pending:
                # It is being written: the caller learns the outcome first and is cancelled then.
                return trio.lowlevel.Abort.FAILED
            self._pending.remove(appending)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def _write_pending(self) -> None:
        self._is_writing = True
        together, self._pending = self._pending, []
        try:
            for one, begins in zip(together, await self._write(together), strict=True):
                one.settle(begins)
        finally:
            for one in together:
                if one.begins is None:
                    one.settle(outcome.Error(NotWritten("interrupted: nobody knows what was written")))
            self._is_writing = bool(self._pending)
            if self._pending:
                # The woken task finds its own elements pending, and writes them with those that join until it runs.
                task, self._pending[0].task = self._pending[0].task, None
                assert task is not None
                trio.lowlevel.reschedule(task)

    async def _write(self, together: Sequence[Appending]) -> list[outcome.Outcome[dict[int, int]]]:
        """Write what callers appended: in one transaction, or each alone if that fails."""
        try:
            written = await self._write_once([self._rows_of(one) for one in together], [one.at for one in together])
            return [outcome.Value(begins) for begins in written]
        except (NotWritten, Rejected, trio.ClosedResourceError) as error:
            # Not the fault of one of them. Some of it may be written: a second try could write it twice.
            return [outcome.Error(error) for _ in together]
        except Exception as error:
            # Raised in the task that appended: each caller gets the error of its own elements.
            if len(together) == 1:
                return [outcome.Error(error)]
        return [result for one in together for result in await self._write([one])]

    def _rows_of(self, appending: Appending) -> list[Rows]:
        return [Rows(self.topic, partition, Unpacked(group)) for partition, group in appending.elements.items()]

    async def _write_once(
        self, groups: Sequence[Sequence[Rows]], at: Sequence[Mapping[int, int] | None]
    ) -> list[dict[int, int]]:
        deadline = trio.current_time() + self._cluster.patience

        def check() -> None:
            for rows, wanted in zip(groups, at, strict=True):
                for one in rows:
                    if (
                        wanted is not None
                        and one.first is not None
                        and one.first != wanted.get(one.partition, one.first)
                    ):
                        raise ValueError(
                            f"partition {one.partition} goes on at {one.first}, not at {wanted[one.partition]}: "
                            "somebody else wrote to it"
                        )

        rows = [one for some in groups for one in some]
        while True:
            for one in rows:
                one.first = None
            producer = await self._writer()
            try:
                await write_rows(producer, rows, check)
            except (Fenced, NotWritten) as error:
                # The broker may have aborted a transaction that took too long, or lost its place in a restart.
                await self._drop_writer()
                if trio.current_time() > deadline:
                    if isinstance(error, NotWritten):
                        raise
                    raise NotWritten(f"nothing was written: {error}") from error
            except UnknownOutcome as error:
                await self._drop_writer()
                if trio.current_time() > deadline:
                    raise NotWritten(f"nobody knows what was written: {error}") from error
                try:
                    if await self._is_committed(rows):
                        break
                except (NotWritten, Rejected, trio.ClosedResourceError) as away:
                    raise NotWritten(f"nobody knows what was written: {error}") from away
            else:
                break
        await self._show({one.partition: one.first for one in rows if one.first is not None})
        return [{one.partition: self._begin(one) for one in some} for some in groups]

    def _begin(self, rows: Rows) -> int:
        return self._bounds[rows.partition][1] if rows.first is None else rows.first

    async def _writer(self) -> TransactionalProducer:
        self._check_closed()
        if self._producer is None:
            try:
                self._producer = await begun(self._cluster, self._writer_id, APPEND_SECONDS, self._check_closed)
            except Rejected as error:
                raise NotWritten(f"nothing was written: {error}") from error
        return self._producer

    async def _drop_writer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await trio.to_thread.run_sync(producer.close)

    async def _is_committed(self, rows: Sequence[Rows]) -> bool:
        """Settle a transaction, and return whether it was committed: then its first record can be read."""
        await self._writer()
        for one in rows:
            if one.first is not None:
                await self.wait_beyond(one.partition, one.first)
                block = await self._reading.block(one.partition, one.first, 1)
                low, high = block.between(one.first, one.first + 1)
                return low < high
        return False

    async def aclose(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self._changed.wake_all()
        for one in self._pending:
            one.settle(outcome.Error(trio.ClosedResourceError("the log was closed")))
        self._pending.clear()
        await self._reading.aclose()
        await self._drop_writer()
        async with self._looking:
            await self._disconnect()

    def _find(self, partition: int) -> None:
        self._check_closed()
        if not self._bounds:
            raise trio.ClosedResourceError("the log is not open: use it under 'async with'")
        check_partition(partition, len(self._bounds))

    def _check_closed(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the log was closed")


@attrs.frozen
class Unpacked:
    """The elements of a group, those of packs one by one; unlike a generator it can be read more than once."""

    group: Iterable[Element | Pack]

    def __iter__(self) -> Iterator[Element]:
        for one in self.group:
            if isinstance(one, Pack):
                yield from elements_of(one)
            else:
                yield one
