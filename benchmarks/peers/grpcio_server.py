"""The server of the workloads, with grpcio's asyncio API. Prints its port, serves until its standard input ends.

Messages are bytes as they are: no protobuf is built or parsed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from benchmarks.peers.secured import CHAIN, KEY, folder


async def echo(request: bytes, context: Any) -> bytes:
    return request


async def items(request: bytes, context: Any) -> AsyncIterator[bytes]:
    count, size = map(int, request.split())
    item = bytes(size)
    for _ in range(count):
        yield item


async def echo_all(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for item in requests:
        yield item


METHODS = {
    "echo": grpc.unary_unary_rpc_method_handler(echo),
    "items": grpc.unary_stream_rpc_method_handler(items),
    "echo_all": grpc.stream_stream_rpc_method_handler(echo_all),
}


async def main() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", METHODS),))
    if (where := folder()) is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = (where / KEY).read_bytes(), (where / CHAIN).read_bytes()
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(main())
