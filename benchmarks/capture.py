"""The cost of a capture: one client against three servers in turn, of which two record, and a recording client.

``python -m benchmarks.capture [ROUNDS]``. Ratios are of medians over rounds that alternate in one run.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import trio

from benchmarks.harness import ROOT, TICKS, Server
from rsocket_trio import Connection, Responder, open_connection, serve
from rsocket_trio.capture import Capture

OFF, PARQUET, JSONL = "off", "parquet", "jsonl"
SERVERS = (OFF, PARQUET, JSONL)
CLIENT = "client"
"""The client, which has more to do than the server, records into Parquet, and the server does not."""
KINDS = (*SERVERS, CLIENT)


async def serve_one(kind: str, directory: str) -> None:
    """The server: echo, and streams of as many items as asked for."""
    responder = Responder()

    @responder.request_response("echo")
    def echo(request: Any) -> bytes:
        return bytes(request.data)

    @responder.request_stream("ticks")
    async def ticks(request: Any) -> Any:
        for _ in range(int(request.data)):
            yield b"0123456789" * 10

    capture = None if kind == OFF else Capture(directory, format=kind)
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(
            lambda task_status: serve(responder, "tcp://127.0.0.1:0", capture=capture, task_status=task_status)
        )
        print(uri.rpartition(":")[2], flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        nursery.cancel_scope.cancel()
    if capture is not None:
        capture.close(60.0)
        print(capture.dropped, flush=True)


async def one_by_one(connection: Connection) -> list[float]:
    """Requests, each after the answer to the one before: seconds of each."""
    took = []
    for _ in range(1500):
        since = time.perf_counter()
        await connection.request_response(b"x" * 64, route="echo")
        took.append(time.perf_counter() - since)
    return took


async def in_flight(connection: Connection) -> list[float]:
    """Requests, 64 at a time: seconds for each on average."""

    async def some() -> None:
        for _ in range(100):
            await connection.request_response(b"x" * 64, route="echo")

    since = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(some)
    return [(time.perf_counter() - since) / 6400]


async def stream(connection: Connection) -> list[float]:
    """One stream of small items: seconds for each on average."""
    since = time.perf_counter()
    async with connection.request_stream(b"20000", route="ticks") as items:
        async for _ in items:
            pass
    return [(time.perf_counter() - since) / 20000]


WORK: dict[str, Callable[[Connection], Coroutine[Any, Any, list[float]]]] = {
    "request/response, 1 in flight": one_by_one,
    "request/response, 64 in flight": in_flight,
    "stream of 100-byte items": stream,
}


@contextmanager
def server(kind: str, directory: str) -> Iterator[Server]:
    """One server for as long as the block; then what it dropped is told."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.capture", "serve", kind, directory],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield Server(process, int(process.stdout.readline()))
        said, _ = process.communicate("\n", timeout=90)
        if said:
            print(f"{kind}: {said.strip()} frames dropped")
    finally:
        process.kill()
        process.wait()


async def measure(servers: dict[str, Server], own: Capture, rounds: int) -> None:
    """All work in each way in turn, again and again; then the ratios."""
    took: dict[tuple[str, str], list[list[float]]] = {(name, kind): [] for name in WORK for kind in KINDS}
    cpu: dict[tuple[str, str], list[float]] = {key: [] for key in took}
    for number in range(rounds):
        for name, work in WORK.items():
            for kind in KINDS if number % 2 else reversed(KINDS):
                server = servers.get(kind, servers[OFF])
                before = server.cpu() + time.process_time()
                async with open_connection(
                    f"tcp://127.0.0.1:{server.port}", capture=own if kind == CLIENT else None
                ) as connection:
                    took[name, kind].append(await work(connection))
                # What the thread still works off belongs to it.
                await trio.sleep(0.5)
                cpu[name, kind].append(server.cpu() + time.process_time() - before)
    for name in WORK:
        for kind in KINDS:
            runs = took[name, kind]
            middle = statistics.median(statistics.median(run) for run in runs)
            off = statistics.median(statistics.median(run) for run in took[name, OFF])
            late = statistics.median(sorted(run)[int(len(run) * 0.99)] for run in runs)
            late_off = statistics.median(sorted(run)[int(len(run) * 0.99)] for run in took[name, OFF])
            used, used_off = statistics.median(cpu[name, kind]), statistics.median(cpu[name, OFF])
            tail = f", p99 {late * 1e6:7.1f} us ({late / late_off:.2f}x)" if len(runs[0]) > 1 else ""
            print(
                f"{name:32} {kind:8} {middle * 1e6:7.1f} us ({middle / off:.2f}x){tail}, "
                f"CPU {used:.2f} s ({used / max(used_off, 1 / TICKS):.2f}x)"
            )


def main(rounds: int) -> None:
    """Start the servers, and measure."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        servers = {kind: stack.enter_context(server(kind, f"{directory}/{kind}")) for kind in SERVERS}
        with Capture(f"{directory}/client") as own:
            trio.run(measure, servers, own, rounds)
        print(f"client: {own.dropped} frames dropped")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        trio.run(serve_one, sys.argv[2], sys.argv[3])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
