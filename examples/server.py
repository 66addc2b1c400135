"""A server: one handler of each interaction.

python examples/server.py                                     on tcp://127.0.0.1:7878, until Ctrl-C or SIGTERM
python examples/server.py tcp://127.0.0.1:0 ws://127.0.0.1:0  wherever you like
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial

import trio

from rsocket_trio import ApplicationError, Channel, Payload, Responder, serve

responder = Responder()


@responder.request_response("greet")
async def greet(request: Payload) -> str:
    if not request.data:
        raise ApplicationError("whom shall I greet?", code=0x301)
    return f"hello, {request.text}"


@responder.request_stream("count")
async def count(request: Payload) -> AsyncIterator[str]:
    for number in range(int(request.text)):
        yield str(number)  # waits for the caller's credit


@responder.request_channel("echo")
async def echo(channel: Channel) -> None:
    async for item in channel:
        await channel.send(item)


@responder.fire_and_forget("log")
def log(request: Payload) -> None:
    print(f"log: {request.text}", flush=True)


async def run(uris: Sequence[str]) -> None:
    async with trio.open_nursery() as nursery:
        # As rsocket_trio.run does it; but where it listens is known only here, if it is on port 0.
        for uri in await nursery.start(partial(serve, responder, uris, signals=True)):
            print(f"listening {uri}", flush=True)
    print("stopped")


def main() -> None:
    trio.run(run, sys.argv[1:] or ["tcp://127.0.0.1:7878"])


if __name__ == "__main__":
    main()
