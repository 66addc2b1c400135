"""Reads partitions of Kafka block by block, with a bounded number of consumers that all readers share."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from rsocket_trio.connection.parking_lot import ParkingLot
from rsocket_trio.replay.errors import PositionExpired
from rsocket_trio.replay.kafka_blocks import OVERHEAD, Block, block_of
from rsocket_trio.replay.kafka_client import Cluster, made, passes

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

POLL_SECONDS = 0.1
"""Seconds that a consumer blocks its thread while nothing comes: a cancelled reader waits for it."""
KEPT_BLOCKS = 2
"""Blocks by consumer that are kept for readers that follow close behind."""
MOST_MESSAGES = 50_000
"""Messages of a block, at most."""


def log_closed() -> Exception:
    """Return the error of a log that was closed."""
    return trio.ClosedResourceError("the log was closed")


class PartitionConsumer:
    """A consumer that reads one partition at a time, and fetches ahead up to its limit.

    ``place`` is the partition and the offset that it reads next, ``None`` if that is not known. Its methods, and making
    one, block.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        from confluent_kafka import Consumer

        self._topic = topic
        self._consumer: Consumer = made(Consumer, cluster.for_consumer())
        self.place: tuple[int, int] | None = None
        self._average = 1000.0
        self.problem: KafkaError | None = None
        """The last error that may pass."""

    def fetch(self, partition: int, start: int, max_bytes: int) -> Block | None:
        """Return the next records of about ``max_bytes`` from ``start`` on, ``None`` if none came in time.

        Raise ``KafkaException`` for an error that does not pass.
        """
        from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

        consumer = self._consumer
        if self.place != (partition, start):
            consumer.assign([TopicPartition(self._topic, partition, start)])
        # What fails below may have taken messages that nobody gets.
        self.place = None
        first = consumer.poll(POLL_SECONDS)
        if first is None:
            self.place = (partition, start)
            return None
        messages = [first]
        if first.error() is None:
            most = min(max(int(max_bytes / self._average), 1), MOST_MESSAGES)
            # The others are those that are here already: without a timeout it does not wait for more.
            messages += consumer.consume(most, 0)
        for error in filter(None, map(Message.error, messages)):
            if error.code() != KafkaError._PARTITION_EOF:
                self.problem = error
                if not passes(error):
                    raise KafkaException(error)
        block = block_of(start, messages)
        self.place = (partition, block.end)
        if block.end == start:
            return None
        if block.values:
            size = sum(map(len, block.values)) + (sum(len(key or b"") for key in block.keys) if block.keys else 0)
            self._average = OVERHEAD + size / len(block.values)
        return block

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


class SharedReading:
    """The consumers of one topic, at most ``most``, and the blocks that they fetched last.

    Readers of the same positions share one fetch. A reader that goes on where a consumer is gets that one.
    """

    def __init__(self, cluster: Cluster, topic: str, most: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._limiter = trio.CapacityLimiter(most)
        self._idle: list[PartitionConsumer] = []
        self._count = 0
        self._blocks: deque[tuple[int, Block]] = deque(maxlen=KEPT_BLOCKS * most)
        self._fetching: dict[tuple[int, int], ParkingLot] = {}
        self._most = most
        self._ended: Callable[[], Exception] | None = None

    async def block(self, partition: int, start: int, max_bytes: int) -> Block:
        """Return a block that begins at or before ``start`` and ends behind it.

        Wait until something is there. Raise ``PositionExpired`` if the offset is not there any more, ``Rejected`` if no
        broker answers, ``trio.ClosedResourceError``.
        """
        while True:
            await trio.lowlevel.checkpoint_if_cancelled()
            for place, known in self._blocks:
                if place == partition and known.start <= start < known.end:
                    return known
            fetching = self._fetching.get((partition, start))
            if fetching is None:
                break
            await fetching.park()
        self._fetching[partition, start] = fetched = ParkingLot()
        try:
            block = await self._fetch(partition, start, max_bytes)
            self._blocks.append((partition, block))
        finally:
            # Wakes the readers of the same positions: they find the block, or one of them fetches anew.
            del self._fetching[partition, start]
            fetched.wake_all()
        return block

    def forget(self, partition: int) -> None:
        """Drop the blocks of a partition whose records were deleted."""
        for kept in [one for one in self._blocks if one[0] == partition]:
            self._blocks.remove(kept)

    async def aclose(self, ended: Callable[[], Exception] = log_closed) -> None:
        """Close all consumers, once those that fetch have returned. Readers get the error that ``ended`` makes."""
        self._ended = ended
        async with trio.open_nursery() as nursery:
            while self._count:
                if self._idle:
                    self._count -= 1
                    nursery.start_soon(trio.to_thread.run_sync, self._idle.pop().close)
                else:
                    # A fetch returns within POLL_SECONDS, and gives its consumer back.
                    await trio.sleep(POLL_SECONDS / 4)
        self._blocks.clear()

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended()

    async def _fetch(self, partition: int, start: int, max_bytes: int) -> Block:
        from confluent_kafka import KafkaError, KafkaException

        async with self._consumer_at(partition, start) as consumer:
            deadline = trio.current_time() + self._cluster.patience
            while True:
                self._check()
                try:
                    block = await trio.to_thread.run_sync(partial(consumer.fetch, partition, start, max_bytes))
                except KafkaException as error:
                    problem: KafkaError = error.args[0]
                    if problem.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:
                        raise PositionExpired(
                            f"position {start} of partition {partition} of topic {self._topic!r} is gone"
                        ) from error
                    raise ValueError(
                        f"partition {partition} of topic {self._topic!r} can't be read: {problem.str()}"
                    ) from error
                if block is not None:
                    return block
                if trio.current_time() >= deadline:
                    what = f"partition {partition} of topic {self._topic!r} from {start} on"
                    raise self._cluster.no_answer(what, consumer.problem)

    @asynccontextmanager
    async def _consumer_at(self, partition: int, start: int) -> AsyncGenerator[PartitionConsumer, None]:
        """Hold a consumer for the block: the one that is there, a new one, or the one that was idle for longest."""
        async with self._limiter:
            self._check()
            consumer = next((one for one in self._idle if one.place == (partition, start)), None)
            if consumer is None and self._count >= self._most:
                consumer = self._idle[0]
            if consumer is None:
                self._count += 1
                try:
                    consumer = await trio.to_thread.run_sync(PartitionConsumer, self._cluster, self._topic)
                except BaseException:
                    # Raised again at once: there is one consumer less.
                    self._count -= 1
                    raise
            else:
                self._idle.remove(consumer)
            try:
                yield consumer
            finally:
                self._idle.append(consumer)
