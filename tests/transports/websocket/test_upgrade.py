"""The handshake of RFC 6455, byte by byte, in both roles: what is one, and what is not."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import memory_stream_pair

from rsocket_trio import ConnectionLost, Responder, serve
from rsocket_trio.transports.base import Handshake
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.schemes import AcceptOptions, ConnectOptions, Endpoint
from rsocket_trio.transports.websocket.transport import open_websocket
from tests.each_row import each_row
from tests.transports.pairs import transport_pair

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455, 1.3
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
CHAT = Endpoint("ws", host="server.example", port=80, path="/chat")
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PROPER = {
    b"Host": b"server.example",
    b"Upgrade": b"websocket",
    b"Connection": b"Upgrade",
    b"Sec-WebSocket-Key": KEY,
    b"Sec-WebSocket-Version": b"13",
}


def request(
    *more: bytes, first: bytes = b"GET /chat HTTP/1.1", without: tuple[bytes, ...] = (), body: bytes = b""
) -> bytes:
    lines = [first, *(name + b": " + text for name, text in PROPER.items() if name not in without), *more]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def instead(*lines: bytes) -> bytes:
    """Return a request with these lines in place of its own header of that name."""
    return request(*lines, without=(lines[0].partition(b":")[0],))


async def answered(*said: bytes, cut: int = 0, **options: Any) -> list[bytes]:
    """Return what our server says to each of these, in pieces of so many bytes."""
    answers = []
    async with trio.open_nursery() as nursery:
        serving = partial(serve, grace=0, **options)
        (uri,) = await nursery.start(serving, Responder(), "ws://127.0.0.1:0/chat")
        port = int(uri.rpartition(":")[2].partition("/")[0])
        for one in said:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                for start in range(0, len(one), cut or len(one)):
                    await stream.send_all(one[start : start + (cut or len(one))])
                    await trio.lowlevel.checkpoint()
                with trio.fail_after(5):
                    answers.append(bytes(await stream.receive_some()))
        nursery.cancel_scope.cancel()
    return answers


@pytest.mark.parametrize("cut", [0, 1])
async def test_the_example_of_the_document_is_answered_as_there(cut: int) -> None:
    [answer] = await answered(request(), cut=cut)

    assert answer.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert ACCEPT in answer


KEY_NAME, CHUNKED = b"Sec-WebSocket-Key: ", b"Transfer-Encoding: chunked"
# fmt: off
REQUESTS = [
    # Connection headers are one list
    (b"101", instead(b"Connection: keep-alive, Upgrade")),
    (b"101", instead(b"Connection: keep-alive", b"Connection: Upgrade")),
    (b"101", instead(b"Connection: keep-alive,, upgrade ,x", b"CONNECTION: close")),
    (b"426", instead(b"Connection: keep-alive", b"Connection: close")),
    (b"426", request(without=(b"Connection",))),
    (b"426", request(without=(b"Upgrade",))),
    (b"400", request(without=(b"Host",))),
    (b"400", request(b"Host: other.example")),
    (b"505", request(first=b"GET /chat HTTP/1.0")),
    (b"405", request(first=b"POST /chat HTTP/1.1")),
    (b"404", request(first=b"GET /chat/other HTTP/1.1")),
    (b"101", request(first=b"GET /chat?token=1 HTTP/1.1")),
    (b"400", b"GET /chat HTTP/1.1\r\nHost: h\r\nbad header\r\n\r\n"),
    # Versions and keys
    (b"400", request(without=(b"Sec-WebSocket-Version",))),
    (b"400", instead(b"Sec-WebSocket-Version: 8")),
    (b"400", instead(b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 13")),
    (b"400", request(without=(b"Sec-WebSocket-Key",))),
    (b"400", instead(KEY_NAME + base64.b64encode(bytes(15)))),
    (b"400", instead(KEY_NAME + base64.b64encode(bytes(16)).rstrip(b"="))),
    (b"400", instead(KEY_NAME + KEY, KEY_NAME + KEY)),
    # Bodies
    (b"400", request(b"Content-Length: 5", body=b"hello")),
    (b"400", request(CHUNKED, body=b"5\r\nhello\r\n0\r\n\r\n")),
    (b"101", request(b"Content-Length: 0", b"Content-Length: 0")),
    (b"400", request(b"Content-Length: 0, 0")),
    # The resource may stand in a whole URI, whose host counts then, whatever the header says (RFC 9112, 3.2.2).
    (b"101", request(first=b"GET HTTPS://server.example:443/chat?to=all HTTP/1.1")),
    (b"404", request(first=b"GET http://server.example/other HTTP/1.1")),
    (b"404", request(first=b"GET http://server.example?/chat HTTP/1.1")),
    (b"101", request(b"Origin: http://other.example", first=b"GET http://other.example/chat HTTP/1.1")),
    (b"403", request(b"Origin: http://server.example", first=b"GET http://other.example/chat HTTP/1.1")),
    # What no client writes is refused as soon as it shows
    (b"400", b"\x16\x03\x01\x02\x00"),  # TLS, which never has a line
    (b"400", b"\x00\x00\x20\x00\x00\x00\x00\x04"),
    (b"400", b"\r\n"),
    (b"431", request(b"X-Long: " + b"x" * 9000)),
    (b"431", b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n"),
    (b"400", request(b"X-Folded: a\r\n b")),
    (b"400", request(b"X: a\x00b")),
    (b"400", request().replace(b"\r\n", b"\n")),
]
# fmt: on


@each_row("status, said", REQUESTS)
async def test_a_request_is_a_handshake_or_refused_and_the_listener_goes_on(status: bytes, said: bytes) -> None:
    answer, again = await answered(said, request())

    assert answer.startswith(b"HTTP/1.1 " + status + b" ")
    assert again.startswith(b"HTTP/1.1 101 ")


async def test_a_client_of_another_version_hears_of_ours() -> None:
    [answer] = await answered(instead(b"Sec-WebSocket-Version: 8"))

    assert b"sec-websocket-version: 13\r\n" in answer.lower()


@each_row(("offered", "chosen"), [(b"rsocket", b"rsocket"), (b"other, rsocket", b"rsocket"), (b"other", None)])
async def test_the_server_echoes_the_subprotocol_rsocket_and_no_other(offered: bytes, chosen: bytes | None) -> None:
    [answer] = await answered(request(b"Sec-WebSocket-Protocol: " + offered))

    lines = [line.partition(b": ") for line in answer.lower().split(b"\r\n")]
    assert [text for name, _, text in lines if name == b"sec-websocket-protocol"] == ([chosen] if chosen else [])


async def test_the_server_exposes_path_and_headers_and_the_peer() -> None:
    headers = [("Authorization", "Bearer 1"), ("X-Name", "é")]
    async with transport_pair("ws://127.0.0.1:0/rsocket", headers=headers) as (client, server):
        assert client.handshake.path == server.handshake.path == "/rsocket"
        assert {("authorization", "Bearer 1"), ("x-name", "é")} <= set(server.handshake.headers)
        assert server.handshake.transport == "ws"
        assert server.handshake.peer_address.startswith("127.0.0.1:")


async def test_messages_right_behind_the_request_are_not_lost() -> None:
    ours, theirs = memory_stream_pair()
    await theirs.send_all(request() + b"\x82\x85\0\0\0\0hello\x82\x85\0\0\0\0wo")
    async with open_websocket(ours, CHAT, Handshake(), AcceptOptions()) as transport:
        assert await transport.receive() == [b"hello"]
        await theirs.send_all(b"rld")
        assert await transport.receive() == [b"world"]


# As a client


def accept_for(asked: bytes) -> bytes:
    """Return what the key of a request asks for."""
    (key,) = [line[19:] for line in asked.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key: ")]
    return base64.b64encode(hashlib.sha1(key + GUID).digest())


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[str]:
    """A server of bytes that says these, with ``ACCEPT`` in place of what the client's key asks for."""

    async def handle(stream: trio.SocketStream) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += bytes(await stream.receive_some())
        accept = accept_for(asked)
        try:
            for piece in pieces:
                await stream.send_all(piece.replace(b"ACCEPT", accept))
                await trio.sleep(0.01)
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, handle, 0, host="127.0.0.1"))
        yield f"ws://127.0.0.1:{listener.socket.getsockname()[1]}/"
        nursery.cancel_scope.cancel()


SWITCHING = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: ACCEPT\r\nX-More: yes\r\n\r\n"
)
FRAME = b"\x82\x05hello"


@pytest.mark.parametrize(
    "pieces",
    [
        (SWITCHING + FRAME,),
        (SWITCHING[:20], SWITCHING[20:] + FRAME),
        (SWITCHING.replace(b"Connection: Upgrade", b"Connection: Upgrade\r\nConnection: keep-alive") + FRAME,),
    ],
    ids=["together", "apart", "two connections"],
)
async def test_frames_may_come_with_the_answer(pieces: tuple[bytes, ...]) -> None:
    async with answering(*pieces) as uri, open_transport(uri) as transport:
        with trio.fail_after(5):
            assert await transport.receive() == [b"hello"]
        assert transport.handshake.headers == (("x-more", "yes"),)


# fmt: off
ANSWERS = [
    ((b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",),         "the server answered HTTP 403"),
    ((b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",),             "the server answered HTTP 200"),
    ((b"HTTP/1.1 503 Busy\r\n\r\n" + b"x" * 500_000,),                 "."),
    ((b"HTTP/1.1 101 Switching Protocols\r\n\r\n",),                   "."),
    ((b"\x00\x00\x0b\xff",),                                           "."),
    ((SWITCHING.replace(b"ACCEPT", ACCEPT),),                           "Sec-WebSocket-Accept"),
    ((SWITCHING.replace(b"n: Upgrade", b"n: close"),),                  "invalid Connection header"),
    ((SWITCHING.replace(b"Upgrade: websocket", b"Upgrade: h2c"),),      "invalid Upgrade header"),
    ((SWITCHING.replace(b"X-More", b"Sec-WebSocket-Protocol"),),        "no subprotocols supported"),
    ((SWITCHING.replace(b"X-More", b"Sec-WebSocket-Extensions"),),      "no extensions supported"),
    ((SWITCHING[:-2], *[b"X: " + b"x" * 5_000 + b"\r\n"] * 20),         "did no WebSocket handshake"),
]
# fmt: on


@each_row("pieces, why", ANSWERS)
async def test_an_answer_that_agrees_to_something_else_is_a_lost_connection(
    pieces: tuple[bytes, ...], why: str
) -> None:
    async with answering(*pieces) as uri:
        with trio.fail_after(5), pytest.raises(ConnectionLost, match=why) as caught:
            async with open_transport(uri):
                pass
    assert str(caught.value).startswith(f"{uri}: ")
    assert isinstance(caught.value.__cause__, HandshakeFailed)


async def test_the_client_offers_subprotocols_in_a_header_of_its_user() -> None:
    answer = SWITCHING.replace(b"X-More: yes", b"Sec-WebSocket-Protocol: rsocket")
    headers = [("Sec-WebSocket-Protocol", "rsocket, other")]
    async with answering(answer + FRAME) as uri, open_transport(uri, headers=headers) as transport:
        assert await transport.receive() == [b"hello"]


async def test_a_handshake_that_nobody_answers_can_be_cancelled() -> None:
    ours, _theirs = memory_stream_pair()
    with trio.move_on_after(0.05) as scope:
        async with open_websocket(ours, CHAT, Handshake(), ConnectOptions()):
            pass
    assert scope.cancelled_caught


# Any bytes

SAID = {True: request(), False: SWITCHING + FRAME}
MUTATIONS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 8), st.binary(max_size=8)), max_size=4)


@given(st.one_of(st.binary(max_size=400), MUTATIONS), st.integers(1, 400), st.booleans())
def test_any_bytes_are_a_handshake_or_a_failed_one(
    changes: bytes | list[tuple[int, int, bytes]], cut: int, server: bool
) -> None:
    if isinstance(changes, bytes):
        said = changes
    else:
        said = SAID[server]
        for place, size, other in changes:
            said = said[:place] + other + said[place + size :]
    trio.run(hear, said, cut, server)


async def hear(said: bytes, cut: int, server: bool) -> None:
    """Have a server, or a client, hear these bytes in pieces as its peer's handshake."""
    ours, theirs = memory_stream_pair()
    for start in range(0, len(said), cut):
        await theirs.send_all(said[start : start + cut])
    await theirs.send_eof()
    opening = open_websocket(ours, CHAT, Handshake(), AcceptOptions() if server else ConnectOptions())
    with suppress(HandshakeFailed):
        async with opening as transport:
            assert transport.handshake.path


@pytest.mark.parametrize("header", [("X Y", "z"), ("X:Y", "z"), ("", "z")])
async def test_a_header_that_http_has_no_form_for_is_not_sent(header: tuple[str, str]) -> None:
    ours, theirs = memory_stream_pair()
    options = ConnectOptions(headers=(header,))

    with pytest.raises(HandshakeFailed, match="is not valid in HTTP"):
        async with open_websocket(ours, Endpoint("ws", host="h", port=80), Handshake(), options):
            pass

    assert await theirs.receive_some() == b""
