"""The handshake of RFC 6455, byte by byte, in both roles: what is one, and what is not."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

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
from rsocket_trio.transports.websocket.transport import accept_websocket, open_websocket

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="  # RFC 6455, 1.3
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
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


async def answered(said: bytes, *, cut: int = 0) -> bytes:
    """Return what our server says to these bytes, in pieces of so many."""
    async with trio.open_nursery() as nursery:
        (uri,) = await nursery.start(partial(serve, grace=0), Responder(), "ws://127.0.0.1:0/chat")
        port = int(uri.rpartition(":")[2].partition("/")[0])
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            for start in range(0, len(said), cut or len(said)):
                await stream.send_all(said[start : start + (cut or len(said))])
                await trio.lowlevel.checkpoint()
            with trio.fail_after(5):
                answer = bytes(await stream.receive_some())
        nursery.cancel_scope.cancel()
    return answer


@pytest.mark.parametrize("cut", [0, 1])
async def test_the_example_of_the_document_is_answered_as_there(cut: int) -> None:
    answer = await answered(request(), cut=cut)

    assert answer.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert ACCEPT in answer


@pytest.mark.parametrize(
    "lines",
    [
        (b"Connection: keep-alive, Upgrade",),
        (b"Connection: keep-alive", b"Connection: Upgrade"),
        (b"Connection: Upgrade", b"Connection: keep-alive"),
        (b"connection: keep-alive,, upgrade ,x", b"CONNECTION: close"),
    ],
)
async def test_connection_headers_are_one_list(lines: tuple[bytes, ...]) -> None:
    assert (await answered(request(*lines, without=(b"Connection",)))).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (request(b"Connection: keep-alive", b"Connection: close", without=(b"Connection",)), b"426"),
        (request(b"Connection: Upgrades", without=(b"Connection",)), b"426"),
        (request(without=(b"Connection",)), b"426"),
        (request(without=(b"Upgrade",)), b"426"),
        (request(without=(b"Host",)), b"400"),
        (request(without=(b"Sec-WebSocket-Version",)), b"400"),
        (request(first=b"GET /chat HTTP/1.0"), b"505"),
        (request(first=b"POST /chat HTTP/1.1"), b"405"),
        (request(b"Host: other.example"), b"400"),
        (b"GET /chat HTTP/1.1\r\nHost: h\r\nbad header\r\n\r\n", b"400"),
    ],
    ids=[
        *("no upgrade", "another word", "no connection", "no upgrade header", "no host", "no version", "1.0", "post"),
        *("two hosts", "bad header"),
    ],
)
async def test_what_is_no_handshake_is_refused(said: bytes, status: bytes) -> None:
    assert (await answered(said)).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("versions", [(b"8",), (b"13, 8",), (b"13", b"13")])
async def test_another_version_gets_400_and_hears_of_ours(versions: tuple[bytes, ...]) -> None:
    lines = [b"Sec-WebSocket-Version: " + version for version in versions]
    answer = await answered(request(*lines, without=(b"Sec-WebSocket-Version",)))

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"sec-websocket-version: 13\r\n" in answer.lower()


@pytest.mark.parametrize(
    "keys",
    [
        (),
        (b"",),
        (base64.b64encode(bytes(15)),),
        (base64.b64encode(bytes(17)),),
        (base64.b64encode(bytes(16)).rstrip(b"="),),
        (b"dGhlIHNhbXBsZSBub25jZQ==x",),
        (b"dGhlIHNhbXBs ZSBub25jZQ==",),
        (b"dGhlIHNhbXBsZSBub25j!!==",),
        (b"x" * 24,),
        (KEY, KEY),
    ],
    ids=["none", "empty", "15 bytes", "17 bytes", "no padding", "a rest", "a blank", "other signs", "18 bytes", "two"],
)
async def test_a_key_that_is_not_16_bytes_gets_400(keys: tuple[bytes, ...]) -> None:
    lines = [b"Sec-WebSocket-Key: " + key for key in keys]

    assert (await answered(request(*lines, without=(b"Sec-WebSocket-Key",)))).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ((b"Content-Length: 5",), b"hello"),
        ((b"Content-Length: 5",), b""),
        ((b"Transfer-Encoding: chunked",), b"5\r\nhello\r\n0\r\n\r\n"),
        ((b"Transfer-Encoding: chunked",), b"0\r\n\r\n"),
    ],
)
async def test_a_request_with_a_body_gets_400(lines: tuple[bytes, ...], body: bytes) -> None:
    assert (await answered(request(*lines, body=body))).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    ("lengths", "status"), [((b"0",), b"101"), ((b"0", b"0"), b"101"), ((b"00",), b"400"), ((b"0, 0",), b"400")]
)
async def test_a_body_of_nothing_is_none_if_its_length_is_plainly_zero(
    lengths: tuple[bytes, ...], status: bytes
) -> None:
    said = request(*[b"Content-Length: " + length for length in lengths])

    assert (await answered(said)).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("target", "origin", "status"),
    [
        (b"http://server.example/chat", b"", b"101"),
        (b"HTTPS://server.example:443/chat?to=all", b"", b"101"),
        (b"http://server.example/chat", b"http://server.example", b"101"),
        (b"http://server.example/other", b"", b"404"),
        (b"http://server.example", b"", b"404"),
        (b"http://server.example?/chat", b"", b"404"),
        # The host is that of the URI then, whatever the header says (RFC 9112, 3.2.2).
        (b"http://other.example/chat", b"http://other.example", b"101"),
        (b"http://other.example/chat", b"http://server.example", b"403"),
    ],
)
async def test_the_resource_may_stand_in_a_whole_uri(target: bytes, origin: bytes, status: bytes) -> None:
    headers = (b"Origin: " + origin,) if origin else ()

    answer = await answered(request(*headers, first=b"GET " + target + b" HTTP/1.1"))

    assert answer.startswith(b"HTTP/1.1 " + status + b" ")


# As a client


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[str]:
    """A server of bytes that says these, with ``ACCEPT`` in place of what the client's key asks for."""

    async def handle(stream: trio.SocketStream) -> None:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += bytes(await stream.receive_some())
        (key,) = [line[19:] for line in asked.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key: ")]
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
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


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ((b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",), "the server answered HTTP 403"),
        ((SWITCHING.replace(b"ACCEPT", b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),), "Sec-WebSocket-Accept"),
        ((SWITCHING.replace(b"Connection: Upgrade", b"Connection: close"),), "invalid Connection header"),
        ((SWITCHING.replace(b"Upgrade: websocket", b"Upgrade: h2c"),), "invalid Upgrade header"),
        ((SWITCHING.replace(b"X-More: yes", b"Sec-WebSocket-Protocol: mqtt"),), "no subprotocols supported"),
        (
            (SWITCHING.replace(b"X-More: yes", b"Sec-WebSocket-Extensions: permessage-deflate"),),
            "no extensions supported",
        ),
    ],
)
async def test_an_answer_that_agrees_to_something_else_is_a_lost_connection(
    pieces: tuple[bytes, ...], why: str
) -> None:
    async with answering(*pieces) as uri:
        with trio.fail_after(5), pytest.raises(ConnectionLost, match=why):
            async with open_transport(uri):
                pass


async def test_an_answer_without_end_is_a_lost_connection() -> None:
    large = b"X: " + b"x" * 5_000 + b"\r\n"
    async with answering(SWITCHING[:-2], *[large] * 20) as uri:
        with trio.fail_after(5), pytest.raises(ConnectionLost, match="did no WebSocket handshake"):
            async with open_transport(uri):
                pass


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
    endpoint = Endpoint("ws", host="server.example", port=80, path="/chat")
    opening = (
        accept_websocket(ours, endpoint, Handshake(), AcceptOptions())
        if server
        else open_websocket(ours, endpoint, Handshake(), ConnectOptions())
    )
    with suppress(HandshakeFailed):
        async with opening as transport:
            assert transport.handshake.path


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"\x16\x03\x01\x02\x00", b"400"),  # TLS, which never has a line
        (b"\x00\x00\x20\x00\x00\x00\x00\x04", b"400"),
        (b"\r\n", b"400"),
        (request(b"X-Long: " + b"x" * 9000), b"431"),
        (request(*[b"X-Many: x"] * 200), b"431"),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n", b"431"),
        (request(b"X-Folded: a\r\n b"), b"400"),
        (request(b"X Y: z"), b"400"),
        (request(b"X: a\x00b"), b"400"),
        (request().replace(b"\r\n", b"\n"), b"400"),
    ],
    ids=["tls", "a frame", "an empty line", "long", "many", "long path", "folded", "name", "zero", "no cr"],
)
async def test_a_head_that_no_client_writes_is_refused_as_soon_as_it_shows(said: bytes, status: bytes) -> None:
    assert (await answered(said)).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("header", [("X Y", "z"), ("X:Y", "z"), ("", "z")])
async def test_a_header_that_http_has_no_form_for_is_not_sent(header: tuple[str, str]) -> None:
    ours, theirs = memory_stream_pair()
    options = ConnectOptions(headers=(header,))

    with pytest.raises(HandshakeFailed, match="is not valid in HTTP"):
        async with open_websocket(ours, Endpoint("ws", host="h", port=80), Handshake(), options):
            pass

    assert await theirs.receive_some() == b""
