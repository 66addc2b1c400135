"""A writer that does what Spark's driver and tasks do: it copies ``numbers`` to ``orders``, batch after batch.

python -m qa.kafka.driver '{"uris": [...], "checkpoint": FILE, "step": 100, "seed": 1}'

The plan of a batch is in the checkpoint before it is done, so that a driver that was killed does the same batch again.
It prints ``batch N`` for each, and ``done``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    Rejected,
    open_connection,
)
from rsocket_trio.replay import read_source_payload

PASSING = (ConnectionLost, ConnectionClosed, Rejected, Canceled, ApplicationError, OSError, trio.TooSlowError)
PAUSE = 0.1
PATIENCE = 120.0
ANSWER_SECONDS = 60.0


class Driver:
    """The writer; its state is the checkpoint."""

    def __init__(self, uris: list[str], checkpoint: Path, step: int, seed: int) -> None:
        self._uris = uris
        self._checkpoint = checkpoint
        self._step = step
        self._chance = random.Random(seed)

    async def run(self) -> None:
        """Copy until nothing is left."""
        state = self._load()
        while True:
            if state["ends"] is None:
                state["ends"] = await self._again(self._plan, state)
                if state["ends"] == state["starts"]:
                    return
                self._save(state)
            await self._again(self._do, state)
            print("batch", state["batch"], flush=True)
            state = {"batch": state["batch"] + 1, "starts": state["ends"], "ends": None}
            self._save(state)

    async def _again(self, function: Any, state: dict[str, Any]) -> Any:
        """Do something until it succeeds, at one server or another."""
        with trio.fail_after(PATIENCE):
            while True:
                try:
                    return await function(state)
                except PASSING:
                    await trio.sleep(PAUSE)

    async def _plan(self, state: dict[str, Any]) -> dict[str, int]:
        async with self._connection() as connection:
            bounds = json.loads((await self._ask(connection, "numbers.offsets", b""))[0])
        return {name: min(state["starts"].get(name, 0) + self._step, one["latest"]) for name, one in bounds.items()}

    async def _do(self, state: dict[str, Any]) -> None:
        """Plan, read, stage and commit one batch. Now and then the commit goes to another server."""
        attempts = []
        async with self._connection() as connection:
            epoch = json.loads((await self._ask(connection, "orders.epoch", b'{"sink": "copy"}'))[0])["epoch"]
            about = {"sink": "copy", "batch": state["batch"], "epoch": epoch}
            for name, end in state["ends"].items():
                attempt = str(uuid.uuid4())
                rows = await self._stage(connection, {"attempt": attempt, **about}, name, end, state)
                attempts.append({"attempt": attempt, "rows": rows})
            said = json.dumps({**about, "query": "the driver", "attempts": attempts}).encode()
            if self._chance.random() < 0.8:
                await self._ask(connection, "orders.commit", said)
                return
        async with self._connection() as connection:
            await self._ask(connection, "orders.commit", said)

    async def _stage(
        self, connection: Connection, about: dict[str, Any], name: str, end: int, state: dict[str, Any]
    ) -> int:
        start = state["starts"].get(name, 0)
        if start == end:
            rows = []
        else:
            wanted = json.dumps({"partition": int(name), "from": start, "to": end}).encode()
            with trio.fail_after(ANSWER_SECONDS):
                async with connection.request_stream(wanted, route="numbers", initial_request_n=4096) as items:
                    records = [read_source_payload(item) async for item in items]
            rows = [record.data for record in records if record.count]
        opening = json.dumps({**about, "partition": int(name)}).encode()
        with trio.fail_after(ANSWER_SECONDS):
            async with connection.request_channel(opening, route="orders.stage") as channel:
                for row in rows:
                    await channel.send(row or b"")
                await channel.send_eof()
                [answer] = [item async for item in channel]
        if json.loads(answer.data)["rows"] != len(rows):
            raise ConnectionLost("the stage is not whole")
        return len(rows)

    async def _ask(self, connection: Connection, route: str, data: bytes) -> list[bytes]:
        with trio.fail_after(ANSWER_SECONDS):
            return [(await connection.request_response(data, route=route)).data]

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        async with open_connection(self._chance.choice(self._uris)) as connection:
            yield connection

    def _load(self) -> dict[str, Any]:
        if self._checkpoint.exists():
            found: dict[str, Any] = json.loads(self._checkpoint.read_text())
            return found
        return {"batch": 0, "starts": {}, "ends": None}

    def _save(self, state: dict[str, Any]) -> None:
        new = self._checkpoint.with_suffix(".new")
        new.write_text(json.dumps(state))
        os.replace(new, self._checkpoint)


async def main(given: dict[str, Any]) -> None:
    """Copy, and say so."""
    await Driver(given["uris"], Path(given["checkpoint"]), given["step"], given["seed"]).run()
    print("done", flush=True)


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
