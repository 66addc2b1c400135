"""A program of asyncio hears that this needs Trio, and what to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from rsocket_trio import (
    Connection,
    Responder,
    connect_forever,
    open_connection,
    open_connection_over,
    run,
    serve,
    serve_stream,
)
from tests.each_row import each_row
from tests.serving import running_server

BLOCKS: dict[str, Callable[[], Any]] = {
    "open_connection": lambda: open_connection("tcp://127.0.0.1:1"),
    "open_connection_over": lambda: open_connection_over(trio.testing.memory_stream_pair()[0]),
    "connect_forever": lambda: connect_forever("tcp://127.0.0.1:1"),
}
CALLS: dict[str, Callable[[], Awaitable[object]]] = {
    "serve": lambda: serve(Responder(), "tcp://127.0.0.1:0"),
    "serve with signals": lambda: serve(Responder(), "memory://aio", signals=True),
    "serve with workers": lambda: serve("app:responder", "tcp://127.0.0.1:0", workers=1),
    "serve_stream": lambda: serve_stream(Responder(), trio.testing.memory_stream_pair()[0]),
}
METHODS: dict[str, Callable[[Connection], Awaitable[object]]] = {
    "request_response": lambda connection: connection.request_response(b"x"),
    "request_stream": lambda connection: connection.request_stream(b"x").__aenter__(),
    "request_channel": lambda connection: connection.request_channel(b"x").__aenter__(),
    "fire_and_forget": lambda connection: connection.fire_and_forget(b"x"),
    "metadata_push": lambda connection: connection.metadata_push(b"x"),
    "ping": lambda connection: connection.ping(),
    "drain": lambda connection: connection.drain(),
    "wait_closed": lambda connection: connection.wait_closed(),
}
SAID = r"needs Trio, and this is an asyncio event loop: .*trio\.run\(main\).*asyncio\.to_thread\(trio\.run, main\)"


@each_row("name", [*BLOCKS, *CALLS])
def test_under_asyncio_the_error_says_what_to_do(name: str) -> None:
    async def main() -> None:
        if name in CALLS:
            await CALLS[name]()
        else:
            async with BLOCKS[name]():
                pass

    with pytest.raises(RuntimeError, match=SAID):
        asyncio.run(main())


@each_row("method", METHODS)
def test_a_connection_of_a_trio_thread_that_is_used_under_asyncio_says_so_and_goes_on(method: str) -> None:
    connected, done = threading.Event(), trio.Event()
    shared: list[Any] = []

    async def in_trio() -> None:
        responder = Responder()
        responder.request_response(lambda request: request.data)
        async with running_server(responder, "memory://shared") as uri, open_connection(uri) as connection:
            shared.extend([connection, trio.lowlevel.current_trio_token()])
            connected.set()
            await done.wait()
            shared.append((await connection.request_response(b"goes on")).data)

    async def in_asyncio() -> None:
        with pytest.raises(RuntimeError, match=SAID):
            await METHODS[method](shared[0])

    thread = threading.Thread(target=trio.run, args=(in_trio,))
    thread.start()
    try:
        assert connected.wait(60)
        asyncio.run(in_asyncio())
    finally:
        shared[1].run_sync_soon(done.set)
        thread.join(60)

    assert shared[2:] == [b"goes on"]


def test_without_any_loop_the_error_says_that_trio_is_needed() -> None:
    serving = serve(Responder(), "memory://nobody")

    with pytest.raises(RuntimeError, match=r"no Trio loop runs here: start it with trio\.run\(main\)"):
        serving.send(None)


def test_what_the_error_says_to_do_works() -> None:
    async def main() -> str:
        responder = Responder()
        responder.request_response(lambda request: request.data)
        async with running_server(responder, "memory://threaded") as uri, open_connection(uri) as connection:
            return (await connection.request_response(b"answer")).text

    async def in_asyncio() -> str:
        return await asyncio.to_thread(trio.run, main)

    assert asyncio.run(in_asyncio()) == "answer"


@each_row(
    ("start", "said"),
    [
        (trio.run, "from inside"),
        (asyncio.run, "run has a loop of its own: call it where no asyncio event loop runs"),
    ],
)
def test_run_inside_of_a_loop_says_so_and_serves_nothing(start: Callable[[Any], object], said: str) -> None:
    async def main() -> None:
        run(Responder(), "memory://inside")

    with pytest.raises(RuntimeError, match=said):
        start(main() if start is asyncio.run else main)
