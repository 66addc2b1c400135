"""The client of the workloads, with this library."""

from __future__ import annotations

import sys
from time import perf_counter

import trio

from benchmarks.peers.meter import Meter
from benchmarks.workloads import BY_NAME, CREDIT, Workload
from rsocket_trio import Connection, ResumeOptions, open_connection


async def run(uri: str, workload: Workload, dialect: str, resume: ResumeOptions | None) -> None:
    if workload.kind == "connect":
        await connect(uri, dialect)
        with Meter() as meter:
            for _ in range(workload.count):
                begun = perf_counter()
                await connect(uri, dialect)
                meter.waits.append(perf_counter() - begun)
        return
    async with open_connection(uri, dialect=dialect, resume=resume) as connection:
        await connection.request_response(b"first")
        with Meter() as meter:
            await KINDS[workload.kind](connection, workload, meter)


async def connect(uri: str, dialect: str) -> None:
    async with open_connection(uri, dialect=dialect) as connection:
        await connection.request_response(bytes(64))


async def request(connection: Connection, workload: Workload, meter: Meter) -> None:
    payload = bytes(workload.size)
    waits = meter.waits

    async def worker() -> None:
        for _ in range(workload.count // workload.concurrency):
            begun = perf_counter()
            await connection.request_response(payload)
            waits.append(perf_counter() - begun)

    async with trio.open_nursery() as nursery:
        for _ in range(workload.concurrency):
            nursery.start_soon(worker)


async def stream(connection: Connection, workload: Workload, meter: Meter) -> None:
    asked = b"%d %d" % (workload.count, workload.size)
    seen = 0
    async with connection.request_stream(asked, initial_request_n=CREDIT) as items:
        async for _ in items:
            seen += 1
    assert seen == workload.count, seen


async def channel(connection: Connection, workload: Workload, meter: Meter) -> None:
    item = bytes(workload.size)
    seen = 0
    async with connection.request_channel() as both, trio.open_nursery() as nursery:

        async def send() -> None:
            for _ in range(workload.count):
                await both.send(item)
            await both.send_eof()

        nursery.start_soon(send)
        async for _ in both:
            seen += 1
    assert seen == workload.count, seen


KINDS = {"request": request, "stream": stream, "channel": channel}


def main() -> None:
    scheme, port, name, dialect, *more = sys.argv[1:]
    resume = ResumeOptions() if "resume" in more else None
    trio.run(run, f"{scheme}://127.0.0.1:{port}", BY_NAME[name], dialect, resume)


if __name__ == "__main__":
    main()
