"""Both windows of each direction, turns among streams, and what a cancelled call leaves."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rsocket_trio.transports.byte_stream import ByteStreamTransport
from rsocket_trio.transports.http2.http2_stream import STREAM_WINDOW, TURN
from rsocket_trio.transports.http2.multiplexed import CONNECTION_WINDOW, DEFAULT_WINDOW
from tests.each_row import each_row
from tests.transports.http2.raw_http2 import (
    ACK,
    CANCEL,
    DATA,
    END_STREAM,
    GOAWAY,
    NO_ERROR,
    PING,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    Peer,
    data,
    frame,
    raw_client,
    request,
    reset,
    settings,
    window,
)

WIDE = settings((4, 0x7FFFFFFF)) + window(0, 0x7FFFFFFF - 65535)


async def open_streams(peer: Peer, number: int = 1) -> list[ByteStreamTransport]:
    """Have the client open streams, and return the server's ends."""
    await peer.send(*(request(stream_id) for stream_id in range(1, 2 * number, 2)))
    await peer.rest()
    assert len(peer.streams) == number
    return peer.streams


def sizes(frames: list[Frame], stream_id: int = 1) -> list[int]:
    """The bytes of the DATA frames of a stream."""
    return [len(each.body) for each in frames if each.kind == DATA and each.stream_id == stream_id]


async def take(stream: ByteStreamTransport, size: int) -> None:
    """Receive so many bytes, and no more."""
    while size:
        size -= len(b"".join(await stream.receive()))
        assert size >= 0


async def test_data_stays_within_the_windows_of_stream_and_connection(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer, trio.open_nursery() as nursery:
        [stream] = await open_streams(peer)
        nursery.start_soon(stream.send, [bytes(200_000)])
        assert sum(sizes(await peer.rest())) == DEFAULT_WINDOW
        await peer.send(window(1, 100))
        assert sizes(await peer.rest()) == []
        await peer.send(window(0, 60))
        assert sizes(await peer.rest()) == [60]
        await peer.send(window(0, 60))
        assert sizes(await peer.rest()) == [40]
        await peer.send(window(0, 1_000_000), window(1, 1_000_000))
        assert sum(sizes(await peer.rest())) == 200_000 - DEFAULT_WINDOW - 100


async def test_frames_are_no_larger_than_the_client_takes(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer, trio.open_nursery() as nursery:
        [stream] = await open_streams(peer)
        nursery.start_soon(stream.send, [bytes(40_000)])
        assert sizes(await peer.rest()) == [16_384, 16_384, 40_000 - 2 * 16_384]
        await peer.send(settings((5, 20_000)), window(0, 100_000), window(1, 100_000))
        await peer.rest()
        await stream.send([bytes(30_000)])
        assert sizes(await peer.rest()) == [20_000, 10_000]


async def test_a_smaller_initial_window_makes_windows_negative(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer, trio.open_nursery() as nursery:
        [stream] = await open_streams(peer)
        await stream.send([bytes(1000)])
        await peer.send(settings((4, 400)))
        await peer.rest()
        nursery.start_soon(stream.send, [bytes(500)])
        assert sizes(await peer.rest()) == []
        await peer.send(window(1, 600))
        assert sizes(await peer.rest()) == []
        await peer.send(window(1, 1))
        assert sizes(await peer.rest()) == [1]
        await peer.send(settings((4, 1000)))
        assert sizes(await peer.rest()) == [499]


async def test_windows_are_opened_by_what_was_read(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer:
        [stream] = await open_streams(peer)
        await peer.send(data(body=bytes(65536)) * 16)
        assert WINDOW_UPDATE not in [each.kind for each in await peer.rest()]
        await take(stream, STREAM_WINDOW)
        updates = [each for each in await peer.rest() if each.kind == WINDOW_UPDATE]
        assert [(each.stream_id, int.from_bytes(each.body, "big")) for each in updates] == [(1, STREAM_WINDOW // 2)] * 2


async def test_the_window_of_the_connection_is_opened_by_streams_that_ended_too(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer:
        opened = 0
        for stream_id in range(1, 2 * 40, 2):
            await peer.send(request(stream_id), data(stream_id, bytes(65536)) * 16)
            opened += sum(
                int.from_bytes(each.body, "big")
                for each in await peer.rest()
                if each.kind == WINDOW_UPDATE and not each.stream_id
            )
            peer.streams[-1].cut()
        assert 40 * STREAM_WINDOW - opened <= CONNECTION_WINDOW // 4 + STREAM_WINDOW


async def test_a_stream_that_nobody_reads_does_not_stop_the_others(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer:
        _, quick = await open_streams(peer, 2)
        assert peer.accepted is not None
        slow = peer.accepted.connection.streams[1]
        await peer.send(data(1, bytes(65536)) * 16)
        for _ in range(40):
            await peer.send(data(3, bytes(65536)) * 8)
            await peer.rest()
            await take(quick, 8 * 65536)
        assert slow.waiting == STREAM_WINDOW


async def test_streams_write_in_turn(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer, trio.open_nursery() as nursery:
        streams = await open_streams(peer, 3)
        await peer.send(WIDE)
        await peer.rest()
        for stream in streams:
            nursery.start_soon(stream.send, [bytes(4 * TURN)])
        came = [each.stream_id for each in await peer.rest() if each.kind == DATA]
        turns = [stream_id for at, stream_id in enumerate(came) if not at or came[at - 1] != stream_id]
        assert sorted(turns[:3]) == [1, 3, 5]
        # The first had two turns before the others were there.
        assert turns == [*turns[:3] * 3, *turns[1:3]]


async def test_a_write_that_is_cancelled_gives_its_turn_away(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer, trio.open_nursery() as nursery:
        one, other = await open_streams(peer, 2)
        await peer.send(settings((4, 1 << 20)))
        await peer.rest()
        scope = trio.CancelScope()
        nursery.start_soon(cancelled_send, one, scope)
        await wait_all_tasks_blocked()
        nursery.start_soon(other.send, [b"for the other"])
        assert sum(sizes(await peer.rest())) == DEFAULT_WINDOW
        scope.cancel()
        await peer.send(window(0, 100))
        assert [(each.stream_id, each.body) for each in await peer.rest() if each.kind == DATA] == [
            (3, b"for the other")
        ]
        one.cut()
        with pytest.raises(trio.ClosedResourceError):
            await one.send([b"x"])
        assert [(each.stream_id, each.code) for each in await peer.rest() if each.kind == RST_STREAM] == [(1, CANCEL)]


async def cancelled_send(stream: ByteStreamTransport, scope: trio.CancelScope) -> None:
    """Send more than windows take, in a scope."""
    with scope:
        await stream.send([bytes(100_000)])


async def test_an_end_waits_for_the_end_of_the_other_side(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer, trio.open_nursery() as nursery:
        [stream] = await open_streams(peer)
        await stream.send([b"last"])
        nursery.start_soon(stream.finish)
        came = await peer.rest()
        assert [(each.kind, each.flags, each.body) for each in came] == [(DATA, 0, b"last"), (DATA, END_STREAM, b"")]
        await peer.send(data(body=b"crossing"), data(body=b"", flags=END_STREAM))
        await peer.rest()
        assert not nursery.child_tasks
        stream.cut()
        assert RST_STREAM not in [each.kind for each in await peer.rest()]


async def test_a_stream_that_was_reset_is_broken_once_its_bytes_were_read(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer:
        one, other = await open_streams(peer, 2)
        await peer.send(data(body=b"before"), reset())
        await peer.rest()
        assert await one.receive() == [b"before"]
        for call in (one.receive(), one.send([b"x"])):
            with pytest.raises(trio.BrokenResourceError, match="the peer reset the HTTP/2 stream: CANCEL"):
                await call
        await other.send([b"goes on"])
        assert sizes(await peer.rest(), 3) == [7]


async def test_the_loss_of_the_connection_breaks_every_stream(autojump_clock: MockClock) -> None:
    async with raw_client(echoes=False) as peer:
        streams = await open_streams(peer, 3)
        await peer.stream.aclose()
        for stream in streams:
            with pytest.raises(trio.BrokenResourceError, match="the peer closed the HTTP/2 connection"):
                await stream.receive()


CARRY_NOTHING = {
    "SETTINGS": settings((4, 100_000)),
    "an acknowledgement": frame(SETTINGS, ACK),
    "PING": frame(PING, body=bytes(8)),
    "WINDOW_UPDATE": window(0),
    "WINDOW_UPDATE of a closed stream": window(1),
    "PRIORITY": frame(PRIORITY, 0, 1, bytes(4) + b"\7"),
    "RST_STREAM of a closed stream": reset(1),
    "an unknown type": frame(0xEE, body=b"hello"),
}


@each_row("what", CARRY_NOTHING)
async def test_frames_that_carry_nothing_of_a_connection_do_not_keep_an_idle_client(
    autojump_clock: MockClock, what: str
) -> None:
    async with raw_client() as peer, trio.open_nursery() as nursery:
        await peer.send(request(1), data(1))
        await peer.rest()
        await trio.sleep(1000)
        peer.streams[0].cut()
        closed = trio.current_time()

        async def go_on() -> None:
            while True:
                await peer.send(CARRY_NOTHING[what])
                await trio.sleep(1)

        nursery.start_soon(go_on)
        goodbye = await peer.wait_for(GOAWAY)
        assert goodbye.code == NO_ERROR
        assert trio.current_time() - closed == 90
        nursery.cancel_scope.cancel()


async def test_a_server_that_stops_takes_the_streams_that_cross_its_goodbye_and_refuses_later_ones(
    autojump_clock: MockClock,
) -> None:
    # RFC 9113, 6.8: first the highest id, and the last stream that was taken once the client must have heard of it.
    async with raw_client() as peer:
        await open_streams(peer)
        assert peer.accepted is not None
        peer.accepted.stop_accepting()
        peer.accepted.stop_accepting()
        goodbye = await peer.wait_for(GOAWAY)
        assert (int.from_bytes(goodbye.body[:4], "big"), goodbye.code) == (2**31 - 1, 0)
        question = await peer.wait_for(PING)
        await peer.send(request(3), data(3, b"crossed"))
        assert (await peer.wait_for(DATA)).body == b"crossed"
        assert trio.current_time() == 0

        await peer.send(frame(PING, ACK, body=question.body))
        goodbye = await peer.wait_for(GOAWAY)
        assert (int.from_bytes(goodbye.body[:4], "big"), goodbye.code) == (3, 0)
        await peer.send(request(5), data(1, b"still"))
        came = await peer.rest()
        assert [(each.stream_id, each.code) for each in came if each.kind == RST_STREAM] == [(5, 7)]
        assert [each.body for each in came if each.kind == DATA] == [b"still"]
        for stream_id in (1, 3):
            await peer.send(data(stream_id, b"", END_STREAM))
            await peer.wait_for(DATA, flags=END_STREAM)
        assert await peer.receive() is None
