"""The client of the workloads, with rsocket-py on asyncio; over WebSocket with aiohttp."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import Any

import attrs
from reactivestreams.subscriber import DefaultSubscriber
from rsocket.helpers import single_transport_provider
from rsocket.payload import Payload
from rsocket.rsocket_client import RSocketClient
from rsocket.streams.stream_from_generator import StreamFromGenerator
from rsocket.transports.tcp import TransportTCP

from benchmarks.peers.meter import SETTLE, Meter, asked
from benchmarks.peers.secured import of_client
from benchmarks.workloads import CREDIT, REFILL, WRITE, Workload


class Counter(DefaultSubscriber):
    """Counts items, and tops credit up at half as every careful reader does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.done = asyncio.Event()

    def on_next(self, value: Any, is_complete: bool = False) -> None:
        self.seen += 1
        if self.seen % REFILL == 0:
            self.subscription.request(REFILL)
        if is_complete:
            self.done.set()

    def on_complete(self) -> None:
        self.done.set()

    def on_error(self, exception: Exception) -> None:
        raise exception


@asynccontextmanager
async def connect(scheme: str, port: int) -> Any:
    if scheme == "ws":
        from rsocket.transports.aiohttp_websocket import websocket_client

        async with websocket_client(f"ws://127.0.0.1:{port}/") as client:
            yield client
        return
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=of_client())
    transport = TransportTCP(reader, writer, read_buffer_size=WRITE)
    async with RSocketClient(single_transport_provider(transport)) as client:
        yield client


@attrs.frozen
class Caller:
    """The state that the workloads share: the connection parameters, the client and the waits in seconds."""

    scheme: str
    port: int
    client: Any
    kept: AsyncExitStack
    waits: list[float]


async def once(caller: Caller, workload: Workload) -> None:
    end = perf_counter() + workload.seconds
    while (begun := perf_counter()) < end:
        async with connect(caller.scheme, caller.port) as client:
            await client.request_response(Payload(bytes(workload.size)))
        caller.waits.append(perf_counter() - begun)


async def request(caller: Caller, workload: Workload) -> None:
    size, waits, client = workload.size, caller.waits, caller.client
    end = perf_counter() + workload.seconds

    async def worker() -> None:
        payload = bytes(size)
        while (begun := perf_counter()) < end:
            answer = await client.request_response(Payload(payload))
            waits.append(perf_counter() - begun)
            assert len(answer.data) == size

    await asyncio.gather(*(worker() for _ in range(workload.concurrency)))


async def stream(caller: Caller, workload: Workload) -> None:
    counter = Counter()
    asked = Payload(b"%d %d" % (workload.count, workload.size))
    caller.client.request_stream(asked).initial_request_n(CREDIT).subscribe(counter)
    await counter.done.wait()
    assert counter.seen == workload.count, counter.seen


async def channel(caller: Caller, workload: Workload) -> None:
    counter = Counter()
    item = bytes(workload.size)
    items = ((Payload(item), number == workload.count - 1) for number in range(workload.count))
    publisher = StreamFromGenerator(lambda: items)
    caller.client.request_channel(Payload(b""), publisher).initial_request_n(CREDIT).subscribe(counter)
    await counter.done.wait()
    assert counter.seen == workload.count, counter.seen


async def connections(caller: Caller, workload: Workload) -> None:
    for _ in range(workload.count):
        client = await caller.kept.enter_async_context(connect(caller.scheme, caller.port))
        await client.request_response(Payload(bytes(workload.size)))
    await asyncio.sleep(SETTLE)


async def streams(caller: Caller, workload: Workload) -> None:
    for _ in range(workload.count):
        caller.client.request_stream(Payload(b"0 0")).initial_request_n(CREDIT).subscribe(Counter())
        await asyncio.sleep(0)
    await caller.client.request_response(Payload(bytes(workload.size)))
    await asyncio.sleep(SETTLE)


KINDS = {
    "request": request,
    "stream": stream,
    "channel": channel,
    "connect": once,
    "connections": connections,
    "streams": streams,
}


async def main() -> None:
    scheme, port, workload, _, _ = asked()
    meter = Meter(workload)
    async with connect(scheme, port) as client, AsyncExitStack() as kept:
        caller = Caller(scheme, port, client, kept, meter.waits)
        for part in meter.rounds():
            await KINDS[workload.kind](caller, part)


if __name__ == "__main__":
    asyncio.run(main())
