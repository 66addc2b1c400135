"""The workloads for a client whose calls are async functions and async iterators: what clients share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from typing import Protocol

from benchmarks.peers.meter import Meter, asked
from benchmarks.workloads import Workload


class Caller(Protocol):
    """One connection."""

    async def echo(self, data: bytes) -> bytes:
        """One request and its response."""

    def items(self, asked: bytes) -> AsyncIterator[object]:
        """A stream."""

    def echo_all(self, items: AsyncIterator[bytes]) -> AsyncIterator[object]:
        """A channel."""


class Opens(Protocol):
    """A function that opens connections."""

    def __call__(self, port: int) -> AbstractAsyncContextManager[Caller]:
        """Connect, for as long as the block."""


class Together(Protocol):
    """A function that runs several instances of a worker at once, in the library's own way."""

    async def __call__(self, worker: Worker, concurrency: int) -> None:
        """Return when all have."""


class Worker(Protocol):
    """One of those that work at the same time."""

    async def __call__(self) -> None:
        """Do its share."""


async def run(connect: Opens, together: Together) -> None:
    """Run the workload that the command line names."""
    _, port, workload, _, _ = asked()
    meter = Meter(workload)
    async with connect(port) as caller:
        for part in meter.rounds():
            if workload.kind == "connect":
                await again(connect, port, part, meter)
            elif workload.kind == "request":
                await request(caller, part, meter, together)
            else:
                await items(caller, part)


async def again(connect: Opens, port: int, workload: Workload, meter: Meter) -> None:
    end = perf_counter() + workload.seconds
    while (begun := perf_counter()) < end:
        async with connect(port) as caller:
            await caller.echo(bytes(workload.size))
        meter.waits.append(perf_counter() - begun)


async def request(caller: Caller, workload: Workload, meter: Meter, together: Together) -> None:
    payload = bytes(workload.size)
    await calls(lambda: caller.echo(payload), payload, workload, meter, together)


async def calls(
    call: Callable[[], Awaitable[object]], answer: object, workload: Workload, meter: Meter, together: Together
) -> None:
    """Make the same call again and again, as often at once as the workload says; each has to give this answer."""
    waits = meter.waits
    end = perf_counter() + workload.seconds

    async def worker() -> None:
        while (begun := perf_counter()) < end:
            found = await call()
            waits.append(perf_counter() - begun)
            assert found == answer

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
