"""Replay: a route that can be read again from any position, and a route that takes each batch once."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import trio

from rsocket_trio import Connection, Responder, open_connection, serve
from rsocket_trio.replay import Ledger, Log, Record, add_sink, add_source, read_source_payload


async def run_server(folder: Path, *, task_status: trio.TaskStatus[str]) -> None:
    responder = Responder()
    async with Log(folder / "orders.log") as log:
        add_source(responder, "orders", log)
        add_sink(responder, "orders.new", Ledger(log))
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, responder, "tcp://127.0.0.1:0")
            task_status.started(uri)


async def read(client: Connection, start: int, end: int) -> list[Record]:
    """The records of a range, each with its position."""
    request = json.dumps({"partition": 0, "from": start, "to": end})
    async with client.request_stream(request, route="orders") as items:
        return [read_source_payload(item) async for item in items]


async def stage(client: Connection, attempt: str, rows: list[str]) -> None:
    """Send the rows of one attempt. They count for nothing until a commit names it."""
    opening = json.dumps({"sink": "shop", "attempt": attempt, "partition": 0})
    async with client.request_channel(opening, route="orders.new.stage") as channel:
        for row in rows:
            await channel.send(row)
        await channel.send_eof()
        async for reply in channel:
            print(f"staged {attempt}: {reply.text}")


async def commit(client: Connection, batch: int, **attempts: int) -> None:
    """Promote attempts, each with its number of rows. To be sure, it may be said twice."""
    request = json.dumps({"sink": "shop", "batch": batch, "attempts": attempts})
    reply = await client.request_response(request, route="orders.new.commit")
    print(f"batch {batch}: {reply.text}")


async def run(folder: Path) -> None:
    async with trio.open_nursery() as nursery:
        uri = await nursery.start(run_server, folder)
        async with open_connection(uri) as client:
            await stage(client, "first", ["apples", "pears"])
            await stage(client, "second", ["apples", "pears"])  # the first was thought to be lost
            await commit(client, 0, second=2)
            await commit(client, 0, second=2)
        nursery.cancel_scope.cancel()

    print("the server starts again")
    async with trio.open_nursery() as nursery:
        uri = await nursery.start(run_server, folder)
        async with open_connection(uri) as client:
            await client.request_response("plums", route="orders.new")
            print(f"offsets: {(await client.request_response(route='orders.offsets')).text}")
            for record in await read(client, 1, 3):
                print(f"{record.position}: {(record.data or b'').decode()}")
        nursery.cancel_scope.cancel()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trio.run(run, Path(folder))


if __name__ == "__main__":
    main()
