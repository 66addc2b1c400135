"""The client of the typed workload, with grpcio's asyncio API and protobuf."""

from __future__ import annotations

import asyncio
import sys
from time import perf_counter

import attrs
import grpc.aio

from benchmarks.peers.meter import Meter
from benchmarks.peers.orders import ORDER, RECEIPT, protobuf
from benchmarks.workloads import BY_NAME, Workload

Order, Receipt = protobuf()


async def run(port: int, workload: Workload) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        place = channel.unary_unary(
            "/bench.Orders/place",
            request_serializer=Order.SerializeToString,
            response_deserializer=Receipt.FromString,
        )
        order = Order(**attrs.asdict(ORDER))
        assert await place(order) == Receipt(**attrs.asdict(RECEIPT))
        with Meter() as meter:
            waits = meter.waits

            async def worker() -> None:
                for _ in range(workload.count // workload.concurrency):
                    begun = perf_counter()
                    await place(order)
                    waits.append(perf_counter() - begun)

            await asyncio.gather(*(worker() for _ in range(workload.concurrency)))


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[2]), BY_NAME[sys.argv[3]]))
