"""Back-pressure: a producer never runs ahead of the credit that its consumer gave.

The same endless stream is read twice: with credit that follows the reader by itself, and with credit given by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import trio

from rsocket_trio import Connection, Payload, Responder, open_connection, serve

responder = Responder()
produced: list[int] = []
"""The numbers that the server's handler has produced, for comparison."""


@responder.request_stream("numbers")
async def numbers(request: Payload) -> AsyncIterator[str]:
    produced.clear()
    for number in itertools.count(1):
        produced.append(number)
        yield str(number)  # waits here until the consumer wants more


async def automatic(connection: Connection) -> None:
    """Credit for 8 items at first; whenever half of it is used, it is topped up to 8."""
    async with connection.request_stream(route="numbers", initial_request_n=8) as items:
        for _ in range(100):
            await anext(items)
        # One more than there is credit for: the one that waits at its yield.
        print(f"automatic: read 100, and the server is at most 9 ahead: {produced[-1] <= 100 + 8 + 1}")


async def by_hand(connection: Connection) -> None:
    """With ``refill=False`` nothing is topped up: the server sends what was asked for and waits."""
    async with connection.request_stream(route="numbers", initial_request_n=2, refill=False) as items:
        print("by hand: asked for 2:", (await anext(items)).text, (await anext(items)).text)
        with trio.move_on_after(0.1):
            await anext(items)
            raise AssertionError("nobody asked for this")
        items.request_n(3)
        print("by hand: asked for 3:", *[(await anext(items)).text for _ in range(3)])
        print(f"by hand: the server produced {len(produced)}, one of them waits at its yield")


async def run() -> None:
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, ["tcp://127.0.0.1:0"])
        async with open_connection(uri) as connection:
            await automatic(connection)
            await by_hand(connection)
        nursery.cancel_scope.cancel()


def main() -> None:
    trio.run(run)


if __name__ == "__main__":
    main()
