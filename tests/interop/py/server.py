"""The asyncio peer that listens: prints ``PORT n``, and serves until its standard input ends.

``python -m tests.interop.py.server tcp|ws [--fragment N] [--lease N]``
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiohttp import web
from rsocket.lease import SingleLeasePublisher
from rsocket.rsocket_server import RSocketServer
from rsocket.transports.aiohttp_websocket import websocket_handler_factory
from rsocket.transports.tcp import TransportTCP

from tests.interop.py.peer import HOST, Responder, lines, options, say


async def main() -> None:
    asked = options(sys.argv[1:])
    settings: dict[str, Any] = {"handler_factory": Responder}
    if "fragment" in asked:
        settings["fragment_size_bytes"] = int(asked["fragment"])
    if "lease" in asked:
        settings["lease_publisher"] = SingleLeasePublisher(maximum_request_count=int(asked["lease"]))

    def introduce(server: RSocketServer) -> None:
        server._handler.socket = server

    if asked["transport"] == "ws":
        port = await serve_ws(websocket_handler_factory(on_server_create=introduce, **settings))
    else:
        port = await serve_tcp(lambda transport: introduce(RSocketServer(transport, **settings)))
    say(f"PORT {port}")
    await (await lines()).read()


async def serve_tcp(start: Any) -> int:
    async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start(TransportTCP(reader, writer, read_buffer_size=65_536))

    server = await asyncio.start_server(session, HOST, 0)
    return int(server.sockets[0].getsockname()[1])


async def serve_ws(handler: Any) -> int:
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", handler)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    return int(runner.addresses[0][1])


if __name__ == "__main__":
    asyncio.run(main())
