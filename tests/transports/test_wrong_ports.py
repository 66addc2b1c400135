"""A client at a port of another protocol gets an error with the URI and with what answered there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from rsocket_trio import ConnectionLost, Payload, Responder, open_connection, serve
from rsocket_trio.transports.error_text import NO_FRAME
from rsocket_trio.transports.first_bytes import server_protocol
from tests.each_row import each_row, some
from tests.transports.pairs import make_client_context, make_server_context

SCHEMES = ("tcp", "tls", "ws", "wss", "h2", "h2s")
BAD_REQUEST = "'HTTP/1.1 400 Bad Request'"
ALERT = bytes.fromhex("15 03 03 00 02 02 46")  # RFC 8446, 6: fatal, protocol_version
NO_ALPN = bytes.fromhex("15 03 03 00 02 02 78")  # RFC 7301, 3.2: fatal, no_application_protocol
SETTINGS = bytes.fromhex("000006 04 00 00000000 0003 00000064")  # RFC 9113, 6.5
ERROR = bytes.fromhex("00000B 00000000 2C00 00000001") + b"x"  # 1.0, INVALID_SETUP
PATIENCE = 30

# fmt: off
TLS = "TLS answered: try tls://, wss:// or h2s://"
ANSWERS = {
    "tcp": "RSocket without TLS answered: try tcp://",
    "tls": "RSocket over TLS answered: try tls://",
    "ws":  f"HTTP/1.1 without TLS answered, {BAD_REQUEST}: try ws://",
    "wss": f"HTTP/1.1 over TLS answered, {BAD_REQUEST}: try wss://",
    "h2":  "HTTP/2 without TLS answered: try h2://",
    "h2s": "HTTP/2 over TLS answered: try h2s://",
    "alpn": "TLS answered, and did not agree on h2 by ALPN",
}
WRONG_PORTS = (
    # client  server: tcp     tls     ws     wss     h2     h2s
    ("tcp",  (        None,  "TLS",  "ws",  "TLS",  "h2",  "TLS")),
    ("tls",  (       "tcp",   None,  "ws",  "wss",  "h2",  "h2s")),
    ("ws",   (       "tcp",  "TLS",   None, "TLS",  "h2",  "TLS")),
    ("wss",  (       "tcp",  "tls",  "ws",   None,  "h2",  "h2s")),
    ("h2",   (       "tcp",  "TLS",  "ws",  "TLS",   None, "TLS")),
    ("h2s",  (       "tcp", "alpn",  "ws", "alpn",  "h2",   None)),
)
# fmt: on
COMBINATIONS = [
    (client, server, TLS if answer == "TLS" else ANSWERS[answer])
    for client, answers in WRONG_PORTS
    for server, answer in zip(SCHEMES, answers, strict=True)
    if answer is not None
]


@asynccontextmanager
async def our_server(scheme: str) -> AsyncIterator[str]:
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> bytes:
        return request.data

    start = partial(serve, ssl_context=make_server_context)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(start, responder, f"{scheme}://127.0.0.1:0")
            yield uri
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def raw_server(answer: bytes, *, stays: bool = False, tls: bool = False) -> AsyncIterator[int]:
    """A server of these bytes, which closes behind them or stays. Its port."""

    async def talk(stream: trio.abc.Stream) -> None:
        if tls:
            stream = trio.SSLStream(stream, make_server_context(), server_side=True, https_compatible=True)
        await stream.receive_some()
        await stream.send_all(answer)
        if stays:
            await trio.sleep_forever()

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            [listener] = await nursery.start(partial(trio.serve_tcp, talk, 0, host="127.0.0.1"))
            yield listener.socket.getsockname()[1]
            nursery.cancel_scope.cancel()


async def failure_at(uri: str) -> str:
    """The text of the error of a first request there."""
    opening = open_connection(uri, ssl_context=make_client_context(), connect_timeout=PATIENCE)
    with pytest.raises(ConnectionLost) as caught:
        async with opening as connection:
            await connection.request_response(b"hi")
    return str(caught.value)


@each_row(("client", "server", "answer"), some(COMBINATIONS, 10))
async def test_a_client_at_a_port_of_another_scheme_names_what_answered(client: str, server: str, answer: str) -> None:
    async with our_server(server) as uri:
        mistaken = uri.replace(f"{server}:", f"{client}:", 1)
        assert await failure_at(mistaken) == f"{mistaken}: {answer}"
        async with open_connection(uri, ssl_context=make_client_context()) as connection:
            assert (await connection.request_response(b"hi")).data == b"hi"


NGINX = b"HTTP/1.1 400 Bad Request\r\nServer: nginx\r\nContent-Length: 0\r\n\r\n"


# fmt: off
OTHERS = [
    # client  answer     over TLS  error
    ("tcp",   NGINX,     False,    ANSWERS["ws"]),
    ("tls",   NGINX,     False,    ANSWERS["ws"]),
    ("tls",   NGINX,     True,     ANSWERS["wss"]),
    ("h2",    NGINX,     False,    ANSWERS["ws"]),
    ("h2s",   NGINX,     True,     ANSWERS["alpn"]),
    ("wss",   NGINX,     False,    ANSWERS["ws"]),
    ("ws",    NGINX,     False,    "the server answered HTTP 400 to the WebSocket handshake"),
    ("wss",   NGINX,     True,     "the server answered HTTP 400 to the WebSocket handshake"),
    ("tcp",   ALERT,     False,    TLS),
    ("ws",    ALERT,     False,    TLS),
    ("h2",    ALERT,     False,    TLS),
    ("tcp",   SETTINGS,  False,    ANSWERS["h2"]),
    ("ws",    SETTINGS,  False,    ANSWERS["h2"]),
    ("wss",   SETTINGS,  True,     ANSWERS["h2s"]),
    ("ws",    ERROR,     False,    ANSWERS["tcp"]),
    ("h2",    ERROR,     False,    ANSWERS["tcp"]),
    ("h2s",   ERROR,     True,     ANSWERS["alpn"]),
    ("tls",   ERROR,     False,    ANSWERS["tcp"]),
    ("h2s",   NO_ALPN,   False,    ANSWERS["alpn"]),
    ("tls",   b"SSH-2.0-OpenSSH_9.6\r\n", False, "TLS: wrong version number"),
]
# fmt: on


@each_row(("scheme", "answer", "tls", "error"), OTHERS)
@each_row("stays", [False, True])
async def test_servers_that_are_not_ours_are_named_also_if_they_stay(
    scheme: str, answer: bytes, tls: bool, error: str, stays: bool
) -> None:
    async with raw_server(answer, stays=stays, tls=tls) as port:
        assert await failure_at(f"{scheme}://127.0.0.1:{port}") == f"{scheme}://127.0.0.1:{port}: {error}"


@each_row("scheme", SCHEMES)
async def test_a_server_that_closes_without_an_answer_is_named_by_its_uri(scheme: str) -> None:
    async with raw_server(b"") as port:
        failure = await failure_at(f"{scheme}://127.0.0.1:{port}")
    assert failure.startswith(f"{scheme}://127.0.0.1:{port}: ")
    assert failure.endswith(NO_FRAME)


# fmt: off
CLIENTS = [
    # first bytes                                                         protocol
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40), "TLS"),
    (b"GET /rsocket HTTP/1.1\r\nHost: h\r\n\r\n",                      "HTTP/1.1"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",                            "HTTP/2"),
    (b"noise of a peer that is none of these",                         ""),
]
# fmt: on


@each_row(("first", "protocol"), CLIENTS)
async def test_a_server_of_frames_answers_other_protocols_with_an_error_and_logs_which(
    first: bytes, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with our_server("tcp") as uri:
        answer = await answer_to(uri, first)
    assert answer[3:13].hex(" ") == ("00 00 00 00 2c 00 00 00 00 01" if protocol else "")
    [warning] = [record.getMessage() for record in caplog.records if "first bytes that fit no dialect" in record.msg]
    assert f"{first[:16].hex()}{f' ({protocol})' if protocol else ''};" in warning


@each_row("scheme", ["tls", "wss", "h2s"])
async def test_a_server_of_tls_answers_other_bytes_with_an_alert(scheme: str) -> None:
    setup = bytes.fromhex("000043 00000000 0400 0001 0000") + bytes(60)
    async with our_server(scheme) as uri:
        for first in (setup, b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"):
            # RFC 8446, 6: alert, fatal, unexpected_message
            assert (await answer_to(uri, first)).hex(" ") == "15 03 01 00 02 02 0a"


async def answer_to(uri: str, first: bytes) -> bytes:
    """All that a server sends to these first bytes until it closes."""
    answer = b""
    async with await trio.open_tcp_stream("127.0.0.1", int(uri.rpartition(":")[2])) as stream:
        await stream.send_all(first)
        while chunk := await stream.receive_some():
            answer += chunk
    return answer


# fmt: off
OF_SERVERS = [
    # first bytes                               protocol
    ("15 0303 0002 02 28",                      "TLS"),
    ("48 54 54 50 2f 31",                       "HTTP/1.1"),
    ("00 00 00 04 00 00 00 00 00",              "HTTP/2"),
    ("00 00 2a 04 00 00 00 00 00 00 03",        "HTTP/2"),
    ("00 00 0b 00 00 00 00 2c 00 00 00 00 01",  "RSocket"),  # 1.0, ERROR
    ("00 00 0e 00 00 00 00 0c 80 00 00 00 00",  "RSocket"),  # 1.0, KEEPALIVE
    ("00 00 0e 00 00 00 00 08 00 00 00 00 00",  "RSocket"),  # 1.0, LEASE
    ("00 00 00 37 00 0c 00 00 00 00 00 00",     "RSocket"),  # 0.1, ERROR
    ("00 00 00 3b 00 00 00 02 00 00 00 00",     "RSocket"),  # 0.0, ERROR
    ("",                                        ""),
    ("15 03 03",                                ""),
    ("00 00 2a 04 00 00 00 00",                 ""),
    ("00 00 06 00 00 00 01 28 60",              ""),         # 1.0, PAYLOAD on stream 1
    ("00 00 00 04 01 00 00 00 00",              ""),         # HTTP/2, SETTINGS with ACK
    ("53 53 48 2d 32 2e 30 2d 4f",              ""),         # SSH
]
# fmt: on


@each_row(("first", "protocol"), OF_SERVERS)
def test_servers_are_told_apart_by_their_first_bytes(first: str, protocol: str) -> None:
    assert server_protocol(bytes.fromhex(first)) == protocol
