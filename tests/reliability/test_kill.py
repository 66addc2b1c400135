"""A peer that is killed in mid-stream: every call that waits raises at once, and none hangs."""

from __future__ import annotations

import os
import time

import pytest
import trio

from rsocket_trio import Connection, ConnectionLost, open_connection
from tests.reliability.processes import server_process

ROUNDS = int(os.environ.get("RSOCKET_TRIO_KILLS", "10"))
CALLS = 32


@pytest.mark.parametrize("turn", range(ROUNDS))
async def test_every_waiting_call_raises_within_a_second_of_the_kill(turn: int) -> None:
    raised: list[float] = []
    killed = 0.0

    async def ask(connection: Connection) -> None:
        with pytest.raises(ConnectionLost):
            await connection.request_response()
        raised.append(time.monotonic() - killed)

    async def read(connection: Connection) -> None:
        with pytest.raises(ConnectionLost):  # noqa: PT012
            async with connection.request_stream(b"1000000", initial_request_n=8) as items:
                async for _ in items:
                    pass
        raised.append(time.monotonic() - killed)

    async with server_process() as (uri, process), open_connection(uri) as connection:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for number in range(CALLS):
                    nursery.start_soon(read if number % 2 else ask, connection)
                await trio.sleep(0.02 + 0.01 * (turn % 10))
                killed = time.monotonic()
                process.kill()

    assert len(raised) == CALLS
    assert max(raised) <= 1.0
