"""The server of the workloads, with rsocket-py on asyncio; over WebSocket with aiohttp.

Prints its port, serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from reactivestreams.publisher import DefaultPublisher
from reactivestreams.subscriber import DefaultSubscriber
from reactivestreams.subscription import DefaultSubscription
from rsocket.helpers import create_future
from rsocket.payload import Payload
from rsocket.request_handler import BaseRequestHandler
from rsocket.rsocket_server import RSocketServer
from rsocket.streams.stream_from_async_generator import StreamFromAsyncGenerator
from rsocket.transports.tcp import TransportTCP

from benchmarks.peers.secured import of_server
from benchmarks.workloads import CREDIT, REFILL, WRITE

KEPT: list[Any] = []
"""Servers: nothing else refers to them."""


class Echo(DefaultPublisher, DefaultSubscriber, DefaultSubscription):
    """Sends back what it gets; credit goes through from one side to the other."""

    def __init__(self) -> None:
        super().__init__()
        self._out: Any = None
        self._taken = 0

    def subscribe(self, subscriber: Any) -> None:
        self._out = subscriber
        subscriber.on_subscribe(self)

    def on_subscribe(self, subscription: Any) -> None:
        super().on_subscribe(subscription)
        subscription.request(CREDIT)

    def on_next(self, value: Any, is_complete: bool = False) -> None:
        self._out.on_next(value, is_complete)
        self._taken += 1
        if self._taken >= REFILL:
            self._taken = 0
            self.subscription.request(REFILL)

    def on_complete(self) -> None:
        self._out.on_complete()

    def request(self, n: int) -> None:
        pass

    def cancel(self) -> None:
        pass


class Handler(BaseRequestHandler):
    async def request_response(self, payload: Any) -> Any:
        return create_future(Payload(payload.data))

    async def request_stream(self, payload: Any) -> Any:
        count, size = map(int, payload.data.split())

        async def items() -> AsyncIterator[tuple[Any, bool]]:
            if not count:
                await asyncio.Event().wait()
            item = bytes(size)
            for number in range(count):
                yield Payload(item), number == count - 1

        return StreamFromAsyncGenerator(items)

    async def request_channel(self, payload: Any) -> Any:
        echo = Echo()
        return echo, echo


async def main() -> None:
    port = await (over_websocket() if sys.argv[1] == "ws" else over_tcp())
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def over_tcp() -> int:
    def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        RSocketServer(TransportTCP(reader, writer, read_buffer_size=WRITE), handler_factory=Handler)

    server = await asyncio.start_server(session, "127.0.0.1", 0, ssl=of_server())
    port: int = server.sockets[0].getsockname()[1]
    await server.start_serving()
    KEPT.append(server)
    return port


async def over_websocket() -> int:
    from aiohttp import web
    from rsocket.transports.aiohttp_websocket import websocket_handler_factory

    app = web.Application()
    app.add_routes([web.get("/", websocket_handler_factory(handler_factory=Handler))])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port: int = runner.addresses[0][1]
    return port


if __name__ == "__main__":
    asyncio.run(main())
