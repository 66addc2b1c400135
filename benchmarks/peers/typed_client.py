"""The client of the typed workload, with this library; told ``bytes`` it calls msgspec itself, told
``contract`` it calls the method of a contract.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from time import perf_counter

import msgspec
import trio

from benchmarks.peers.meter import Meter
from benchmarks.peers.orders import ORDER, RECEIPT, ROUTE, Order, Receipt
from benchmarks.peers.orders_contract import Orders
from benchmarks.workloads import BY_NAME, Workload
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


async def run(uri: str, workload: Workload, way: Callable[[Connection], Callable[[Order], Awaitable[Receipt]]]) -> None:
    async with open_connection(uri) as connection:
        place = way(connection)
        assert await place(ORDER) == RECEIPT
        with Meter() as meter:
            waits = meter.waits

            async def worker() -> None:
                for _ in range(workload.count // workload.concurrency):
                    begun = perf_counter()
                    await place(ORDER)
                    waits.append(perf_counter() - begun)

            async with trio.open_nursery() as nursery:
                for _ in range(workload.concurrency):
                    nursery.start_soon(worker)


if __name__ == "__main__":
    scheme, port, name, _dialect, *more = sys.argv[1:]
    trio.run(run, f"{scheme}://127.0.0.1:{port}", BY_NAME[name], WAYS[more[0]] if more else typed)
