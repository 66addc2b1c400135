"""The asyncio peer that connects: reads a JSON command a line, prints a JSON result a line, ends with standard input.

``python -m tests.interop.py.client tcp|ws PORT [--path P] [--fragment N] [--lease PENDING] [--setup TEXT]
[--keepalive MS] [--lifetime MS] [--metadata-mime M]``
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from rsocket.payload import Payload
from rsocket.rsocket_client import RSocketClient
from rsocket.transports.aiohttp_websocket import TransportAioHttpClient
from rsocket.transports.tcp import TransportTCP

from tests.interop.py.peer import COMPOSITE, HOST, Commander, Responder, Result, lines, milliseconds, options, say


async def main() -> None:
    asked = options(sys.argv[1:])
    metadata_mime = asked.get("metadata-mime", COMPOSITE)
    settings: dict[str, Any] = {
        "handler_factory": lambda: Responder(metadata_mime),
        "data_encoding": "application/octet-stream",
        "metadata_encoding": metadata_mime,
        "keep_alive_period": milliseconds(asked.get("keepalive", "20000")),
        "max_lifetime_period": milliseconds(asked.get("lifetime", "90000")),
        "honor_lease": "lease" in asked,
    }
    if "fragment" in asked:
        settings["fragment_size_bytes"] = int(asked["fragment"])
    if "setup" in asked:
        settings["setup_payload"] = Payload(asked["setup"].encode())

    async with RSocketClient(transports(asked), **settings) as client:
        handler = client._handler
        handler.socket = client
        if handler.closed.is_set():
            say(json.dumps({"ok": False, "code": None, "error": handler.error[1]}))
            return
        say(json.dumps({"ok": True}))
        await obey(client, metadata_mime)


async def transports(asked: dict[str, str]) -> AsyncIterator[Any]:
    """One transport, and no second one: the library is not to connect again."""
    if asked["transport"] == "ws":
        yield TransportAioHttpClient(f"ws://{HOST}:{asked['port']}{asked.get('path', '/')}")
    else:
        reader, writer = await asyncio.open_connection(HOST, int(asked["port"]))
        yield TransportTCP(reader, writer, read_buffer_size=65_536)


async def obey(client: Any, metadata_mime: str) -> None:
    commander = Commander(client, metadata_mime)
    running: set[asyncio.Task[None]] = set()

    async def carry_out(number: Any, command: Result) -> None:
        if command["do"] == "wait_closed":
            await client._handler.closed.wait()
            code, text = client._handler.error or (None, "")
            result: Result = {"ok": True, "code": code, "error": text}
        elif command["do"] == "close":
            await client.close()
            result = {"ok": True}
        else:
            result = await commander.run(command)
        say(json.dumps({"id": number} | result))

    reader = await lines()
    while line := await reader.readline():
        command = json.loads(line)
        task = asyncio.create_task(carry_out(command.pop("id", None), command))
        running.add(task)
        task.add_done_callback(running.discard)
    for task in running:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(main())
