"""The server that cases are played against here: what a server under test has to have, in our own words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count, islice

import trio

from rsocket_trio import Channel, Payload, Responder


def responder() -> Responder:
    """Return a responder with every interaction that a case can need."""
    made = Responder()

    @made.request_response
    async def echo(request: Payload) -> Payload:
        if request.data == b"silent":
            await trio.sleep_forever()
        return request

    @made.request_stream
    @made.request_subscription
    async def numbers(request: Payload) -> AsyncIterator[bytes]:
        for number in islice(count(), int(request.data) if request.data else None):
            yield b"%d" % number

    @made.request_channel
    async def talk(channel: Channel) -> None:
        await channel.send(channel.request)
        async for item in channel:
            await channel.send(item)

    return made
