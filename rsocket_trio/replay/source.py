"""Serving a log: readers ask for ranges of positions, and each element says where it stands."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeAlias

import attrs
import trio

from rsocket_trio import Invalid, Outgoing, Payload, Responder
from rsocket_trio.replay.entries import source_payload
from rsocket_trio.replay.errors import CorruptLog, DamagedPartition
from rsocket_trio.replay.log import READ_BYTES, Record, ReplayableLog
from rsocket_trio.replay.requests import RangeRequest, read_ends, read_range

OnAck: TypeAlias = Callable[[int, int], Awaitable[object] | object]

FIRST_BYTES = 16 * 2**10
"""Bytes that are read first for a reader; twice as many each time that it has taken them fast."""
SLOW = 0.2
"""Seconds after which a reader that has not taken them is slow."""


def add_source(
    responder: Responder, route: str, log: ReplayableLog, *, on_ack: OnAck | None = None, read_bytes: int = READ_BYTES
) -> None:
    """Serve a log on a route, and on the routes ``.partitions``, ``.offsets`` and ``.ack`` behind it.

    ``on_ack(partition, end)``, a plain or an async function, is told that a reader needs nothing below ``end`` any
    more; ``log.trim`` is one. Several readers each say what they have done with themselves. A reader has up to
    ``read_bytes`` of records in memory, fewer while it is slow. Raises ``ValueError`` for a route that is taken or too
    long.
    """

    async def offsets(request: Payload) -> bytes:
        await log.open()
        return said_bounds(log)

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
    """Send the records of a range, and those to come where it has no end."""
    partition, end = wanted.partition, wanted.end
    place = Place(wanted.start)
    size = min(FIRST_BYTES, most)
    while end is None or place.position < end:
        before, began = place.position, trio.current_time()
        await out.send_many(place.pass_by(await log.read_some(partition, before, end, max_bytes=size)))
        if place.position == before:
            await log.wait_beyond(partition, before)
        elif trio.current_time() - began > SLOW:
            size = max(size // 2, min(FIRST_BYTES, most))
        else:
            size = min(size * 2, most)


@attrs.define
class Place:
    """How far a reader was sent."""

    position: int

    def pass_by(self, records: Iterable[Record]) -> Iterator[Payload]:
        """What is sent for these, decoded as it is taken: others run in between."""
        for record in records:
            self.position = record.position + record.count
            yield source_payload(record)


def said_bounds(log: ReplayableLog) -> bytes:
    """The bounds of all partitions, as readers are told."""
    bounds = {str(partition): log.bounds(partition) for partition in log.partitions()}
    told = {number: {"earliest": earliest, "latest": latest} for number, (earliest, latest) in bounds.items()}
    return json.dumps(told, separators=(",", ":")).encode()
