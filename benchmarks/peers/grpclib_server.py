"""The server of the workloads, with grpclib on asyncio. Prints its port, serves until its standard input ends."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from grpclib.const import Cardinality, Handler
from grpclib.server import Server

from benchmarks.peers.grpclib_codec import Raw


class Service:
    async def echo(self, stream: Any) -> None:
        await stream.send_message(await stream.recv_message())

    async def items(self, stream: Any) -> None:
        count, size = map(int, (await stream.recv_message()).split())
        item = bytes(size)
        for _ in range(count):
            await stream.send_message(item)

    async def echo_all(self, stream: Any) -> None:
        async for item in stream:
            await stream.send_message(item)

    def __mapping__(self) -> dict[str, Handler]:
        return {
            "/bench/echo": Handler(self.echo, Cardinality.UNARY_UNARY, bytes, bytes),
            "/bench/items": Handler(self.items, Cardinality.UNARY_STREAM, bytes, bytes),
            "/bench/echo_all": Handler(self.echo_all, Cardinality.STREAM_STREAM, bytes, bytes),
        }


async def main() -> None:
    server = Server([Service()], codec=Raw())
    await server.start("127.0.0.1", 0)
    listening: Any = server._server
    print(listening.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()
    await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main())
