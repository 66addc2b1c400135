"""The routes of a source: readers ask a log for ranges of positions, and each element carries its position."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec
import trio

from rsocket_trio import Invalid, Outgoing, Payload, Responder
from rsocket_trio.replay.bodies import OVERHEAD
from rsocket_trio.replay.element_metadata import behind_gap, pack_payload, source_payload
from rsocket_trio.replay.elements import Record
from rsocket_trio.replay.errors import errors_for_peers
from rsocket_trio.replay.log import READ_BYTES, ReplayableLog
from rsocket_trio.replay.named_readers import Reader
from rsocket_trio.replay.packs import ARROW, PACK_BYTES, PACK_ROWS, Pack, arrow, has_arrow
from rsocket_trio.replay.retention import Retention
from rsocket_trio.replay.route_requests import ForgetRequest, RangeRequest, TimesRequest, Whole, command, decoded
from rsocket_trio.replay.source_list import Bounds, bounds_of, list_source

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

    async def offsets(question: TimesRequest) -> dict[int, Bounds]:
        await log.retain(in_full=False)
        times = question.timestamps
        if question.timestamp is not None:
            times = dict.fromkeys(log.partitions(), question.timestamp)
        places = {partition: await log.position_at(partition, time) for partition, time in times.items()}
        bounds = bounds_of(log)
        for partition, place in places.items():
            earliest, latest = bounds[partition].earliest, bounds[partition].latest
            # Rows may have been dropped since the position was looked for.
            bounds[partition] = Bounds(earliest, latest, max(place, earliest))
        return bounds

    async def read(request: Payload, out: Outgoing) -> None:
        span = decoded(request.data, RangeRequest)
        with errors_for_peers():
            await log.open()
            log.check_range(span.partition, span.start, span.end)
            await send_range(log, out, span, read_bytes)

    async def ack(content: dict[str, Whole | str]) -> dict[str, object] | None:
        name = content.pop("reader", None)
        ends = msgspec.convert(content, dict[Whole, Whole], str_keys=True)
        for partition, end in ends.items():
            latest = log.bounds(partition)[1]
            if end > latest:
                raise Invalid(f"partition {partition} ends at {latest}, {end} can't be acknowledged")
        reader = None if name is None else await log.acknowledge(msgspec.convert(name, str), ends)
        if on_ack is not None:
            for partition, end in ends.items():
                # A reader without a name may be ahead of those with one, which still need the rows.
                lowest = log.lowest(partition)
                waiting = on_ack(partition, end if lowest is None else lowest if reader else min(end, lowest))
                if inspect.isawaitable(waiting):
                    await waiting
        return None if reader is None else shown_reader(bounds_of(log), reader)

    async def readers(request: ForgetRequest) -> dict[str, dict[str, object]]:
        if request.forget is not None and not await log.forget_reader(request.forget):
            raise Invalid(f"there is no reader {request.forget!r}: nothing was forgotten")
        bounds = bounds_of(log)
        return {name: shown_reader(bounds, reader) for name, reader in log.readers().items()}

    for name in ("partitions", "offsets"):
        responder.request_response(f"{route}.{name}")(command(log, TimesRequest, offsets))
    acknowledge = command(log, dict[str, Whole | str], ack)
    responder.request_stream(route)(read)
    responder.fire_and_forget(f"{route}.ack")(acknowledge)
    responder.request_response(f"{route}.ack")(acknowledge)
    responder.request_response(f"{route}.readers")(command(log, ForgetRequest, readers))
    list_source(responder, route, log)


async def send_range(log: ReplayableLog, out: Outgoing, span: RangeRequest, most: int) -> None:
    """Send the records of a range; without an end also future ones. ``most`` is the largest read in bytes.

    They come in packs if the reader takes them and pyarrow is installed.
    """
    partition, end, position = span.partition, span.end, span.start
    is_packed = ARROW in span.packs and has_arrow()

    def payloads(stored: Iterable[Record | Pack]) -> Iterator[Payload]:
        """Yield the payloads, made one by one so that other tasks run in between."""
        nonlocal position
        for item in stored:
            if isinstance(item, Pack) and item.count > 1 and item.size <= 2 * PACK_BYTES:
                position = item.end
                yield pack_payload(item)
                continue
            # A single row, and one that is large, is sent as it is.
            for record in arrow().rows_of(item) if isinstance(item, Pack) else (item,):
                payload = source_payload(record)
                if record.position > position:
                    payload = behind_gap(payload, position)
                position = record.position + record.count
                yield payload

    size = min(FIRST_BYTES, most)
    while end is None or position < end:
        before, began = position, trio.current_time()
        read = log.read_packs if is_packed else log.read_some
        await out.send_many(payloads(some_of(await read(partition, position, end, max_bytes=size), size)))
        if position == before:
            await log.wait_beyond(partition, before)
            if is_packed and log.bounds(partition)[1] - before < PACK_ROWS:
                # More may come at once, and then shares a pack.
                await trio.sleep(PACK_DELAY)
        elif trio.current_time() - began > SLOW_SECONDS:
            size = max(size // 2, min(FIRST_BYTES, most))
        else:
            size = min(size * 2, most)


def some_of(stored: Iterable[Record | Pack], size: int) -> Iterable[Record | Pack]:
    """Return the first records or packs of about ``size`` bytes in memory, at least one if there is one.

    A slow reader holds no more than these: what they are decoded from may be much larger. All are returned for one
    that is not slow.
    """
    if size >= PACK_BYTES:
        return stored
    first: list[Record | Pack] = []
    for item in stored:
        first.append(item)
        size -= OVERHEAD + item.size
        if size <= 0:
            break
    return first


def shown_reader(bounds: Mapping[int, Bounds], reader: Reader) -> dict[str, object]:
    """Return what the server shows of a reader: its ends and how many positions it is behind, by partition."""
    behind = {
        partition: known.latest - max(reader.ends.get(partition, 0), known.earliest)
        for partition, known in bounds.items()
    }
    return {"ends": dict(sorted(reader.ends.items())), "behind": behind, "seen": reader.seen}
