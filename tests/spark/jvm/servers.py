"""Servers for sources and for sinks, each in a thread."""

from __future__ import annotations

import json

import pyarrow as pa
import trio

from rsocket_trio import Connection, Outgoing, Payload, Responder, Setup
from rsocket_trio.replay import Element, Ledger, Log, add_sink, add_source
from rsocket_trio.replay.elements import source_payload
from tests.threads import ThreadServer

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
PIECE = 100


class SourceServer(ThreadServer):
    """A server of replayable routes.

    Routes: ``log`` and ``sensors.a`` with so many rows in each partition, ``arrow`` with the same rows as Arrow
    payloads of 100, ``slow`` which is ``log`` at about 1000 rows in each of its reads per second, ``ticks`` which is
    live and endless, ``written`` and ``copied`` that are also sinks.
    """

    def __init__(self, *rows: int, port: int = 0) -> None:
        self.log = Log(partitions=len(rows))
        self.acks: dict[int, int] = {}
        """How far each partition was acknowledged."""
        self.streams = 0
        """The streams of ``slow`` and ``ticks`` that were asked for."""
        self.open = 0
        """Those of ``ticks`` that have not ended."""
        self.connections = 0
        """The connections that were made."""
        self._arrow = Log(partitions=len(rows))
        self._sources = Responder()
        self._sources.setup(self._count)
        add_source(self._sources, "log", self.log, on_ack=self.acks.__setitem__)
        add_source(self._sources, "arrow", self._arrow)
        add_source(self._sources, "sensors.a", self.log)
        for route in ("written", "copied"):
            log = Log(partitions=2)
            add_source(self._sources, route, log)
            add_sink(self._sources, route, Ledger(log))
        self._sources.request_response("slow.offsets")(self._offsets)
        self._sources.request_stream("slow")(self._slow)
        self._sources.request_stream("ticks")(self._ticks)
        trio.run(self._fill, rows)
        super().__init__(self._sources, f"tcp://127.0.0.1:{port}")

    @property
    def port(self) -> int:
        """Return where it listens."""
        return int(self.uri.rpartition(":")[2])

    def append(self, partition: int, count: int) -> None:
        """Write more rows."""
        self.run(self._append, partition, count)

    def trim(self, partition: int, position: int) -> None:
        """Drop the rows before a position."""
        self.run(self.log.trim, partition, position)

    def add(self, route: str) -> None:
        """Serve the rows on another route as well."""

        async def add() -> None:
            add_source(self._sources, route, self.log)

        self.run(add)

    def _count(self, setup: Setup, connection: Connection) -> None:
        self.connections += 1

    async def _fill(self, rows: tuple[int, ...]) -> None:
        await self.log.open()
        await self._arrow.open()
        for partition, count in enumerate(rows):
            await self._append(partition, count)
            for first in range(0, count, PIECE):
                ids = list(range(first, min(first + PIECE, count)))
                batch = pa.RecordBatch.from_pydict({"id": ids, "name": [f"n{one}" for one in ids]}, schema=SCHEMA)
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, SCHEMA) as writer:
                    writer.write_batch(batch)
                await self._arrow.append(bytes(sink.getvalue()), partition=partition, count=len(ids))

    async def _append(self, partition: int, count: int) -> None:
        first = self.log.bounds(partition)[1]
        elements = [Element(b"row %d" % number, b"m%d" % partition) for number in range(first, first + count)]
        for start in range(0, count, PIECE):
            # What is appended together can be trimmed only together.
            await self.log.append_all({partition: elements[start : start + PIECE]})

    async def _offsets(self, request: Payload) -> str:
        """The bounds of ``slow``."""
        bounds = {one: self.log.bounds(one) for one in self.log.partitions()}
        return json.dumps({str(one): {"earliest": low, "latest": high} for one, (low, high) in bounds.items()})

    async def _slow(self, request: Payload, out: Outgoing) -> None:
        """A range, with pauses."""
        wanted = json.loads(request.data)
        self.streams += 1
        async for record in self.log.read(wanted["partition"], wanted["from"], wanted["to"]):
            if record.position % 100 == 99:
                await trio.sleep(0.1)
            await out.send(source_payload(record))

    async def _ticks(self, request: Payload, out: Outgoing) -> None:
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
