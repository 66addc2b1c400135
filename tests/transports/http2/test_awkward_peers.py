"""HTTP/2 with peers that are slow to answer, refuse with a page, or speak another protocol altogether."""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    Event,
    PingReceived,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from trio.testing import MockClock

from rsocket_trio import ConnectionLost, Keepalive, Payload, Responder, open_connection, open_shared, serve
from tests.secret import SECRET, shows

E = TypeVar("E", bound=Event)
GRANTED = [(":status", "200"), ("content-type", "application/rsocket")]
REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "here"),
    (":path", "/"),
    ("content-type", "application/rsocket"),
]
SETUP = bytes.fromhex("000043000000000400000100000000271000002710") + b"\x18application/octet-stream" * 2
PAGE = b"<h1>Bad Gateway</h1>"
PATIENCE = 10.0


class Raw:
    """A peer that h2 alone speaks for."""

    def __init__(self, stream: trio.abc.Stream, *, client: bool = False) -> None:
        self.stream = stream
        self.h2 = H2Connection(H2Configuration(client_side=client))
        self.h2.initiate_connection()
        self.events: list[Event] = []

    async def send(self) -> None:
        """Write what h2 has made."""
        await self.stream.send_all(self.h2.data_to_send())

    async def wait_for(self, kind: type[E]) -> E:
        """Return the next event of this type."""
        while True:
            await self.send()
            for number, event in enumerate(self.events):
                if isinstance(event, kind):
                    del self.events[: number + 1]
                    return event
            chunk = await self.stream.receive_some()
            assert chunk, f"the end before {kind.__name__}"
            self.events = self.h2.receive_data(bytes(chunk))


@asynccontextmanager
async def raw_server(script: Callable[[Raw], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that plays a script with each connection: its URI."""

    async def play(stream: trio.SocketStream) -> None:
        async with stream:
            peer = Raw(stream)
            await script(peer)
            while chunk := await stream.receive_some():
                for event in peer.h2.receive_data(bytes(chunk)):
                    if isinstance(event, StreamEnded):
                        peer.h2.end_stream(event.stream_id)
                await peer.send()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(trio.serve_listeners, play, listeners)
        yield f"h2://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def our_server(*uris: str, ssl_context: ssl.SSLContext | None = None) -> AsyncIterator[list[str]]:
    """Our server, which echoes: its URIs."""
    responder = Responder()

    @responder.request_response
    def echo(request: Payload) -> Payload:
        return request

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            yield await nursery.start(partial(serve, responder, uris, ssl_context=ssl_context))
            nursery.cancel_scope.cancel()


# Answers that are late, or none


async def test_an_answer_that_a_proxy_holds_back_comes_with_that_to_a_ping(autojump_clock: MockClock) -> None:
    async def script(peer: Raw) -> None:
        request = await peer.wait_for(RequestReceived)
        await peer.wait_for(PingReceived)
        peer.h2.send_headers(request.stream_id, [*GRANTED, ("x-late", "yes")])
        await peer.send()

    async with raw_server(script) as uri, open_connection(uri) as connection:
        assert connection.handshake.headers == (("x-late", "yes"),)


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_frames_go_out_before_an_answer_that_waits_for_them_and_the_block_begins_with_it(
    is_recorded: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async def script(peer: Raw) -> None:
        data = await peer.wait_for(DataReceived)
        await trio.sleep(5)
        peer.h2.send_headers(data.stream_id, [*GRANTED, ("x-late", "yes")])
        await peer.send()

    capture = str(tmp_path) if is_recorded else None
    async with raw_server(script) as uri, open_connection(uri, capture=capture) as connection:
        assert connection.handshake.headers == (("x-late", "yes"),)
        assert connection.status == "open"


async def test_a_refusal_that_comes_late_says_why(autojump_clock: MockClock) -> None:
    async def script(peer: Raw) -> None:
        data = await peer.wait_for(DataReceived)
        peer.h2.send_headers(data.stream_id, [(":status", "502")], end_stream=True)
        await peer.send()

    async with raw_server(script) as uri:
        with pytest.raises(ConnectionLost, match=f"^{uri}: the server answered HTTP 502 to the request"):
            async with open_connection(uri):
                pass


async def test_without_a_limit_the_silence_of_the_peer_still_ends_it(autojump_clock: MockClock) -> None:
    async def script(peer: Raw) -> None:
        await peer.wait_for(RequestReceived)

    async with raw_server(script) as uri:
        with pytest.raises(ConnectionLost, match="the peer is silent: no frame came for 3 s"):
            async with open_connection(uri, connect_timeout=math.inf, keepalive=Keepalive(1, 3)):
                pass


@pytest.mark.parametrize("seconds", [0.05, 3])
async def test_an_answer_that_never_comes_is_named_before_and_after_the_first_frames(
    seconds: float, autojump_clock: MockClock
) -> None:
    async def script(peer: Raw) -> None:
        await peer.wait_for(RequestReceived)

    async with raw_server(script) as uri:
        with pytest.raises(ConnectionLost, match=f"^{uri}: the POST was not answered within {seconds:g} s$"):
            async with open_connection(uri, connect_timeout=seconds):
                pass


async def test_a_page_of_a_proxy_is_a_refusal_and_other_connections_go_on() -> None:
    closed = trio.Event()

    async def script(peer: Raw) -> None:
        request = await peer.wait_for(RequestReceived)
        peer.h2.send_headers(request.stream_id, GRANTED)
        refused = await peer.wait_for(RequestReceived)
        peer.h2.send_headers(refused.stream_id, [(":status", "502"), ("content-length", str(len(PAGE)))])
        peer.h2.send_data(refused.stream_id, PAGE, end_stream=True)
        reset = await peer.wait_for(StreamReset)
        assert reset.stream_id == refused.stream_id
        closed.set()

    async with raw_server(script) as uri, open_shared(uri) as shared, open_connection(uri, over=shared) as connection:
        with pytest.raises(ConnectionLost, match=f"^{uri}: the server answered HTTP 502 to the request"):
            async with open_connection(uri, over=shared):
                pass
        await closed.wait()
        assert connection.status == "open"


async def test_data_before_the_answer_breaks_the_rules() -> None:
    async def script(peer: Raw) -> None:
        await peer.wait_for(RequestReceived)
        await peer.stream.send_all(bytes.fromhex("000003 00 00 00000001 000000"))

    async with raw_server(script) as uri:
        with pytest.raises(ConnectionLost, match="cannot receive data before headers"):
            async with open_connection(uri):
                pass


# Ends


async def test_a_stream_that_its_client_ended_is_ended_and_not_reset() -> None:
    async with (
        our_server("h2://127.0.0.1:0") as [uri],
        await trio.open_tcp_stream("127.0.0.1", int(uri.rpartition(":")[2])) as stream,
    ):
        peer = Raw(stream, client=True)
        peer.h2.send_headers(1, REQUEST)
        await peer.wait_for(ResponseReceived)
        peer.h2.send_data(1, SETUP, end_stream=True)
        await peer.send()
        while not any(isinstance(event, StreamEnded) for event in peer.events):
            assert not any(isinstance(event, StreamReset) for event in peer.events)
            peer.events = peer.h2.receive_data(bytes(await stream.receive_some()))


# Credentials


async def test_no_credentials_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        our_server("h2://127.0.0.1:0") as [uri],
        open_connection(uri, headers={"Authorization": f"Bearer {SECRET}"}) as connection,
    ):
        await connection.request_response(b"hi")

    assert not shows(caplog.text)
