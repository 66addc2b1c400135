"""A client: each interaction once.

python examples/client.py                        talks to the server of server.py, started in this process
python examples/client.py tcp://127.0.0.1:7878   talks to a server of yours
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import trio

from rsocket_trio import ApplicationError, open_connection, serve

SERVER = Path(__file__).with_name("server.py")


async def talk(uri: str) -> None:
    async with open_connection(uri) as connection:
        with trio.fail_after(5):  # too late: the server is told to stop, and TooSlowError is raised here
            reply = await connection.request_response("Ada", route="greet")
        print(f"greet: {reply.text}")

        try:
            await connection.request_response(route="greet")
        except ApplicationError as error:
            print(f"greet: {error}")

        async with connection.request_stream("1000000", route="count") as numbers:
            async for number in numbers:
                if number.text == "3":
                    break  # leaving the block stops the server's handler
                print(f"count: {number.text}")

        async with connection.request_channel(route="echo") as channel:
            await channel.send("once")
            await channel.send("twice")
            await channel.send_eof()
            async for item in channel:
                print(f"echo: {item.text}")

        await connection.fire_and_forget("the client was here", route="log")
        print(f"ping: {'quick' if await connection.ping() < 1 else 'slow'}")


async def run() -> None:
    if sys.argv[1:]:
        await talk(sys.argv[1])
        return
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, runpy.run_path(str(SERVER))["responder"], ["tcp://127.0.0.1:0"])
        await talk(uri)
        nursery.cancel_scope.cancel()


def main() -> None:
    trio.run(run)


if __name__ == "__main__":
    main()
