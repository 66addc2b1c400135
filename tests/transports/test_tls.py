"""TLS: the handshake is done before anything else, an end is an end, and each served scheme has its context."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio

from rsocket_trio import Responder, current_connection, open_connection, serve
from rsocket_trio.errors import ConnectionLost
from rsocket_trio.mux.framing import Framing24
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.listen import Accepted
from rsocket_trio.transports.schemes import parse_uri
from tests.each_row import each_row
from tests.transports.pairs import (
    AUTHORITY,
    hold,
    listening,
    make_client_context,
    make_server_context,
    receive_frames,
    transport_pair,
)

USER = AUTHORITY.issue_cert("user@example.org")
URIS = ["tls://127.0.0.1:0", "wss://127.0.0.1:0/rsocket", "h2s://127.0.0.1:0/rsocket"]
SHARED = make_server_context()


each_uri = pytest.mark.parametrize("uri", URIS)


@each_uri
async def test_frames_cross_in_both_directions(uri: str) -> None:
    frames = [b"frame one", b"frame two", b"x" * 300_000]
    server_context, client_context = make_server_context(), make_client_context()
    async with transport_pair(uri, server_context=server_context, client_context=client_context) as (client, server):
        assert client.handshake.transport == server.handshake.transport == parse_uri(uri).scheme
        assert client.handshake.certificate is not None
        assert server.handshake.certificate is None
        for left, right in [(client, server), (server, client)]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(left.send, frames)
                assert await receive_frames(right, 3) == frames


@each_uri
async def test_the_server_sees_the_certificate_that_it_asked_for(uri: str) -> None:
    server_context, client_context = make_server_context(), make_client_context()
    server_context.verify_mode = ssl.CERT_REQUIRED
    AUTHORITY.configure_trust(server_context)
    USER.configure_cert(client_context)
    async with transport_pair(uri, server_context=server_context, client_context=client_context) as (_, server):
        certificate = server.handshake.certificate
        assert certificate is not None
        assert ("email", "user@example.org") in certificate["subjectAltName"]


async def failure_at(uri: str, server_context: ssl.SSLContext, client_context: ssl.SSLContext) -> ConnectionLost:
    """Dial a server whose handlers let what fails in their handshake pass, as a careless user's would."""
    async with listening(hold, uri, ssl_context=server_context) as [bound]:
        with pytest.raises(ConnectionLost, match=r"^\w+://127\.0\.0\.1:\d+.*: certificate verify failed: ") as caught:
            async with open_transport(bound, ssl_context=client_context):
                pass
    return caught.value


@each_uri
async def test_an_untrusted_certificate_is_a_lost_connection_that_says_so(uri: str) -> None:
    cause = (await failure_at(uri, make_server_context(), ssl.create_default_context())).__cause__

    assert isinstance(cause, HandshakeFailed)
    assert isinstance(cause.__cause__, ssl.SSLCertVerificationError)


async def test_a_certificate_for_another_name_is_refused() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("other.example.org").configure_cert(context)

    assert "IP address mismatch" in str(await failure_at(URIS[0], context, make_client_context()))


@each_uri
@pytest.mark.parametrize(
    "garbage", [b"", b"\x00\x00\x06hello!", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(200)]
)
async def test_a_client_that_speaks_no_tls_ends_its_own_connection_only(uri: str, garbage: bytes) -> None:
    tell_failed, failed = trio.open_memory_channel[HandshakeFailed](1)

    async def note(accepted: Accepted) -> None:
        try:
            await hold(accepted)
        except HandshakeFailed as exc:
            tell_failed.send_nowait(exc)
            raise

    async with listening(note, uri, ssl_context=make_server_context()) as [bound]:
        async with await trio.open_tcp_stream("127.0.0.1", parse_uri(bound).port) as stream:
            await stream.send_all(garbage)
            await stream.send_eof()
            assert str(await failed.receive())
        async with open_transport(bound, ssl_context=make_client_context()):
            pass


async def test_clients_that_never_finish_their_handshake_do_not_keep_others_waiting() -> None:
    async with listening(hold, URIS[0], ssl_context=make_server_context()) as [uri]:
        silent = [await trio.open_tcp_stream("127.0.0.1", parse_uri(uri).port) for _ in range(20)]
        async with open_transport(uri, ssl_context=make_client_context()):
            pass
        for stream in silent:
            await stream.aclose()


@pytest.mark.parametrize("https_compatible", [False, True])
async def test_an_end_without_close_notify_is_an_ordinary_end(https_compatible: bool) -> None:
    left, right = trio.testing.memory_stream_pair()
    client = trio.SSLStream(left, make_client_context(), server_hostname="localhost", https_compatible=https_compatible)
    server = trio.SSLStream(right, make_server_context(), server_side=True, https_compatible=https_compatible)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.do_handshake)
        nursery.start_soon(server.do_handshake)
    transport = ByteStreamTransport(client)
    transport.use_framing(Framing24())

    await server.send_all(Framing24().join([b"frame one", b"frame two"])[:-1])
    await right.aclose()

    assert await transport.receive() == [b"frame one"]
    assert await transport.receive() == ()
    assert transport.mid_frame
    await transport.finish()
    await transport.aclose()


# fmt: off
WAYS: list[tuple[str, Callable[[], Any]]] = [
    ("a function",             lambda: make_server_context),
    ("a mapping of contexts",  lambda: {"tls": SHARED, "wss": SHARED, "h2s": make_server_context()}),
    ("a mapping of functions", lambda: dict.fromkeys(["tls", "wss", "h2s"], make_server_context)),
    ("a mapping of both",      lambda: {"tcp+tls": make_server_context, "wss": SHARED, "h2s": make_server_context}),
]
# fmt: on


@each_row(("way", "make"), WAYS)
async def test_all_schemes_of_tls_are_served_together(way: str, make: Callable[[], Any]) -> None:
    responder = Responder()

    @responder.request_response
    def scheme(request: object) -> str:
        return current_connection().handshake.transport

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(partial(serve, responder, URIS, ssl_context=make()))
        for uri in bound:
            async with open_connection(uri, ssl_context=make_client_context()) as connection:
                assert (await connection.request_response()).text == parse_uri(uri).scheme
        nursery.cancel_scope.cancel()


PEM = {"tls": "server.pem"}
# fmt: off
WRONG: list[tuple[list[str], Any, type[Exception], str]] = [
    # schemes         ssl_context                      error
    (["tls", "h2s"],  SHARED,                          ValueError, "one ssl_context for tls and h2s, which offer diff"),
    (["h2s", "wss"],  {"h2s": SHARED, "wss": SHARED},  ValueError, "one ssl_context for h2s and wss, which offer diff"),
    (["h2s", "wss"],  lambda: SHARED,                  ValueError, "give a mapping {'h2s': ..., 'wss': ...} of two co"),
    (["tls"],         None,                            ValueError, "tls://127.0.0.1:0: serving TLS needs an ssl_conte"),
    (["tls", "wss"],  {"tls": SHARED},                 ValueError, "wss://127.0.0.1:0: serving TLS needs an ssl_conte"),
    (["tls"],         {"tls": SHARED, "tcp": SHARED},  ValueError, "for 'tcp': the schemes of TLS are tls, tcp+tls, w"),
    (["tls"],         PEM,                             TypeError,  "'tls' is an ssl.SSLContext or a function that mak"),
    (["tls"],         lambda: None,                    TypeError,  "not NoneType of its function"),
]
# fmt: on


@each_row(("schemes", "ssl_context", "kind", "text"), WRONG)
async def test_contexts_that_cannot_serve_are_an_error_before_anything_is_bound(
    schemes: list[str], ssl_context: Any, kind: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bind(*_: object) -> None:
        pytest.fail("it was bound")

    monkeypatch.setattr("rsocket_trio.transports.schemes.bind_tcp", bind)
    uris = ["tcp://127.0.0.1:0", *(f"{scheme}://127.0.0.1:0" for scheme in schemes)]
    with pytest.raises(kind) as caught:
        await serve(Responder(), uris, ssl_context=ssl_context)
    assert text in str(caught.value)
