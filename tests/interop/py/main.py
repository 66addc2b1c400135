"""The asyncio peer: listens and connects when told to.

It reads a JSON command a line, prints a JSON result a line, and ends with standard input. README.md, one folder up,
lists the commands.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from tests.interop.py.client import Client
from tests.interop.py.peer import Result, lines, say
from tests.interop.py.server import listen

END_TIMEOUT = 5.0


async def main() -> None:
    clients: dict[Any, Client] = {}
    running: set[asyncio.Task[None]] = set()

    async def carry_out(number: Any, client: Any, command: Result) -> Result:
        match command["do"]:
            case "listen":
                return {"ok": True, "port": await listen(**without_do(command))}
            case "connect":
                clients[number] = await Client.connect(**without_do(command))
                return {"ok": True, "client": number}
            case "leave":
                with suppress(TimeoutError):
                    await asyncio.wait_for(clients.pop(client).close(), END_TIMEOUT)
                return {"ok": True}
            case _:
                return await clients[client].run(command)

    async def answer(number: Any, client: Any, command: Result) -> None:
        try:
            result = await carry_out(number, client, command)
        except Exception as error:
            result = {"ok": False, "code": None, "error": str(error)}
        say(json.dumps({"id": number} | result))

    reader = await lines()
    while line := await reader.readline():
        command = json.loads(line)
        task = asyncio.create_task(answer(command.pop("id"), command.pop("client", None), command))
        running.add(task)
        task.add_done_callback(running.discard)
    for task in running:
        task.cancel()


def without_do(command: Result) -> Result:
    return {name: value for name, value in command.items() if name != "do"}


if __name__ == "__main__":
    asyncio.run(main())
