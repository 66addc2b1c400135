"""A fetcher of blocks of records: a bounded number of Kafka's consumers, which all readers of a topic share.

A block is columns of Arrow, from which packs and records are made.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import attrs
import trio

from rsocket_trio.replay.element_metadata import RECORD_METADATA
from rsocket_trio.replay.elements import Record
from rsocket_trio.replay.errors import PositionExpired
from rsocket_trio.replay.kafka_client import CONSUMER, Cluster, is_any, kafka
from rsocket_trio.replay.packs import FOREVER, PACK_BYTES, PACK_ROWS, Pack, arrow

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Message

POLL_SECONDS = 0.1
"""Seconds that a consumer blocks its thread while nothing comes: a cancelled reader waits for it."""
KEPT_BLOCKS = 2
"""Blocks by consumer that are kept for readers that follow close behind."""
MOST_MESSAGES = 10_000
"""Messages of a block, at most; what a consumer has fetched ahead limits its bytes."""
LONGEST_GAP = 2**30
"""Positions that one pack leaves out, at most."""


@attrs.define(eq=False)
class PartitionConsumer:
    """A consumer that reads one partition at a time: its client, and the partition and offset that it reads next."""

    client: Any = None
    place: tuple[int, int] | None = None


class Fetcher:
    """The consumers of one topic, at most ``consumers``, and the blocks that they fetched last.

    Readers of the same positions share one fetch. A reader that goes on where a consumer is gets that one.
    """

    def __init__(self, cluster: Cluster, topic: str, consumers: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._limiter = trio.CapacityLimiter(consumers)
        # The one that was idle for longest first.
        self._idle = [PartitionConsumer() for _ in range(consumers)]
        self._blocks: deque[tuple[int, Block]] = deque(maxlen=KEPT_BLOCKS * consumers)
        self._places: WeakValueDictionary[tuple[int, int], trio.Lock] = WeakValueDictionary()
        self._ended: Callable[[], Exception] | None = None

    async def block(self, partition: int, start: int, latest: int) -> Block:
        """Return a block that begins at or before ``start`` and ends behind it.

        Wait until something is there; nothing is fetched ahead beyond ``latest``. Raise ``PositionExpired`` if the
        offset is not there any more, ``Rejected`` if no broker answers, and the error of ``aclose``.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if (block := self._kept(partition, start)) is None:
            # Readers of the same place wait for the first of them, and then find its block.
            place = self._places.setdefault((partition, start), trio.Lock())
            async with place, self._limiter:
                if (block := self._kept(partition, start)) is None:
                    consumer = next((one for one in self._idle if one.place == (partition, start)), self._idle[0])
                    self._idle.remove(consumer)
                    fetch = partial(self._fetch, consumer, partition, start, latest)
                    try:
                        what = f"partition {partition} of topic {self._topic!r} from {start} on"
                        block = await self._cluster.ask(fetch, what)
                    finally:
                        self._idle.append(consumer)
                    self._blocks.append((partition, block))
        return block

    def _kept(self, partition: int, start: int) -> Block | None:
        self._check()
        return next((one for place, one in self._blocks if place == partition and one.start <= start < one.end), None)

    def _fetch(self, consumer: PartitionConsumer, partition: int, start: int, latest: int) -> Block:
        """Return the next records from ``start`` on. Raise ``KafkaException`` if none came in time. It blocks."""
        self._check()
        if consumer.client is None:
            consumer.client = self._cluster.client(kafka().Consumer, CONSUMER, isolation_level="read_committed")
        if consumer.place != (partition, start):
            consumer.client.assign([kafka().TopicPartition(self._topic, partition, start)])
        # What fails below may have taken messages that nobody gets.
        consumer.place = None
        # The others are those that are here already: without a timeout it does not wait for more.
        messages = consumer.client.consume(1, POLL_SECONDS) + consumer.client.consume(MOST_MESSAGES, 0)
        for error in filter(None, map(kafka().Message.error, messages)):
            if is_any(error, "_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
                raise PositionExpired(f"position {start} of partition {partition} is gone")
            if not is_any(error, "_PARTITION_EOF"):
                raise kafka().KafkaException(error)
        block = block_of(start, messages)
        if block.end < latest:
            consumer.place = (partition, block.end)
        else:
            # It would ask the broker for more all the time.
            consumer.client.unassign()
        if block.end == start:
            raise kafka().KafkaException(kafka().KafkaError(kafka().KafkaError._TIMED_OUT, "no records came"))
        return block

    def rest(self) -> None:
        """Let consumers that nobody uses fetch nothing ahead."""
        for consumer in self._idle:
            if consumer.place is not None:
                consumer.place = None
                consumer.client.unassign()

    def forget(self, partition: int) -> None:
        """Drop the blocks of a partition whose records were deleted."""
        for kept in [one for one in self._blocks if one[0] == partition]:
            self._blocks.remove(kept)

    async def aclose(self, ended: Callable[[], Exception]) -> None:
        """Close all consumers, once those that fetch have returned. Readers get the error that ``ended`` makes."""
        if self._ended is None:
            self._ended = ended
            for _ in range(int(self._limiter.total_tokens)):
                # A fetch returns within POLL_SECONDS.
                await self._limiter.acquire_on_behalf_of(object())
            async with trio.open_nursery() as nursery:
                for consumer in self._idle:
                    if consumer.client is not None:
                        nursery.start_soon(trio.to_thread.run_sync, consumer.client.close)
            self._blocks.clear()

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended()


# Blocks


@attrs.frozen(eq=False)
class Block:
    """The records of a partition from ``start`` to below ``end``: those at ``offsets``, whose columns ``batch`` has."""

    start: int
    end: int
    offsets: list[int]
    batch: pa.RecordBatch


def block_of(start: int, messages: list[Message]) -> Block:
    """Return the block of messages, among which the end of the partition may be."""
    kind, end = kafka().Message, start
    if any(map(kind.error, messages)):
        eof = kafka().KafkaError._PARTITION_EOF
        end = max(start, *[one.offset() or 0 for one in messages if (error := one.error()) and error.code() == eof], 0)
        messages = [message for message in messages if message.error() is None]
    offsets: list[int] = list(map(kind.offset, messages))
    columns: dict[str, Sequence[Any]] = {
        "data": list(map(kind.value, messages)),
        "key": list(map(kind.key, messages)),
        "headers": list(map(kind.headers, messages)),
        "timestamp": [time * 1000 if time >= 0 else None for _, time in map(kind.timestamp, messages)],
    }
    return columnar(start, max(end, offsets[-1] + 1 if offsets else 0), offsets, columns)


def columnar(start: int, end: int, offsets: list[int], columns: dict[str, Sequence[Any]]) -> Block:
    """Return a block of values by column; what is null in all rows may be left out, but not ``data``."""
    import pyarrow as pa

    headers = columns.get("headers", ())
    if any(headers):
        others = [[pair for pair in row or () if pair[0] != RECORD_METADATA] or None for row in headers]
        columns = {**columns, "metadata": [dict(row or ()).get(RECORD_METADATA) for row in headers], "headers": others}
    schema = arrow().PACK_SCHEMA
    kept = {"position": pa.array(offsets, pa.int64())}
    for name, values in columns.items():
        if name == "data" or values.count(None) < len(values):
            kept[name] = pa.array(values, schema.field(name).type)
    return Block(start, end, offsets, pa.RecordBatch.from_pydict(kept))


def records_of(packs: Iterable[Pack]) -> Iterator[Record]:
    """Yield the records of packs: behind the last of them one of no rows, if nothing else is there up to the end."""
    for pack in packs:
        yield from arrow().rows_of(pack)


def pack_block(block: Block, start: int, end: int | None, max_bytes: int) -> Iterator[Pack]:
    """Yield packs of the records of a block from ``start`` to below ``end``, about ``max_bytes`` together.

    They span all positions from ``start`` to the end of the last record, or to where nothing else is.
    """
    stop = min(block.end, FOREVER if end is None else end)
    low, high = bisect_left(block.offsets, start), bisect_left(block.offsets, stop)
    while start < stop and max_bytes > 0:
        rows = min(high - low, PACK_ROWS)
        while rows > 1 and block.batch.slice(low, rows).nbytes > min(PACK_BYTES, max_bytes):
            rows //= 2
        after = bisect_left(block.offsets, start + LONGEST_GAP, low, low + rows)
        if after < high:
            last = block.offsets[after - 1] + 1 if after > low else start + LONGEST_GAP
        else:
            last = min(stop, start + LONGEST_GAP)
        part = block.batch.slice(low, after - low)
        yield _pack(part, start, last)
        max_bytes -= part.nbytes
        low, start = after, last


def _pack(rows: pa.RecordBatch, start: int, end: int) -> Pack:
    """Return records as the pack from ``start`` to ``end``."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    has_gaps = end - start != rows.num_rows
    if not has_gaps:
        del columns["position"]
    timestamp = None
    if "timestamp" in columns and len(times := columns["timestamp"].unique()) == 1:
        timestamp = times[0].value
        del columns["timestamp"]
    pack: Pack = arrow().pack_of(columns, count=end - start, position=start, timestamp=timestamp, has_gaps=has_gaps)
    return pack
