"""How a client's connection ends: it is left, refused or lost, and everybody who waits hears of it."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from rsocket_trio import (
    Channel,
    Connection,
    ConnectionClosed,
    ConnectionLost,
    InvalidSetup,
    LocalProtocolError,
    Payload,
    RejectedSetup,
    Responder,
    RSocketError,
    Setup,
    UnsupportedSetup,
    open_connection,
)
from rsocket_trio.transports.error_text import NO_FRAME
from tests.conformance import raw
from tests.connection.pairs import connected_pair, echo_responder, settle

# Leaving


async def test_the_users_own_error_leaves_the_block_alone(autojump_clock: MockClock) -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:  # noqa: PT012
        async with connected_pair(echo_responder()) as pair:
            await pair.client.request_response(b"x")
            raise error
    assert caught.value is error


async def test_a_body_that_only_sleeps_is_not_cancelled_and_leaving_does_not_raise(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.INFO, "rsocket_trio")
    slept = False
    async with raw.client(raw.RS10) as (connection, peer):
        await peer.stream.aclose()
        await trio.sleep(5)
        slept = True
        assert connection.status == "closed"

    assert slept
    assert len(caplog.records) == 1
    assert "closed the transport" in caplog.text


async def test_what_was_forgotten_is_not_lost_by_leaving_at_once(autojump_clock: MockClock) -> None:
    responder = Responder()
    got: list[bytes] = []

    @responder.fire_and_forget
    async def note(request: Payload) -> None:
        await trio.sleep(0.5)
        got.append(request.data)

    async with connected_pair(responder) as pair:
        for number in range(100):
            await pair.client.fire_and_forget(b"%d" % number)
        await pair.client.fire_and_forget(bytes(300_000))

    assert len(got) == 101
    assert max(map(len, got)) == 300_000
    assert pair.server_said.names == []  # nothing is ever answered


async def test_a_peer_that_does_not_read_delays_leaving_by_two_seconds_at_most(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, _):
        await connection.fire_and_forget(bytes(1_000_000))
        left_at = trio.current_time()
    assert trio.current_time() - left_at <= 2


async def test_a_connection_that_was_left_answers_no_more(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        pass
    for call in (pair.client.request_response, pair.client.fire_and_forget, pair.client.ping):
        with pytest.raises(ConnectionClosed, match="by this side"):
            await call()
    with pytest.raises(ConnectionClosed):
        await pair.client.metadata_push(b"x")
    with pytest.raises(ConnectionClosed):
        async with pair.client.request_stream():
            pass


async def test_a_stream_is_opened_once_and_used_inside_of_its_block(autojump_clock: MockClock) -> None:
    async with connected_pair(echo_responder()) as pair:
        stream = pair.client.request_stream(initial_request_n=2)
        with pytest.raises(LocalProtocolError, match="async with"):
            await anext(stream)
        async with stream:
            await anext(stream)
        with pytest.raises(LocalProtocolError, match="left"):
            await anext(stream)
        with pytest.raises(LocalProtocolError, match="once only"):
            await stream.__aenter__()


# Refusals


@pytest.mark.parametrize("kind", [RejectedSetup, InvalidSetup, UnsupportedSetup])
async def test_a_refusal_raises_in_every_waiting_and_later_call(
    kind: type[RejectedSetup], autojump_clock: MockClock
) -> None:
    responder = Responder()

    @responder.setup
    async def gate(setup: Setup, connection: Connection) -> None:
        await trio.sleep(1)
        raise kind("not you")

    caught: list[BaseException] = []

    async def ask(connection: Connection) -> None:
        try:
            await connection.request_response()
        except RSocketError as error:
            caught.append(error)

    async with connected_pair(responder) as pair:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask, pair.client)
        with pytest.raises(kind, match="not you"):
            await pair.client.ping()
        with pytest.raises(kind, match="not you"):
            async with pair.client.request_channel():
                pass

    assert [type(error) for error in caught] == [kind] * 3
    assert len({id(error) for error in caught}) == 3


async def test_a_peer_that_cannot_be_reached_is_a_lost_connection(autojump_clock: MockClock) -> None:
    with pytest.raises(ConnectionLost, match="memory://nobody"):
        async with open_connection("memory://nobody"):
            pass


# What waits when the connection is lost


WAITS = ("request", "next item", "send", "ping", "lease", "channel item")


@pytest.mark.parametrize("wait", WAITS)
async def test_a_lost_connection_reaches_whoever_waits(wait: str, autojump_clock: MockClock) -> None:
    caught: list[BaseException] = []
    async with raw.client(raw.RS10, lease=wait == "lease") as (connection, peer):

        async def waiter() -> None:
            try:
                await CALLS[wait](connection)
            except RSocketError as error:
                caught.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiter)
            nursery.start_soon(waiter)
            await settle()
            assert caught == []
            await peer.stream.aclose()

    assert [type(error) for error in caught] == [ConnectionLost] * 2
    assert caught[0] is not caught[1]


async def _next_item(connection: Connection) -> None:
    async with connection.request_stream() as items:
        await anext(items)


async def _send(connection: Connection) -> None:
    async with connection.request_channel() as channel:
        await channel.send(b"no credit was granted")


async def _channel_item(connection: Connection) -> None:
    async with connection.request_channel() as channel:
        await anext(channel)


async def _request(connection: Connection) -> None:
    await connection.request_response()


async def _ping(connection: Connection) -> None:
    await connection.ping()


CALLS = {
    "request": _request,
    "next item": _next_item,
    "send": _send,
    "ping": _ping,
    "lease": _request,
    "channel item": _channel_item,
}


async def test_a_lost_connection_cancels_handlers(autojump_clock: MockClock) -> None:
    responder = Responder()
    ended: list[str] = []

    async def wait(what: str) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(what)

    @responder.request_response
    async def one(request: Payload) -> bytes:
        await wait("response")
        return b""

    @responder.request_stream
    async def many(request: Payload) -> AsyncIterator[bytes]:
        await wait("stream")
        yield b""

    @responder.request_channel
    async def both(channel: Channel) -> None:
        await wait("channel")

    @responder.fire_and_forget
    async def none(request: Payload) -> None:
        await wait("forgotten")

    async with raw.server(raw.RS10, responder) as peer:
        await peer.send(raw.ask(1), raw.stream(3, 1), raw.channel(5, 1), raw.forget(7))
        await settle()
        assert ended == []
        await peer.stream.aclose()
        await trio.sleep(0.5)
        assert sorted(ended) == ["channel", "response", "stream"]
        await trio.sleep(1)  # who answers nobody gets a moment more
    assert "forgotten" in ended


# Lost before the first frame


@pytest.mark.parametrize("scheme", ["tcp", "tls", "ws", "wss", "h2", "h2s"])
@pytest.mark.parametrize("reads", [True, False], ids=["reads first", "cut"])
async def test_a_server_that_accepts_and_goes_said_nothing(scheme: str, reads: bool) -> None:
    async def go(stream: trio.SocketStream) -> None:
        if reads:
            await stream.receive_some()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, go, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        context = ssl.create_default_context() if scheme in {"tls", "wss", "h2s"} else None
        with pytest.raises(ConnectionLost, match=NO_FRAME):
            async with open_connection(f"{scheme}://127.0.0.1:{port}", ssl_context=context) as connection:
                await connection.request_response()
        nursery.cancel_scope.cancel()


async def test_a_server_that_sent_a_frame_is_not_said_to_have_sent_none(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer):
        await peer.send(raw.keepalive(respond=False))
        await settle()
        await peer.stream.aclose()
        lost = await connection.wait_closed()

    assert isinstance(lost, ConnectionLost)
    assert NO_FRAME not in str(lost)
