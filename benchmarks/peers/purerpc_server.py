"""The server of the workloads, with purerpc on Trio. Prints its port, serves until its standard input ends."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import trio
from purerpc import Server
from purerpc.server import Service

from benchmarks.peers.purerpc_messages import SIGNATURES, Raw


async def echo(request: Raw) -> Raw:
    return request


async def items(asked: Raw) -> AsyncIterator[Raw]:
    count, size = map(int, asked.data.split())
    item = Raw(bytes(size))
    for _ in range(count):
        yield item


async def echo_all(requests: AsyncIterator[Raw]) -> AsyncIterator[Raw]:
    async for item in requests:
        yield item


async def main() -> None:
    service = Service("bench")
    for method in (echo, items, echo_all):
        service.add_method(method.__name__, method, SIGNATURES[method.__name__])
    server = Server(port=0)
    server.add_service(service)
    async with trio.open_nursery() as nursery:
        print(await nursery.start(start, server), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


async def start(server: Server, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
    await server.serve_async(task_status=task_status)


if __name__ == "__main__":
    trio.run(main)
