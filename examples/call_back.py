"""Calling back: while it serves a request, the server asks the client on the same connection."""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from rsocket_trio import Payload, Responder, current_connection, open_connection, serve

server_side = Responder()
client_side = Responder()


@server_side.request_response("order")
async def order(request: Payload) -> str:
    client = current_connection()
    confirmed = await client.request_response(f"really {request.text}?", route="confirm")
    if confirmed.text != "yes":
        return "nothing ordered"
    async with client.request_stream(route="wishes") as wishes:
        return f"ordered {request.text}, " + ", ".join([wish.text async for wish in wishes])


@client_side.request_response("confirm")
def confirm(request: Payload) -> str:
    print(f"the server asks: {request.text}")
    return "yes" if "apples" in request.text else "no"


@client_side.request_stream("wishes")
async def wishes(request: Payload) -> AsyncIterator[str]:
    yield "wrapped"
    yield "before noon"


async def run() -> None:
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, server_side, ["tcp://127.0.0.1:0"])
        async with open_connection(uri, responder=client_side) as connection:
            for fruit in ("apples", "pears"):
                print(f"the server says: {(await connection.request_response(fruit, route='order')).text}")
        nursery.cancel_scope.cancel()


def main() -> None:
    trio.run(run)


if __name__ == "__main__":
    main()
