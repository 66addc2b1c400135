"""What our client makes of a server of HTTP/2: answers, refusals, goodbyes, and rules that are broken."""

from __future__ import annotations

import re

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from rsocket_trio.transports.base import Handshake, Transport
from rsocket_trio.transports.error_text import HandshakeFailed
from rsocket_trio.transports.first_bytes import PREFACE
from rsocket_trio.transports.http2.http2_client import share_http2
from rsocket_trio.transports.schemes import ConnectOptions
from tests.transports.http2.raw_http2 import (
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
    SETTINGS,
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


async def test_no_more_streams_are_opened_than_the_server_allows(autojump_clock: MockClock) -> None:
    async with raw_server((3, 1)) as server, trio.open_nursery() as nursery:
        one, other = Opened(), Opened()
        nursery.start_soon(one.run, server)
        await server.wait_for(HEADERS)
        await server.answer()
        await other.run(server)
        assert str(other.failure) == "HTTP/2: Max outbound streams is 1, 1 open"
        one.close()
        await server.wait_for(RST_STREAM)
        third = Opened()
        nursery.start_soon(third.run, server)
        assert (await server.wait_for(HEADERS)).stream_id == 3
        nursery.cancel_scope.cancel()


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
    ("pings",                                  frame(PING, body=bytes(8)) * 3000,                              ENHANCE_YOUR_CALM),
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


# fmt: off
FIRST = [
    (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 without TLS answered, 'HTTP/1.1 400 Bad Request'"),
    (b"\x00\x00\x20\x00\x00\x00\x00\x2c\x00\x00\x00\x00\x01",  "RSocket without TLS answered: try tcp://"),
    (b"\x00\x00\x20\x00\x00\x00\x00\x01\x00\x00\x00\x00\x01",  "the first frame is no SETTINGS: 0000200000000"),
    (frame(SETTINGS, 1),                                       "the first frame is no SETTINGS: "),
    (frame(PING, body=bytes(8)),                               "the first frame is no SETTINGS: "),
    (b"",                                                      "the peer closed the HTTP/2 connection"),
]
# fmt: on


@pytest.mark.parametrize(("sent", "text"), FIRST)
async def test_a_server_that_speaks_something_else_is_told_apart(
    sent: bytes, text: str, autojump_clock: MockClock
) -> None:
    ours, theirs = memory_stream_pair()
    await ours.send_all(sent)
    await ours.send_eof()
    with pytest.raises(HandshakeFailed, match=re.escape(text)):
        async with share_http2(theirs, ENDPOINT, Handshake(), OPTIONS):
            pass


async def test_the_block_of_a_shared_connection_may_be_cancelled_before_the_server_says_anything(
    autojump_clock: MockClock,
) -> None:
    ours, theirs = memory_stream_pair()
    with trio.move_on_after(5) as scope:
        async with share_http2(theirs, ENDPOINT, Handshake(), OPTIONS):
            pass
    assert scope.cancelled_caught
    assert trio.current_time() == 5
    assert bytes(await ours.receive_some()).startswith(PREFACE)


async def test_the_error_of_a_block_leaves_it_alone(autojump_clock: MockClock) -> None:
    with pytest.raises(ZeroDivisionError):
        async with raw_server():
            raise ZeroDivisionError
