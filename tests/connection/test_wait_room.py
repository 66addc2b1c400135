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
    stream,
)
from tests.each_row import each_row

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
