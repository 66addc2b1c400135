"""The client of the workloads, with rsocket-py on asyncio; over WebSocket with aiohttp."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

from reactivestreams.subscriber import DefaultSubscriber
from rsocket.helpers import single_transport_provider
from rsocket.payload import Payload
from rsocket.rsocket_client import RSocketClient
from rsocket.streams.stream_from_generator import StreamFromGenerator
from rsocket.transports.tcp import TransportTCP

from benchmarks.peers.meter import Meter
from benchmarks.workloads import BY_NAME, CREDIT, REFILL, WRITE, Workload


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
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    transport = TransportTCP(reader, writer, read_buffer_size=WRITE)
    async with RSocketClient(single_transport_provider(transport)) as client:
        yield client


async def once(scheme: str, port: int) -> None:
    async with connect(scheme, port) as client:
        await client.request_response(Payload(bytes(64)))


async def run(scheme: str, port: int, workload: Workload) -> None:
    if workload.kind == "connect":
        await once(scheme, port)
        with Meter() as meter:
            for _ in range(workload.count):
                begun = perf_counter()
                await once(scheme, port)
                meter.waits.append(perf_counter() - begun)
        return
    async with connect(scheme, port) as client:
        await client.request_response(Payload(b"first"))
        with Meter() as meter:
            await KINDS[workload.kind](client, workload, meter)


async def request(client: Any, workload: Workload, meter: Meter) -> None:
    waits = meter.waits

    async def worker() -> None:
        payload = bytes(workload.size)
        for _ in range(workload.count // workload.concurrency):
            begun = perf_counter()
            await client.request_response(Payload(payload))
            waits.append(perf_counter() - begun)

    await asyncio.gather(*(worker() for _ in range(workload.concurrency)))


async def stream(client: Any, workload: Workload, meter: Meter) -> None:
    counter = Counter()
    asked = Payload(b"%d %d" % (workload.count, workload.size))
    client.request_stream(asked).initial_request_n(CREDIT).subscribe(counter)
    await counter.done.wait()
    assert counter.seen == workload.count, counter.seen


async def channel(client: Any, workload: Workload, meter: Meter) -> None:
    counter = Counter()
    item = bytes(workload.size)
    items = ((Payload(item), number == workload.count - 1) for number in range(workload.count))
    publisher = StreamFromGenerator(lambda: items)
    client.request_channel(Payload(b""), publisher).initial_request_n(CREDIT).subscribe(counter)
    await counter.done.wait()
    assert counter.seen == workload.count, counter.seen


KINDS = {"request": request, "stream": stream, "channel": channel}


def main() -> None:
    scheme, port, name, _dialect = sys.argv[1:]
    asyncio.run(run(scheme, int(port), BY_NAME[name]))


if __name__ == "__main__":
    main()
