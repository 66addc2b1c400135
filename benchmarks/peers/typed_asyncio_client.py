"""The client of the typed workload, with rsocket-py and json. It makes its metadata once."""

from __future__ import annotations

import asyncio
import json
import sys
from time import perf_counter

from rsocket.extensions.helpers import composite, route
from rsocket.extensions.mimetypes import WellKnownMimeTypes
from rsocket.helpers import single_transport_provider
from rsocket.payload import Payload
from rsocket.rsocket_client import RSocketClient
from rsocket.transports.tcp import TransportTCP

from benchmarks.peers.meter import Meter
from benchmarks.peers.orders import ORDER, RECEIPT, ROUTE, Order, Receipt
from benchmarks.workloads import BY_NAME, WRITE, Workload


async def run(port: int, workload: Workload) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    transport = TransportTCP(reader, writer, read_buffer_size=WRITE)
    metadata = composite(route(ROUTE))
    async with RSocketClient(
        single_transport_provider(transport),
        data_encoding=WellKnownMimeTypes.APPLICATION_JSON,
        metadata_encoding=WellKnownMimeTypes.MESSAGE_RSOCKET_COMPOSITE_METADATA,
    ) as client:

        async def place(order: Order) -> Receipt:
            answer = await client.request_response(Payload(json.dumps(vars(order)).encode(), metadata))
            return Receipt(**json.loads(answer.data))

        assert await place(ORDER) == RECEIPT
        with Meter() as meter:
            waits = meter.waits

            async def worker() -> None:
                for _ in range(workload.count // workload.concurrency):
                    begun = perf_counter()
                    await place(ORDER)
                    waits.append(perf_counter() - begun)

            await asyncio.gather(*(worker() for _ in range(workload.concurrency)))


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[2]), BY_NAME[sys.argv[3]]))
