"""A server that is killed in the middle of commits, and started again, has each row once."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from rsocket_trio import Connection, ConnectionLost, open_connection
from rsocket_trio.replay import read_source_payload
from tests.programs import PATIENCE, ForkedProcess, program
from tests.replay.stored import opened

SERVER = Path(__file__).with_name("mortal_server.py")
ROWS = 50


@asynccontextmanager
async def server(folder: Path) -> AsyncGenerator[tuple[Connection, trio.Process | ForkedProcess], None]:
    """A server in a process of its own, and a connection to it."""
    async with program(SERVER, folder) as running, open_connection(await running.line()) as client:
        yield client, running.process


async def stage(client: Connection, attempt: str, batch: int, partition: int) -> None:
    opening = json.dumps({"sink": "s", "attempt": attempt, "partition": partition})
    async with client.request_channel(opening, route="sink.stage") as channel:
        for row in range(ROWS):
            await channel.send(b"%d-%d-%d" % (batch, partition, row))
        await channel.send_eof()
        [reply] = [item async for item in channel]
    assert json.loads(reply.data) == {"rows": ROWS, "elements": ROWS}


async def run_batch(client: Connection, life: int, batch: int, dies_with: str | None = None) -> bool:
    """Stage and commit a batch under names of this life. Return whether it was promoted by this commit."""
    attempts = [f"{life}-{batch}-{partition}" for partition in range(2)]
    for partition, attempt in enumerate(attempts):
        await stage(client, attempt, batch, partition)
    if dies_with is not None:
        await client.request_response(dies_with, route="die")
    named = [{"attempt": attempt, "rows": ROWS} for attempt in attempts]
    request = json.dumps({"sink": "s", "batch": batch, "attempts": named})
    promoted = json.loads((await client.request_response(request, route="sink.commit")).data)["promoted"]
    assert isinstance(promoted, bool)
    return promoted


async def test_a_server_killed_in_the_middle_of_commits_has_each_row_once(tmp_path: Path) -> None:
    calls = dict(enumerate(("write 1", "write 2", "write 5", "write 9", "write 14", "sync 1"), 1))
    outcomes = []
    with trio.fail_after(2 * PATIENCE):
        for life, call in calls.items():
            async with server(tmp_path) as (client, process):
                if life > 1:
                    # The writer does not know what became of its last commit, so it does that batch again.
                    outcomes.append(await run_batch(client, life, life - 1))
                with pytest.raises(ConnectionLost):
                    await run_batch(client, life, life, dies_with=call)
                assert await process.wait() == -signal.SIGKILL
            with opened(tmp_path / "rows.log") as connection:
                assert connection.pragma("integrity_check") == "ok"
        async with server(tmp_path) as (client, _):
            outcomes.append(await run_batch(client, 100, len(calls)))
            bounds = json.loads((await client.request_response(route="rows.offsets")).data)
            found = []
            for partition in range(2):
                request = json.dumps({"partition": partition, "from": 0, "to": bounds[str(partition)]["latest"]})
                async with client.request_stream(request, route="rows", initial_request_n=4096) as items:
                    found += [read_source_payload(item).data or b"" async for item in items]

    assert sorted(found) == sorted(b"%d-%d-%d" % (b, p, row) for b in calls for p in range(2) for row in range(ROWS))
    # Killed before the transaction was whole in the file, the batch is promoted anew; killed later, it had been.
    assert outcomes[0] is True
    assert False in outcomes
