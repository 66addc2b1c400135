"""Reads partitions of Kafka block by block, with a bounded number of consumers that all readers share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from rsocket_trio.connection.parking_lot import ParkingLot
from rsocket_trio.replay.errors import PositionExpired
from rsocket_trio.replay.kafka_blocks import Block, block_of
from rsocket_trio.replay.kafka_client import CONSUMER, Cluster, is_any, kafka, made, passes

POLL_SECONDS = 0.1
"""Seconds that a consumer blocks its thread while nothing comes: a cancelled reader waits for it."""
KEPT_BLOCKS = 2
"""Blocks by consumer that are kept for readers that follow close behind."""
OVERHEAD = 50
"""Bytes that a record takes beside its columns, about."""
MOST_MESSAGES = 50_000
"""Messages of a block, at most."""


def log_closed() -> Exception:
    """Return the error of a log that was closed."""
    return trio.ClosedResourceError("the log was closed")


class PartitionConsumer:
    """A consumer that reads one partition at a time, and fetches ahead up to its limit.

    ``place`` is the partition and the offset that it reads next, ``None`` if that is not known, and ``problem`` the
    last error that may pass. Its methods block; the first fetch makes the client.
    """

    def __init__(self, cluster: Cluster, topic: str, wait_ms: int) -> None:
        self._cluster = cluster
        self._wait_ms = wait_ms
        self._topic = topic
        self._consumer: Any = None
        self._average = 1000.0
        self.place: tuple[int, int] | None = None
        self.problem: Any = None

    def fetch(self, partition: int, start: int, max_bytes: int) -> Block | None:
        """Return the next records of about ``max_bytes`` from ``start`` on, ``None`` if none came in time.

        Raise ``KafkaException`` for an error that does not pass.
        """
        if self._consumer is None:
            kind = {**CONSUMER, "fetch.wait.max.ms": self._wait_ms}
            settings = self._cluster.settings_of(kind, isolation_level="read_committed")
            self._consumer = made(kafka().Consumer, settings)
        consumer = self._consumer
        if self.place != (partition, start):
            consumer.assign([kafka().TopicPartition(self._topic, partition, start)])
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
        for error in filter(None, map(kafka().Message.error, messages)):
            if not is_any(error, "_PARTITION_EOF"):
                self.problem = error
                if not passes(error):
                    raise kafka().KafkaException(error)
        block = block_of(start, messages)
        self.place = (partition, block.end)
        if block.offsets:
            self._average = OVERHEAD + block.batch.nbytes / len(block.offsets)
        return block if block.end > start else None

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()


class SharedReading:
    """The consumers of one topic, at most ``most``, and the blocks that they fetched last.

    Readers of the same positions share one fetch. A reader that goes on where a consumer is gets that one. In
    ``wait_ms`` milliseconds a consumer knows that nothing else is there, and so long it waits between two questions.
    """

    def __init__(self, cluster: Cluster, topic: str, most: int, wait_ms: int = 100) -> None:
        self._cluster = cluster
        self._topic = topic
        self._most = most
        self._limiter = trio.CapacityLimiter(most)
        # The one that was idle for longest first.
        self._idle = [PartitionConsumer(cluster, topic, wait_ms) for _ in range(most)]
        self._blocks: deque[tuple[int, Block]] = deque(maxlen=KEPT_BLOCKS * most)
        self._fetching: dict[tuple[int, int], ParkingLot] = {}
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
            self._check()
            fetching = self._fetching.get((partition, start))
            if fetching is None:
                break
            await fetching.park()
        self._fetching[partition, start] = fetched = ParkingLot()
        try:
            async with self._limiter:
                consumer = next((one for one in self._idle if one.place == (partition, start)), self._idle[0])
                self._idle.remove(consumer)
                try:
                    block = await self._fetch(consumer, partition, start, max_bytes)
                finally:
                    self._idle.append(consumer)
            self._blocks.append((partition, block))
        finally:
            # Wakes the readers of the same positions: they find the block, or one of them fetches anew.
            del self._fetching[partition, start]
            fetched.wake_all()
        return block

    async def _fetch(self, consumer: PartitionConsumer, partition: int, start: int, max_bytes: int) -> Block:
        what = f"partition {partition} of topic {self._topic!r}"
        deadline = trio.current_time() + self._cluster.patience
        while True:
            self._check()
            try:
                block = await trio.to_thread.run_sync(partial(consumer.fetch, partition, start, max_bytes))
            except kafka().KafkaException as error:
                if is_any(error.args[0], "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
                    raise PositionExpired(f"position {start} of {what} is gone") from error
                raise ValueError(f"{what} can't be read: {error.args[0].str()}") from error
            if block is not None:
                return block
            if trio.current_time() >= deadline:
                raise self._cluster.no_answer(f"{what} from {start} on", consumer.problem)

    def forget(self, partition: int) -> None:
        """Drop the blocks of a partition whose records were deleted."""
        for kept in [one for one in self._blocks if one[0] == partition]:
            self._blocks.remove(kept)

    async def aclose(self, ended: Callable[[], Exception] = log_closed) -> None:
        """Close all consumers, once those that fetch have returned. Readers get the error that ``ended`` makes."""
        if self._ended is None:
            self._ended = ended
            for _ in range(self._most):
                # A fetch returns within POLL_SECONDS.
                await self._limiter.acquire_on_behalf_of(object())
            async with trio.open_nursery() as nursery:
                for consumer in self._idle:
                    nursery.start_soon(trio.to_thread.run_sync, consumer.close)
            self._blocks.clear()

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended()
