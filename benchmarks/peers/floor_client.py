"""The client of the workloads, at the floor."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import Any

import attrs
import trio
from outcome import Value
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled

from benchmarks.peers.floor import (
    ASKED,
    CHANNEL,
    COMPLETE,
    COUNT,
    GRANT,
    ITEM,
    KIND,
    NEXT,
    REQUEST,
    STREAM,
    Credit,
    Socket,
    Splitter,
    Writer,
    frame,
    items,
)
from benchmarks.peers.meter import SETTLE, Meter, asked
from benchmarks.workloads import CREDIT, REFILL, Workload


class Connection:
    """One connection."""

    def __init__(self, stream: Socket) -> None:
        self._stream = stream
        self._writer = Writer(stream)
        self._last = -1
        self._requests: dict[int, Task] = {}
        self._receivers: dict[int, Callable[[int, bytes], None]] = {}
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._writer.run)
                await self._read()

    def close(self) -> None:
        self.scope.cancel()
        self._stream.socket.close()

    async def _read(self) -> None:
        feed, receive, requests, receivers = Splitter().feed, self._stream.receive, self._requests, self._receivers
        while data := await receive():
            for stream, word, body in feed(data):
                task = requests.pop(stream, None)
                if task is not None:
                    reschedule(task, Value(body))
                else:
                    receivers[stream](word, body)

    def _next_stream(self) -> int:
        self._last += 2
        return self._last

    async def request(self, body: bytes) -> bytes:
        stream = self._next_stream()
        requests = self._requests
        (self._writer.put if requests else self._writer.put_alone)(frame(stream, REQUEST, body))
        requests[stream] = current_task()

        def abort(_: Any) -> Abort:
            del requests[stream]
            return Abort.SUCCEEDED

        answer: bytes = await wait_task_rescheduled(abort)
        return answer

    async def stream(self, count: int, size: int) -> AsyncIterator[bytes]:
        stream = self._next_stream()
        came: deque[bytes | None] = deque()
        wakes = Credit()

        def receive(word: int, body: bytes) -> None:
            came.append(None if word & COMPLETE else body)
            wakes.add(0)

        self._receivers[stream] = receive
        self._writer.put(frame(stream, STREAM, COUNT.pack(CREDIT) + ASKED.pack(count, size)))
        taken = 0
        while True:
            while came:
                item = came.popleft()
                if item is None:
                    del self._receivers[stream]
                    return
                taken += 1
                if taken == REFILL:
                    taken = 0
                    self._writer.put(frame(stream, GRANT, COUNT.pack(REFILL)))
                yield item
            await wakes.wait()

    async def channel(self, count: int, size: int) -> int:
        """Send so many items. Return how many came back."""
        stream = self._next_stream()
        came: deque[bytes | None] = deque()
        wakes, credit = Credit(), Credit()
        put = self._writer.put

        def receive(word: int, body: bytes) -> None:
            if word & KIND == GRANT:
                credit.add(COUNT.unpack(body)[0])
            else:
                came.append(None if word & COMPLETE else body)
                wakes.add(0)

        async def send() -> None:
            async for item in items(count, size):
                while credit.left == 0:
                    await credit.wait()
                credit.left -= 1
                put(frame(stream, ITEM | NEXT, item))
            put(frame(stream, ITEM | COMPLETE, b""))

        self._receivers[stream] = receive
        seen = taken = 0
        async with trio.open_nursery() as nursery:
            put(frame(stream, CHANNEL, COUNT.pack(CREDIT) + ASKED.pack(count, size)))
            nursery.start_soon(send)
            while True:
                while came:
                    if came.popleft() is None:
                        return seen
                    seen += 1
                    taken += 1
                    if taken == REFILL:
                        taken = 0
                        put(frame(stream, GRANT, COUNT.pack(REFILL)))
                await wakes.wait()

    def open_idle_stream(self) -> None:
        stream = self._next_stream()
        came: deque[tuple[int, bytes]] = deque()
        self._receivers[stream] = lambda word, body: came.append((word, body))
        self._writer.put(frame(stream, STREAM, COUNT.pack(CREDIT) + ASKED.pack(0, 0)))


@attrs.frozen
class Client:
    """The state that the workloads share: the port, the connections and the waits in seconds."""

    port: int
    nursery: trio.Nursery
    waits: list[float]
    opened: list[Connection] = attrs.field(factory=list)

    async def connection(self) -> Connection:
        """Return the one connection of workloads that need no more."""
        if not self.opened:
            self.opened.append(await connected(self.port, self.nursery))
        return self.opened[0]


async def connected(port: int, nursery: trio.Nursery) -> Connection:
    connection = Connection(Socket(await trio.open_tcp_stream("127.0.0.1", port)))
    nursery.start_soon(connection.run)
    return connection


async def connect(client: Client, workload: Workload) -> None:
    waits = client.waits
    payload = bytes(workload.size)
    end = perf_counter() + workload.seconds
    while (begun := perf_counter()) < end:
        connection = await connected(client.port, client.nursery)
        await connection.request(payload)
        connection.close()
        waits.append(perf_counter() - begun)


async def request(client: Client, workload: Workload) -> None:
    size, waits, connection = workload.size, client.waits, await client.connection()
    payload = bytes(size)
    end = perf_counter() + workload.seconds

    async def worker() -> None:
        while (begun := perf_counter()) < end:
            answer = await connection.request(payload)
            waits.append(perf_counter() - begun)
            assert len(answer) == size

    async with trio.open_nursery() as nursery:
        for _ in range(workload.concurrency):
            nursery.start_soon(worker)


async def stream(client: Client, workload: Workload) -> None:
    connection = await client.connection()
    seen = 0
    async for _ in connection.stream(workload.count, workload.size):
        seen += 1
    assert seen == workload.count, seen


async def channel(client: Client, workload: Workload) -> None:
    connection = await client.connection()
    seen = await connection.channel(workload.count, workload.size)
    assert seen == workload.count, seen


async def connections(client: Client, workload: Workload) -> None:
    for _ in range(workload.count):
        connection = await connected(client.port, client.nursery)
        client.opened.append(connection)
        await connection.request(bytes(workload.size))
    await trio.sleep(SETTLE)


async def streams(client: Client, workload: Workload) -> None:
    connection = await client.connection()
    for _ in range(workload.count):
        connection.open_idle_stream()
        await trio.lowlevel.checkpoint()
    await connection.request(bytes(workload.size))
    await trio.sleep(SETTLE)


KINDS = {
    "request": request,
    "stream": stream,
    "channel": channel,
    "connect": connect,
    "connections": connections,
    "streams": streams,
}


async def main() -> None:
    _, port, workload, _, _ = asked()
    meter = Meter(workload)
    async with trio.open_nursery() as nursery:
        client = Client(port, nursery, meter.waits)
        for part in meter.rounds():
            await KINDS[workload.kind](client, part)
        for connection in client.opened:
            connection.close()


if __name__ == "__main__":
    trio.run(main)
