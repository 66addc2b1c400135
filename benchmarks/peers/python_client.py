"""The workloads for a client whose calls are async functions and async iterators: what the gRPC clients share."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from typing import Protocol

from benchmarks.peers.meter import Meter
from benchmarks.workloads import BY_NAME, Workload


class Caller(Protocol):
    """One connection."""

    async def echo(self, data: bytes) -> bytes:
        """One request and its response."""

    def items(self, asked: bytes) -> AsyncIterator[object]:
        """A stream."""

    def echo_all(self, items: AsyncIterator[bytes]) -> AsyncIterator[object]:
        """A channel."""


class Opens(Protocol):
    """What makes connections."""

    def __call__(self, port: int) -> AbstractAsyncContextManager[Caller]:
        """Connect, for as long as the block."""


class Together(Protocol):
    """What runs so many of the same function at once, in the library's own way."""

    async def __call__(self, worker: Worker, concurrency: int) -> None:
        """Return when all have."""


class Worker(Protocol):
    """One of those that work at the same time."""

    async def __call__(self) -> None:
        """Do its share."""


async def run(connect: Opens, together: Together) -> None:
    """Run the workload that the command line names."""
    port, workload = int(sys.argv[2]), BY_NAME[sys.argv[3]]
    if workload.kind == "connect":
        await once(connect, port)
        with Meter() as meter:
            for _ in range(workload.count):
                begun = perf_counter()
                await once(connect, port)
                meter.waits.append(perf_counter() - begun)
        return
    async with connect(port) as caller:
        await caller.echo(b"first")
        with Meter() as meter:
            if workload.kind == "request":
                await request(caller, workload, meter, together)
            else:
                await items(caller, workload)


async def once(connect: Opens, port: int) -> None:
    async with connect(port) as caller:
        await caller.echo(bytes(64))


async def request(caller: Caller, workload: Workload, meter: Meter, together: Together) -> None:
    payload = bytes(workload.size)
    waits = meter.waits

    async def worker() -> None:
        for _ in range(workload.count // workload.concurrency):
            begun = perf_counter()
            await caller.echo(payload)
            waits.append(perf_counter() - begun)

    await together(worker, workload.concurrency)


async def items(caller: Caller, workload: Workload) -> None:
    async def sent() -> AsyncIterator[bytes]:
        item = bytes(workload.size)
        for _ in range(workload.count):
            yield item

    asked = b"%d %d" % (workload.count, workload.size)
    seen = 0
    async for _ in caller.items(asked) if workload.kind == "stream" else caller.echo_all(sent()):
        seen += 1
    assert seen == workload.count, seen
