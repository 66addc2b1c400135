"""A consumer that stops reading costs neither side memory, whatever its producer has to send."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from rsocket_trio import Connection, open_connection
from tests.reliability.processes import server_process

PAUSE = float(os.environ.get("RSOCKET_TRIO_PAUSE", "2"))
"""Seconds; the bar says 10."""
ITEM = 16384
GIB = 1024**3
BOUND = 64 * 1024**2
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def resident_there(connection: Connection) -> int:
    return int((await connection.request_response(route="memory")).data) * PAGE


@pytest.mark.parametrize("initial_request_n", [256, 2**31 - 1])
async def test_a_consumer_that_stops_reading_keeps_both_sides_small(initial_request_n: int) -> None:
    async with server_process() as (uri, _), open_connection(uri) as connection:
        await connection.ping()
        idle_here, idle_there = resident(), await resident_there(connection)
        count = GIB // ITEM
        if initial_request_n > 256:
            # Who asks for everything gets everything: the bound is then the reader's own.
            count = 1000
        async with connection.request_stream(b"%d" % count, initial_request_n=initial_request_n) as items:
            await anext(items)
            most_here = most_there = 0
            for _ in range(10):
                await trio.sleep(PAUSE / 10)
                most_here = max(most_here, resident() - idle_here)
                most_there = max(most_there, await resident_there(connection) - idle_there)
            # It goes on where it stopped.
            for _ in range(999):
                await anext(items)

    assert most_here < BOUND
    assert most_there < BOUND
