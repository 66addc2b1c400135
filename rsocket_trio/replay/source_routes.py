"""The routes of a source: readers ask a log for ranges of positions, and each element carries its position."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

import attrs
import trio

from rsocket_trio import Invalid, Outgoing, Payload, Responder
from rsocket_trio.replay.bodies import OVERHEAD
from rsocket_trio.replay.element_metadata import behind_gap, pack_payload, source_payload
from rsocket_trio.replay.elements import Record
from rsocket_trio.replay.errors import CorruptLog, DamagedPartition, NotWritten
from rsocket_trio.replay.log import READ_BYTES, ReplayableLog
from rsocket_trio.replay.named_readers import Reader, lowest_of
from rsocket_trio.replay.packs import ARROW, PACK_BYTES, PACK_ROWS, Pack, arrow, has_arrow
from rsocket_trio.replay.retention import Retention
from rsocket_trio.replay.route_requests import (
    RangeRequest,
    read_acknowledgement,
    read_forgotten,
    read_range,
    read_times,
)
from rsocket_trio.replay.source_list import bounds_of, list_source

T = TypeVar("T")
OnAck: TypeAlias = Callable[[int, int], Awaitable[object] | object]

FIRST_BYTES = 16 * 2**10
"""Bytes of a reader's first read; each read that it took in time doubles them."""
PACK_DELAY = 0.005
"""Seconds that a reader at the end of a log waits for rows to share a pack with the first."""
SLOW_SECONDS = 0.2
"""Seconds after which a reader that has not taken a read is slow."""


def add_source(
    responder: Responder,
    route: str,
    log: ReplayableLog,
    *,
    on_ack: OnAck | None = None,
    read_bytes: int = READ_BYTES,
    retention: Retention | None = None,
) -> None:
    """Serve ``log`` on ``route``, and on ``.partitions``, ``.offsets``, ``.ack`` and ``.readers`` behind it.

    The route ``rsocket-trio.sources`` of the responder lists it.

    ``responder`` gets the handlers. ``on_ack(partition, end)``, a plain or an async function, is called when a reader
    no longer needs the records below ``end``; ``log.trim`` is one. A reader that gives its name is known to the log:
    then ``end`` is the lowest that all named readers have reached. ``retention`` is the rule by which a ``Log`` in a
    file drops records, without an ``on_ack``. A reader has up to ``read_bytes`` of records in memory, fewer while it is
    slow. Raise ``ValueError`` for a route that is taken or too long, and for a ``retention`` of another kind of log.
    """
    if retention is not None:
        if on_ack is not None:
            raise ValueError("add_source with 'retention' and 'on_ack': the log itself drops records by its retention")
        log.set_retention(retention)

    async def offsets(request: Payload) -> bytes:
        with errors_for_readers():
            await log.open()
            await log.retain(in_full=False)
            times = read_times(request.data, log.partitions())
            return encode_bounds(log, {one: await log.position_at(one, time) for one, time in times.items()})

    async def read(request: Payload, out: Outgoing) -> None:
        wanted = read_range(request.data)
        with errors_for_readers(wanted.partition):
            await log.open()
            log.check_range(wanted.partition, wanted.start, wanted.end)
            await send_range(log, out, wanted, read_bytes)

    async def ack(request: Payload) -> bytes:
        wanted = read_acknowledgement(request.data)
        with errors_for_readers():
            await log.open()
            for partition, end in wanted.ends.items():
                latest = log.bounds(partition)[1]
                if end > latest:
                    raise Invalid(f"partition {partition} ends at {latest}, {end} can't be acknowledged")
            known = None if wanted.reader is None else await log.acknowledge(wanted.reader, wanted.ends)
            named = log.readers().values()
        if on_ack is not None:
            for partition, end in wanted.ends.items():
                # A reader without a name may be ahead of those with one, which still need the rows.
                lowest = lowest_of(named, partition)
                waiting = on_ack(partition, end if lowest is None else lowest if known else min(end, lowest))
                if inspect.isawaitable(waiting):
                    await waiting
        with errors_for_readers():
            return b"" if known is None else as_json(shown_reader(bounds_of_all(log), known))

    async def acknowledge(request: Payload) -> None:
        await ack(request)

    async def readers(request: Payload) -> bytes:
        forgotten = read_forgotten(request.data)
        with errors_for_readers():
            await log.open()
            if forgotten is not None and not await log.forget_reader(forgotten):
                raise Invalid(f"there is no reader {forgotten!r}: nothing was forgotten")
            bounds = bounds_of_all(log)
            return as_json({name: shown_reader(bounds, reader) for name, reader in log.readers().items()})

    for name in ("partitions", "offsets"):
        responder.request_response(f"{route}.{name}")(offsets)
    responder.request_stream(route)(read)
    responder.fire_and_forget(f"{route}.ack")(acknowledge)
    responder.request_response(f"{route}.ack")(ack)
    responder.request_response(f"{route}.readers")(readers)
    list_source(responder, route, log)


@contextmanager
def errors_for_readers(partition: int | None = None) -> Iterator[None]:
    """Translate errors of the disk and the log, read in ``partition``, into errors that are sent and name no file."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"the log can't be used: {error.strerror or error}") from error
    except CorruptLog as error:
        what = "the log" if partition is None else f"partition {partition}"
        where = "" if error.position is None else f" at position {error.position}"
        raise DamagedPartition(f"{what} is damaged{where}: {error.reason}") from error


async def send_range(log: ReplayableLog, out: Outgoing, wanted: RangeRequest, most: int) -> None:
    """Send the records of a range; without an end also future ones. ``most`` is the largest read in bytes.

    They come in packs if the reader takes them and pyarrow is installed.
    """
    partition, end = wanted.partition, wanted.end
    place = ReaderPosition(wanted.start)
    packed = ARROW in wanted.packs and has_arrow()
    size = min(FIRST_BYTES, most)
    while end is None or place.position < end:
        before, began = place.position, trio.current_time()
        if not packed:
            records = await log.read_some(partition, before, end, max_bytes=size)
            payloads = place.pass_by(
                some_of(records, size, lambda one: one.element.size) if size < PACK_BYTES else records
            )
            del records
        else:
            packs = await log.read_packs(partition, before, end, max_bytes=size)
            payloads = place.pass_packs(some_of(packs, size, lambda one: one.size) if size < PACK_BYTES else packs)
            del packs
        await out.send_many(payloads)
        if place.position == before:
            await log.wait_beyond(partition, before)
            if packed and log.bounds(partition)[1] - before < PACK_ROWS:
                # More may come at once, and then shares a pack.
                await trio.sleep(PACK_DELAY)
        elif trio.current_time() - began > SLOW_SECONDS:
            size = max(size // 2, min(FIRST_BYTES, most))
        else:
            size = min(size * 2, most)


def some_of(stored: Iterable[T], size: int, size_of: Callable[[T], int]) -> Iterable[T]:
    """Return the first records or packs of about ``size`` bytes in memory, at least one if there is one.

    A slow reader holds no more than these: what they are decoded from may be much larger.
    """
    found: list[T] = []
    for one in stored:
        found.append(one)
        size -= OVERHEAD + size_of(one)
        if size <= 0:
            break
    return found


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

    def pass_packs(self, packs: Iterable[Pack]) -> Iterator[Payload]:
        """Yield the payloads of packs; a single row, and one that is large, is sent as it is."""
        for pack in packs:
            if pack.count == 1 or pack.size > 2 * PACK_BYTES:
                yield from self.pass_by(arrow().rows_of(pack, pack.position, pack.end))
            else:
                self.position = pack.end
                yield pack_payload(pack)


def encode_bounds(log: ReplayableLog, places: Mapping[int, int]) -> bytes:
    """Return the bounds of all partitions as JSON, and the positions of times in ``places``, by partition."""
    told = bounds_of(log)
    for partition, position in places.items():
        # Rows may have been dropped since the position was looked for.
        told[str(partition)]["at"] = max(position, told[str(partition)]["earliest"])
    return as_json(told)


def bounds_of_all(log: ReplayableLog) -> dict[int, tuple[int, int]]:
    """Return the bounds of a log by partition."""
    return {partition: log.bounds(partition) for partition in log.partitions()}


def shown_reader(bounds: Mapping[int, tuple[int, int]], reader: Reader) -> dict[str, object]:
    """Return what the server shows of a reader: its ends and how many positions it is behind, by partition."""
    behind = {
        str(partition): latest - max(reader.ends.get(partition, 0), earliest)
        for partition, (earliest, latest) in bounds.items()
    }
    ends = {str(partition): reader.ends[partition] for partition in sorted(reader.ends)}
    return {"ends": ends, "behind": behind, "seen": reader.seen}


def as_json(content: object) -> bytes:
    """Return an answer as JSON."""
    return json.dumps(content, separators=(",", ":")).encode()
