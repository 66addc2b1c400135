"""The routes of a sink: rows are written at once, or staged and committed so that each counts once."""

from __future__ import annotations

import errno
import json
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import trio

from rsocket_trio import Channel, Connection, Invalid, Payload, Responder, current_connection
from rsocket_trio.connection.parking_lot import ParkingLot
from rsocket_trio.errors import RSocketError
from rsocket_trio.limits import charged
from rsocket_trio.replay.element_metadata import Write, is_pack, read_sink_payload
from rsocket_trio.replay.elements import Element
from rsocket_trio.replay.errors import NO_ROOM, CorruptLog, DamagedPartition, NotWritten
from rsocket_trio.replay.ledger import Ledger
from rsocket_trio.replay.packs import ARROW, Pack, has_arrow
from rsocket_trio.replay.route_requests import read_abort, read_commit, read_epoch, read_stage

WAITING_BYTES = 4 * 2**20
"""Bytes of elements of one channel that may wait to be written and acknowledged.

An element counts its own bytes and the overhead of holding it, since it may be empty."""


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
        queue = WriteQueue()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive, channel, queue)
            while writes := await queue.take():
                if len(writes) > 1 and await is_written(writes):
                    count = len(writes)
                    del writes  # they are in the log: free them before the wait for the writer's credit
                    await acknowledge(channel, count)
                    continue
                # One of them was refused: write them one by one, so that the writer learns which.
                for one in writes:
                    with errors_for_writers():
                        await ledger.write(by_partition([one]))
                    await acknowledge(channel, 1)

    async def is_written(writes: list[Write]) -> bool:
        try:
            await ledger.write(by_partition(writes))
        except (OSError, ValueError, RSocketError):
            return False
        return True

    async def stage(channel: Channel) -> None:
        elements = 0
        with errors_for_writers():
            await ledger.open()
            wanted = read_stage(channel.request.data)
            plan = {"batch": wanted.batch, "epoch": wanted.epoch}
            staged = await ledger.begin(wanted.sink, wanted.attempt, wanted.partition, **plan, query=wanted.query)
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
        await channel.send(answer(rows=staged.rows, elements=elements))

    async def commit(request: Payload) -> bytes:
        with errors_for_writers():
            await ledger.open()
            wanted = read_commit(request.data)
            done = await ledger.commit(
                *(wanted.sink, wanted.batch, wanted.attempts),
                once=wanted.once,
                query=wanted.query,
                take_over=wanted.take_over,
                epoch=wanted.epoch,
            )
        return answer(promoted=done.promoted, rows=done.rows, last=done.last)

    async def abort(request: Payload) -> bytes:
        with errors_for_writers():
            await ledger.open()
            wanted = read_abort(request.data)
            return answer(dropped=await ledger.abort(wanted.sink, wanted.attempts))

    async def epoch(request: Payload) -> bytes:
        with errors_for_writers():
            await ledger.open()
            return answer(epoch=await ledger.epoch(read_epoch(request.data)))

    async def packs(request: Payload) -> bytes:
        return answer(pack=[ARROW] if has_arrow() else [])

    responder.request_response(route)(write)
    responder.request_response(f"{route}.pack")(packs)
    responder.fire_and_forget(route)(write)
    responder.request_channel(route)(take)
    responder.request_channel(f"{route}.stage", initial_request_n=1024)(stage)
    responder.request_response(f"{route}.commit")(commit)
    responder.request_response(f"{route}.abort")(abort)
    responder.request_response(f"{route}.epoch")(epoch)


_checking: weakref.WeakKeyDictionary[Connection, trio.CapacityLimiter] = weakref.WeakKeyDictionary()
"""The packs that are checked: one at a time for a connection."""


async def element_of(payload: Payload, *, staged: bool = False) -> Write:
    """Return the element that a writer sends; packs are checked in a thread, one at a time for a connection."""
    if not is_pack(payload):
        return read_sink_payload(payload, staged=staged)
    limiter = _checking.setdefault(current_connection(), trio.CapacityLimiter(1))
    return await trio.to_thread.run_sync(partial(read_sink_payload, payload, staged=staged), limiter=limiter)


async def acknowledge(channel: Channel, count: int) -> None:
    """Send one empty payload for each of ``count`` elements that are in the log."""
    for _ in range(count):
        await channel.send(b"")


class WriteQueue:
    """The elements of a channel that wait to be written: at ``WAITING_BYTES`` it receives no more."""

    def __init__(self) -> None:
        self._writes: deque[Write] = deque()
        self._size = 0
        self._is_complete = False
        self._changed = ParkingLot()

    async def put(self, write: Write) -> None:
        """Append an element, and wait while there are too many bytes."""
        self._writes.append(write)
        self._size += charged(write.size)
        self._changed.wake_all()
        while self._size > WAITING_BYTES:
            await self._changed.park()

    def complete(self) -> None:
        """Mark the end: no further element comes."""
        self._is_complete = True
        self._changed.wake_all()

    async def take(self) -> list[Write]:
        """Wait for elements. Return all that wait, or an empty list after the last."""
        while not self._writes and not self._is_complete:
            await self._changed.park()
        writes = list(self._writes)
        self._writes.clear()
        self._size = 0
        self._changed.wake_all()
        return writes


async def receive(channel: Channel, queue: WriteQueue) -> None:
    """Queue the elements of a channel, that of the opening payload first."""
    await queue.put(await element_of(channel.request))
    while batch := await channel.receive_batch():
        for payload in batch:
            await queue.put(await element_of(payload))
    queue.complete()


def by_partition(writes: Iterable[Write]) -> dict[int, list[Element | Pack]]:
    """Return the elements by partition, in order."""
    groups: dict[int, list[Element | Pack]] = {}
    for write in writes:
        groups.setdefault(write.partition, []).extend(write.elements)
    return groups


def answer(**content: object) -> bytes:
    """Return an answer as JSON."""
    return json.dumps(content, separators=(",", ":")).encode()


@contextmanager
def errors_for_writers() -> Iterator[None]:
    """Translate errors of the disk and the log into errors that are sent to the writer and name no file."""
    try:
        yield
    except OSError as error:
        reason = errno.errorcode.get(error.errno or 0, "unknown error")
        what = "nothing was written" if error.errno in NO_ROOM else "nobody knows what was written"
        raise NotWritten(f"{what}: {reason}, {error.strerror or error}") from error
    except CorruptLog as error:
        raise DamagedPartition(f"the log is damaged: {error.reason}") from error
    except ValueError as error:
        raise Invalid(str(error)) from error
