"""Clients of the asyncio peer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from rsocket.payload import Payload
from rsocket.rsocket_client import RSocketClient
from rsocket.transports.aiohttp_websocket import TransportAioHttpClient
from rsocket.transports.tcp import TransportTCP

from tests.interop.py.peer import COMPOSITE, HOST, Commander, Responder, Result


class Client:
    """One connection, and the commands that it carries out."""

    def __init__(self, socket: Any, metadata_mime: str) -> None:
        self.socket = socket
        self.commander = Commander(socket, metadata_mime)
        self.running: set[asyncio.Task[Result]] = set()

    @classmethod
    async def connect(
        cls,
        *,
        transport: str,
        port: int,
        path: str = "/",
        fragment: int | None = None,
        lease: int | None = None,
        setup: str | None = None,
        keepalive: int = 20_000,
        lifetime: int = 90_000,
        metadata_mime: str = COMPOSITE,
    ) -> Client:
        """Connect. Raise ``ConnectionError`` if that fails."""
        settings: dict[str, Any] = {
            "handler_factory": lambda: Responder(metadata_mime),
            "data_encoding": "application/octet-stream",
            "metadata_encoding": metadata_mime,
            "keep_alive_period": timedelta(milliseconds=keepalive),
            "max_lifetime_period": timedelta(milliseconds=lifetime),
            "honor_lease": lease is not None,
        }
        if fragment is not None:
            settings["fragment_size_bytes"] = fragment
        if setup is not None:
            settings["setup_payload"] = Payload(setup.encode())
        client = RSocketClient(transports(transport, port, path), **settings)
        await client.__aenter__()
        handler = client._handler
        handler.socket = client
        if handler.closed.is_set():
            raise ConnectionError(handler.error[1])
        return cls(client, metadata_mime)

    async def run(self, command: Result) -> Result:
        if command["do"] == "wait_closed":
            await self.socket._handler.closed.wait()
            code, text = self.socket._handler.error or (None, "")
            return {"ok": True, "code": code, "error": text}
        if command["do"] == "close":
            await self.socket.close()
            return {"ok": True}
        task = asyncio.create_task(self.commander.run(command))
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return await task

    async def close(self) -> None:
        for task in self.running:
            task.cancel()
        await self.socket.__aexit__(None, None, None)


async def transports(transport: str, port: int, path: str = "/") -> AsyncIterator[Any]:
    """One transport, and no second one: the library is not to connect again."""
    if transport == "ws":
        yield TransportAioHttpClient(f"ws://{HOST}:{port}{path}")
    else:
        reader, writer = await asyncio.open_connection(HOST, port)
        yield TransportTCP(reader, writer, read_buffer_size=65_536)
