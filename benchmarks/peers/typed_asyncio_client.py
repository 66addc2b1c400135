"""The client of the typed workload, with rsocket-py and json. It makes its metadata once."""

from __future__ import annotations

import asyncio
import json

from rsocket.extensions.helpers import composite, route
from rsocket.extensions.mimetypes import WellKnownMimeTypes
from rsocket.helpers import single_transport_provider
from rsocket.payload import Payload
from rsocket.rsocket_client import RSocketClient
from rsocket.transports.tcp import TransportTCP

from benchmarks.peers.meter import Meter, asked
from benchmarks.peers.orders import ORDER, RECEIPT, ROUTE, Receipt
from benchmarks.peers.python_client import Worker, calls
from benchmarks.workloads import WRITE


async def together(worker: Worker, concurrency: int) -> None:
    await asyncio.gather(*(worker() for _ in range(concurrency)))


async def main() -> None:
    _, port, workload, _, _ = asked()
    meter = Meter(workload)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    transport = TransportTCP(reader, writer, read_buffer_size=WRITE)
    metadata = composite(route(ROUTE))
    async with RSocketClient(
        single_transport_provider(transport),
        data_encoding=WellKnownMimeTypes.APPLICATION_JSON,
        metadata_encoding=WellKnownMimeTypes.MESSAGE_RSOCKET_COMPOSITE_METADATA,
    ) as client:

        async def place() -> Receipt:
            answer = await client.request_response(Payload(json.dumps(vars(ORDER)).encode(), metadata))
            return Receipt(**json.loads(answer.data))

        for part in meter.rounds():
            await calls(place, RECEIPT, part, meter, together)


if __name__ == "__main__":
    asyncio.run(main())
