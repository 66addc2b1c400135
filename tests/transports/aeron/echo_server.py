"""A process: ``serve URI`` serves an echo, ``client URI`` connects, ``driver DIRECTORY`` runs a media driver.

Each prints a line once it does so: a server its URI, a driver its directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator

import trio

from rsocket_trio import Channel, Payload, Responder, serve
from rsocket_trio.transports.aeron import open_media_driver
from rsocket_trio.transports.connect import open_transport

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


async def serve_echo(uri: str) -> None:
    async with trio.open_nursery() as nursery:
        (bound,) = await nursery.start(serve, responder, uri)
        print(bound, flush=True)


async def connect(uri: str) -> None:
    async with open_transport(uri) as transport:
        await transport.send([b"hello!"])
        print("connected", flush=True)
        await trio.sleep_forever()


async def drive(directory: str) -> None:
    async with open_media_driver(directory=directory or None) as found:
        print(found.directory, flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    assert os.environ.get("AERON_DIR") is None
    trio.run({"serve": serve_echo, "client": connect, "driver": drive}[sys.argv[1]], sys.argv[2])
