"""``record`` where its server, and then the recorder, is killed in mid-stream: what is in the file afterwards."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rsocket_trio import Connection, open_connection
from rsocket_trio.replay import read_source_payload
from tests.cli.commands import Running, started
from tests.programs import program

CREDIT = 64
ROUNDS = 3
SERVER = """
import mmap, sys
import trio
from rsocket_trio import Responder, serve

uri, path = sys.argv[1:]
responder = Responder()
file = open(path, "r+b")
sent = mmap.mmap(file.fileno(), 8)  # what is written to it outlives the process

@responder.request_stream("ticks")
async def ticks(request):
    while True:
        number = int.from_bytes(sent, "big")
        sent[:] = (number + 1).to_bytes(8, "big")
        yield str(number)

async def main():
    async with trio.open_nursery() as nursery:
        print(await nursery.start(serve, responder, uri), flush=True)

trio.run(main)
"""
"""Sends numbers, each of them once whichever process it is, as fast as credit allows."""


@asynccontextmanager
async def server(folder: Path, uri: str) -> AsyncIterator[Running]:
    (folder / "server.py").write_text(SERVER)
    async with program(folder / "server.py", uri, folder / "sent") as running:
        await running.line()
        yield running


@asynccontextmanager
async def recorder(folder: Path, uri: str) -> AsyncIterator[tuple[Running, Connection]]:
    """The recorder, and a connection of a reader."""
    words = ("ticks", "--to", "ticks.log", "--listen", "tcp://127.0.0.1:0", "--credit", str(CREDIT), "--log", "error")
    async with started("record", uri, *words, cwd=folder) as running:
        source = (await running.line()).removeprefix("listening ")
        async with open_connection(source) as client:
            yield running, client


async def kill(running: Running) -> None:
    running.process.kill()
    await running.process.wait()


async def latest(client: Connection) -> int:
    return int(json.loads((await client.request_response(route="ticks.offsets")).data)["0"]["latest"])


async def rows(client: Connection, start: int, count: int) -> list[int]:
    """Return so many rows, waiting for those that are still to come."""
    found: list[int] = []
    wanted = json.dumps({"partition": 0, "from": start})
    async with client.request_stream(wanted, route="ticks") as items:
        while len(found) < count:
            found.append(int(read_source_payload(await anext(items)).data or b""))
    return found


async def next_rows(client: Connection) -> list[int]:
    return await rows(client, await latest(client), 500)


async def test_what_was_committed_is_there_once_and_in_order_and_no_more_than_the_credit_is_lost(
    tmp_path: Path,
) -> None:
    (tmp_path / "sent").write_bytes(bytes(8))
    uri = f"unix://{tmp_path}/server"
    seen: set[int] = set()
    for _ in range(ROUNDS):
        async with recorder(tmp_path, uri) as (recording, client):
            async with server(tmp_path, uri) as serving:
                seen.update(await next_rows(client))
                await kill(serving)
            async with server(tmp_path, uri):
                seen.update(await next_rows(client))
                await kill(recording)
    async with recorder(tmp_path, uri) as (_, client), server(tmp_path, uri):
        seen.update(await next_rows(client))
        found = await rows(client, 0, await latest(client))

    lost = [after - before - 1 for before, after in itertools.pairwise(found) if after != before + 1]
    assert found == sorted(set(found))
    assert seen <= set(found)
    assert found[0] == 0
    # A number is noted before it waits for credit, so one more may be gone with the server.
    assert max(lost, default=0) <= CREDIT + 1
    assert len(lost) <= 2 * ROUNDS
