"""Waiting for credit alone, and handing it on: a forwarder asks for exactly what it was asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

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
from tests.conformance.raw import (
    INVALID,
    RS10,
    cancel,
    client,
    error,
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
