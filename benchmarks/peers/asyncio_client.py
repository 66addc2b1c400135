"""The client of the workloads, with rsocket-py on asyncio. Prints wall and CPU seconds of one of them as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import asynccontextmanager
from typing import Any

from reactivestreams.subscriber import DefaultSubscriber
from rsocket.helpers import single_transport_provider
from rsocket.payload import Payload
from rsocket.rsocket_client import RSocketClient
from rsocket.streams.stream_from_generator import StreamFromGenerator
from rsocket.transports.tcp import TransportTCP

from benchmarks.workloads import BY_NAME, CREDIT, Workload


class Counter(DefaultSubscriber):
    """Counts items, and tops credit up at half as every careful reader does."""

    def __init__(self, *, refill: bool = True) -> None:
        super().__init__()
        self.seen = 0
        self.done = asyncio.Event()
        self._refill = refill

    def on_next(self, value: Any, is_complete: bool = False) -> None:
        self.seen += 1
        if self._refill and self.seen % (CREDIT // 2) == 0:
            self.subscription.request(CREDIT // 2)
        if is_complete:
            self.done.set()

    def on_complete(self) -> None:
        self.done.set()

    def on_error(self, exception: Exception) -> None:
        raise exception


@asynccontextmanager
async def connect(port: int) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    transport = TransportTCP(reader, writer, read_buffer_size=65536)
    async with RSocketClient(single_transport_provider(transport)) as client:
        yield client


async def run(port: int, workload: Workload) -> None:
    if workload.kind == "connect":
        for _ in range(workload.count):
            async with connect(port) as client:
                await client.request_response(Payload(bytes(workload.size)))
        return
    async with connect(port) as client:
        await KINDS[workload.kind](client, workload)


async def request(client: Any, workload: Workload) -> None:
    async def worker() -> None:
        for _ in range(workload.count // workload.concurrency):
            await client.request_response(Payload(bytes(workload.size)))

    await asyncio.gather(*(worker() for _ in range(workload.concurrency)))


async def stream(client: Any, workload: Workload) -> None:
    counter = Counter()
    asked = Payload(b"%d %d" % (workload.count, workload.size))
    client.request_stream(asked).initial_request_n(CREDIT).subscribe(counter)
    await counter.done.wait()
    assert counter.seen == workload.count, counter.seen


async def channel(client: Any, workload: Workload) -> None:
    counter = Counter()
    item = bytes(workload.size)
    items = ((Payload(item), number == workload.count - 1) for number in range(workload.count))
    publisher = StreamFromGenerator(lambda: items)
    client.request_channel(Payload(b""), publisher).initial_request_n(CREDIT).subscribe(counter)
    await counter.done.wait()
    assert counter.seen == workload.count, counter.seen


KINDS = {"request": request, "stream": stream, "channel": channel}


def main() -> None:
    _, port, name, _dialect = sys.argv[1:]
    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(run(int(port), BY_NAME[name]))
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}), flush=True)


if __name__ == "__main__":
    main()
