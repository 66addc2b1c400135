"""The server of the workloads, with this library. Prints its port, serves until its standard input ends.

With a second argument ``resume`` its clients may come back, with ``rarely`` the collector looks less often, and with
``plain`` the handler of requests is a plain function.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator
from functools import partial

import trio

from benchmarks.peers.secured import of_server
from rsocket_trio import Channel, Payload, Responder, ResumeOptions, serve

responder = Responder()


def echo_plainly(request: Payload) -> Payload:
    return request


async def echo(request: Payload) -> Payload:
    return request


@responder.request_stream
async def items(request: Payload) -> AsyncIterator[bytes]:
    count, size = map(int, request.data.split())
    if not count:
        await trio.sleep_forever()
    item = bytes(size)
    for _ in range(count):
        yield item


@responder.request_channel
async def echo_all(channel: Channel) -> None:
    async for item in channel:
        await channel.send(item)


async def main() -> None:
    if "rarely" in sys.argv[2:]:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
    responder.request_response(echo_plainly if "plain" in sys.argv[2:] else echo)
    async with trio.open_nursery() as nursery:
        resume = ResumeOptions() if "resume" in sys.argv[2:] else None
        start = partial(serve, resume=resume, ssl_context=of_server())
        uris = await nursery.start(start, responder, [f"{sys.argv[1]}://127.0.0.1:0"])
        print(uris[0].rsplit(":", 1)[1].strip("/"), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
