"""The client of the workloads, with this library. Prints wall and CPU seconds of one of them as JSON."""

from __future__ import annotations

import json
import sys
import time

import trio

from benchmarks.workloads import BY_NAME, CREDIT, Workload
from rsocket_trio import Connection, ResumeOptions, open_connection


async def run(uri: str, workload: Workload, dialect: str, resume: ResumeOptions | None) -> None:
    if workload.kind == "connect":
        for _ in range(workload.count):
            async with open_connection(uri, dialect=dialect) as connection:
                await connection.request_response(bytes(workload.size))
        return
    async with open_connection(uri, dialect=dialect, resume=resume) as connection:
        await KINDS[workload.kind](connection, workload)


async def request(connection: Connection, workload: Workload) -> None:
    payload = bytes(workload.size)

    async def worker() -> None:
        for _ in range(workload.count // workload.concurrency):
            await connection.request_response(payload)

    async with trio.open_nursery() as nursery:
        for _ in range(workload.concurrency):
            nursery.start_soon(worker)


async def stream(connection: Connection, workload: Workload) -> None:
    asked = b"%d %d" % (workload.count, workload.size)
    seen = 0
    async with connection.request_stream(asked, initial_request_n=CREDIT) as items:
        async for _ in items:
            seen += 1
    assert seen == workload.count, seen


async def channel(connection: Connection, workload: Workload) -> None:
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
    wall, cpu = time.perf_counter(), time.process_time()
    trio.run(run, f"{scheme}://127.0.0.1:{port}", BY_NAME[name], dialect, resume)
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}), flush=True)


if __name__ == "__main__":
    main()
