"""The handlers of a soak: they answer with items that whoever asked can foretell."""

from __future__ import annotations

import random
import struct
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import trio

from qa.items import ASKED, ASKING, Wrong, check, item
from rsocket_trio import ApplicationError, Channel, Payload, Responder

if TYPE_CHECKING:
    from qa.attacks.server import Work

ORDER = struct.Struct(">IHfB")
"""A request: its number, items, seconds between them, and how it ends."""
COMPLETE, FAIL, BREAK = range(3)
"""Ends: well, with an error that says so, with an exception that the handler did not mean."""
PLANNED, INTERNAL = "as planned", "internal error"
"""The error that the caller of the latter two gets."""


async def pause(seconds: float) -> None:
    """So long on average."""
    await trio.sleep(random.uniform(0, 2 * seconds))


def finish(end: int) -> None:
    """End as was asked for."""
    if end == FAIL:
        raise ApplicationError(PLANNED)
    if end == BREAK:
        raise RuntimeError("nobody outside is told this")


def serve_orders(responder: Responder, work: Work) -> None:
    """Serve requests, streams, and channels that send both ways at once, as the soak orders them."""

    @responder.request_response("soak")
    async def answer(request: Payload) -> Payload:
        number, items, seconds, end = ORDER.unpack(request.data)
        await pause(items * seconds)
        finish(end)
        return item(number, ASKED, 0)

    @responder.request_stream("soak")
    async def stream(request: Payload) -> AsyncIterator[Payload]:
        number, items, seconds, end = ORDER.unpack(request.data)
        for one in range(items):
            await pause(seconds)
            yield item(number, ASKED, one)
        finish(end)

    @responder.request_channel("soak", initial_request_n=8)
    async def channel(channel: Channel) -> None:
        number, items, seconds, end = ORDER.unpack(channel.request.data)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive, channel, number, items)
            for one in range(items):
                await pause(seconds)
                await channel.send(item(number, ASKED, one))
        finish(end)

    async def receive(channel: Channel, number: int, items: int) -> None:
        came = 0
        try:
            async for one in channel:
                check(one, number, ASKING, came)
                came += 1
                work.received += 1
            if came != items:
                raise Wrong(f"stream {number} ended after {came} items of {items}")
        except Wrong as error:
            work.faults.append(str(error))
            raise
