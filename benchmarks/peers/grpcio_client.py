"""The client of the workloads, with grpcio's asyncio API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from benchmarks.peers.python_client import Worker, run
from benchmarks.peers.secured import AUTHORITY, folder


class Caller:
    """A channel, each connection of which is its own."""

    def __init__(self, channel: Any) -> None:
        self.echo = channel.unary_unary("/bench/echo")
        self.items = channel.unary_stream("/bench/items")
        self.echo_all = channel.stream_stream("/bench/echo_all")


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Caller]:
    # Without this option, channels to the same address share a connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{port}"
    if (where := folder()) is None:
        opened = grpc.aio.insecure_channel(address, options=options)
    else:
        trusted = grpc.ssl_channel_credentials((where / AUTHORITY).read_bytes())
        opened = grpc.aio.secure_channel(address, trusted, options=options)
    async with opened as channel:
        yield Caller(channel)


async def together(worker: Worker, concurrency: int) -> None:
    await asyncio.gather(*(worker() for _ in range(concurrency)))


if __name__ == "__main__":
    asyncio.run(run(connect, together))
