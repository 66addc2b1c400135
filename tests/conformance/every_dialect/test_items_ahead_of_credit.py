"""One item ahead of its credit is delivered, and counted as the peer's fault; the next ends its stream (ALL-RCT-10)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing

from rsocket_trio import Channel, RemoteProtocolError, Responder, serve_stream
from tests.conformance import draft_frames, old_frames, raw
from tests.conformance.raw import settle

clause = pytest.mark.clause
MOST = 0x7FFFFFFF


class Spoken(NamedTuple):
    """A dialect as a peer writes it: its first stream, its items, and items with fragments."""

    name: str
    first: int
    server: Callable[..., AbstractAsyncContextManager[Any]]
    client: Callable[..., AbstractAsyncContextManager[Any]]
    channel: Callable[[int, int], bytes]
    theirs: Callable[[int, bytes], bytes]
    """An item of a channel's requester."""
    item: Callable[[int, bytes], bytes]
    piece: Callable[[int, bytes], bytes]
    request_n: Callable[[int, int], bytes]
    cancel: Callable[[int], bytes]


def new(wire: raw.Wire) -> Spoken:
    return Spoken(
        name=wire.name,
        first=1,
        server=lambda responder: raw.server(wire, responder),
        client=lambda: raw.client(wire),
        channel=raw.channel,
        theirs=raw.payload,
        item=raw.payload,
        piece=lambda stream, data: raw.payload(stream, data, raw.N | raw.F),
        request_n=raw.request_n,
        cancel=raw.cancel,
    )


def old(wire: old_frames.OldWire) -> Spoken:
    return Spoken(
        name=wire.name,
        first=2,
        server=lambda responder: raw.server(wire, responder),
        client=lambda: raw.client(wire, old_frames.OldLog().responder),
        channel=wire.channel,
        theirs=lambda stream, data: wire.channel(stream, None, data),
        item=wire.item,
        piece=lambda stream, data: wire.item(stream, data, "F"),
        request_n=wire.request_n,
        cancel=wire.cancel,
    )


SPOKEN = [new(raw.RS10), new(raw.RS02), new(draft_frames.RSX), old(old_frames.RS01), old(old_frames.RS00)]
everywhere = pytest.mark.parametrize("spoken", SPOKEN, ids=lambda spoken: spoken.name)
with_channels = pytest.mark.parametrize("spoken", SPOKEN[:-1], ids=lambda spoken: spoken.name)


class Reading:
    """A channel's handler that reads when it may, grants by hand, and notes what it got."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.channel: Channel | None = None
        self.responder = Responder()
        self.responder.request_channel(initial_request_n=2, refill=False)(self.read)
        self.responder.request_response(lambda request: request)

    async def read(self, channel: Channel) -> None:
        self.channel = channel
        async for item in channel:
            self.got.append(item.data)


@clause("ALL-RCT-10")
async def test_a_channels_first_item_may_come_right_behind_its_request(autojump_clock: object) -> None:
    responder, got = Responder(), []

    @responder.request_channel
    async def read(channel: Channel) -> None:
        got.append(channel.request.data)
        async for item in channel:
            got.append(item.data)
            await channel.send(item)

    ours, theirs = trio.testing.memory_stream_pair()
    peer = raw.RawPeer(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_stream, responder, ours)
        frames = [bytes.fromhex("00000001 1c20 7fffffff") + b"echo", bytes.fromhex("00000001 2820") + b"0"]
        await peer.send(raw.setup(), *frames)
        await peer.expect(raw.request_n(1, 256), raw.payload(1, b"0"))
        await peer.send(raw.payload(1, b"1"), raw.complete(1))
        await peer.expect(raw.payload(1, b"1"), raw.complete(1))
        await peer.expect_alive()
        nursery.cancel_scope.cancel()
    assert got == [b"echo", b"0", b"1"]


@with_channels
@clause("ALL-RCT-10")
async def test_an_early_item_of_a_requester_is_delivered_and_is_not_charged_later(
    autojump_clock: object, spoken: Spoken, caplog: pytest.LogCaptureFixture
) -> None:
    reading, at = Reading(), spoken.first
    async with spoken.server(reading.responder) as peer:
        await peer.send(spoken.channel(at, MOST), spoken.theirs(at, b"early"))
        await peer.expect(spoken.request_n(at, 2))
        await peer.send(spoken.theirs(at, b"1"), spoken.theirs(at, b"2"))
        await settle()
        assert reading.got == [b"early", b"1", b"2"]
        assert reading.channel is not None
        reading.channel.request_n(3)
        await peer.expect(spoken.request_n(at, 3))
        for number in (b"3", b"4", b"5"):
            await peer.send(spoken.theirs(at, number))
        await settle()
        assert reading.got == [b"early", b"1", b"2", b"3", b"4", b"5"]
        faults = reading.channel._port.faults
        assert faults.peer_faults == 1
        await peer.send(spoken.theirs(at, b"6"))
        await peer.expect_error(at, raw.INVALID)
        assert faults.peer_faults == 2
        await peer.expect_alive()
    assert reading.got[-1] == b"5"
    assert f"stream {at}: an item came before it was granted" in caplog.text


@everywhere
@clause("ALL-RCT-10")
async def test_an_early_item_of_a_responder_is_delivered_and_is_not_charged_later(
    autojump_clock: object, spoken: Spoken
) -> None:
    at = spoken.first
    async with (
        spoken.client() as (connection, peer),
        connection.request_stream(b"s", initial_request_n=2, refill=False) as items,
    ):
        await peer.receive()
        # One by one and together: the frames that need no values of their own, and the others.
        await peer.send(*(spoken.item(at, b"%d" % number) for number in range(3)))
        assert [(await anext(items)).data for _ in range(3)] == [b"0", b"1", b"2"]
        assert connection._engine.faults.peer_faults == 1
        items.request_n(2)
        await peer.expect(spoken.request_n(at, 2))
        await peer.send(spoken.item(at, b"3"), spoken.item(at, b"4"))
        assert [(await anext(items)).data for _ in range(2)] == [b"3", b"4"]
        assert connection._engine.faults.peer_faults == 1
        await peer.send(spoken.item(at, b"5"))
        await peer.expect(spoken.cancel(at))
        with pytest.raises(RemoteProtocolError, match="more items than were granted"):
            await anext(items)
        await peer.expect_alive()


@everywhere
@clause("ALL-RCT-10")
async def test_an_early_item_may_come_in_fragments_and_counts_once(autojump_clock: object, spoken: Spoken) -> None:
    at = spoken.first
    async with (
        spoken.client() as (connection, peer),
        connection.request_stream(b"s", initial_request_n=1, refill=False) as items,
    ):
        await peer.receive()
        await peer.send(spoken.item(at, b"0"), spoken.piece(at, b"a"), spoken.piece(at, b"b"), spoken.item(at, b"c"))
        assert [(await anext(items)).data for _ in range(2)] == [b"0", b"abc"]
        assert connection._engine.faults.peer_faults == 1
        await peer.send(spoken.piece(at, b"d"))
        await peer.expect(spoken.cancel(at))
        with pytest.raises(RemoteProtocolError, match="more items than were granted"):
            await anext(items)


@clause("ALL-RCT-10")
async def test_an_early_item_that_completes_is_the_last(autojump_clock: object) -> None:
    async with (
        raw.client(raw.RS10) as (connection, peer),
        connection.request_stream(b"s", initial_request_n=1, refill=False) as items,
    ):
        await peer.receive()
        await peer.send(raw.payload(1, b"0"), raw.payload(1, b"1", raw.N | raw.C))
        assert [item.data async for item in items] == [b"0", b"1"]
        assert connection._engine.faults.peer_faults == 1
        await peer.expect_alive()


@clause("ALL-RCT-10")
async def test_what_one_stream_was_early_with_is_not_the_next_ones(autojump_clock: object) -> None:
    async with raw.client(raw.RS10) as (connection, peer):
        for stream_id in (1, 3):
            async with connection.request_stream(b"s", initial_request_n=1, refill=False) as items:
                await peer.receive()
                await peer.send(raw.payload(stream_id, b"0"), raw.payload(stream_id, b"1"), raw.complete(stream_id))
                assert [item.data async for item in items] == [b"0", b"1"]
        assert connection._engine.faults.peer_faults == 2
