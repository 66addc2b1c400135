"""The routes by which peers read a log and write to a ledger, and the JSON of their requests.

Readers of a source ask for ranges of positions, and each element carries its position. Rows for a sink are written at
once, or staged and committed so that each counts once. One more route of the server lists its sources.
"""

from __future__ import annotations

import errno
import inspect
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeAlias, get_type_hints

import msgspec
import trio
from msgspec import Meta

from rsocket_trio import Channel, Connection, Invalid, Outgoing, Payload, Responder, StreamError, current_connection
from rsocket_trio.replay import elements
from rsocket_trio.replay.elements import Bounds, Element, Pack, Record, Source, Whole, is_like
from rsocket_trio.replay.errors import NotWritten
from rsocket_trio.replay.ledger import Ledger
from rsocket_trio.replay.log import OpenedByBlock, ReplayableLog, Retention

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of a write that left nothing behind."""
MAX_REQUEST_BYTES = 2**20
"""Bytes of a request at most: that is a commit of some 15,000 attempts."""


def arguments_of(function: Callable[..., object]) -> type[msgspec.Struct]:
    """Return the type of JSON objects whose members are the arguments of a function that may be given by name."""
    kinds = get_type_hints(function, include_extras=True)
    fields = [
        (name, kinds[name], msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name in kinds and parameter.kind is not parameter.POSITIONAL_ONLY
    ]
    return msgspec.defstruct(function.__name__, fields, rename="camel")


def decoded(data: bytes, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the arguments in a request; an empty one has all defaults. Raise ``ValueError`` or ``RecursionError``."""
    if len(data) > MAX_REQUEST_BYTES:
        raise ValueError(f"a request of {len(data)} bytes: the limit is {MAX_REQUEST_BYTES}")
    return msgspec.structs.asdict(msgspec.json.decode(data or b"{}", type=kind))


@asynccontextmanager
async def serving(*logs: OpenedByBlock) -> AsyncIterator[None]:
    """Open a log or a ledger for a request, and translate errors: those that a peer gets name no file."""
    try:
        for log in logs:
            await log.open()
        try:
            yield
        except (ValueError, RecursionError) as error:
            raise Invalid(str(error)) from error
    except OSError as error:
        what = "nothing was written" if error.errno in NO_ROOM else "the log can't be used"
        reason = errno.errorcode.get(error.errno or 0, "unknown error")
        raise NotWritten(f"{what}: {reason}, {error.strerror or error}") from error


def command(function: Callable[..., Awaitable[object]], *logs: OpenedByBlock) -> Callable[[Payload], Awaitable[bytes]]:
    """Return the handler of a route of a log or ledger whose requests are the arguments of a function as JSON, and
    whose answers are JSON.

    What ``function`` refuses by a ``ValueError`` is sent as Invalid. ``None`` is answered with nothing.
    """
    kind = arguments_of(function)

    async def answer(request: Payload) -> bytes:
        async with serving(*logs):
            content = await function(**decoded(request.data, kind))
            return b"" if content is None else msgspec.json.encode(content)

    return answer


# Sources

OnAck: TypeAlias = Callable[[int, int], Awaitable[object] | object]

PACK_DELAY = 0.005
"""Seconds that a reader at the end of a log waits for rows to share a pack with the first."""
_logs: weakref.WeakKeyDictionary[Responder, dict[str, ReplayableLog]] = weakref.WeakKeyDictionary()
"""The logs that each responder serves, by route."""


def add_source(
    responder: Responder,
    route: str,
    log: ReplayableLog,
    *,
    on_ack: OnAck | None = None,
    retention: Retention | None = None,
) -> None:
    """Serve ``log`` on ``route``, and on ``.offsets``, ``.ack`` and ``.readers`` behind it.

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
    logs, wanted = _logs.setdefault(responder, {}), arguments_of(send_range)

    async def offsets(timestamps: dict[Whole, Whole] | None = None) -> dict[int, Bounds]:
        await log.retain(in_full=False)
        bounds = bounds_of(log)
        for partition, time in (timestamps or {}).items():
            place = await log.position_at(partition, time)
            earliest, latest = log.bounds(partition)
            # Rows may have been dropped since the position was looked for.
            bounds[partition] = Bounds(earliest, latest, max(place, earliest))
        return bounds

    async def read(request: Payload, out: Outgoing) -> None:
        async with serving(log):
            await send_range(log, out, **decoded(request.data, wanted))

    async def ack(ends: dict[Whole, Whole], reader: str | None = None) -> None:
        for partition, end in ends.items():
            log._check_position(partition, end, end, log.bounds(partition)[1])
        if reader is not None:
            await log.acknowledge(reader, ends)
        if on_ack is not None:
            for partition, end in ends.items():
                # A reader may be ahead of others with a name, which still need the rows.
                lowest = log.lowest(partition)
                waiting = on_ack(partition, end if lowest is None else min(end, lowest))
                if inspect.isawaitable(waiting):
                    await waiting

    async def readers(forget: str | None = None) -> dict[str, dict[str, object]]:
        if forget is not None and not await log.forget_reader(forget):
            raise Invalid(f"there is no reader {forget!r}: nothing was forgotten")
        bounds, shown = bounds_of(log), {}
        for name, reader in log.readers().items():
            ends = dict(sorted(reader.ends.items()))
            behind = {one: known.latest - max(ends.get(one, 0), known.earliest) for one, known in bounds.items()}
            shown[name] = {"ends": ends, "behind": behind, "seen": reader.seen}
        return shown

    async def sources(pattern: Annotated[str, Meta(max_length=255)] = "*") -> dict[str, dict[str, Source]]:
        return {"sources": {name: await listed(logs[name]) for name in sorted(logs) if is_like(name, pattern)}}

    responder.request_stream(route)(read)
    responder.request_response(f"{route}.offsets")(command(offsets, log))
    responder.fire_and_forget(f"{route}.ack")(command(ack, log))
    responder.request_response(f"{route}.ack")(command(ack, log))
    responder.request_response(f"{route}.readers")(command(readers, log))
    if not logs:
        responder.request_response(elements.SOURCES_ROUTE)(command(sources))
    logs[route] = log


async def send_range(
    log: ReplayableLog,
    out: Outgoing,
    /,
    partition: Whole,
    from_: Whole,
    to: Whole | None = None,
    pack: Sequence[str] = (),
) -> None:
    """Send the records of a range, without ``to`` also those to come; in packs if the reader takes Arrow, one of the
    formats ``pack``, and pyarrow is installed.
    """
    if to is not None and to < from_:
        raise ValueError(f"'to' is {to}, below 'from' {from_}")
    log.check_range(partition, from_, to)
    position = from_
    is_packed = elements.ARROW in pack and elements.has_arrow()

    def payloads(stored: Iterable[Record | Pack]) -> Iterator[Payload]:
        """Yield the payloads, made one by one so that other tasks run in between."""
        nonlocal position
        for item in stored:
            if item.position > position:
                yield elements.source_payload(Pack(b"", item.position - position, position))
            if item.count:
                yield elements.source_payload(item)
            position = item.end

    while to is None or position < to:
        before = position
        read = log.read_packs if is_packed else log.read_some
        await out.send_many(payloads(await read(partition, position, to)))
        if position == before:
            await log.wait_beyond(partition, before)
            if is_packed and log.bounds(partition)[1] - before < elements.PACK_ROWS:
                # More may come at once, and then shares a pack.
                await trio.sleep(PACK_DELAY)


async def listed(log: ReplayableLog) -> Source:
    """Return the bounds of a log, or why it can't be opened, without the name of a file."""
    try:
        await log.open()
        return Source(bounds_of(log))
    except StreamError as error:
        return Source(problem=error.text)
    except (OSError, ValueError, ModuleNotFoundError, trio.ClosedResourceError) as error:
        return Source(problem=f"the log can't be opened: {type(error).__name__}")


def bounds_of(log: ReplayableLog) -> dict[int, Bounds]:
    return {partition: Bounds(*log.bounds(partition)) for partition in log.partitions()}


# Sinks

WAITING_ELEMENTS = 1024
"""Elements of a channel that may wait to be staged; of their bytes, as many as a connection may hold."""


def add_sink(responder: Responder, route: str, ledger: Ledger) -> None:
    """Accept rows for ``ledger`` on ``route``, and on ``.stage``, ``.commit``, ``.abort``, ``.epoch`` and ``.pack``
    behind it.

    ``responder`` gets the handlers. Raise ``ValueError`` for a route that is taken or too long.
    """

    async def write(request: Payload) -> bytes:
        async with serving(ledger):
            partition, some = await element_of(request)
            await ledger.log.append_all({partition % len(ledger.log.partitions()): some})
        return b""

    opening = arguments_of(Ledger.begin)

    async def stage(channel: Channel) -> None:
        count = 0
        async with serving(ledger):
            staged = await ledger.begin(**decoded(channel.request.data, opening))
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

    async def packs(request: Payload) -> bytes:
        return msgspec.json.encode({"pack": [elements.ARROW] if elements.has_arrow() else []})

    responder.request_response(route)(write)
    responder.request_response(f"{route}.pack")(packs)
    responder.fire_and_forget(route)(write)
    responder.request_channel(f"{route}.stage", initial_request_n=WAITING_ELEMENTS)(stage)
    responder.request_response(f"{route}.commit")(command(ledger.commit, ledger))
    responder.request_response(f"{route}.abort")(command(ledger.abort, ledger))
    responder.request_response(f"{route}.epoch")(command(ledger.epoch, ledger))


_checking: weakref.WeakKeyDictionary[Connection, trio.CapacityLimiter] = weakref.WeakKeyDictionary()
"""The packs that are checked: one at a time for a connection."""


async def element_of(payload: Payload) -> tuple[int, Sequence[Element | Pack]]:
    """Return the element that a writer sends; packs are checked in a thread, one at a time for a connection."""
    if elements.ARROW.encode() not in (payload.metadata or b""):
        return elements.read_sink_payload(payload)
    limiter = _checking.setdefault(current_connection(), trio.CapacityLimiter(1))
    return await trio.to_thread.run_sync(elements.read_sink_payload, payload, limiter=limiter)
