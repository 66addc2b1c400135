"""Many clients of a server over Aeron in a process of its own, and the CPU time of both while more of them connect."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import trio

from rsocket_trio import open_connection
from tests.transports.aeron.processes import echo_server

UDP = "aeron:udp?endpoint=127.0.0.1:0"
AT_ONCE = 4
"""Clients that connect at a time."""
VISITS = 40
"""Clients that come and go. Each leaves files behind for some seconds, and many would be measured with the others."""
REST = 4.0
"""Seconds of which the CPU at rest is taken, and until driver and connections are at rest."""


class CPU(NamedTuple):
    """CPU seconds of the two processes."""

    client: float
    server: float


async def cost_of(count: int, work: Callable[[str], Awaitable[object]], parts: float) -> CPU:
    """Return the CPU seconds of work on a server with so many other clients, divided by this number."""
    async with echo_server(UDP) as (process, uri), trio.open_nursery() as clients:

        def cpu() -> CPU:
            nanoseconds = int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0])
            return CPU(time.process_time(), nanoseconds / 1e9)

        async def stay(task_status: trio.TaskStatus[None]) -> None:
            async with asking(uri):
                task_status.started()
                await trio.sleep_forever()

        await at_once(count, lambda: clients.start(stay))
        await trio.sleep(REST)
        before = cpu()
        await work(uri)
        after = cpu()
        clients.cancel_scope.cancel()
    return CPU((after.client - before.client) / parts, (after.server - before.server) / parts)


@asynccontextmanager
async def asking(uri: str) -> AsyncIterator[None]:
    """A client that has an answer."""
    async with open_connection(uri) as connection:
        assert (await connection.request_response(b"hello")).data == b"hello"
        yield


async def at_once(count: int, work: Callable[[], Awaitable[object]]) -> None:
    """Do something so many times, ``AT_ONCE`` at a time."""
    limit = trio.CapacityLimiter(AT_ONCE)

    async def do() -> None:
        async with limit:
            await work()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(do)


async def cost_of_connecting(count: int) -> CPU:
    """Return the CPU seconds of one that connects, asks and leaves while so many are connected."""

    async def come_and_go(uri: str) -> None:
        async def visit() -> None:
            async with asking(uri):
                pass

        await at_once(VISITS, visit)

    return await cost_of(count, come_and_go, VISITS)


async def cost_at_rest(count: int) -> CPU:
    """Return the share of a core that each process takes while so many connections are idle."""

    async def rest(_: str) -> None:
        await trio.sleep(REST)

    return await cost_of(count, rest, REST)
