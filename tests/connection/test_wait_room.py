"""Waiting for credit alone, and handing it on: a forwarder asks for exactly what it was asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    Canceled,
    Channel,
    ConnectionLost,
    LocalProtocolError,
    Outgoing,
    Payload,
    Responder,
)
from tests.blocks import definitions, opening, page
from tests.conformance.raw import (
    INVALID,
    RS10,
    C,
    N,
    RawPeer,
    cancel,
    channel,
    client,
    complete,
    error,
    payload,
    request_n,
    server,
    settle,
    setup,
    slow_server,
    stream,
)
from tests.connection.pairs import connected_pair
from tests.connection.streamux_pairs import streamux_pair
from tests.each_row import ALL_CASES, each_row

MOST = 2**31 - 1


class Rooms:
    """A handler of streams that waits for room as it is told to, and notes what it is told."""

    def __init__(self) -> None:
        self.responder = Responder()
        self.responder.request_stream(self.wait)
        self.beyond = 0
        self.seen: list[int] = []
        self.out: Outgoing | None = None

    async def wait(self, request: Payload, out: Outgoing) -> None:
        self.out = out
        while True:
            self.seen.append(await out.wait_room(self.beyond))
            self.beyond = self.seen[-1]


async def test_room_is_told_each_time_that_it_grows(autojump_clock: MockClock) -> None:
    rooms = Rooms()
    async with server(RS10, rooms.responder) as peer:
        await peer.send(stream(1, 2))
        await settle()
        assert rooms.seen == [2]
        await peer.expect_silence(10)
        assert rooms.seen == [2]
        await peer.send(request_n(1, 3))
        await settle()
        assert rooms.seen == [2, 5]
        await peer.send(request_n(1, MOST), request_n(1, MOST))
        await settle()
        assert rooms.seen == [2, 5, 5 + 2 * MOST]
        assert rooms.out is not None
        assert rooms.out.room == rooms.seen[-1]


async def test_what_was_sent_meanwhile_is_no_room(autojump_clock: MockClock) -> None:
    responder, seen = Responder(), []

    @responder.request_stream
    async def send(request: Payload, out: Outgoing) -> None:
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                seen.append(await out.wait_room(2))

            nursery.start_soon(wait)
            await settle()
            await out.send(b"a")
            await out.send(b"b")

    async with server(RS10, responder) as peer:
        await peer.send(stream(1, 2))
        await peer.expect(payload(1, b"a"), payload(1, b"b"))
        await peer.send(request_n(1, 2))
        await settle()
        assert seen == []
        await peer.send(request_n(1, 1))
        await peer.expect(complete(1))
    assert seen == [3]


async def test_it_does_not_wait_for_the_outbox(autojump_clock: MockClock) -> None:
    responder, seen = Responder(), []

    @responder.request_stream
    async def send(request: Payload, out: Outgoing) -> None:
        await out.send(bytes(5_000_000))
        seen.append(await out.wait_room())
        with trio.move_on_after(10) as waiting:
            await out.send(bytes(5_000_000))
        assert waiting.cancelled_caught

    async with slow_server(RS10, responder) as peer:
        await peer.send(setup(), stream(1, 7))
        await trio.sleep(20)
        assert seen == [6]


async def test_a_wait_that_is_cancelled_leaves_no_trace(autojump_clock: MockClock) -> None:
    async with client(RS10) as (connection, peer), connection.request_channel() as talk:
        await peer.receive()
        with trio.move_on_after(5) as scope:
            await talk.wait_room()
        assert scope.cancelled_caught
        await peer.send(request_n(1, 1))
        assert await talk.wait_room() == 1
        await talk.send(b"x")
        await peer.expect(payload(1, b"x"))


# The half is over: as ``send`` says it


async def raised(call: Callable[[], Awaitable[object]]) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whichever it is, both calls have to raise the same
        await call()
    return caught.value


@each_row(
    ("frame", "kind"),
    [
        (cancel(1), Canceled),
        (error(1, INVALID, b"no"), Exception),
        (None, ConnectionLost),
    ],
    ids=["cancel", "error", "lost"],
)
async def test_who_waits_hears_why_nothing_more_can_be_sent(
    frame: bytes | None, kind: type[Exception], autojump_clock: MockClock
) -> None:
    heard: list[BaseException] = []

    async def wait(talk: Channel) -> None:
        heard.append(await raised(talk.wait_room))

    async with (
        client(RS10) as (connection, peer),
        connection.request_channel() as talk,
        trio.open_nursery() as nursery,
    ):
        await peer.receive()
        nursery.start_soon(wait, talk)
        await settle()
        if frame is None:
            await trio.aclose_forcefully(peer.stream)
        else:
            await peer.send(frame)
        await settle()
        later = await raised(talk.wait_room)
        sent = await raised(lambda: talk.send(b"x"))
    assert isinstance(heard[0], kind)
    assert type(heard[0]) is type(later) is type(sent)
    assert str(heard[0]) == str(later) == str(sent)


async def test_after_send_eof_there_is_no_room_to_wait_for(autojump_clock: MockClock) -> None:
    heard: list[BaseException] = []

    async def wait(talk: Channel) -> None:
        heard.append(await raised(talk.wait_room))

    async with client(RS10) as (connection, peer), trio.open_nursery() as nursery:
        talk = connection.request_channel()
        with pytest.raises(LocalProtocolError, match="use it under 'async with'"):
            await talk.wait_room()
        async with talk:
            await peer.receive()
            nursery.start_soon(wait, talk)
            await settle()
            await talk.send_eof()
            await settle()
            assert [type(one) for one in heard] == [LocalProtocolError]
            with pytest.raises(LocalProtocolError, match="was completed by this side already"):
                await talk.wait_room()


async def test_where_there_is_no_credit_room_is_what_a_grant_can_say(autojump_clock: MockClock) -> None:
    responder, seen = Responder(), []

    @responder.request_channel
    async def talk(channel: Channel) -> None:
        seen.append(await channel.wait_room())
        await channel.send(b"x")
        seen.append(channel.room)
        with trio.move_on_after(10) as scope:
            await channel.wait_room(MOST)
        assert scope.cancelled_caught

    async with streamux_pair(responder) as pair, pair.client.request_channel(b"begin") as channel:
        assert [item.data async for item in channel] == [b"x"]
    assert seen == [MOST, MOST]


# The forwarder of the documentation


def documented() -> Any:
    """The function ``forward`` of the page on forwarding."""
    program = opening(page("docs/howto/forwarding.md")).programs["forwarder.py"]
    names: dict[str, Any] = {}
    exec(compile(definitions(program), "docs/howto/forwarding.md", "exec", dont_inherit=True), names)
    return names["forward"]


@asynccontextmanager
async def forwarding() -> AsyncIterator[tuple[RawPeer, RawPeer]]:
    """A client made of bytes, a forwarder of ours, and the server made of bytes that it forwards to."""
    forward = documented()
    async with AsyncExitStack() as stack:
        connection, upstream = await stack.enter_async_context(client(RS10))
        responder = Responder()

        @responder.request_stream
        async def stream(request: Payload, out: Outgoing) -> None:
            owed = min(await out.wait_room(), MOST)
            async with connection.request_stream(request, initial_request_n=owed, refill=False) as items:
                await forward(items, out, owed)

        @responder.request_channel(initial_request_n=1, refill=False)
        async def both(talk: Channel) -> None:
            owed = min(await talk.wait_room(), MOST)
            opened = connection.request_channel(talk.request, initial_request_n=owed, refill=False)
            async with opened as there, trio.open_nursery() as nursery:

                async def one_way(source: Channel, sink: Channel, owed: int) -> None:
                    await forward(source, sink, owed)
                    await sink.send_eof()

                nursery.start_soon(one_way, talk, there, 1)
                nursery.start_soon(one_way, there, talk, owed)

        yield await stack.enter_async_context(server(RS10, responder)), upstream


async def test_a_forwarder_asks_for_exactly_what_it_was_asked_for(autojump_clock: MockClock) -> None:
    async with forwarding() as (downstream, upstream):
        await downstream.send(stream(1, 3, b"s"))
        await upstream.expect(stream(1, 3, b"s"))
        await downstream.send(request_n(1, 2))
        await upstream.expect(request_n(1, 2))
        await upstream.send(payload(1, b"a"), payload(1, b"b"))
        await downstream.expect(payload(1, b"a"), payload(1, b"b"))
        await downstream.send(request_n(1, 1))
        await upstream.expect(request_n(1, 1))
        for data in (b"c", b"d", b"e", b"f"):
            await upstream.send(payload(1, data))
            await downstream.expect(payload(1, data))
        await upstream.expect_silence(10)
        await downstream.send(request_n(1, 1))
        await upstream.expect(request_n(1, 1))
        await upstream.send(payload(1, b"", C))
        await downstream.expect(complete(1))
        await upstream.expect_alive()


async def test_a_forwarder_hands_on_a_cancel_and_an_error(autojump_clock: MockClock) -> None:
    async with forwarding() as (downstream, upstream):
        await downstream.send(stream(1, 3, b"s"))
        await upstream.expect(stream(1, 3, b"s"))
        await downstream.send(cancel(1))
        await upstream.expect(cancel(1))
        await downstream.send(stream(3, 1, b"s"))
        await upstream.expect(stream(3, 1, b"s"))
        await upstream.send(error(3, INVALID, b"no"))
        await downstream.expect_error(3, INVALID)


async def test_a_forwarder_of_channels_hands_demand_on_both_ways(autojump_clock: MockClock) -> None:
    async with forwarding() as (downstream, upstream):
        await downstream.send(channel(1, 2, b"c"))
        await downstream.expect(request_n(1, 1))
        await upstream.expect(channel(1, 2, b"c"))
        await upstream.send(request_n(1, 4))
        await downstream.expect(request_n(1, 3))
        for data in (b"1", b"2", b"3", b"4"):
            await downstream.send(payload(1, data))
            await upstream.expect(payload(1, data))
        await upstream.send(payload(1, b"x"), payload(1, b"y"))
        await downstream.expect(payload(1, b"x"), payload(1, b"y"))
        await upstream.expect_silence(10)
        await downstream.send(request_n(1, 5))
        await upstream.expect(request_n(1, 5))
        await downstream.send(complete(1))
        await upstream.expect(complete(1))
        await upstream.send(payload(1, b"z", N), complete(1))
        await downstream.expect(payload(1, b"z"), complete(1))
        await downstream.expect_alive()


async def test_a_long_stream_passes_a_forwarder_with_little_credit(autojump_clock: MockClock) -> None:
    length = 5000 if ALL_CASES else 1000
    numbers = Responder()

    @numbers.request_stream
    async def count(request: Payload) -> AsyncIterator[bytes]:
        for number in range(length):
            yield b"%d" % number

    forward = documented()
    async with connected_pair(numbers) as behind:
        front = Responder()

        @front.request_stream
        async def forwarded(request: Payload, out: Outgoing) -> None:
            owed = min(await out.wait_room(), MOST)
            async with behind.client.request_stream(request, initial_request_n=owed, refill=False) as items:
                await forward(items, out, owed)

        async with connected_pair(front) as before:
            for credit in (1, 2, 7, 256):
                async with before.client.request_stream(initial_request_n=credit) as items:
                    assert [int(item.data) async for item in items] == list(range(length))
