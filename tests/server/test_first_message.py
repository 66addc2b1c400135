"""The first WebSocket message decides, whatever it is: nobody else notices, and the client is told goodbye."""

from __future__ import annotations

import trio
import trio_websocket

from rsocket_trio import Payload, Responder, open_connection, serve
from rsocket_trio.transports.schemes import parse_uri
from tests.each_row import each_row


async def end_of(socket: trio_websocket.WebSocketConnection) -> trio_websocket.CloseReason | None:
    """Return what the server says at the end, whatever it answers before."""
    while True:
        try:
            await socket.get_message()
        except trio_websocket.ConnectionClosed as closed:
            return closed.reason


@each_row("first", [b"", b"\0\0\0\1", "text"], ids=["empty", "noise", "text"])
async def test_a_first_message_that_is_none_ends_its_own_connection_in_order(first: bytes | str) -> None:
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(serve, responder, ["ws://127.0.0.1:0/"])
        endpoint = parse_uri(uri)
        stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
        async with stream, trio.open_nursery() as reader:
            socket = await trio_websocket.wrap_client_stream(reader, stream, endpoint.authority, endpoint.path)
            await socket.send_message(first)
            reason = await end_of(socket)
            reader.cancel_scope.cancel()
        assert reason is not None
        assert reason.code in (1000, 1002, 1003)
        with trio.fail_after(60):
            async with open_connection(uri) as connection:
                assert (await connection.request_response(b"still here")).data == b"still here"
        nursery.cancel_scope.cancel()
