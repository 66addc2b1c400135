"""The server of the typed workload, with this library. Prints its port, serves until its standard input ends.

With the argument ``bytes`` its handler takes and gives bytes, and calls msgspec itself; with ``contract`` an object
serves the methods of a contract.
"""

from __future__ import annotations

import sys

import msgspec
import trio

from benchmarks.peers.orders import ROUTE, Order, Receipt, total
from benchmarks.peers.orders_contract import Orders
from rsocket_trio import Payload, Responder, serve


def typed() -> Responder:
    responder = Responder()

    @responder.request_response(ROUTE)
    async def place(order: Order) -> Receipt:
        return Receipt(f"{order.symbol}-{order.amount}", total(order.amount))

    return responder


def contract() -> Responder:
    class Desk:
        async def place(self, order: Order) -> Receipt:
            return Receipt(f"{order.symbol}-{order.amount}", total(order.amount))

    responder = Responder()
    responder.serve_as(Orders, Desk())
    return responder


def by_hand() -> Responder:
    responder = Responder()
    decode, encode = msgspec.json.Decoder(Order).decode, msgspec.json.Encoder().encode

    @responder.request_response(ROUTE)
    async def place(request: Payload) -> bytes:
        order = decode(request.data)
        return encode(Receipt(f"{order.symbol}-{order.amount}", total(order.amount)))

    return responder


WAYS = {"contract": contract, "bytes": by_hand}


async def main() -> None:
    responder = WAYS.get(sys.argv[-1], typed)()
    async with trio.open_nursery() as nursery:
        uris = await nursery.start(serve, responder, [f"{sys.argv[1]}://127.0.0.1:0"])
        print(uris[0].rsplit(":", 1)[1].strip("/"), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
