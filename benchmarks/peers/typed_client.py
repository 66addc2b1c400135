"""The client of the typed workload, with this library; told ``bytes`` it calls msgspec itself, told
``contract`` it calls the method of a contract.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import trio

from benchmarks.peers.meter import Meter, asked
from benchmarks.peers.orders import ORDER, RECEIPT, ROUTE, Order, Receipt
from benchmarks.peers.orders_contract import Orders
from benchmarks.peers.python_client import Worker, calls
from rsocket_trio import Connection, open_connection


def typed(connection: Connection) -> Callable[[Order], Awaitable[Receipt]]:
    async def place(order: Order) -> Receipt:
        return await connection.request_response(order, route=ROUTE, reply=Receipt)

    return place


def contract(connection: Connection) -> Callable[[Order], Awaitable[Receipt]]:
    return connection.remote(Orders).place


def by_hand(connection: Connection) -> Callable[[Order], Awaitable[Receipt]]:
    decode, encode = msgspec.json.Decoder(Receipt).decode, msgspec.json.Encoder().encode

    async def place(order: Order) -> Receipt:
        answer = await connection.request_response(encode(order), route=ROUTE)
        return decode(answer.data)

    return place


WAYS = {"contract": contract, "bytes": by_hand}


async def together(worker: Worker, concurrency: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(concurrency):
            nursery.start_soon(worker)


async def main() -> None:
    scheme, port, workload, _, more = asked()
    way = WAYS[more[0]] if more else typed
    meter = Meter(workload)
    async with open_connection(f"{scheme}://127.0.0.1:{port}") as connection:
        place = way(connection)
        for part in meter.rounds():
            await calls(lambda: place(ORDER), RECEIPT, part, meter, together)


if __name__ == "__main__":
    trio.run(main)
