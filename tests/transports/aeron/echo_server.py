"""Serves an echo at the URI that it is given, in a process of its own, and prints the URI that was bound."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import trio

from rsocket_trio import Channel, Payload, Responder, serve

responder = Responder()


@responder.request_response
async def echo(payload: Payload) -> Payload:
    return payload


@responder.request_stream
async def count(payload: Payload) -> AsyncIterator[bytes]:
    for number in range(int(payload.data)):
        yield b"%d" % number


@responder.request_channel
async def talk(channel: Channel) -> None:
    await channel.send(channel.request)
    async for item in channel:
        await channel.send(item)


async def main(uri: str) -> None:
    async with trio.open_nursery() as nursery:
        (bound,) = await nursery.start(serve, responder, uri)
        print(bound, flush=True)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
