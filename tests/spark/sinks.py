"""What tests of the sink share: a server in a thread of this process, and writers that are called without Spark."""

from __future__ import annotations

import pickle
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import trio
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from rsocket_trio import Responder
from rsocket_trio.replay import Ledger, Log, Record, ReplayableLog, add_sink
from rsocket_trio.spark import RSocketDataSource
from rsocket_trio.spark.background import background
from rsocket_trio.spark.writer import BatchWriter, StreamWriter
from tests.threads import ThreadServer

ROUTE = "orders"


class Sink(ThreadServer):
    """A server of the route ``orders``, or of more with a ``responder``, whose ledger is in memory."""

    def __init__(
        self,
        partitions: int = 1,
        responder: Responder | None = None,
        uri: str = "tcp://127.0.0.1:0",
        ssl_context: ssl.SSLContext | None = None,
        **bounds: Any,
    ) -> None:
        self.log = Log(partitions=partitions)
        trio.run(self.log.open)
        self.ledger = Ledger(self.log, **bounds)
        served = responder or Responder()
        add_sink(served, ROUTE, self.ledger)
        super().__init__(served, uri, ssl_context=ssl_context)

    def records(self, partition: int | None = None) -> list[Record]:
        """Return what counts, of a partition or of all, in order."""
        return self.run(records_of, self.log, partition)

    def rows(self, partition: int | None = None) -> list[bytes]:
        """Return the data of what counts, of a partition or of all, in order."""
        return [record.data or b"" for record in self.records(partition)]


async def records_of(log: ReplayableLog, partition: int | None = None) -> list[Record]:
    """Return the records of a partition, or of all of them, in order."""
    chosen = log.partitions() if partition is None else [partition]
    return [record for one in chosen async for record in log.read(one, *log.bounds(one))]


@contextmanager
def serving(responder: Responder) -> Iterator[ThreadServer]:
    """Serve for as long as the block, and end this process's background after it."""
    server = ThreadServer(responder)
    try:
        yield server
    finally:
        background().close()
        server.stop()


@contextmanager
def sink(partitions: int = 1, **bounds: Any) -> Iterator[Sink]:
    """The same, for a sink."""
    server = Sink(partitions, **bounds)
    try:
        yield server
    finally:
        background().close()
        server.stop()


def schema_of(**types: DataType) -> StructType:
    """Columns by name."""
    return StructType([StructField(name, kind) for name, kind in types.items()])


DATA = schema_of(data=BinaryType())
TEXT = schema_of(data=StringType())


def source(uri: str, **options: object) -> RSocketDataSource:
    """The data source, with options that give up soon. ``auth_type`` stands for ``auth.type``."""
    given = {"path": uri, "route": ROUTE, "readTimeout": "10s", "reconnectMaxAttempts": "0", "sinkId": "test"}
    given |= {name.replace("_", "."): str(value) for name, value in options.items() if value is not None}
    return RSocketDataSource({name: value for name, value in given.items() if options.get(name, "") is not None})


def batch_writer(uri: str, schema: StructType = DATA, **options: object) -> BatchWriter:
    """A writer as Spark makes it for ``df.write``."""
    writer = source(uri, **options).writer(schema, False)
    assert isinstance(writer, BatchWriter)
    return writer


def planning_writer(uri: str, schema: StructType = DATA, **options: object) -> StreamWriter:
    """A writer as Spark makes it for the tasks of a micro-batch of ``df.writeStream``: of a new source."""
    writer = source(uri, **options).streamWriter(schema, False)
    assert isinstance(writer, StreamWriter)
    return writer


def stream_writer(uri: str, schema: StructType = DATA, **options: object) -> StreamWriter:
    """A writer as Spark makes it to commit a micro-batch: of the copy of a source."""
    writer = pickle.loads(pickle.dumps(source(uri, **options))).streamWriter(schema, False)
    assert isinstance(writer, StreamWriter)
    return writer


def batch(datas: Iterable[bytes | None]) -> pa.RecordBatch:
    """A record batch of raw rows."""
    return pa.RecordBatch.from_arrays([pa.array(list(datas), pa.binary())], names=["data"])


def numbers(count: int, start: int = 0) -> list[bytes]:
    """Rows that can be told apart."""
    return [b"%d" % number for number in range(start, start + count)]


def batches(count: int, size: int = 1000) -> Iterator[pa.RecordBatch]:
    """``count`` numbered rows, in batches."""
    for start in range(0, count, size):
        yield batch(numbers(min(size, count - start), start))
