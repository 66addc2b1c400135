"""The routes of a source: readers ask a log for ranges of positions, and each element carries its position.

One more route of the server lists its sources: their routes, and the bounds of their partitions.
"""

from __future__ import annotations

import fnmatch
import inspect
import re
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Annotated, Final, TypeAlias

import msgspec
import trio

from rsocket_trio import Invalid, Outgoing, Payload, Responder
from rsocket_trio.errors import readable
from rsocket_trio.replay.element_metadata import behind_gap, pack_payload, source_payload
from rsocket_trio.replay.elements import ARROW, PACK_BYTES, PACK_ROWS, Pack, Record, has_arrow, rows_in
from rsocket_trio.replay.errors import CorruptLog, ReplayError
from rsocket_trio.replay.log import Reader, ReplayableLog, Retention
from rsocket_trio.replay.requests import Whole, command, decoded, serving

OnAck: TypeAlias = Callable[[int, int], Awaitable[object] | object]

SOURCES_ROUTE: Final = "rsocket-trio.sources"
"""The route on which a server lists its sources."""
PACK_DELAY = 0.005
"""Seconds that a reader at the end of a log waits for rows to share a pack with the first."""


class RangeRequest(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to", "packs": "pack"}):
    """A reader's request for rows; without ``end`` also those to come. ``packs`` are formats of packs that it takes."""

    partition: Whole
    start: Whole
    end: Whole | None = None
    packs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.end is not None and self.end < self.start:
            raise ValueError(f"'to' is {self.end}, below 'from' {self.start}")


class Question(msgspec.Struct, frozen=True):
    """A request about sources: for the positions of a time in microseconds since 1970, or of one by partition, for the
    readers without the one that it forgets, or for the sources whose routes are like a pattern.
    """

    timestamp: Whole | None = None
    timestamps: dict[Whole, Whole] = {}
    forget: str | None = None
    pattern: Annotated[str, msgspec.Meta(max_length=255)] = "*"


class Bounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """The bounds of a partition, and the position of the time that was asked for."""

    earliest: Whole
    latest: Whole
    at: Whole | None = None

    def __post_init__(self) -> None:
        if self.latest < self.earliest:
            raise ValueError(f"a partition from {self.earliest} to {self.latest}: not possible")
        if self.at is not None and not self.earliest <= self.at <= self.latest:
            raise ValueError(f"a time at {self.at} of a partition from {self.earliest} to {self.latest}: not possible")


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """A source of a server: the bounds of its partitions, and its ``route``, which is the key to it in the list.

    ``problem`` says why the log behind it cannot be opened; then there are no ``partitions``.
    """

    partitions: dict[Whole, Bounds] = {}
    problem: str | None = None
    route: str = ""

    def __post_init__(self) -> None:
        if not self.partitions and self.problem is None:
            raise ValueError("a source without partitions")


class SourcesAnswer(msgspec.Struct, frozen=True):
    """The list of sources, by route."""

    sources: dict[str, Source]


def add_source(
    responder: Responder,
    route: str,
    log: ReplayableLog,
    *,
    on_ack: OnAck | None = None,
    retention: Retention | None = None,
) -> None:
    """Serve ``log`` on ``route``, and on ``.partitions``, ``.offsets``, ``.ack`` and ``.readers`` behind it.

    ``responder`` gets the handlers; its route ``rsocket-trio.sources`` lists the log. ``on_ack(partition, end)``, a
    plain or an async function, is called when a reader no longer needs the records below ``end``, and all named readers
    neither; ``log.trim`` is one. ``retention`` is the rule by which a ``Log`` in a file drops records, without an
    ``on_ack``. Raise ``ValueError`` for a route that is taken or too long, and for a ``retention`` of another kind of
    log.
    """
    if retention is not None:
        if on_ack is not None:
            raise ValueError("add_source with 'retention' and 'on_ack': the log itself drops records by its retention")
        log.set_retention(retention)

    async def offsets(question: Question) -> dict[int, Bounds]:
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
        async with serving(log):
            log.check_range(span.partition, span.start, span.end)
            await send_range(log, out, span)

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

    async def readers(request: Question) -> dict[str, dict[str, object]]:
        if request.forget is not None and not await log.forget_reader(request.forget):
            raise Invalid(f"there is no reader {request.forget!r}: nothing was forgotten")
        bounds = bounds_of(log)
        return {name: shown_reader(bounds, reader) for name, reader in log.readers().items()}

    for name in ("partitions", "offsets"):
        responder.request_response(f"{route}.{name}")(command(log, Question, offsets))
    acknowledge = command(log, dict[str, Whole | str], ack)
    responder.request_stream(route)(read)
    responder.fire_and_forget(f"{route}.ack")(acknowledge)
    responder.request_response(f"{route}.ack")(acknowledge)
    responder.request_response(f"{route}.readers")(command(log, Question, readers))
    list_source(responder, route, log)


async def send_range(log: ReplayableLog, out: Outgoing, span: RangeRequest) -> None:
    """Send the records of a range, in packs if the reader takes them and pyarrow is installed."""
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
            for record in rows_in(item):
                payload = source_payload(record)
                if record.position > position:
                    payload = behind_gap(payload, position)
                position = record.position + record.count
                yield payload

    while end is None or position < end:
        before = position
        read = log.read_packs if is_packed else log.read_some
        await out.send_many(payloads(await read(partition, position, end)))
        if position == before:
            await log.wait_beyond(partition, before)
            if is_packed and log.bounds(partition)[1] - before < PACK_ROWS:
                # More may come at once, and then shares a pack.
                await trio.sleep(PACK_DELAY)


def shown_reader(bounds: Mapping[int, Bounds], reader: Reader) -> dict[str, object]:
    """Return what the server shows of a reader: its ends and how many positions it is behind, by partition."""
    behind = {
        partition: known.latest - max(reader.ends.get(partition, 0), known.earliest)
        for partition, known in bounds.items()
    }
    return {"ends": dict(sorted(reader.ends.items())), "behind": behind, "seen": reader.seen}


# The list of sources

_logs: weakref.WeakKeyDictionary[Responder, dict[str, ReplayableLog]] = weakref.WeakKeyDictionary()
"""The logs that each responder serves, by route."""


def list_source(responder: Responder, route: str, log: ReplayableLog) -> None:
    """Add a source to the list of ``responder``, and serve that list from the first one on."""
    logs = _logs.setdefault(responder, {})

    async def answer(request: Payload) -> bytes:
        pattern = decoded(request.data, Question).pattern
        sources = {name: await listed(logs[name]) for name in sorted(logs) if is_like(name, pattern)}
        return msgspec.json.encode(SourcesAnswer(sources))

    if not logs:
        responder.request_response(SOURCES_ROUTE)(answer)
    logs[route] = log


async def listed(log: ReplayableLog) -> Source:
    """Return the bounds of a log, or why it can't be opened, without the name of a file."""
    try:
        await log.open()
        return Source(bounds_of(log))
    except CorruptLog as error:
        return Source(problem=f"the log is damaged: {error.reason}")
    except (ReplayError, OSError, ValueError, ModuleNotFoundError, trio.ClosedResourceError) as error:
        return Source(problem=f"the log can't be opened: {type(error).__name__}")


def bounds_of(log: ReplayableLog) -> dict[int, Bounds]:
    """Return the bounds of all partitions of a log."""
    return {partition: Bounds(*log.bounds(partition)) for partition in log.partitions()}


def is_like(route: str, pattern: str) -> bool:
    """Return whether a route is like a pattern, where ``*`` stands for any text and ``?`` for one character."""
    return re.fullmatch(fnmatch.translate(pattern.replace("[", "[[]")), route) is not None


def read_sources(answer: bytes) -> list[Source]:
    """Return the sources that a server listed, by route. Raise ``ValueError`` for a malformed answer."""
    try:
        sources = msgspec.json.decode(answer, type=SourcesAnswer).sources
    except (ValueError, RecursionError):
        raise ValueError(f"not a list of sources: {readable(answer[:200])}") from None
    return [
        Source(dict(sorted(source.partitions.items())), source.problem and readable(source.problem), route)
        for route, source in sorted(sources.items())
    ]
