"""A log that is a topic of Kafka: positions are offsets, and several servers may serve and write the same topic."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

import outcome
import trio

from rsocket_trio.errors import Rejected
from rsocket_trio.replay.appending import Appending, AppendQueue, Begins
from rsocket_trio.replay.elements import Element, Record
from rsocket_trio.replay.errors import NotWritten, TopicGone
from rsocket_trio.replay.kafka_client import PATIENCE, PAUSE, Cluster, Topic, Topics, kafka
from rsocket_trio.replay.kafka_fetcher import Fetcher, pack_block, records_of
from rsocket_trio.replay.kafka_producer import OutcomeUnknown, Rows, TransactionalProducer, check_record
from rsocket_trio.replay.log import READ_BYTES, ReplayableLog, check_partition
from rsocket_trio.replay.packs import Pack, arrow
from rsocket_trio.tools.parking_lot import ParkingLot

T = TypeVar("T")

APPEND_SECONDS = 15.0
"""Seconds after which the broker aborts an append whose server is gone: so long it keeps readers waiting."""
GONE_SECONDS = 2.0
"""Seconds for which a topic that was there is looked for before it is gone: a broker may be about to learn of it."""
SHOW_SECONDS = 0.2
"""Seconds that an append waits until its records can be read: a moment after the commit, if nothing is in the way."""
POLL_SECONDS = 0.05
"""Seconds between two looks for new records while readers wait."""


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

    _config: Mapping[str, str] = {"message.timestamp.type": "LogAppendTime"}
    """The settings of a topic that is made."""
    _shows = True
    """True if an append waits until it can be read."""

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
        self._new_fetcher = partial(Fetcher, self._cluster, topic, consumers)
        self._fetcher = self._new_fetcher()
        self._bounds: dict[int, tuple[int, int]] = {}
        self._seen = Topic("", 0)
        self._looks = 0
        self._looking = trio.Lock()
        self._opening = trio.Lock()
        self._changed = ParkingLot()
        self._producer = TransactionalProducer(self._cluster, f"rsocket-trio.{topic}.{uuid.uuid4()}", APPEND_SECONDS)
        self._appends = AppendQueue(self._write)
        self._closed = False

    def _beside(self, topic: str, partitions: int, config: Mapping[str, str]) -> KafkaLog:
        """Return the log of a topic of a ledger, which is made with ``config`` if there is none.

        What is appended to it can be read a moment later, and its readers read up to the end and then ``_rest``.
        """
        cluster = self._cluster
        # So long they wait to learn that nothing is behind the marker of a transaction.
        settings = {**cluster.settings, "fetch.wait.max.ms": 2}
        log = KafkaLog(cluster.servers, topic, partitions, consumers=1, patience=cluster.patience, settings=settings)
        log._replication, log._config, log._shows = self._replication, config, False
        return log

    def _rest(self) -> None:
        """Fetch nothing ahead."""
        self._fetcher.rest()

    @property
    def has_gaps(self) -> bool:
        return True

    async def open(self) -> None:
        """Open the log; later calls learn the present bounds, so that every request does."""
        self._check_closed()
        async with self._opening:
            if not self._bounds:
                try:
                    self._seen = await self._find_topic()
                    await self._refresh()
                except BaseException:
                    # Raised again at once: a log that was not opened is not closed either, and leaves no client behind.
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(self._topics.close)
                    raise
                return
        await self._refresh()

    async def _ask(self, what: str, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a request about the topic finds, as ``Cluster.ask`` does."""
        self._check_closed()
        return await self._cluster.ask(partial(function, self.topic, *arguments), f"{what} {self.topic!r}")

    async def _find_topic(self) -> Topic:
        """Return the topic, which is made if there is none: then its id is not known yet. Raise ``ValueError``."""
        found = await self._ask("topic", self._topics.describe)
        if found.partitions:
            return found
        if self._wanted is None:
            raise ValueError(
                f"Kafka at {self._cluster.servers} has no topic {self.topic!r}: give a number of partitions to make it"
            )
        await self._ask("to make topic", self._topics.make, self._wanted, self._replication, self._config)
        return Topic("", self._wanted)

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
            found = await self._look()
            if found != self._bounds:
                self._bounds = found
                self._changed.wake_all()

    async def _look(self) -> dict[int, tuple[int, int]]:
        """Return the bounds as they are now. Raise as `_refresh` does."""
        missing_since: float | None = None
        while True:
            topic, bounds = await self._ask("the bounds of topic", self._topics.look, self._seen)
            if topic.id and topic.id != self._seen.id:
                await self._change_to(topic)
                continue
            if bounds:
                return bounds
            if not topic.partitions:
                missing_since = trio.current_time() if missing_since is None else missing_since
                if trio.current_time() >= missing_since + GONE_SECONDS:
                    raise TopicGone(f"topic {self.topic!r} is gone")
            await trio.sleep(PAUSE)

    async def _change_to(self, topic: Topic) -> None:
        """Go on with a topic that was made, or made anew. Raise ``TopicGone`` if it has fewer partitions than before.

        One that was made just now may seem to have fewer than it was given.
        """
        before = self._seen
        if not before.id:
            self._seen = Topic(topic.id, max(topic.partitions, before.partitions))
            return
        if topic.partitions < before.partitions:
            raise TopicGone(
                f"topic {self.topic!r} was made anew, with {topic.partitions} of {before.partitions} partitions"
            )
        self._seen = topic
        self._bounds = dict.fromkeys(self._bounds, (0, 0))
        # Readers that wait have positions of the former topic.
        self._changed.wake_all()
        fetcher, self._fetcher = self._fetcher, self._new_fetcher()
        with trio.CancelScope(shield=True):
            await fetcher.aclose(self._made_anew)

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
        latest = self._bounds[partition][1]
        if start == latest:
            await trio.lowlevel.checkpoint()
            return iter(())
        fetcher = self._fetcher
        block = await fetcher.block(partition, start, latest)
        if fetcher is not self._fetcher:
            raise self._made_anew()
        return pack_block(block, start, latest if end is None else min(end, latest), max_bytes)

    async def _settled_end(self, partition: int, *, stable: bool = False) -> int:
        """Return the end of what was written before this call, once all of it can be read or never will be.

        Wait for transactions that are open, or with ``stable`` leave out what they and later ones write.
        """
        end = (await self._ask("the end of topic", self._topics.ends, [partition], stable))[partition]
        await self.wait_beyond(partition, end - 1)
        return end

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
                with trio.move_on_after(POLL_SECONDS):
                    # ``refresh`` wakes it, that of an append among others, and ``aclose``.
                    await self._changed.park()

    async def position_at(self, partition: int, timestamp: int) -> int:
        self._find(partition)
        # Kafka counts milliseconds: a record of the same millisecond may be older.
        milliseconds = max(-(-timestamp // 1000), 0)
        found = await self._ask(f"the time {timestamp} of topic", self._topics.at_time, partition, milliseconds)
        await self._refresh()
        earliest, latest = self._bounds[partition]
        return latest if found < 0 else min(max(found, earliest), latest)

    async def trim(self, partition: int, before: int) -> None:
        earliest, latest = self.bounds(partition)
        if before <= earliest:
            await trio.lowlevel.checkpoint()
            return
        await self._ask("to delete records of topic", self._topics.delete_below, partition, min(before, latest))
        self._fetcher.forget(partition)
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
        except (NotWritten, trio.ClosedResourceError) as error:
            # Not the fault of one of them. Some of it may be written: a second try could write it twice.
            return [outcome.Error(error) for _ in groups]
        except Exception as error:
            # Raised in the task that appended: each caller gets the error of its own elements.
            if len(groups) == 1:
                return [outcome.Error(error)]
        return [result for one in groups for result in await self._write_together([one])]

    async def _write_once(self, groups: Sequence[Appending]) -> list[dict[int, int]]:
        """Write groups in one transaction. Return where each of them begins."""

        async def write() -> list[Rows]:
            written = [Rows(self.topic, placed(one.elements), one.at) for one in groups]
            await self._producer.write(written)
            return written

        try:
            written = await write()
        except OutcomeUnknown:
            raise
        except NotWritten:
            # A broker went away in the middle: to begin anew waits for it.
            written = await write()
        for rows in written if self._shows else ():
            await self._show(rows)
        return [
            {number: rows.firsts.get(number, self._bounds[number][1]) for number in one.elements}
            for one, rows in zip(groups, written, strict=True)
        ]

    async def _show(self, rows: Rows) -> None:
        """Wait for a moment until rows can be read: open transactions of others keep them hidden for longer."""
        with trio.move_on_after(SHOW_SECONDS), suppress(Rejected):
            # Without an answer the rows are there all the same, and the next request learns of them.
            while any(self._bounds[partition][1] <= first for partition, first in rows.firsts.items()):
                await self._refresh()

    async def aclose(self) -> None:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        self._changed.wake_all()
        await self._fetcher.aclose(log_closed)
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
            raise log_closed()


def log_closed() -> Exception:
    """Return the error of a log that was closed."""
    return trio.ClosedResourceError("the log was closed")


def placed(elements: Mapping[int, Iterable[Element | Pack]]) -> Iterator[tuple[int, Element]]:
    """Yield elements with their partitions, those of packs one by one."""
    for partition, group in elements.items():
        for one in group:
            for element in arrow().elements_of(one) if isinstance(one, Pack) else (one,):
                yield partition, element
