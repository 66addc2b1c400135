"""A route that takes rows in the test's own loop, and rows for it, without Spark, for tests of deliveries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import trio
from pyspark.sql.types import StructType

from rsocket_trio import Payload, Responder, serve
from rsocket_trio.metadata import decode_composite
from rsocket_trio.replay import Ledger, Log, ReplayableLog, add_sink
from rsocket_trio.replay.elements import RECORD
from rsocket_trio.spark.connections import Pool
from rsocket_trio.spark.deliveries import Report
from rsocket_trio.spark.options import Options, Use
from rsocket_trio.spark.request_rows import Encoder, Origin, Piece, sink_columns
from rsocket_trio.spark.writer import deliver
from tests.spark import serving
from tests.spark.serving import URI
from tests.spark.sinks import DATA, ROUTE, batch, numbers, records_of

ORIGIN = Origin("sink", partition=3, query="q", batch=7, attempt="attempt")


def options(**given: Any) -> Options:
    """Checked options of a write to the route ``orders``; a name's ``_`` stands for its dot."""
    given = {name: value for name, value in given.items() if value is not None}
    return serving.options(Use.BATCH_WRITE, **({"route": ROUTE, "positions": None} | given))


class Rows:
    """Pieces in place of a feed. ``hook`` is called with each before it is given."""

    def __init__(self, pieces: Iterable[Piece], hook: Callable[[Piece], object] = lambda piece: None) -> None:
        self._pieces = iter(pieces)
        self._hook = hook
        self.taken = 0

    async def take(self) -> Piece | None:
        """The next piece."""
        await trio.lowlevel.checkpoint()
        piece = next(self._pieces, None)
        if piece is not None:
            self.taken += 1
            self._hook(piece)
        return piece


def encoder(chosen: Options, schema: StructType = DATA, *, packs: bool = False) -> Encoder:
    """Return what makes requests of rows, as a writer has it."""
    return Encoder(sink_columns(schema, chosen), chosen, ORIGIN, packs=packs)


def pieces(chosen: Options, count: int, size: int = 100) -> Iterator[Piece]:
    """``count`` numbered rows, ``size`` in a piece."""
    made = encoder(chosen)
    for start in range(0, count, size):
        yield from made.pieces(batch(numbers(min(size, count - start), start)))


async def deliver_rows(pool: Pool, chosen: Options, count: int, size: int = 100, **rest: Any) -> Report:
    """Deliver numbered rows."""
    return await deliver(pool, chosen, ORIGIN, Rows(pieces(chosen, count, size), **rest))  # type: ignore[arg-type]


def write_of(payload: Payload) -> dict[str, Any]:
    """Return what a request says of its origin."""
    assert payload.metadata is not None
    [said] = [entry.content for entry in decode_composite(payload.metadata) if entry.mime == RECORD]
    found: dict[str, Any] = msgspec.msgpack.decode(said)
    return found


async def sink_of(partitions: int = 1, **bounds: Any) -> tuple[Responder, Ledger, Log]:
    """A responder with a ledger in memory."""
    log = Log(partitions=partitions)
    await log.open()
    ledger = Ledger(log, **bounds)
    responder = Responder()
    add_sink(responder, ROUTE, ledger)
    return responder, ledger, log


async def rows_in(log: ReplayableLog, partition: int = 0) -> list[bytes | None]:
    """The data of what counts, in order."""
    return [record.data for record in await records_of(log, partition)]


class Flaky:
    """A server that is cut off whenever ``cut`` is called, and back after some seconds."""

    def __init__(self, responder: Responder, nursery: trio.Nursery, away: float = 4.0) -> None:
        self._responder = responder
        self._away = away
        self._scope = trio.CancelScope()
        self.cuts = 0
        nursery.start_soon(self._run)

    def cut(self) -> None:
        """Cut it off."""
        self.cuts += 1
        self._scope.cancel()

    async def _run(self) -> None:
        while True:
            with trio.CancelScope() as self._scope:
                await serve(self._responder, [URI], grace=0)
            await trio.sleep(self._away)
