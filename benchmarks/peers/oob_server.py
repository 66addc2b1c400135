"""The server of ``oob``: takes one large message, and tells when cancels reached it. Prints its port."""

from __future__ import annotations

import json
import sys
import time
from functools import partial

import trio

from benchmarks.workloads import LARGEST
from rsocket_trio import Channel, Limits, Payload, Responder, serve

responder = Responder()
reached: dict[str, float] = {}
"""The time at which each cancel reached its handler, by the request's number, on the clock that all processes share."""


@responder.request_response
def joined(request: Payload) -> str:
    """A message as a whole is only counted; a short one asks for what was seen."""
    return json.dumps(reached) if request.data == b"reached" else str(len(request.data))


@responder.request_channel
async def chunks(channel: Channel) -> None:
    """``bulk`` is thrown away chunk by chunk; a number is one that waits to be cancelled."""
    first = (await anext(channel)).text
    if first == "bulk":
        await channel.send(str(sum([len(chunk.data) async for chunk in channel])))
        return
    await channel.send("waiting")
    try:
        await trio.sleep_forever()
    finally:
        reached[first] = time.perf_counter()


async def main() -> None:
    limits = Limits(payload_size=2 * LARGEST, reassembly_size=4 * LARGEST)
    async with trio.open_nursery() as nursery:
        uris = await nursery.start(partial(serve, responder, f"{sys.argv[1]}://127.0.0.1:0", limits=limits))
        print(uris[0].rsplit(":", 1)[1].strip("/"), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
