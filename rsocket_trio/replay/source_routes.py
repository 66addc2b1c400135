"""The routes of a source: readers ask a log for ranges of positions, and each element carries its position."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeAlias

import attrs
import trio

from rsocket_trio import Invalid, Outgoing, Payload, Responder
from rsocket_trio.replay.element_metadata import source_payload
from rsocket_trio.replay.errors import CorruptLog, DamagedPartition
from rsocket_trio.replay.log import READ_BYTES, Record, ReplayableLog
from rsocket_trio.replay.route_requests import RangeRequest, read_ends, read_range

OnAck: TypeAlias = Callable[[int, int], Awaitable[object] | object]

FIRST_BYTES = 16 * 2**10
"""Bytes of a reader's first read; each read that it took in time doubles them."""
SLOW_SECONDS = 0.2
"""Seconds after which a reader that has not taken a read is slow."""


def add_source(
    responder: Responder, route: str, log: ReplayableLog, *, on_ack: OnAck | None = None, read_bytes: int = READ_BYTES
) -> None:
    """Serve ``log`` on ``route``, and on the routes ``.partitions``, ``.offsets`` and ``.ack`` behind it.

    ``responder`` gets the handlers. ``on_ack(partition, end)``, a plain or an async function, is called when a reader
    no longer needs the records below ``end``; ``log.trim`` is one. Each of several readers acknowledges for itself. A
    reader has up to ``read_bytes`` of records in memory, fewer while it is slow. Raise ``ValueError`` for a route that
    is taken or too long.
    """

    async def offsets(request: Payload) -> bytes:
        await log.open()
        return encode_bounds(log)

    async def read(request: Payload, out: Outgoing) -> None:
        await log.open()
        wanted = read_range(request.data)
        log.check_range(wanted.partition, wanted.start, wanted.end)
        try:
            await send_range(log, out, wanted, read_bytes)
        except CorruptLog as error:
            raise DamagedPartition(
                f"partition {wanted.partition} is damaged at position {error.position}: {error.reason}"
            ) from error

    async def ack(request: Payload) -> None:
        await log.open()
        ends = read_ends(request.data)
        for partition, end in ends.items():
            latest = log.bounds(partition)[1]
            if end > latest:
                raise Invalid(f"partition {partition} ends at {latest}, {end} can't be acknowledged")
        if on_ack is not None:
            for partition, end in ends.items():
                waiting = on_ack(partition, end)
                if inspect.isawaitable(waiting):
                    await waiting

    for name in ("partitions", "offsets"):
        responder.request_response(f"{route}.{name}")(offsets)
    responder.request_stream(route)(read)
    responder.fire_and_forget(f"{route}.ack")(ack)


async def send_range(log: ReplayableLog, out: Outgoing, wanted: RangeRequest, most: int) -> None:
    """Send the records of a range; without an end also future ones. ``most`` is the largest read in bytes."""
    partition, end = wanted.partition, wanted.end
    place = ReaderPosition(wanted.start)
    size = min(FIRST_BYTES, most)
    while end is None or place.position < end:
        before, began = place.position, trio.current_time()
        await out.send_many(place.pass_by(await log.read_some(partition, before, end, max_bytes=size)))
        if place.position == before:
            await log.wait_beyond(partition, before)
        elif trio.current_time() - began > SLOW_SECONDS:
            size = max(size // 2, min(FIRST_BYTES, most))
        else:
            size = min(size * 2, most)


@attrs.define
class ReaderPosition:
    """The position behind the records that were sent to a reader."""

    position: int

    def pass_by(self, records: Iterable[Record]) -> Iterator[Payload]:
        """Yield the payloads of records, decoded one by one, so that other tasks run in between."""
        for record in records:
            self.position = record.position + record.count
            yield source_payload(record)


def encode_bounds(log: ReplayableLog) -> bytes:
    """Return the bounds of all partitions as JSON."""
    bounds = {str(partition): log.bounds(partition) for partition in log.partitions()}
    told = {number: {"earliest": earliest, "latest": latest} for number, (earliest, latest) in bounds.items()}
    return json.dumps(told, separators=(",", ":")).encode()
