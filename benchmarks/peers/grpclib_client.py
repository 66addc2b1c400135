"""The client of the workloads, with grpclib on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from grpclib.client import Channel, StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod

from benchmarks.peers.grpclib_codec import Raw
from benchmarks.peers.python_client import Worker, run


class Caller:
    """A channel, which is one connection."""

    def __init__(self, channel: Any) -> None:
        self.echo = UnaryUnaryMethod[bytes, bytes](channel, "/bench/echo", bytes, bytes)
        self._items = UnaryStreamMethod[bytes, bytes](channel, "/bench/items", bytes, bytes)
        self._echo_all = StreamStreamMethod[bytes, bytes](channel, "/bench/echo_all", bytes, bytes)

    async def items(self, asked: bytes) -> AsyncIterator[bytes]:
        async with self._items.open() as stream:
            await stream.send_message(asked, end=True)
            async for item in stream:
                yield item

    async def echo_all(self, items: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async def send() -> None:
            async for item in items:
                await stream.send_message(item)
            await stream.end()

        async with self._echo_all.open() as stream:
            await stream.send_request()
            sending = asyncio.create_task(send())
            async for item in stream:
                yield item
            await sending


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Caller]:
    async with Channel("127.0.0.1", port, codec=Raw()) as channel:
        yield Caller(channel)


async def together(worker: Worker, concurrency: int) -> None:
    await asyncio.gather(*(worker() for _ in range(concurrency)))


if __name__ == "__main__":
    asyncio.run(run(connect, together))
