"""TLS is TCP with a certificate: the handshake is done before anything else, and an end is an end."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trustme

from rsocket_trio.errors import ConnectionLost
from rsocket_trio.mux.framing import Framing24
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.connect import open_transport
from rsocket_trio.transports.error_text import HandshakeFailed, reason
from rsocket_trio.transports.listen import Accepted, open_listeners
from rsocket_trio.transports.schemes import parse_uri
from rsocket_trio.transports.sockets import client_tls, server_tls
from tests.transports.pairs import receive_frames, transport_pair

AUTHORITY = trustme.CA()
CERTIFICATE = AUTHORITY.issue_cert("127.0.0.1", "localhost")
USER = AUTHORITY.issue_cert("user@example.org")
URIS = ["tls://127.0.0.1:0", "wss://127.0.0.1:0/rsocket", "h2s://127.0.0.1:0/rsocket"]


@pytest.fixture
def server_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CERTIFICATE.configure_cert(context)
    return context


@pytest.fixture
def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@pytest.mark.parametrize("uri", URIS)
async def test_frames_cross_in_both_directions(
    uri: str, server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    frames = [b"frame one", b"frame two", b"x" * 300_000]
    async with transport_pair(uri, server_context=server_context, client_context=client_context) as (client, server):
        assert client.handshake.transport == server.handshake.transport == parse_uri(uri).scheme
        assert client.handshake.certificate is not None
        assert server.handshake.certificate is None
        for left, right in [(client, server), (server, client)]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(left.send, frames)
                assert await receive_frames(right, 3) == frames


@pytest.mark.parametrize("uri", URIS)
async def test_the_server_sees_the_certificate_that_it_asked_for(
    uri: str, server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    server_context.verify_mode = ssl.CERT_REQUIRED
    AUTHORITY.configure_trust(server_context)
    USER.configure_cert(client_context)
    async with transport_pair(uri, server_context=server_context, client_context=client_context) as (_, server):
        certificate = server.handshake.certificate
        assert certificate is not None
        assert ("email", "user@example.org") in certificate["subjectAltName"]


@pytest.mark.parametrize("uri", URIS)
async def test_an_untrusted_certificate_is_a_lost_connection_that_says_so(
    uri: str, server_context: ssl.SSLContext
) -> None:
    with pytest.raises(ConnectionLost, match=r"^\w+://127\.0\.0\.1:\d+.*: certificate verify failed: ") as caught:
        await dial(uri, server_context, ssl.create_default_context())

    assert isinstance(caught.value.__cause__, HandshakeFailed)
    assert isinstance(caught.value.__cause__.__cause__, ssl.SSLCertVerificationError)


async def test_without_a_context_the_client_trusts_what_the_system_trusts(server_context: ssl.SSLContext) -> None:
    with pytest.raises(ConnectionLost, match="certificate verify failed"):
        await dial("tls://127.0.0.1:0", server_context, None)


async def test_a_certificate_for_another_name_is_refused(client_context: ssl.SSLContext) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("other.example.org").configure_cert(context)

    with pytest.raises(ConnectionLost, match="certificate verify failed: IP address mismatch"):
        await dial("tls://127.0.0.1:0", context, client_context)


async def dial(uri: str, server_context: ssl.SSLContext, client_context: ssl.SSLContext | None) -> None:
    """Dial a server whose handlers let what fails in their handshake pass, as a careless user's would."""

    async def hold(accepted: Accepted) -> None:
        async with accepted.open() as transport:
            await transport.receive()

    (listener,) = await open_listeners([uri], ssl_context=server_context)
    error: ConnectionLost | None = None
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(listener.serve, hold)
        try:
            async with open_transport(bound, ssl_context=client_context):
                pass
        except ConnectionLost as exc:
            error = exc
        nursery.cancel_scope.cancel()
    if error is not None:
        raise error


async def test_a_plain_server_is_a_lost_connection_that_says_tls(client_context: ssl.SSLContext) -> None:
    async def answer_plainly(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"\x00\x00\x06hello!")
        await stream.receive_some()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, answer_plainly, listeners)
        with pytest.raises(ConnectionLost, match="TLS: wrong version number"):
            async with open_transport(
                f"tls://127.0.0.1:{listeners[0].socket.getsockname()[1]}", ssl_context=client_context
            ):
                pass
        nursery.cancel_scope.cancel()


async def test_a_server_that_hangs_up_in_the_handshake_is_a_lost_connection(client_context: ssl.SSLContext) -> None:
    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.receive_some()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, hang_up, listeners)
        with pytest.raises(ConnectionLost, match="the peer closed the connection during the TLS handshake"):
            async with open_transport(
                f"tls://127.0.0.1:{listeners[0].socket.getsockname()[1]}", ssl_context=client_context
            ):
                pass
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize(
    "garbage", [b"", b"\x00\x00\x06hello!", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(200)]
)
async def test_a_client_that_speaks_no_tls_ends_its_own_connection_only(
    uri: str, garbage: bytes, server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    tell, accepted_ones = trio.open_memory_channel[Transport](1)
    tell_failed, failed = trio.open_memory_channel[HandshakeFailed](1)

    async def hold(accepted: Accepted) -> None:
        try:
            async with accepted.open() as transport:
                tell.send_nowait(transport)
                await trio.sleep_forever()
        except HandshakeFailed as exc:
            tell_failed.send_nowait(exc)
            raise

    (listener,) = await open_listeners([uri], ssl_context=server_context)
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(listener.serve, hold)
        async with await trio.open_tcp_stream("127.0.0.1", parse_uri(bound).port) as stream:
            await stream.send_all(garbage)
            await stream.send_eof()
            assert str(await failed.receive())
        async with open_transport(bound, ssl_context=client_context):
            await accepted_ones.receive()
        nursery.cancel_scope.cancel()


async def test_clients_that_never_finish_their_handshake_do_not_keep_others_waiting(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with transport_pair("tls://127.0.0.1:0", server_context=server_context, client_context=client_context) as (
        client,
        _,
    ):
        uri = f"tls://{client.handshake.peer_address}"
        silent = [await trio.open_tcp_stream("127.0.0.1", parse_uri(uri).port) for _ in range(20)]
        async with open_transport(uri, ssl_context=client_context):
            pass
        for stream in silent:
            await stream.aclose()


async def test_finish_says_goodbye_and_what_was_sent_before_arrives(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with transport_pair(URIS[0], server_context=server_context, client_context=client_context) as (
        client,
        server,
    ):
        await server.send([b"last words"])
        await client.send([b"unread", bytes(10_000)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.finish)
            assert await client.receive() == [b"last words"]
            assert await client.receive() == ()
            await client.finish()


async def test_an_end_without_close_notify_is_an_ordinary_end(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with transport_pair(URIS[0], server_context=server_context, client_context=client_context) as (
        client,
        server,
    ):
        await client.send([b"a frame"])
        assert await server.receive() == [b"a frame"]
        await client.aclose()
        assert await server.receive() == ()
        await server.finish()


@pytest.mark.parametrize("https_compatible", [False, True])
async def test_a_stream_of_the_users_own_ends_ordinarily_without_close_notify_too(
    https_compatible: bool, server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    left, right = trio.testing.memory_stream_pair()
    client = trio.SSLStream(left, client_context, server_hostname="localhost", https_compatible=https_compatible)
    server = trio.SSLStream(right, server_context, server_side=True, https_compatible=https_compatible)
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


async def test_serving_tls_needs_a_context() -> None:
    with pytest.raises(ValueError, match=r"tls://127\.0\.0\.1:0: serving TLS needs an ssl_context"):
        await open_listeners(["tcp+tls://127.0.0.1:0"])


async def test_a_client_s_context_offers_what_the_scheme_asks_for_and_no_more(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    server_context.set_alpn_protocols(["h2", "http/1.1"])
    for alpn, chosen in ((("h2",), "h2"), ((), None), (("h2",), "h2")):
        ours, theirs = trio.testing.memory_stream_pair()
        client = client_tls(client_context, ours, "127.0.0.1", alpn)
        server = server_tls(server_context, theirs)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.do_handshake)
            nursery.start_soon(server.do_handshake)
        assert client.selected_alpn_protocol() == chosen


@asynccontextmanager
async def both_sides(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> AsyncIterator[tuple[trio.SSLStream[trio.abc.Stream], trio.SSLStream[trio.abc.Stream]]]:
    """A client and a server of TLS over memory, which have greeted each other."""
    ours, theirs = trio.testing.memory_stream_pair()
    client, server = client_tls(client_context, ours, "127.0.0.1", ()), server_tls(server_context, theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.do_handshake)
        nursery.start_soon(server.do_handshake)
    yield client, server
    await trio.aclose_forcefully(ours)
    await trio.aclose_forcefully(theirs)


async def test_one_read_brings_all_records_that_are_here_up_to_the_size_asked_for(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with both_sides(server_context, client_context) as (client, server):
        await server.send_all(bytes(50_000))
        for number in range(10):
            await server.send_all(b"%d" % number)

        assert len(await client.receive_some(40_000)) == 40_000
        assert await client.receive_some(40_000) == bytes(10_000) + b"0123456789"


async def test_what_came_before_a_broken_record_is_read_before_the_error(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with both_sides(server_context, client_context) as (client, server):
        await server.send_all(b"whole")
        await server.send_all(b"too")
        await server.transport_stream.send_all(b"\x17\x03\x03\x00\x20" + bytes(32))

        assert await client.receive_some() == b"wholetoo"
        with pytest.raises(trio.BrokenResourceError) as raised:
            await client.receive_some()
        assert "DECRYPTION_FAILED" in str(raised.value.__cause__)


async def test_what_came_before_the_end_is_read_before_it(
    server_context: ssl.SSLContext, client_context: ssl.SSLContext
) -> None:
    async with both_sides(server_context, client_context) as (client, server), trio.open_nursery() as nursery:
        await server.send_all(b"last")
        nursery.start_soon(server.aclose)
        await trio.testing.wait_all_tasks_blocked()
        assert await client.receive_some() == b"last"
        assert await client.receive_some() == b""


def test_a_context_keeps_its_own_class_of_objects(client_context: ssl.SSLContext) -> None:
    class Own(ssl.SSLObject):
        pass

    ours, _ = trio.testing.memory_stream_pair()
    for own in (ssl.SSLObject, Own):
        client_context.sslobject_class = own
        client_tls(client_context, ours, "127.0.0.1", ())
        assert client_context.sslobject_class is own


@pytest.mark.parametrize("kind", [ssl.SSLEOFError, ssl.SSLZeroReturnError])
def test_an_end_in_the_handshake_has_one_text_whatever_python_calls_it(kind: type[ssl.SSLError]) -> None:
    assert reason(kind(0, "closed (_ssl.c:992)")) == "the peer closed the connection during the TLS handshake"
