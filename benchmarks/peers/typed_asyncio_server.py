"""The server of the typed workload, with the router of rsocket-py, and json. Prints its port, serves until its
standard input ends.
"""

# No annotations from the future: the router looks at the types themselves.
import asyncio
import json
import sys
from typing import Any

from rsocket.payload import Payload
from rsocket.routing.request_router import RequestRouter
from rsocket.routing.routing_request_handler import RoutingRequestHandler
from rsocket.rsocket_server import RSocketServer
from rsocket.transports.tcp import TransportTCP

from benchmarks.peers.orders import ROUTE, Order, Receipt, total
from benchmarks.workloads import WRITE


def deserialize(kind: Any, payload: Payload) -> Any:
    return kind(**json.loads(payload.data))


def serialize(kind: Any, answer: Any) -> Payload:
    return Payload(json.dumps(vars(answer)).encode())


router = RequestRouter(deserialize, serialize)


@router.response(ROUTE)
async def place(order: Order) -> Receipt:
    return Receipt(f"{order.symbol}-{order.amount}", total(order.amount))


async def main() -> None:
    def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        RSocketServer(
            TransportTCP(reader, writer, read_buffer_size=WRITE), handler_factory=lambda: RoutingRequestHandler(router)
        )

    server = await asyncio.start_server(session, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
