"""The routes of a sink: rows are written at once, or staged and committed so that each counts once."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import trio

from rsocket_trio import Channel, Connection, Invalid, Payload, Responder, current_connection
from rsocket_trio.errors import RSocketError
from rsocket_trio.replay.element_metadata import Write, is_pack, read_sink_payload
from rsocket_trio.replay.elements import Element
from rsocket_trio.replay.errors import errors_for_peers
from rsocket_trio.replay.ledger import Ledger
from rsocket_trio.replay.packs import ARROW, Pack, has_arrow
from rsocket_trio.replay.route_requests import BatchRequest, SinkRequest, StagedRows, StageRequest, command, decoded

WAITING_ELEMENTS = 1024
"""Elements of a channel that may wait to be written or staged; of their bytes, as many as a connection may hold."""
WRITE_BYTES = 4 * 2**20
"""Bytes of elements of a channel that are written together, about: packs may be much larger than they came."""


def add_sink(responder: Responder, route: str, ledger: Ledger) -> None:
    """Accept rows for ``ledger`` on ``route``, and on ``.stage``, ``.commit``, ``.abort``, ``.epoch`` and ``.pack``
    behind it.

    ``responder`` gets the handlers. Raise ``ValueError`` for a route that is taken or too long.
    """

    async def write(request: Payload) -> bytes:
        with errors_for_writers():
            await ledger.open()
            await ledger.write(by_partition([await element_of(request)]))
        return b""

    async def take(channel: Channel) -> None:
        with errors_for_writers():
            await ledger.open()
        batch = deque([channel.request])
        while batch:
            writes: list[Write] = []
            size = 0
            while batch and size < WRITE_BYTES:
                writes.append(await element_of(batch.popleft()))
                size += sum([element.size for element in writes[-1].elements])
            count = len(writes)
            with errors_for_writers():
                try:
                    await ledger.write(by_partition(writes))
                except (OSError, ValueError, RSocketError):
                    # One of them was refused: write them one by one, so that the writer learns which.
                    for single in writes:
                        await ledger.write(by_partition([single]))
                        await channel.send(b"")
                    count = 0
            del writes  # they are in the log: free them before the wait for the writer's credit
            await channel.send_many([b""] * count)
            if not batch:
                batch.extend(await channel.receive_batch())

    async def stage(channel: Channel) -> None:
        elements = 0
        with errors_for_writers():
            await ledger.open()
            opening = decoded(channel.request.data, StageRequest)
            plan = {"batch": opening.batch, "epoch": opening.epoch}
            staged = await ledger.begin(opening.sink, opening.attempt, opening.partition, **plan, query=opening.query)
        try:
            with errors_for_writers():
                while batch := await channel.receive_batch():
                    for payload in batch:
                        elements += 1
                        for element in (await element_of(payload, staged=True)).elements:
                            await staged.add(element)
                await staged.seal()
        except BaseException:
            await ledger.discard(staged)
            raise
        await channel.send(msgspec.json.encode({"rows": staged.rows, "elements": elements}))

    async def commit(batch: BatchRequest[list[StagedRows]]) -> dict[str, object]:
        rows = {staged.attempt: staged.rows for staged in batch.attempts}
        if len(rows) < len(batch.attempts):
            raise Invalid("an attempt is named twice")
        terms: dict[str, Any] = {"query": batch.query, "take_over": batch.take_over, "epoch": batch.epoch}
        done = await ledger.commit(batch.sink, batch.batch, rows, once=batch.once, **terms)
        return {"promoted": done.promoted, "rows": done.rows, "last": done.last}

    async def abort(request: SinkRequest) -> dict[str, object]:
        return {"dropped": await ledger.abort(request.sink, request.attempts)}

    async def epoch(request: SinkRequest) -> dict[str, object]:
        return {"epoch": await ledger.epoch(request.sink)}

    async def packs(request: Payload) -> bytes:
        return msgspec.json.encode({"pack": [ARROW] if has_arrow() else []})

    responder.request_response(route)(write)
    responder.request_response(f"{route}.pack")(packs)
    responder.fire_and_forget(route)(write)
    responder.request_channel(route, initial_request_n=WAITING_ELEMENTS)(take)
    responder.request_channel(f"{route}.stage", initial_request_n=WAITING_ELEMENTS)(stage)
    responder.request_response(f"{route}.commit")(command(ledger, BatchRequest[list[StagedRows]], commit))
    responder.request_response(f"{route}.abort")(command(ledger, SinkRequest, abort))
    responder.request_response(f"{route}.epoch")(command(ledger, SinkRequest, epoch))


_checking: weakref.WeakKeyDictionary[Connection, trio.CapacityLimiter] = weakref.WeakKeyDictionary()
"""The packs that are checked: one at a time for a connection."""


async def element_of(payload: Payload, *, staged: bool = False) -> Write:
    """Return the element that a writer sends; packs are checked in a thread, one at a time for a connection."""
    if not is_pack(payload):
        return read_sink_payload(payload, staged=staged)
    limiter = _checking.setdefault(current_connection(), trio.CapacityLimiter(1))
    return await trio.to_thread.run_sync(partial(read_sink_payload, payload, staged=staged), limiter=limiter)


def by_partition(writes: Iterable[Write]) -> dict[int, list[Element | Pack]]:
    """Return the elements by partition, in order."""
    groups: dict[int, list[Element | Pack]] = {}
    for write in writes:
        groups.setdefault(write.partition, []).extend(write.elements)
    return groups


@contextmanager
def errors_for_writers() -> Iterator[None]:
    """Translate errors of the disk and the log, and those of what a writer sent, into errors that are sent to it."""
    with errors_for_peers():
        try:
            yield
        except ValueError as error:
            raise Invalid(str(error)) from error
