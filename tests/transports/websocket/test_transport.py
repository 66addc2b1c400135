"""One binary message is one frame, whatever the peer does with its side of the WebSocket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from trio_websocket import (
    ConnectionClosed,
    WebSocketConnection,
    WebSocketRequest,
    serve_websocket,
    wrap_client_stream,
)

from rsocket_trio.errors import ConnectionLost, RemoteProtocolError
from rsocket_trio.limits import LARGEST_FRAME, Limits
from rsocket_trio.mux.framing import EncodedFrame
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.listen import Accepted, open_listeners
from rsocket_trio.transports.schemes import parse_uri
from tests.transports.pairs import receive_frames, transport_pair

URI = "ws://127.0.0.1:0/rsocket"


@asynccontextmanager
async def our_server(
    *, limits: Limits | None = None
) -> AsyncIterator[tuple[str, trio.MemoryReceiveChannel[Transport], trio.MemoryReceiveChannel[HandshakeFailed]]]:
    """Our server's URI, the transports that it accepts, and the handshakes that failed."""
    (listener,) = await open_listeners([URI])
    tell, accepted_ones = trio.open_memory_channel[Transport](10)
    tell_failed, failed = trio.open_memory_channel[HandshakeFailed](100)

    async def hold(accepted: Accepted) -> None:
        try:
            async with accepted.open(limits) as transport:
                tell.send_nowait(transport)
                await trio.sleep_forever()
        except HandshakeFailed as exc:
            tell_failed.send_nowait(exc)

    async with trio.open_nursery() as nursery:
        yield await nursery.start(listener.serve, hold), accepted_ones, failed
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def foreign_client(uri: str, subprotocols: Iterable[str] = ()) -> AsyncIterator[WebSocketConnection]:
    """A client that is not ours."""
    endpoint = parse_uri(uri)
    async with await trio.open_tcp_stream(endpoint.host, endpoint.port) as stream, trio.open_nursery() as nursery:
        yield await wrap_client_stream(nursery, stream, endpoint.authority, endpoint.path, subprotocols=subprotocols)
        nursery.cancel_scope.cancel()


def upgrade(path: str, *more: bytes) -> bytes:
    """Return what a browser would send."""
    lines = [
        b"GET " + path.encode() + b" HTTP/1.1",
        *(b"Host: h", b"Upgrade: websocket", b"Connection: Upgrade"),
        *(b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", b"Sec-WebSocket-Version: 13"),
        *more,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def answer_to(uri: str, request: bytes) -> bytes:
    """Return what a server says first."""
    async with await trio.open_tcp_stream("127.0.0.1", parse_uri(uri).port) as stream:
        await stream.send_all(request)
        return bytes(await stream.receive_some())


@asynccontextmanager
async def foreign_server(handler: Callable[[WebSocketRequest], object]) -> AsyncIterator[str]:
    """The URI of a server that is not ours."""
    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve_websocket, handler, "127.0.0.1", 0, None)
        yield f"ws://127.0.0.1:{server.port}/"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[str]:
    """The URI of a server that reads a request, answers with these bytes, and waits for the end."""

    async def handle(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        try:
            await stream.send_all(answer)
            await stream.send_eof()
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/"
        nursery.cancel_scope.cancel()


async def test_frames_cross_whole_in_both_directions() -> None:
    """RS10-FRM-02."""
    frames: list[EncodedFrame] = [b"frame one", (b"frame ", memoryview(b"two")), b"x" * 300_000]
    async with transport_pair(URI) as (client, server):
        assert client.is_message_based
        for left, right in [(client, server), (server, client)]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(left.send, frames)
                assert await receive_frames(right, 3) == [b"frame one", b"frame two", b"x" * 300_000]


async def test_the_largest_frame_passes_and_one_byte_more_closes_with_1009() -> None:
    """RS10-FRM-04."""
    async with our_server() as (uri, accepted, _), foreign_client(uri) as websocket:
        server = await accepted.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(websocket.send_message, bytes(LARGEST_FRAME))
            (frame,) = await server.receive()
            assert len(frame) == LARGEST_FRAME
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_ignoring_a_loss, websocket, bytes(LARGEST_FRAME + 1))
            with pytest.raises(RemoteProtocolError, match="1009"):
                await server.receive()
            with trio.move_on_after(0.1):
                await server.finish()
            await server.aclose()  # whoever still writes what was refused at its header hears of it so
            with pytest.raises(ConnectionClosed) as caught:
                await websocket.get_message()
        assert caught.value.reason is not None
        assert caught.value.reason.code == 1009


async def send_ignoring_a_loss(websocket: WebSocketConnection, message: bytes) -> None:
    try:
        await websocket.send_message(message)
    except ConnectionClosed:
        pass


async def test_the_frame_limit_is_the_message_limit() -> None:
    async with transport_pair(URI, limits=Limits(frame_size=1000)) as (client, server):
        await client.send([bytes(1000)])
        assert await server.receive() == [bytes(1000)]
        await client.send([bytes(1001)])
        with pytest.raises(RemoteProtocolError, match="1009"):
            await server.receive()


async def test_a_text_message_is_refused_with_1003_after_the_frames_before_it() -> None:
    async with our_server() as (uri, accepted, _), foreign_client(uri) as websocket:
        server = await accepted.receive()
        await websocket.send_message(b"frame")
        await websocket.send_message("text")
        await wait_all_tasks_blocked()

        assert await server.receive() == [b"frame"]
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match="text message: frames are binary"):
                await server.receive()
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.get_message()
        assert caught.value.reason is not None
        assert caught.value.reason.code == 1003


async def test_one_receive_takes_all_messages_that_are_here() -> None:
    async with transport_pair(URI) as (client, server):
        await client.send([b"%d" % number for number in range(500)])
        await wait_all_tasks_blocked(0.01)

        first = await server.receive()

        assert len(first) > 1
        rest = await receive_frames(server, 500 - len(first))
        assert [*first, *rest] == [b"%d" % number for number in range(500)]


async def test_half_a_message_is_mid_frame() -> None:
    async with (
        our_server() as (uri, accepted, _),
        await trio.open_tcp_stream("127.0.0.1", parse_uri(uri).port) as stream,
    ):
        await stream.send_all(upgrade("/rsocket"))
        await stream.receive_some()
        server = await accepted.receive()
        seen = [server.mid_frame]

        async def receive() -> None:
            assert await server.receive() == [b"hello"]
            seen.append(server.mid_frame)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await stream.send_all(b"\x82\x85\0\0\0\0hel")
            await wait_all_tasks_blocked(0.05)
            seen.append(server.mid_frame)
            await stream.send_all(b"lo")
    assert seen == [False, True, False]


async def test_what_was_peeked_is_received_again() -> None:
    async with transport_pair(URI) as (client, server):
        await client.send([b"first", b"second"])

        assert await server.peek() == (b"first", False)
        assert await server.peek() == (b"firstsecond", False)
        assert await receive_frames(server, 2) == [b"first", b"second"]
        await client.aclose()
        assert await server.peek() == (b"", True)


async def test_finish_is_an_end_for_the_peer_and_a_broken_pipe_for_its_sends() -> None:
    async with transport_pair(URI) as (client, server):
        await client.send([b"last words"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.finish)
            assert await server.receive() == [b"last words"]
            assert await server.receive() == []
            assert await server.receive() == []
            with pytest.raises(trio.BrokenResourceError):
                await server.send([b"too late"])
            await server.finish()
            await server.aclose()
        await client.finish()
        await client.aclose()


async def test_finish_discards_what_the_peer_still_sends() -> None:
    async def send_much(request: WebSocketRequest) -> None:
        websocket = await request.accept()
        try:
            while True:
                await websocket.send_message(bytes(100_000))
        except ConnectionClosed:
            pass

    async with foreign_server(send_much) as uri, open_transport(uri) as client:
        await client.receive()
        with trio.fail_after(10):
            await client.finish()


async def test_the_peer_sees_the_code_that_finish_was_given() -> None:
    async with our_server() as (uri, accepted, _), foreign_client(uri) as websocket:
        server = await accepted.receive()
        await server.finish(1002)
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.get_message()
        assert caught.value.reason is not None
        assert caught.value.reason.code == 1002


async def test_a_close_for_a_fault_is_a_loss_that_names_it() -> None:
    async with our_server() as (uri, accepted, _), foreign_client(uri) as websocket:
        server = await accepted.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(websocket.aclose, 1008, "not you")
            with pytest.raises(trio.BrokenResourceError, match="closed with 1008 not you"):
                await server.receive()


@pytest.mark.parametrize("code", [1000, 1001])
async def test_an_ordinary_close_is_the_end_of_the_stream(code: int) -> None:
    async with our_server() as (uri, accepted, _), foreign_client(uri) as websocket:
        server = await accepted.receive()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(websocket.aclose, code)
            assert await server.receive() == []


async def test_a_connection_that_just_ends_is_the_end_of_the_stream() -> None:
    async with transport_pair(URI) as (client, server):
        await client.send([b"frame"])
        assert await server.receive() == [b"frame"]
        await client.aclose()
        assert await server.receive() == []
        assert not server.mid_frame


async def test_the_server_exposes_path_and_headers_and_the_peer() -> None:
    headers = [("Authorization", "Bearer 1"), ("X-Name", "é")]
    async with transport_pair(URI, headers=headers) as (client, server):
        assert client.handshake.path == server.handshake.path == "/rsocket"
        assert ("authorization", "Bearer 1") in server.handshake.headers
        assert ("x-name", "é") in server.handshake.headers
        assert server.handshake.transport == "ws"
        assert server.handshake.peer_address.startswith("127.0.0.1:")


async def test_another_path_gets_404_and_the_listener_goes_on() -> None:
    async with our_server() as (uri, accepted, failed):
        assert (await answer_to(uri, upgrade("/rsocket/other"))).startswith(b"HTTP/1.1 404 ")
        assert "'/rsocket/other', served is '/rsocket'" in str(await failed.receive())
        with pytest.raises(ConnectionLost, match="the server answered HTTP 404"):
            async with open_transport(uri.replace("/rsocket", "/")):
                pass
        async with open_transport(uri + "?token=1"):
            assert (await accepted.receive()).handshake.path == "/rsocket?token=1"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [((), None), (("rsocket",), "rsocket"), (("other", "rsocket"), "rsocket"), (("other",), None)],
)
async def test_the_server_echoes_the_subprotocol_rsocket_and_no_other(
    offered: tuple[str, ...], chosen: str | None
) -> None:
    async with our_server() as (uri, _, _failed), foreign_client(uri, offered) as websocket:
        assert websocket.subprotocol == chosen


async def test_the_client_offers_subprotocols_only_in_a_header_of_its_user() -> None:
    offered: list[tuple[str, ...]] = []

    async def accept(request: WebSocketRequest) -> None:
        offered.append(request.proposed_subprotocols)
        await request.accept(subprotocol=next(iter(request.proposed_subprotocols), None))
        await trio.sleep_forever()

    async with foreign_server(accept) as uri:
        async with open_transport(uri):
            pass
        async with open_transport(uri, headers=[("Sec-WebSocket-Protocol", "rsocket, other")]):
            pass
    assert offered == [(), ("rsocket", "other")]


async def test_compression_is_never_agreed_on() -> None:
    async with our_server() as (uri, _, _failed):
        answer = await answer_to(uri, upgrade("/rsocket", b"Sec-WebSocket-Extensions: permessage-deflate"))
    assert answer.startswith(b"HTTP/1.1 101 ")
    assert b"extensions" not in answer.lower()


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\x00\x00\x20\x00\x00\x00\x00\x04\x00\x00\x01",
        b"\xff" * 100,
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /rsocket HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /rsocket HTTP/1.1\r\nHost: " + b"\xff.." * 30 + b"\r\n\r\n",
        b"GET /rsocket HTTP/1.1\r\n" + b"X: " + b"y" * 200_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["nothing", "rsocket over tcp", "high bytes", "plain http", "post", "bad host", "endless header", "http/2"],
)
async def test_what_is_no_websocket_handshake_ends_that_one_connection(garbage: bytes) -> None:
    async with our_server() as (uri, accepted, failed):
        async with await trio.open_tcp_stream("127.0.0.1", parse_uri(uri).port) as stream:
            try:
                await stream.send_all(garbage)
                await stream.send_eof()
            except trio.BrokenResourceError:
                pass
            await failed.receive()
        async with open_transport(uri) as client:
            server = await accepted.receive()
            await client.send([b"still here"])
            assert await server.receive() == [b"still here"]


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 100, b"\x82\x05hello", b"\x83\x80\x00\x00\x00\x00", b"\x81\x84\x00\x00\x00\x00\xff\xff\xff\xff"],
)
async def test_broken_websocket_frames_end_that_one_connection(garbage: bytes) -> None:
    async with our_server() as (uri, accepted, _):
        async with await trio.open_tcp_stream("127.0.0.1", parse_uri(uri).port) as stream:
            await stream.send_all(upgrade("/rsocket"))
            await stream.receive_some()
            server = await accepted.receive()
            await stream.send_all(garbage)
            try:
                assert await server.receive() == []
            except (trio.BrokenResourceError, RemoteProtocolError):
                pass
            with trio.move_on_after(0.1):
                await server.finish()
        async with open_transport(uri):
            await accepted.receive()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"", "the peer did no WebSocket handshake"),
        (b"\x00\x00\x0b\xff", "."),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "the server answered HTTP 200"),
        (b"HTTP/1.1 503 Busy\r\n\r\n" + b"x" * 500_000, "."),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "."),
    ],
    ids=["nothing", "garbage", "plain http", "long answer", "no upgrade"],
)
async def test_a_server_that_does_no_websocket_is_a_lost_connection(answer: bytes, text: str) -> None:
    async with raw_server(answer) as uri:
        with pytest.raises(ConnectionLost, match=text) as caught:
            async with open_transport(uri):
                pass
    assert str(caught.value).startswith(f"{uri}: ")
    assert isinstance(caught.value.__cause__, HandshakeFailed)


async def test_what_the_block_raises_leaves_it_alone() -> None:
    async def accept(request: WebSocketRequest) -> None:
        await request.accept()
        await trio.sleep_forever()

    async with foreign_server(accept) as uri:
        with pytest.raises(KeyError, match="mine"):
            async with open_transport(uri):
                raise KeyError("mine")
        with trio.move_on_after(0.01) as scope:
            async with open_transport(uri) as client:
                await client.receive()
        assert scope.cancelled_caught


async def test_a_handshake_that_nobody_answers_can_be_cancelled() -> None:
    async def say_nothing(stream: trio.SocketStream) -> None:
        while await stream.receive_some():
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, say_nothing, 0, host="127.0.0.1"))
        with trio.move_on_after(0.05) as scope:
            async with open_transport(f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/"):
                pass
        assert scope.cancelled_caught
        nursery.cancel_scope.cancel()


async def test_a_client_that_never_speaks_does_not_keep_others_from_their_handshake() -> None:
    async with our_server() as (uri, accepted, _):
        silent = [await trio.open_tcp_stream("127.0.0.1", parse_uri(uri).port) for _ in range(20)]
        async with open_transport(uri) as client:
            await client.send([b"hello"])
            assert await (await accepted.receive()).receive() == [b"hello"]
        for stream in silent:
            await stream.aclose()
