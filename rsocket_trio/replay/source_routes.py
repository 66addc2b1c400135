"""The routes of a source: readers ask a log for ranges of positions, and each element carries its position."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs
import trio

from rsocket_trio import Invalid, Outgoing, Payload, Responder
from rsocket_trio.replay.element_metadata import behind_gap, pack_payload, source_payload
from rsocket_trio.replay.elements import Record
from rsocket_trio.replay.errors import CorruptLog, DamagedPartition
from rsocket_trio.replay.log import READ_BYTES, ReplayableLog
from rsocket_trio.replay.pack_formats import chosen_format, encoded_pack
from rsocket_trio.replay.packs import PACK_ROWS, Pack, rows_of
from rsocket_trio.replay.route_requests import RangeRequest, read_ends, read_range, read_times
from rsocket_trio.replay.source_list import bounds_of, list_source

OnAck: TypeAlias = Callable[[int, int], Awaitable[object] | object]

FIRST_BYTES = 16 * 2**10
"""Bytes of a reader's first read; each read that it took in time doubles them."""
PACK_DELAY = 0.005
"""Seconds that a reader at the end of a log waits for rows to share a pack with the first."""
SLOW_SECONDS = 0.2
"""Seconds after which a reader that has not taken a read is slow."""


def add_source(
    responder: Responder, route: str, log: ReplayableLog, *, on_ack: OnAck | None = None, read_bytes: int = READ_BYTES
) -> None:
    """Serve ``log`` on ``route``, and on the routes ``.partitions``, ``.offsets`` and ``.ack`` behind it.

    The route ``rsocket-trio.sources`` of the responder lists it.

    ``responder`` gets the handlers. ``on_ack(partition, end)``, a plain or an async function, is called when a reader
    no longer needs the records below ``end``; ``log.trim`` is one. Each of several readers acknowledges for itself. A
    reader has up to ``read_bytes`` of records in memory, fewer while it is slow. Raise ``ValueError`` for a route that
    is taken or too long.
    """

    async def offsets(request: Payload) -> bytes:
        await log.open()
        times = read_times(request.data, log.partitions())
        return encode_bounds(log, {one: await log.position_at(one, time) for one, time in times.items()})

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
    list_source(responder, route, log)


async def send_range(log: ReplayableLog, out: Outgoing, wanted: RangeRequest, most: int) -> None:
    """Send the records of a range; without an end also future ones. ``most`` is the largest read in bytes.

    They come in packs if the reader takes a format that is known here.
    """
    partition, end = wanted.partition, wanted.end
    place = ReaderPosition(wanted.start)
    form = chosen_format(wanted.packs)
    size = min(FIRST_BYTES, most)
    while end is None or place.position < end:
        before, began = place.position, trio.current_time()
        if form is None:
            await out.send_many(place.pass_by(await log.read_some(partition, before, end, max_bytes=size)))
        else:
            await out.send_many(place.pass_packs(await log.read_packs(partition, before, end, max_bytes=size), form))
        if place.position == before:
            await log.wait_beyond(partition, before)
            if form is not None and log.bounds(partition)[1] - before < PACK_ROWS:
                # More may come at once, and then shares a pack.
                await trio.sleep(PACK_DELAY)
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
            payload = source_payload(record)
            if record.position != self.position and record.position > self.position:
                payload = behind_gap(payload, self.position)
            self.position = record.position + record.count
            yield payload

    def pass_packs(self, packs: Iterable[Pack], form: str) -> Iterator[Payload]:
        """Yield the payloads of packs in the format ``form``; a single row is sent as it is."""
        for pack in packs:
            if pack.count == 1:
                yield from self.pass_by(rows_of(pack, pack.position, pack.end))
            else:
                self.position = pack.end
                yield pack_payload(pack, encoded_pack(pack, form), form)


def encode_bounds(log: ReplayableLog, places: Mapping[int, int]) -> bytes:
    """Return the bounds of all partitions as JSON, and the positions of times in ``places``, by partition."""
    told = bounds_of(log)
    for partition, position in places.items():
        told[str(partition)]["at"] = position
    return json.dumps(told, separators=(",", ":")).encode()
