"""The routes by which peers read a log and write to a ledger, and the JSON of their requests.

Readers of a source ask for ranges of positions, and each element carries its position. Rows for a sink are written at
once, or staged and committed so that each counts once. One more route of the server lists its sources.
"""

from __future__ import annotations

import errno
import inspect
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, TypeAlias, TypeVar

import msgspec
import trio
from msgspec import Meta

from rsocket_trio import Channel, Connection, Invalid, Outgoing, Payload, Responder, current_connection
from rsocket_trio.errors import readable
from rsocket_trio.replay import elements
from rsocket_trio.replay.elements import Bounds, Element, Name, Pack, Record, Source, Whole, is_like
from rsocket_trio.replay.errors import CorruptLog, DamagedPartition, NotWritten, ReplayError
from rsocket_trio.replay.ledger import Commit, Ledger
from rsocket_trio.replay.log import OpenedByBlock, Reader, ReplayableLog, Retention

T = TypeVar("T")

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of a write that left nothing behind."""
MAX_REQUEST_BYTES = 2**20
"""Bytes of a request at most: that is a commit of some 15,000 attempts."""


def decoded(data: bytes, kind: type[T]) -> T:
    """Return a request from JSON; an empty one has all defaults. Raise ``Invalid``."""
    if len(data) > MAX_REQUEST_BYTES:
        raise Invalid(f"a request of {len(data)} bytes: the limit is {MAX_REQUEST_BYTES}")
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the request is not right: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Invalid(f"the request is no JSON: {readable(data[:100])}") from None


@asynccontextmanager
async def serving(log: OpenedByBlock) -> AsyncIterator[None]:
    """Open a log or a ledger for a request, and translate errors: those that a peer gets name no file."""
    try:
        await log.open()
        try:
            yield
        except ValueError as error:
            raise Invalid(str(error)) from error
    except OSError as error:
        what = "nothing was written" if error.errno in NO_ROOM else "the log can't be used"
        reason = errno.errorcode.get(error.errno or 0, "unknown error")
        raise NotWritten(f"{what}: {reason}, {error.strerror or error}") from error
    except CorruptLog as error:
        where = "the log is damaged"
        if error.position is not None:
            where = f"partition {error.partition} is damaged at position {error.position}"
        raise DamagedPartition(f"{where}: {error.reason}") from error


def command(
    log: OpenedByBlock, kind: type[T], function: Callable[[T], Awaitable[object]]
) -> Callable[[Payload], Awaitable[bytes]]:
    """Return the handler of a route of ``log`` whose requests are decoded as a ``kind``, and answered with JSON.

    What ``function`` refuses by a ``ValueError`` is sent as Invalid. ``None`` is answered with nothing.
    """

    async def answer(request: Payload) -> bytes:
        async with serving(log):
            content = await function(decoded(request.data, kind))
            return b"" if content is None else msgspec.json.encode(content)

    return answer


# Sources

OnAck: TypeAlias = Callable[[int, int], Awaitable[object] | object]

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
    pattern: Annotated[str, Meta(max_length=255)] = "*"


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
    is_packed = elements.ARROW in span.packs and elements.has_arrow()

    def payloads(stored: Iterable[Record | Pack]) -> Iterator[Payload]:
        """Yield the payloads, made one by one so that other tasks run in between."""
        nonlocal position
        for item in stored:
            if item.position > position:
                yield elements.source_payload(Pack(b"", item.position - position, position))
            if item.count:
                yield elements.source_payload(item)
            position = item.end

    while end is None or position < end:
        before = position
        read = log.read_packs if is_packed else log.read_some
        await out.send_many(payloads(await read(partition, position, end)))
        if position == before:
            await log.wait_beyond(partition, before)
            if is_packed and log.bounds(partition)[1] - before < elements.PACK_ROWS:
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
        return msgspec.json.encode({"sources": sources})

    if not logs:
        responder.request_response(elements.SOURCES_ROUTE)(answer)
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
    return {partition: Bounds(*log.bounds(partition)) for partition in log.partitions()}


# Sinks

WAITING_ELEMENTS = 1024
"""Elements of a channel that may wait to be staged; of their bytes, as many as a connection may hold."""

AttemptName = Annotated[str, Meta(pattern=r"^[0-9A-Za-z_-]{1,64}\Z")]


class StageRequest(msgspec.Struct, frozen=True):
    """A writer's request to stage the rows of an attempt for a partition, of a batch that was planned at an epoch."""

    sink: Name
    attempt: AttemptName
    partition: Whole
    batch: Whole | None = None
    epoch: Whole | None = None
    query: Name | None = None


class StagedRows(msgspec.Struct, frozen=True):
    """An attempt of a batch, and its number of rows."""

    attempt: AttemptName
    rows: Whole


class BatchRequest(msgspec.Struct, frozen=True, rename="camel"):
    """A request to commit the attempts of a batch in order, each with its number of rows: as ``Ledger.commit``."""

    sink: Name
    batch: Whole
    attempts: list[StagedRows]
    once: bool = False
    query: Name | None = None
    take_over: bool = False
    epoch: Whole | None = None


class SinkRequest(msgspec.Struct, frozen=True):
    """A request for the next epoch of a sink, or to drop attempts of it."""

    sink: Name
    attempts: list[AttemptName] = []


def add_sink(responder: Responder, route: str, ledger: Ledger) -> None:
    """Accept rows for ``ledger`` on ``route``, and on ``.stage``, ``.commit``, ``.abort``, ``.epoch`` and ``.pack``
    behind it.

    ``responder`` gets the handlers. Raise ``ValueError`` for a route that is taken or too long.
    """

    async def write(request: Payload) -> bytes:
        async with serving(ledger):
            await ledger.write(*await element_of(request))
        return b""

    async def stage(channel: Channel) -> None:
        count = 0
        async with serving(ledger):
            opening = decoded(channel.request.data, StageRequest)
            staged = await ledger.begin(**msgspec.structs.asdict(opening))
            try:
                while batch := await channel.receive_batch():
                    writes = [await element_of(payload) for payload in batch]
                    await staged.add(*[element for _, some in writes for element in some])
                    count += len(batch)
                await staged.seal()
            except BaseException:
                # Raised again at once: nobody will commit what is there.
                await ledger.discard(staged)
                raise
        await channel.send(msgspec.json.encode({"rows": staged.row.latest, "elements": count}))

    async def commit(batch: BatchRequest) -> Commit:
        terms = msgspec.structs.asdict(batch)
        terms["attempts"] = {staged.attempt: staged.rows for staged in batch.attempts}
        if len(terms["attempts"]) < len(batch.attempts):
            raise Invalid("an attempt is named twice")
        return await ledger.commit(**terms)

    async def abort(request: SinkRequest) -> dict[str, int]:
        return {"dropped": await ledger.abort(request.sink, request.attempts)}

    async def epoch(request: SinkRequest) -> dict[str, int]:
        return {"epoch": await ledger.epoch(request.sink)}

    async def packs(request: Payload) -> bytes:
        return msgspec.json.encode({"pack": [elements.ARROW] if elements.has_arrow() else []})

    responder.request_response(route)(write)
    responder.request_response(f"{route}.pack")(packs)
    responder.fire_and_forget(route)(write)
    responder.request_channel(f"{route}.stage", initial_request_n=WAITING_ELEMENTS)(stage)
    responder.request_response(f"{route}.commit")(command(ledger, BatchRequest, commit))
    responder.request_response(f"{route}.abort")(command(ledger, SinkRequest, abort))
    responder.request_response(f"{route}.epoch")(command(ledger, SinkRequest, epoch))


_checking: weakref.WeakKeyDictionary[Connection, trio.CapacityLimiter] = weakref.WeakKeyDictionary()
"""The packs that are checked: one at a time for a connection."""


async def element_of(payload: Payload) -> tuple[int, Sequence[Element | Pack]]:
    """Return the element that a writer sends; packs are checked in a thread, one at a time for a connection."""
    if elements.ARROW.encode() not in (payload.metadata or b""):
        return elements.read_sink_payload(payload)
    limiter = _checking.setdefault(current_connection(), trio.CapacityLimiter(1))
    return await trio.to_thread.run_sync(elements.read_sink_payload, payload, limiter=limiter)
