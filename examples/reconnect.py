"""Reconnecting: a client that outlives its server. What is in progress then fails; what comes later waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import trio

from rsocket_trio import Backoff, Payload, Responder, RSocketError, connect_forever, serve

responder = Responder()


@responder.request_response("greet")
def greet(request: Payload) -> str:
    return f"hello, {request.text}"


@responder.request_stream("news")
async def news(request: Payload) -> AsyncIterator[str]:
    yield "all is well"
    await trio.sleep_forever()


class Server:
    """A server that can be stopped."""

    uri: str

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.gone = trio.Event()


async def run_server(uri: str, *, task_status: trio.TaskStatus[Server]) -> None:
    server = Server()
    with server.scope:
        async with trio.open_nursery() as nursery:
            [server.uri] = await nursery.start(partial(serve, responder, uri, grace=0))
            task_status.started(server)
    server.gone.set()


async def run() -> None:
    backoff = Backoff(first_delay=0.01, longest_delay=0.1)
    async with trio.open_nursery() as nursery:
        server = await nursery.start(run_server, "tcp://127.0.0.1:0")
        async with connect_forever(server.uri, backoff=backoff) as client:
            connection = await client.connected()
            print((await client.request_response("Ada", route="greet")).text)
            try:
                async with client.request_stream(route="news") as items:
                    async for item in items:
                        print(f"news: {item.text}")
                        server.scope.cancel()
            except RSocketError:
                print("the news have stopped: nobody asks for them again but us")

            await connection.wait_closed()
            await server.gone.wait()

            # Nobody listens now. A request waits, for as long as we let it.
            with trio.move_on_after(0.2):
                await client.request_response("Bob", route="greet")
            print(f"connected: {client.connection is not None}")

            server = await nursery.start(run_server, server.uri)
            print((await client.request_response("Ada again", route="greet")).text)
        server.scope.cancel()


def main() -> None:
    trio.run(run)


if __name__ == "__main__":
    main()
