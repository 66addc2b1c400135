"""The client of the workloads, with this library."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from time import perf_counter

import attrs
import trio

from benchmarks.peers.meter import SETTLE, Meter, asked
from benchmarks.peers.secured import of_client
from benchmarks.workloads import CREDIT, Workload
from rsocket_trio import Connection, ResumeOptions, open_connection


@attrs.frozen
class Client:
    """The state that the workloads share: the connections and the waits in seconds."""

    connect: Callable[[], AbstractAsyncContextManager[Connection]]
    kept: AsyncExitStack
    waits: list[float]
    opened: list[Connection] = attrs.field(factory=list)

    async def connection(self) -> Connection:
        """Return the one connection of workloads that need no more."""
        if not self.opened:
            self.opened.append(await self.kept.enter_async_context(self.connect()))
        return self.opened[0]


async def connect(client: Client, workload: Workload) -> None:
    waits = client.waits
    payload = bytes(workload.size)
    end = perf_counter() + workload.seconds
    while (begun := perf_counter()) < end:
        async with client.connect() as connection:
            await connection.request_response(payload)
        waits.append(perf_counter() - begun)


async def request(client: Client, workload: Workload) -> None:
    size, waits, connection = workload.size, client.waits, await client.connection()
    payload = bytes(size)
    end = perf_counter() + workload.seconds

    async def worker() -> None:
        while (begun := perf_counter()) < end:
            answer = await connection.request_response(payload)
            waits.append(perf_counter() - begun)
            assert len(answer.data) == size

    async with trio.open_nursery() as nursery:
        for _ in range(workload.concurrency):
            nursery.start_soon(worker)


async def stream(client: Client, workload: Workload) -> None:
    asked = b"%d %d" % (workload.count, workload.size)
    connection = await client.connection()
    seen = 0
    async with connection.request_stream(asked, initial_request_n=CREDIT) as items:
        async for _ in items:
            seen += 1
    assert seen == workload.count, seen


async def channel(client: Client, workload: Workload) -> None:
    item = bytes(workload.size)
    seen = 0
    connection = await client.connection()
    async with connection.request_channel(initial_request_n=CREDIT) as both, trio.open_nursery() as nursery:

        async def send() -> None:
            for _ in range(workload.count):
                await both.send(item)
            await both.send_eof()

        nursery.start_soon(send)
        async for _ in both:
            seen += 1
    assert seen == workload.count, seen


async def connections(client: Client, workload: Workload) -> None:
    for _ in range(workload.count):
        connection = await client.kept.enter_async_context(client.connect())
        await connection.request_response(bytes(workload.size))
    await trio.sleep(SETTLE)


async def streams(client: Client, workload: Workload) -> None:
    connection = await client.connection()
    for _ in range(workload.count):
        await client.kept.enter_async_context(connection.request_stream(b"0 0", initial_request_n=CREDIT))
    await connection.request_response(bytes(workload.size))
    await trio.sleep(SETTLE)


KINDS = {
    "request": request,
    "stream": stream,
    "channel": channel,
    "connect": connect,
    "connections": connections,
    "streams": streams,
}


async def main() -> None:
    scheme, port, workload, dialect, more = asked()
    resume = ResumeOptions() if "resume" in more else None
    uri = f"{scheme}://127.0.0.1:{port}"
    connect = partial(open_connection, uri, dialect=dialect, resume=resume, ssl_context=of_client())
    meter = Meter(workload)
    async with AsyncExitStack() as kept:
        client = Client(connect, kept, meter.waits)
        for part in meter.rounds():
            await KINDS[workload.kind](client, part)


if __name__ == "__main__":
    trio.run(main)
