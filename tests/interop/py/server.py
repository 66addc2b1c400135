"""Servers of the asyncio peer, each of which serves for as long as the process runs."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from rsocket.lease import SingleLeasePublisher
from rsocket.rsocket_server import RSocketServer
from rsocket.transports.aiohttp_websocket import websocket_handler_factory
from rsocket.transports.tcp import TransportTCP

from tests.interop.py.peer import HOST, Responder


async def listen(*, transport: str, fragment: int | None = None, lease: int | None = None) -> int:
    """Start to serve. Return the port."""
    settings: dict[str, Any] = {"handler_factory": Responder}
    if fragment is not None:
        settings["fragment_size_bytes"] = fragment
    if lease is not None:
        settings["lease_publisher"] = SingleLeasePublisher(maximum_request_count=lease)

    def introduce(server: RSocketServer) -> None:
        server._handler.socket = server

    if transport == "ws":
        return await serve_ws(websocket_handler_factory(on_server_create=introduce, **settings))
    return await serve_tcp(lambda stream: introduce(RSocketServer(stream, **settings)))


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
