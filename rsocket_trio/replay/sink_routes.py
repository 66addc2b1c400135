"""The routes of a sink: rows are written at once, or staged and committed so that each counts once."""

from __future__ import annotations

import weakref
from typing import Annotated

import msgspec
import trio

from rsocket_trio import Channel, Connection, Invalid, Payload, Responder, current_connection
from rsocket_trio.errors import RSocketError
from rsocket_trio.replay import elements
from rsocket_trio.replay.element_metadata import Write, is_pack, read_sink_payload
from rsocket_trio.replay.elements import Element, Pack
from rsocket_trio.replay.ledger import Commit, Ledger
from rsocket_trio.replay.requests import Name, Whole, command, decoded, serving

WAITING_ELEMENTS = 1024
"""Elements of a channel that may wait to be written or staged; of their bytes, as many as a connection may hold."""

AttemptName = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_-]{1,64}\Z")]


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
            await ledger.write(by_partition([await element_of(request)]))
        return b""

    async def take(channel: Channel) -> None:
        payloads = [channel.request]
        while payloads:
            writes = [await element_of(payload) for payload in payloads]
            async with serving(ledger):
                try:
                    await ledger.write(by_partition(writes))
                except (OSError, ValueError, RSocketError):
                    # One of them was refused: write them one by one, so that the writer learns which.
                    for single in writes:
                        await ledger.write(by_partition([single]))
                        await channel.send(b"")
                    payloads.clear()
            del writes  # they are in the log: free them before the wait for the writer's credit
            await channel.send_many([b""] * len(payloads))
            payloads = list(await channel.receive_batch())

    async def stage(channel: Channel) -> None:
        count = 0
        async with serving(ledger):
            opening = decoded(channel.request.data, StageRequest)
            staged = await ledger.begin(**msgspec.structs.asdict(opening))
            try:
                while batch := await channel.receive_batch():
                    writes = [await element_of(payload) for payload in batch]
                    await staged.add(*[element for write in writes for element in write.elements])
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
    responder.request_channel(route, initial_request_n=WAITING_ELEMENTS)(take)
    responder.request_channel(f"{route}.stage", initial_request_n=WAITING_ELEMENTS)(stage)
    responder.request_response(f"{route}.commit")(command(ledger, BatchRequest, commit))
    responder.request_response(f"{route}.abort")(command(ledger, SinkRequest, abort))
    responder.request_response(f"{route}.epoch")(command(ledger, SinkRequest, epoch))


_checking: weakref.WeakKeyDictionary[Connection, trio.CapacityLimiter] = weakref.WeakKeyDictionary()
"""The packs that are checked: one at a time for a connection."""


async def element_of(payload: Payload) -> Write:
    """Return the element that a writer sends; packs are checked in a thread, one at a time for a connection."""
    if not is_pack(payload):
        return read_sink_payload(payload)
    limiter = _checking.setdefault(current_connection(), trio.CapacityLimiter(1))
    return await trio.to_thread.run_sync(read_sink_payload, payload, limiter=limiter)


def by_partition(writes: list[Write]) -> dict[int, list[Element | Pack]]:
    """Return the elements by partition, in order."""
    groups: dict[int, list[Element | Pack]] = {}
    for write in writes:
        groups.setdefault(write.partition, []).extend(write.elements)
    return groups
