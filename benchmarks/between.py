"""The cost of metrics on the server, and of a forwarder between two sides, by the CPU of all processes."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import trio

from benchmarks.descendants import cpu_of_tree
from benchmarks.markdown import command, table
from rsocket_trio import Payload, Responder, forwarding, open_connection, serve

WORKLOADS = {"W2": 30_000, "W3": 400_000}
"""The requests of W2, 64 at once, and the items of W3's stream; 64 bytes each."""
BARS = {("watched", "W2"): 1.5, ("watched", "W3"): 1.15, ("forwarded", "W2"): 2.6, ("forwarded", "W3"): 2.4}
"""CPU of all processes, by that of server and client alone; a forwarder that costs nothing of its own takes 2.0."""
AT_ONCE = 64
CONTENT = bytes(64)


async def run_server(*, watched: bool) -> None:
    """Serve both workloads."""
    responder = Responder()
    if watched:
        from rsocket_trio import observe

        responder.around(observe.prometheus())

    @responder.request_response("W2")
    async def echo(request: Payload) -> Payload:
        return request

    @responder.request_stream("W3")
    async def items(request: Payload) -> Any:
        item = Payload(CONTENT)
        for _ in range(int(request.text)):
            yield item

    await announced(responder)


async def run_forwarder(uri: str) -> None:
    """Forward to the server at ``uri``."""
    async with open_connection(uri) as connection:
        responder = Responder()
        responder.include(forwarding(connection))
        await announced(responder)


async def announced(responder: Responder) -> None:
    """Serve, and print where."""
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, "tcp://127.0.0.1:0")
        print(uri, flush=True)


async def run_client(uri: str, workload: str, count: int) -> None:
    """Make the requests of a workload."""
    async with open_connection(uri) as connection:
        if workload == "W3":
            async with connection.request_stream(str(count), route=workload) as items:
                assert len([item async for item in items]) == count
            return

        async def ask() -> None:
            for _ in range(count // AT_ONCE):
                await connection.request_response(CONTENT, route=workload)

        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(ask)


@contextmanager
def process(*words: str) -> Iterator[tuple[int, str]]:
    """Provide a process of this module, and the URI that it prints."""
    with subprocess.Popen([sys.executable, "-m", __name__, *words], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield running.pid, running.stdout.readline().strip()
        finally:
            running.kill()


def cost(uri: str, workload: str, count: int, servers: list[int]) -> float:
    """Return the CPU seconds of a client and of the servers behind it."""
    before = sum(map(cpu_of_tree, servers)) + children()
    words = [sys.executable, "-m", __name__, "client", uri, workload, str(count)]
    subprocess.run(words, check=True)
    return sum(map(cpu_of_tree, servers)) + children() - before


def children() -> float:
    """Return the CPU seconds of all processes that ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(repeat: int = 9) -> dict[str, dict[str, list[float]]]:
    """Print and return the ratios of each way to server and client alone, in turns."""
    found: dict[str, dict[str, list[float]]] = {way: {each: [] for each in WORKLOADS} for way, _ in BARS}
    for _ in range(repeat):
        # Processes of the same code differ by some percent, by where their memory is: so each pair has its own.
        with ExitStack() as stack:
            plain, uri = stack.enter_context(process("server"))
            watched, watched_uri = stack.enter_context(process("watched"))
            between, near = stack.enter_context(process("forward", uri))
            ways = {"watched": (watched_uri, [watched]), "forwarded": (near, [plain, between])}
            for workload, count in WORKLOADS.items():
                start = cost(uri, workload, AT_ONCE, [plain])
                alone = cost(uri, workload, count, [plain]) - start
                for way, (address, servers) in ways.items():
                    found[way][workload].append((cost(address, workload, count, servers) - start) / alone)
    for (way, workload), bar in BARS.items():
        print(f"{way} {workload}: {statistics.median(found[way][workload]):.2f} (bar {bar})")
    return found


def written(figures: dict[str, Any]) -> list[str]:
    """The section of the report."""
    rows = [
        [way, workload, f"{statistics.median(figures['between'][way][workload]):.2f}", f"{bar:g}"]
        for (way, workload), bar in BARS.items()
    ]
    return [
        "## Metrics and forwarding",
        (
            "CPU of all processes, by that of one server and one client alone: with `observe.prometheus` on the "
            "server, and with a process between them that forwards, whose floor is 2.0. W2 is 64 requests at once, "
            "W3 a stream."
        ),
        table(["", "workload", "ratio", "at most"], rows),
        command("between"),
    ]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["client", address, name, number]:
            trio.run(run_client, address, name, int(number))
        case ["forward", address]:
            trio.run(run_forwarder, address)
        case [kind]:
            trio.run(lambda: run_server(watched=kind == "watched"))
