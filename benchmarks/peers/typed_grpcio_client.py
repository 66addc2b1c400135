"""The client of the typed workload, with grpcio's asyncio API and protobuf."""

from __future__ import annotations

import asyncio

import attrs
import grpc.aio

from benchmarks.peers.meter import Meter, asked
from benchmarks.peers.orders import ORDER, RECEIPT, protobuf
from benchmarks.peers.python_client import Worker, calls

Order, Receipt = protobuf()


async def together(worker: Worker, concurrency: int) -> None:
    await asyncio.gather(*(worker() for _ in range(concurrency)))


async def main() -> None:
    _, port, workload, _, _ = asked()
    meter = Meter(workload)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        place = channel.unary_unary(
            "/bench.Orders/place",
            request_serializer=Order.SerializeToString,
            response_deserializer=Receipt.FromString,
        )
        order, receipt = Order(**attrs.asdict(ORDER)), Receipt(**attrs.asdict(RECEIPT))
        for part in meter.rounds():
            await calls(lambda: place(order), receipt, part, meter, together)


if __name__ == "__main__":
    asyncio.run(main())
