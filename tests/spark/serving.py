"""A replayable route in the test's own loop, and what a reader of it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from rsocket_trio import Responder, serve
from rsocket_trio.replay import Element, Log, add_source
from rsocket_trio.spark.checks import checked
from rsocket_trio.spark.connections import Pool
from rsocket_trio.spark.options import Options, Use, parse_options
from rsocket_trio.spark.records import PackChunk, Rows

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
    """A list of chunks in place of a conveyor. ``hook`` is called with each chunk, which takes ``pause`` seconds."""

    chunks: list[Rows] = attrs.field(factory=list)
    hook: Callable[[Rows], object] = lambda chunk: None
    pause: float = 0.0

    async def put(self, item: Rows, weight: int) -> None:
        """Take a chunk."""
        await trio.sleep(self.pause)
        self.chunks.append(item)
        self.hook(item)

    @property
    def positions(self) -> list[int]:
        """The position of every row, in the order in which they came."""
        return [
            position
            for chunk in self.chunks
            for position in (
                chunk.rows_wanted().column("position").to_pylist()
                if isinstance(chunk, PackChunk)
                else range(chunk.start, chunk.start + chunk.rows)
            )
        ]

    @property
    def datas(self) -> list[bytes | None]:
        """The data of every element."""
        return [data for chunk in self.chunks for data in datas_of(chunk)]


def datas_of(chunk: Rows) -> list[bytes | None]:
    """The data of every element of a chunk."""
    if isinstance(chunk, PackChunk):
        found: list[bytes | None] = chunk.rows_wanted().column("data").to_pylist()
        return found
    return chunk.datas


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
