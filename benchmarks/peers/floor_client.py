"""The client of the workloads, at the floor."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import trio

from benchmarks.peers.floor import CHANNEL, END, STREAM, Wire
from benchmarks.peers.meter import Meter
from benchmarks.workloads import BY_NAME, Workload


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[Wire]:
    async with Wire(await trio.open_tcp_stream("127.0.0.1", port)).open() as wire:
        yield wire


async def once(port: int) -> None:
    async with connect(port) as wire:
        await wire.request(bytes(64))


async def run(port: int, workload: Workload) -> None:
    if workload.kind == "connect":
        await once(port)
        with Meter() as meter:
            for _ in range(workload.count):
                begun = perf_counter()
                await once(port)
                meter.waits.append(perf_counter() - begun)
        return
    async with connect(port) as wire:
        await wire.request(b"first")
        with Meter() as meter:
            await KINDS[workload.kind](wire, workload, meter)


async def request(wire: Wire, workload: Workload, meter: Meter) -> None:
    payload = bytes(workload.size)
    waits = meter.waits

    async def worker() -> None:
        for _ in range(workload.count // workload.concurrency):
            begun = perf_counter()
            await wire.request(payload)
            waits.append(perf_counter() - begun)

    async with trio.open_nursery() as nursery:
        for _ in range(workload.concurrency):
            nursery.start_soon(worker)


async def stream(wire: Wire, workload: Workload, meter: Meter) -> None:
    seen = 0
    async for _ in wire.ask(STREAM, b"%d %d" % (workload.count, workload.size)):
        seen += 1
    assert seen == workload.count, seen


async def channel(wire: Wire, workload: Workload, meter: Meter) -> None:
    item = bytes(workload.size)
    both = wire.ask(CHANNEL, b"")
    seen = 0
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for _ in range(workload.count):
                await both.send(item)
            wire.put(both.number, END, b"")

        nursery.start_soon(send)
        async for _ in both:
            seen += 1
    assert seen == workload.count, seen


KINDS = {"request": request, "stream": stream, "channel": channel}


def main() -> None:
    _, port, name, _dialect = sys.argv[1:]
    trio.run(run, int(port), BY_NAME[name])


if __name__ == "__main__":
    main()
