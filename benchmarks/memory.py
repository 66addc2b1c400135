"""What do an idle connection and an open stream cost the server, and what does a reader that stopped?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

import trio

from benchmarks import harness
from benchmarks.workloads import CREDIT
from rsocket_trio import open_connection

CONNECTIONS = 500
STREAMS = 5_000
PAUSE = 10
"""Seconds that the reader stops for, while 1 GiB waits to be sent."""
ITEM = 16_384


async def connections(server: harness.Server) -> float:
    """Bytes an idle connection costs the server."""
    async with AsyncExitStack() as stack:
        uri = f"tcp://127.0.0.1:{server.port}"
        first = await stack.enter_async_context(open_connection(uri))
        await first.request_response(b"")
        before = server.resident()
        for _ in range(CONNECTIONS):
            await (await stack.enter_async_context(open_connection(uri))).ping()
        return (server.resident() - before) / CONNECTIONS


async def streams(server: harness.Server) -> float:
    """Bytes an open stream costs the server, with one item sent and no credit for another."""
    async with AsyncExitStack() as stack:
        uri = f"tcp://127.0.0.1:{server.port}"
        connection = await stack.enter_async_context(open_connection(uri))
        await connection.request_response(b"")
        before = server.resident()
        for _ in range(STREAMS):
            items = connection.request_stream(b"1000 64", initial_request_n=1, refill=False)
            await anext(await stack.enter_async_context(items))
        return (server.resident() - before) / STREAMS


async def pause(server: harness.Server) -> float:
    """Bytes that the server grows by while a stream's reader does nothing, with 1 GiB to send."""
    async with open_connection(f"tcp://127.0.0.1:{server.port}") as connection:
        await connection.request_response(b"")
        before = server.resident()
        asked = b"%d %d" % (2**30 // ITEM, ITEM)
        async with connection.request_stream(asked, initial_request_n=CREDIT) as items:
            await anext(items)
            await trio.sleep(PAUSE)
            return server.resident() - before


def main(libraries: Sequence[str] = ("trio",)) -> dict[str, dict[str, float]]:
    """Print and return the figures of each library's server, in bytes; the clients are always ours."""
    figures: dict[str, dict[str, float]] = {}
    for library in libraries:
        figures[library] = {}
        for name, measure in (("connection", connections), ("stream", streams), ("pause", pause)):
            with harness.server(library) as server:
                figures[library][name] = trio.run(measure, server)
    ours = figures["trio"]
    for name, what in (("connection", "an idle connection"), ("stream", "an open stream")):
        line = f"server memory of {what}: {ours[name] / 1024:.1f} KiB"
        if "asyncio" in figures:
            theirs = figures["asyncio"][name]
            line += f", rsocket-py {theirs / 1024:.1f} KiB: {theirs / ours[name]:.1f}x"
        print(line)
    print(f"server growth beside a reader that stopped for {PAUSE} s: {ours['pause'] / 2**20:.1f} MiB")
    return figures


if __name__ == "__main__":
    main()
