"""What our client makes of a server of HTTP/2: answers, also late ones, refusals, goodbyes, and rules that are broken."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rsocket_trio import ConnectionLost, Responder, open_connection, open_shared
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.schemes import ConnectOptions
from tests.secret import SECRET, shows
from tests.serving import running_server
from tests.transports.http2.raw_http2 import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENDPOINT,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    NO_ERROR,
    PING,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    RawServer,
    block,
    data,
    frame,
    raw_server,
    reset,
    settings,
)

OPTIONS = ConnectOptions(headers=(("X-One", "1"),))


def goodbye(last: int, code: int = NO_ERROR, text: bytes = b"") -> bytes:
    """A GOAWAY frame."""
    return frame(GOAWAY, body=last.to_bytes(4, "big") + code.to_bytes(4, "big") + text)


class Opened:
    """A stream that our client opens in a task of its own, and keeps."""

    def __init__(self) -> None:
        self.stream: Transport | None = None
        self.failure: HandshakeFailed | None = None
        self._done = trio.Event()

    async def run(self, server: RawServer) -> None:
        """Open, and close once ``close`` is called."""
        assert server.shared is not None
        try:
            async with server.shared.open(ENDPOINT, OPTIONS) as self.stream:
                await self._done.wait()
        except HandshakeFailed as failure:
            self.failure = failure

    @property
    def is_open(self) -> bool:
        """Whether the server granted it."""
        return self.stream is not None

    def close(self) -> None:
        """Close the stream."""
        self._done.set()


async def test_a_request_is_a_post_and_its_answer_grants_the_stream(autojump_clock: MockClock) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:
        opened = Opened()
        nursery.start_soon(opened.run, server)
        request = await server.wait_for(HEADERS)
        assert request.flags == END_HEADERS
        assert server.answers[1] == [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/x"),
            ("content-type", "application/rsocket"),
            ("x-one", "1"),
        ]
        await wait_all_tasks_blocked()
        assert not opened.is_open
        await server.send(frame(HEADERS, END_HEADERS, 1, block([(":status", "103"), ("link", "a")])))
        await wait_all_tasks_blocked()
        assert not opened.is_open
        answer = [(":status", "200"), ("content-type", "application/rsocket"), ("x-two", "2")]
        await server.send(frame(HEADERS, END_HEADERS, 1, block(answer)), data(body=b"at once"))
        await wait_all_tasks_blocked()
        assert opened.stream is not None
        assert (opened.stream.handshake.path, opened.stream.handshake.headers) == ("/x", (("x-two", "2"),))
        assert await opened.stream.receive() == [b"at once"]
        opened.close()
        assert (await server.wait_for(RST_STREAM)).code == CANCEL


# fmt: off
REFUSALS = [
    ("another status",       frame(HEADERS, END_HEADERS | END_STREAM, 1, block([(":status", "503")])),         "the server answered HTTP 503 to the request"),
    ("another content type", frame(HEADERS, END_HEADERS, 1, block([(":status", "200"), ("content-type", "text/html")])), "the server answered with content type 'text/html', not application/rsocket"),
    ("no content type",      frame(HEADERS, END_HEADERS, 1, block([(":status", "200")])),                      "the server answered with content type '', not application/rsocket"),
    ("a refused stream",     reset(1, REFUSED_STREAM),                                                         "the peer reset the HTTP/2 stream: REFUSED_STREAM"),
    ("an unknown code",      reset(1, 0x99),                                                                   "the peer reset the HTTP/2 stream: 0x99"),
    ("a goodbye below",      goodbye(0, 11, b"too\nmuch"),                                                     r"the peer is going away (ENHANCE_YOUR_CALM: too\nmuch)"),
    ("a push",               frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + block()),                       "HTTP/2: Received pushed stream"),
    ("no rules",             data(0),                                                                          "HTTP/2: "),
]
# fmt: on


@pytest.mark.parametrize(("sent", "text"), [pytest.param(sent, text, id=what) for what, sent, text in REFUSALS])
async def test_a_server_that_refuses_is_told_with_its_reason(sent: bytes, text: str, autojump_clock: MockClock) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:
        opened = Opened()
        nursery.start_soon(opened.run, server)
        await server.wait_for(HEADERS)
        await server.send(sent)
        await wait_all_tasks_blocked()
        assert opened.failure is not None
        assert str(opened.failure).startswith(text)
        opened.close()


async def test_a_goodbye_ends_streams_above_its_last_and_no_others(autojump_clock: MockClock) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:
        kept, ended = Opened(), Opened()
        for each in (kept, ended):
            nursery.start_soon(each.run, server)
            stream_id = (await server.wait_for(HEADERS)).stream_id
            await server.answer(stream_id)
            await wait_all_tasks_blocked()
        await server.send(goodbye(1))
        await wait_all_tasks_blocked()
        assert kept.stream is not None
        assert ended.stream is not None
        with pytest.raises(trio.BrokenResourceError, match=r"the peer is going away \(NO_ERROR\)"):
            await ended.stream.receive()
        await kept.stream.send([b"still"])
        assert (await server.wait_for(DATA)).body == b"still"
        await server.send(data(1, b"too"))
        assert await kept.stream.receive() == [b"too"]
        late = Opened()
        await late.run(server)
        assert str(late.failure) == "the peer is going away (NO_ERROR)"
        kept.close()
        ended.close()


# fmt: off
BROKEN = [
    ("DATA of a stream that was never opened", data(3),                                                        PROTOCOL_ERROR),
    ("an answer on a stream that was never opened", frame(HEADERS, END_HEADERS, 3, block([(":status", "200")])), PROTOCOL_ERROR),
    ("a request",                              frame(HEADERS, END_HEADERS, 2, block()),                        PROTOCOL_ERROR),
    ("ENABLE_PUSH of 1",                       settings((2, 1)),                                               PROTOCOL_ERROR),
    ("a header block without an end",          frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, 0, 1) * 40, ENHANCE_YOUR_CALM),
    ("answers below 200 without an end",       frame(HEADERS, END_HEADERS, 1, block([(":status", "103")])) * 3000, ENHANCE_YOUR_CALM),
    ("pings",                                  frame(PING, body=bytes(8)) * 3000,                              ENHANCE_YOUR_CALM),
    ("settings",                               settings() * 300,                                               ENHANCE_YOUR_CALM),
]
# fmt: on


@pytest.mark.parametrize(("sent", "code"), [pytest.param(sent, code, id=what) for what, sent, code in BROKEN])
async def test_a_server_that_breaks_the_rules_is_left_with_the_code(
    sent: bytes, code: int, autojump_clock: MockClock
) -> None:
    async with raw_server() as server, trio.open_nursery() as nursery:
        opened = Opened()
        nursery.start_soon(opened.run, server)
        await server.wait_for(HEADERS)
        await server.send(sent)
        assert (await server.wait_for(GOAWAY)).code == code
        await wait_all_tasks_blocked()
        assert str(opened.failure).startswith("HTTP/2: ")
        late = Opened()
        await late.run(server)
        assert str(late.failure) == str(opened.failure)
        opened.close()


LATE = [(":status", "200"), ("content-type", "application/rsocket"), ("x-late", "yes")]
PAGE = b"<h1>Bad Gateway</h1>"


@asynccontextmanager
async def scripted(script: Callable[[RawServer], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that plays a script with each connection: its URI."""

    async def play(stream: trio.SocketStream) -> None:
        async with stream:
            server = RawServer(stream)
            await server.send(settings())
            await server.read_preface()
            await script(server)
            while (came := await server.receive()) is not None:
                if came.kind == DATA and came.flags & END_STREAM:
                    await server.send(data(came.stream_id, b"", END_STREAM))

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(trio.serve_listeners, play, listeners)
        yield f"h2://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def test_an_answer_that_a_proxy_holds_back_comes_with_that_to_a_ping(autojump_clock: MockClock) -> None:
    async def script(server: RawServer) -> None:
        ping = await server.wait_for(PING)
        await server.send(frame(PING, ACK, body=ping.body), frame(HEADERS, END_HEADERS, 1, block(LATE)))

    async with scripted(script) as uri, open_connection(uri) as connection:
        assert connection.handshake.headers == (("x-late", "yes"),)


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_frames_go_out_before_an_answer_that_waits_for_them_and_the_block_begins_with_it(
    is_recorded: bool, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async def script(server: RawServer) -> None:
        await server.wait_for(DATA)
        await trio.sleep(5)
        await server.send(frame(HEADERS, END_HEADERS, 1, block(LATE)))

    capture = str(tmp_path) if is_recorded else None
    async with scripted(script) as uri, open_connection(uri, capture=capture) as connection:
        assert connection.handshake.headers == (("x-late", "yes"),)
        assert connection.status == "open"


@pytest.mark.parametrize("seconds", [0.05, 3])
async def test_an_answer_that_never_comes_is_named_before_and_after_the_first_frames(
    seconds: float, autojump_clock: MockClock
) -> None:
    async def script(server: RawServer) -> None:
        await server.wait_for(HEADERS)

    async with scripted(script) as uri:
        with pytest.raises(ConnectionLost, match=f"^{uri}: the POST was not answered within {seconds:g} s$"):
            async with open_connection(uri, connect_timeout=seconds):
                pass


async def test_a_page_of_a_proxy_is_a_refusal_and_other_connections_go_on() -> None:
    closed = trio.Event()

    async def script(server: RawServer) -> None:
        await server.wait_for(HEADERS)
        await server.answer(1)
        await server.wait_for(HEADERS)
        headers = block([(":status", "502"), ("content-length", str(len(PAGE)))])
        await server.send(frame(HEADERS, END_HEADERS, 3, headers), data(3, PAGE, END_STREAM))
        assert (await server.wait_for(RST_STREAM)).stream_id == 3
        closed.set()

    async with scripted(script) as uri, open_shared(uri) as shared, open_connection(uri, over=shared) as connection:
        with pytest.raises(ConnectionLost, match=f"^{uri}: the server answered HTTP 502 to the request"):
            async with open_connection(uri, over=shared):
                pass
        await closed.wait()
        assert connection.status == "open"


async def test_no_credentials_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        running_server(Responder(), "h2://127.0.0.1:0") as uri,
        open_connection(uri, headers={"Authorization": f"Bearer {SECRET}"}) as connection,
    ):
        await connection.ping()

    assert not shows(caplog.text)
