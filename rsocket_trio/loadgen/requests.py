"""Makes one request of a load: one interaction, from its first frame to the end of its answer."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from rsocket_trio import Channel, Connection, Incoming, Payload
from rsocket_trio.errors import RSocketError
from rsocket_trio.loadgen.plan import Plan

Request = Callable[[Connection, Payload, Callable[[], object]], Awaitable[int]]
"""Makes a request, calls a function with the first item, and returns how many items came."""


class Payloads:
    """The payloads of a task's requests: the same each time, or of random sizes."""

    def __init__(self, plan: Plan, seed: str) -> None:
        self._chance = random.Random(seed)
        self._sizes = plan.sizes
        self._metadata = plan.request_metadata
        self._bytes = self._chance.randbytes(max(plan.sizes)) if plan.sizes else b""
        self._same = Payload(plan.data, self._metadata)

    def next(self) -> Payload:
        """Return the payload of the next request."""
        if not self._sizes:
            return self._same
        return Payload(self._bytes[: self._chance.choice(self._sizes)], self._metadata)


def request_of(plan: Plan) -> Request:
    """Return the function that makes the requests of a plan."""

    async def response(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        await connection.request_response(payload, route=plan.route)
        return 1

    async def fnf(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        await connection.fire_and_forget(payload, route=plan.route)
        return 0

    async def stream(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        async with connection.request_stream(
            payload, route=plan.route, initial_request_n=credit, refill=refill
        ) as items:
            return await _read(items, plan.take, first)

    async def channel(connection: Connection, payload: Payload, first: Callable[[], object]) -> int:
        async with connection.request_channel(
            payload, route=plan.route, initial_request_n=credit, refill=refill
        ) as channel:
            return await _converse(channel, Payload(payload.data), plan, first)

    credit = plan.first_credit if plan.take is None else min(plan.first_credit, plan.take)
    refill = plan.take is None or plan.take > credit
    found: dict[str, Request] = {"response": response, "stream": stream, "fnf": fnf, "channel": channel}
    return found[plan.interaction]


async def _read(items: Incoming, take: int | None, first: Callable[[], object]) -> int:
    count = 0
    while batch := await items.receive_batch():
        if not count:
            first()
        count += len(batch)
        if take is not None and count >= take:
            return take
    return count


async def _converse(channel: Channel, payload: Payload, plan: Plan, first: Callable[[], object]) -> int:
    count = 0
    error: RSocketError | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, channel, payload, plan.items - 1)
        try:
            count = await _read(channel, plan.take, first)
        except RSocketError as exc:
            # Raised in the nursery it would leave it in a group.
            error = exc
        nursery.cancel_scope.cancel()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    return count


async def _send(channel: Channel, payload: Payload, number: int) -> None:
    try:
        for _ in range(number):
            await channel.send(payload)
        await channel.send_eof()
    except RSocketError:
        # The reading side gets the error, too; and a peer that cancelled our half may still send items.
        return
