"""A server for sources, as a process: python -m tests.spark.jvm.server PORT ROWS...

Routes: ``log`` and ``sensors.a`` with so many rows in each partition, ``arrow`` with the same rows as Arrow payloads of
100, ``slow`` which is ``log`` at about 1000 rows in each of its reads per second, ``ticks`` which is live and endless,
``written`` and ``copied`` that are also sinks. It says its URI; then each line of its input is a command, and is
answered by a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator

import pyarrow as pa
import trio

from rsocket_trio import Connection, Outgoing, Payload, Responder, Setup, serve
from rsocket_trio.replay import Element, Ledger, MemoryLog, add_sink, add_source
from rsocket_trio.replay.element_metadata import source_payload

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
PIECE = 100


class Server:
    """The state of the process."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows
        self.log = MemoryLog(len(rows))
        self.arrow = MemoryLog(len(rows))
        self.acks: dict[int, int] = {}
        self.streams = 0
        self.connections = 0
        self.open = 0
        self.responder = Responder()
        self.responder.setup(self.count)
        add_source(self.responder, "log", self.log, on_ack=self.acks.__setitem__)
        add_source(self.responder, "arrow", self.arrow)
        add_source(self.responder, "sensors.a", self.log)
        for route in ("written", "copied"):
            log = MemoryLog(2)
            add_source(self.responder, route, log)
            add_sink(self.responder, route, Ledger(log))
        self.responder.request_response("slow.offsets")(self.offsets)
        self.responder.request_stream("slow")(self.slow)
        self.responder.request_stream("ticks")(self.ticks)

    def count(self, setup: Setup, connection: Connection) -> None:
        """A client connects."""
        self.connections += 1

    async def fill(self) -> None:
        """Write the rows that the arguments ask for."""
        for partition, count in enumerate(self.rows):
            await self.append(partition, count)
            for first in range(0, count, PIECE):
                ids = list(range(first, min(first + PIECE, count)))
                batch = pa.RecordBatch.from_pydict({"id": ids, "name": [f"n{one}" for one in ids]}, schema=SCHEMA)
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, SCHEMA) as writer:
                    writer.write_batch(batch)
                await self.arrow.append(bytes(sink.getvalue()), partition=partition, count=len(ids))

    async def append(self, partition: int, count: int) -> None:
        """Write more rows."""
        first = self.log.bounds(partition)[1]
        elements = [Element(b"row %d" % number, b"m%d" % partition) for number in range(first, first + count)]
        for start in range(0, count, 10_000):
            await self.log.append_all({partition: elements[start : start + 10_000]})

    async def offsets(self, request: Payload) -> str:
        """The bounds of ``slow``."""
        bounds = {one: self.log.bounds(one) for one in self.log.partitions()}
        return json.dumps({str(one): {"earliest": low, "latest": high} for one, (low, high) in bounds.items()})

    async def slow(self, request: Payload, out: Outgoing) -> None:
        """A range, with pauses."""
        wanted = json.loads(request.data)
        self.streams += 1
        async for record in self.log.read(wanted["partition"], wanted["from"], wanted["to"]):
            if record.position % 100 == 99:
                await trio.sleep(0.1)
            await out.send(source_payload(record))

    async def ticks(self, request: Payload, out: Outgoing) -> None:
        """Numbers without end."""
        self.streams += 1
        self.open += 1
        number = 0
        try:
            while True:
                await out.send(b"%d" % number)
                number += 1
        finally:
            self.open -= 1

    async def obey(self, words: list[str]) -> object:
        """Return what a command asks for."""
        if words[0] == "append":
            await self.append(int(words[1]), int(words[2]))
        elif words[0] == "add":
            add_source(self.responder, words[1], self.log)
        elif words[0] == "trim":
            await self.log.trim(int(words[1]), int(words[2]))
        return {name: getattr(self, name) for name in ("acks", "streams", "open", "connections")}


async def commands() -> AsyncIterator[list[str]]:
    """The lines of the input."""
    async for line in trio.wrap_file(sys.stdin):
        yield line.split()


async def main() -> None:
    """Serve until the input ends."""
    port, *rows = sys.argv[1:]
    server = Server([int(one) for one in rows])
    await server.fill()
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, server.responder, [f"tcp://127.0.0.1:{port}"])
        print(uri, flush=True)
        async for words in commands():
            print(json.dumps(await server.obey(words)), flush=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
