"""A WebSocket that the program opened or accepted itself, with trio-websocket, is as good as a stream."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
import trio
import trio_websocket
from trio_websocket import (
    WebSocketConnection,
    WebSocketRequest,
    open_websocket_url,
    serve_websocket,
    wrap_client_stream,
)

from rsocket_trio import (
    ConnectionLost,
    Payload,
    Responder,
    ResumeOptions,
    current_connection,
    open_connection,
    open_connection_over,
    serve,
    serve_stream,
)
from rsocket_trio.client.open import as_transport
from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.schemes import parse_uri

PATIENCE = 10


def application(handshakes: list[Handshake] | None = None) -> Responder:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        if handshakes is not None:
            handshakes.append(current_connection().handshake)
        return request

    @responder.request_stream
    async def numbers(request: Payload) -> AsyncIterator[bytes]:
        for number in range(100):
            yield b"%d" % number

    return responder


@asynccontextmanager
async def our_server() -> AsyncIterator[str]:
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, application(), ["ws://127.0.0.1:0/rsocket"])
        with trio.fail_after(PATIENCE):
            yield uri
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def their_server(handshakes: list[Handshake] | None = None) -> AsyncIterator[str]:
    """A server of trio-websocket's, which serves each connection as a stream."""

    async def handle(request: WebSocketRequest) -> None:
        await serve_stream(application(handshakes), await request.accept(), grace=0)

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, handle, "127.0.0.1", 0, None)
        with trio.fail_after(PATIENCE):
            yield f"ws://127.0.0.1:{server.port}/there"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def two_ends() -> AsyncIterator[tuple[WebSocketConnection, WebSocketConnection]]:
    """A client's and a server's, both of trio-websocket."""
    tell, told = trio.open_memory_channel[WebSocketConnection](1)

    async def handle(request: WebSocketRequest) -> None:
        tell.send_nowait(await request.accept())
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, handle, "127.0.0.1", 0, None)
        # Where the peer says goodbye first, trio-websocket leaves the stream below to its owner.
        async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
            with trio.fail_after(PATIENCE):
                yield await wrap_client_stream(nursery, stream, "127.0.0.1", "/"), await told.receive()
        nursery.cancel_scope.cancel()


async def test_a_client_may_bring_a_websocket_that_it_opened() -> None:
    async with (
        our_server() as uri,
        open_websocket_url(uri) as websocket,
        open_connection_over(websocket) as connection,
    ):
        assert (await connection.request_response(b"hello")).data == b"hello"
        async with connection.request_stream(b"") as items:
            assert [item.data async for item in items] == [b"%d" % number for number in range(100)]


async def test_a_server_may_bring_a_websocket_that_it_accepted() -> None:
    handshakes: list[Handshake] = []
    async with their_server(handshakes) as uri, open_connection(uri) as connection:
        assert (await connection.request_response(bytes(100_000))).data == bytes(100_000)

    (handshake,) = handshakes
    assert handshake.transport == "ws"
    assert handshake.peer_address.startswith("127.0.0.1:")
    assert handshake.path == "/there"


async def test_both_may() -> None:
    async with their_server() as uri, open_websocket_url(uri) as websocket:
        async with open_connection_over(websocket) as connection:
            assert (await connection.request_response(b"hello")).data == b"hello"
        assert websocket.closed is not None


async def test_each_try_to_resume_may_bring_a_new_one() -> None:
    async with trio.open_nursery() as nursery:
        serving = partial(serve, resume=ResumeOptions())
        [uri] = await nursery.start(serving, application(), ["ws://127.0.0.1:0/rsocket"])
        where = parse_uri(uri)
        opened: list[WebSocketConnection] = []

        async def dial() -> WebSocketConnection:
            stream = await closing.enter_async_context(await trio.open_tcp_stream(where.host, where.port))
            opened.append(await wrap_client_stream(nursery, stream, where.authority, where.path))
            return opened[-1]

        async with AsyncExitStack() as closing:
            with trio.fail_after(PATIENCE):
                async with open_connection_over(dial, resume=ResumeOptions(first_delay=0.01)) as connection:
                    assert (await connection.request_response(b"before")).data == b"before"
                    await trio.aclose_forcefully(opened[0])
                    assert (await connection.request_response(b"after")).data == b"after"
        assert len(opened) == 2
        nursery.cancel_scope.cancel()


async def test_a_peer_that_closes_is_a_lost_connection() -> None:
    async with two_ends() as (client, server), open_connection_over(client) as connection:
        await server.get_message()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.aclose, 1011, "on fire")
            with pytest.raises(ConnectionLost, match="1011 on fire"):
                await connection.request_response(b"hello")


async def test_frames_are_peeked_and_received_and_a_goodbye_is_the_end() -> None:
    async with two_ends() as (client, server):
        left, right = as_transport(client), as_transport(server)
        assert right.is_message_based
        await left.send([b"one", (b"tw", memoryview(b"o")), b"three"])
        assert await right.peek() == (b"one", False)
        assert await right.peek() == (b"onetwo", False)
        assert [*await right.receive(), *await right.receive()] == [b"one", b"two", b"three"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(left.finish)
            assert await right.receive() == []
            assert await right.peek() == (b"", True)
        with pytest.raises(trio.BrokenResourceError, match="1000"):
            await right.send([b"too late"])
        await right.aclose()
        await left.aclose()
        assert not right.cut()


async def test_a_text_is_refused_with_1003() -> None:
    async with two_ends() as (client, server):
        transport = as_transport(server)
        await client.send_message("text")
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match="text message: frames are binary"):
                await transport.receive()
        await transport.finish()
        with pytest.raises(trio_websocket.ConnectionClosed) as caught:
            await client.get_message()
        assert caught.value.reason is not None
        assert caught.value.reason.code == 1003


def test_programs_that_use_none_do_not_import_the_library() -> None:
    code = """
import sys, trio
from rsocket_trio import Responder, open_connection, serve

async def main():
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, Responder(), ["ws://127.0.0.1:0"])
        async with open_connection(uri) as connection:
            await connection.ping()
        nursery.cancel_scope.cancel()

trio.run(main)
sys.exit("trio_websocket" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
