"""A WebSocket that the program opened or accepted itself, with trio-websocket, is as good as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio_websocket import (
    WebSocketRequest,
    open_websocket_url,
    serve_websocket,
)

from rsocket_trio import (
    Payload,
    Responder,
    current_connection,
    open_connection,
    open_connection_over,
    serve_stream,
)
from rsocket_trio.transports.base import Handshake
from tests.serving import running_server

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
    async with running_server(application(), "ws://127.0.0.1:0/rsocket") as uri:
        with trio.fail_after(PATIENCE):
            yield uri


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
