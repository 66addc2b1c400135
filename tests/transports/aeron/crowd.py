"""Many clients of a server over Aeron in a process of its own, and the CPU time of both while more of them connect."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
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

    def __sub__(self, before: CPU) -> CPU:
        return CPU(self.client - before.client, self.server - before.server)

    def over(self, parts: float) -> CPU:
        """Return the part of each."""
        return CPU(self.client / parts, self.server / parts)


class Crowd:
    """A server, and clients in this process."""

    def __init__(self, uri: str, server: trio.Process, clients: trio.Nursery) -> None:
        self._uri = uri
        self._server = server
        self._clients = clients

    def cpu(self) -> CPU:
        """Return the CPU seconds so far."""
        nanoseconds = int(Path(f"/proc/{self._server.pid}/schedstat").read_text().split()[0])
        return CPU(time.process_time(), nanoseconds / 1e9)

    async def open(self, count: int) -> None:
        """Connect so many more clients, and keep them. Raise ``ConnectionLost`` if any can't connect."""
        limit = trio.CapacityLimiter(AT_ONCE)

        async def connect() -> None:
            async with limit:
                await self._clients.start(self._stay)

        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(connect)

    async def _stay(self, task_status: trio.TaskStatus[None]) -> None:
        async with open_connection(self._uri) as connection:
            assert (await connection.request_response(b"hello")).data == b"hello"
            task_status.started()
            await trio.sleep_forever()

    async def come_and_go(self, count: int) -> None:
        """Connect so many clients, each of which asks and leaves."""
        limit = trio.CapacityLimiter(AT_ONCE)

        async def visit() -> None:
            async with limit, open_connection(self._uri) as connection:
                assert (await connection.request_response(b"hello")).data == b"hello"

        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(visit)


@asynccontextmanager
async def crowd() -> AsyncIterator[Crowd]:
    """A server without clients, for the block."""
    async with echo_server(UDP) as (process, uri), trio.open_nursery() as clients:
        yield Crowd(uri, process, clients)
        clients.cancel_scope.cancel()


async def cost_of_connecting(count: int) -> CPU:
    """Return the CPU seconds of one that connects, asks and leaves while so many are connected."""
    async with crowd() as clients:
        await clients.open(count)
        await trio.sleep(REST)
        before = clients.cpu()
        await clients.come_and_go(VISITS)
        return (clients.cpu() - before).over(VISITS)


async def cost_at_rest(count: int) -> CPU:
    """Return the share of a core that each process takes while so many connections are idle."""
    async with crowd() as clients:
        await clients.open(count)
        await trio.sleep(REST)
        before = clients.cpu()
        await trio.sleep(REST)
        return (clients.cpu() - before).over(REST)
