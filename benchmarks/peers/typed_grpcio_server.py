"""The server of the typed workload, with grpcio's asyncio API and protobuf. Prints its port, serves until its standard
input ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio

from benchmarks.peers.orders import protobuf, total

Order, Receipt = protobuf()


async def place(order: Any, context: Any) -> Any:
    return Receipt(id=f"{order.symbol}-{order.amount}", total=total(order.amount))


METHODS = {
    "place": grpc.unary_unary_rpc_method_handler(
        place, request_deserializer=Order.FromString, response_serializer=Receipt.SerializeToString
    )
}


async def main() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Orders", METHODS),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
