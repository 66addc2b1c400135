"""A process at one end: ``client URI`` connects, and says so; ``driver DIRECTORY`` runs a media driver there."""

from __future__ import annotations

import os
import sys

import trio

from rsocket_trio.transports.aeron import open_media_driver
from rsocket_trio.transports.connect import open_transport


async def client(uri: str) -> None:
    async with open_transport(uri) as transport:
        await transport.send([b"hello!"])
        print("connected", flush=True)
        await trio.sleep_forever()


async def driver(directory: str) -> None:
    async with open_media_driver(directory=directory or None) as found:
        print(found.directory, flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    assert os.environ.get("AERON_DIR") is None
    trio.run({"client": client, "driver": driver}[sys.argv[1]], sys.argv[2])
