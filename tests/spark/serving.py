"""A replayable route in the test's own loop, and what a reader of it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pyarrow as pa
import trio

from rsocket_trio import Responder, serve
from rsocket_trio.replay import Element, Log, add_source
from rsocket_trio.spark.connections import Pool
from rsocket_trio.spark.options import Options, Use, checked, parse_options

URI = "memory://spark"


def options(use: Use = Use.BATCH_READ, /, **given: Any) -> Options:
    """Checked options for the route ``log`` of the server; a name's ``_`` stands for its dot.

    What is no option of a user's is given by the name of its field.
    """
    settings = {field.name for field in attrs.fields(Options) if not field.metadata} - {"routes"}
    fixed = {name: given.pop(name) for name in settings & given.keys()}
    texts = {"path": URI, "route": "log", "positions": "server"}
    texts |= {name.replace("_", "."): str(value) for name, value in given.items() if value is not None}
    for name in [name for name, value in given.items() if value is None]:
        del texts[name]
    return attrs.evolve(checked(parse_options(texts, use), use), **fixed)


@attrs.define
class Collected:
    """A list of batches in place of a queue. ``hook`` is called with each batch, which takes ``pause`` seconds."""

    batches: list[pa.RecordBatch] = attrs.field(factory=list)
    hook: Callable[[pa.RecordBatch], object] = lambda batch: None
    pause: float = 0.0

    async def put(self, item: pa.RecordBatch, weight: int) -> None:
        """Take a batch."""
        await trio.sleep(self.pause)
        self.batches.append(item)
        self.hook(item)

    @property
    def positions(self) -> list[int]:
        """The position of every row, in the order in which they came."""
        return column(self.batches, "position")

    @property
    def datas(self) -> list[bytes | None]:
        """The data of every row."""
        return column(self.batches, "data")


def column(batches: Iterable[pa.RecordBatch], name: str) -> list[Any]:
    """The values of a column of all batches."""
    return [one for batch in batches for one in batch.column(name).to_pylist()]


@asynccontextmanager
async def served(responder: Responder, uri: str = URI) -> AsyncIterator[Pool]:
    """Serve, and give a pool to connect with; both end with the block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(serve, responder, [uri])
        async with pool() as connections:
            yield connections
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def pool() -> AsyncIterator[Pool]:
    """A pool whose connections end with the block."""
    async with trio.open_nursery() as nursery:
        found = Pool(nursery)
        yield found
        await found.aclose()


async def filled(rows: Mapping[int, int], data: bytes = b"row %d") -> Log:
    """A log with so many rows in each partition. Few ones are appended one by one: each can be trimmed alone."""
    log = Log(partitions=max(rows) + 1)
    await log.open()
    for partition, count in rows.items():
        elements = [Element(data % number) for number in range(count)]
        for some in [[one] for one in elements] if count <= 100 else [elements]:
            await log.append_all({partition: some})
    return log


@asynccontextmanager
async def served_log(rows: Mapping[int, int]) -> AsyncIterator[tuple[Pool, Log]]:
    """A server with a log on the route ``log``."""
    log = await filled(rows)
    responder = Responder()
    add_source(responder, "log", log)
    async with served(responder) as connections:
        yield connections, log
