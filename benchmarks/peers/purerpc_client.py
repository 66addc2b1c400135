"""The client of the workloads, with purerpc on Trio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
from purerpc import Client, insecure_channel

from benchmarks.peers.purerpc_messages import SIGNATURES, Raw
from benchmarks.peers.python_client import Worker, run


class Caller:
    """A channel, which is one connection."""

    def __init__(self, channel: Any) -> None:
        client = Client("bench", channel)
        stubs = {name: client.get_method_stub(name, signature) for name, signature in SIGNATURES.items()}
        self._echo, self._items, self._echo_all = stubs["echo"], stubs["items"], stubs["echo_all"]

    async def echo(self, data: bytes) -> bytes:
        answer: bytes = (await self._echo(Raw(data))).data
        return answer

    def items(self, asked: bytes) -> AsyncIterator[object]:
        of_stub: AsyncIterator[object] = self._items(Raw(asked))
        return of_stub

    def echo_all(self, items: AsyncIterator[bytes]) -> AsyncIterator[object]:
        of_stub: AsyncIterator[object] = self._echo_all(Raw(item) async for item in items)
        return of_stub


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Caller]:
    async with insecure_channel("127.0.0.1", port) as channel:
        yield Caller(channel)


async def together(worker: Worker, concurrency: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(worker)


if __name__ == "__main__":
    trio.run(run, connect, together)
