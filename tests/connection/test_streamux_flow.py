"""Streamux has no credit: what slow readers and tiny chunks cost stays bounded, and who is made to wait for it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Channel, ConnectionLost, Limits, Payload, Rejected, Responder
from rsocket_trio.errors import StreamError
from tests.connection.pairs import settle
from tests.connection.streamux_pairs import Pair, streamux_pair, widths
from tests.each_row import each_row

KIB = 1024
INBOX = 100 * KIB
SMALL = Limits(inbox_size=INBOX, outbox_size=20 * KIB)
ITEM = 2 * KIB
WRITE = 64 * KIB
"""Bytes that one read may bring above a limit."""


class Slow:
    """A handler that reads ``may_read`` items and then waits; it answers pings of a channel named so at once."""

    def __init__(self) -> None:
        self.responder = Responder()
        self.got = 0
        self.may_read = trio.Event()
        self.responder.request_channel(self.read)

        @self.responder.request_response
        def answer(request: Payload) -> bytes:
            return b"answer"

    async def read(self, channel: Channel) -> None:
        await self.may_read.wait()
        async for item in channel:
            self.got += len(item.data)
        await channel.send(b"%d" % self.got)


async def sends(pair: Pair, count: int, size: int = ITEM) -> bytes:
    """Return what a channel answers that is sent so many items."""
    async with pair.client.request_channel() as channel:
        for _ in range(count):
            await channel.send(bytes(size))
        await channel.send_eof()
        return (await anext(channel)).data


async def test_a_slow_handler_makes_reading_pause_and_nothing_is_lost(autojump_clock: MockClock) -> None:
    slow = Slow()
    async with streamux_pair(slow.responder, limits=SMALL, bounded=True) as pair, trio.open_nursery() as nursery:
        answers: list[bytes] = []

        async def send() -> None:
            answers.append(await sends(pair, 500))

        nursery.start_soon(send)
        await trio.sleep(60)
        accepted = pair.client_wire.size
        assert INBOX - WRITE < accepted < INBOX + 2 * WRITE
        await trio.sleep(20)
        assert (pair.client_wire.size, slow.got) == (accepted, 0)
        slow.may_read.set()

    assert answers == [b"%d" % (500 * ITEM)]


async def test_a_reader_that_takes_nothing_for_too_long_loses_the_connection(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow()
    async with streamux_pair(slow.responder, limits=SMALL, bounded=True) as pair:
        start = trio.current_time()
        with pytest.raises(ConnectionLost):
            await sends(pair, 500)
        assert 90 <= trio.current_time() - start < 120
        assert pair.server.status == "closed"
        assert pair.server.faults.peer_faults == 0

    assert "reading was paused for 90 s, because nobody here took what had come" in caplog.text


async def test_half_a_chunk_may_wait_for_its_rest_no_longer_than_the_limit_of_silence(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    silent = Responder()

    @silent.request_response
    async def never(request: Payload) -> bytes:
        await trio.sleep_forever()

    async with streamux_pair(Slow().responder, silent, limits=Limits(silence=30)) as pair:
        await trio.sleep(1000)  # to be idle is no fault
        assert pair.server.status == "open"
        await pair.client_wire._stream.send_all(b"\x00\x01")
        start = trio.current_time()
        with pytest.raises(ConnectionLost):
            await pair.server.request_response(b"q")
        assert trio.current_time() - start < 50

    assert "half a frame came, and its rest did not" in caplog.text


async def test_a_peer_that_reads_no_answers_is_left_after_the_limit_of_silence_and_the_log_says_why(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def ping() -> None:
        with suppress(ConnectionLost):
            await pair.client.ping()

    limits = Limits(silence=30, reply_frames=4)
    async with streamux_pair(limits=limits) as pair, trio.open_nursery() as nursery:
        pair.server_wire.hold()
        start = trio.current_time()
        for _ in range(20):
            nursery.start_soon(ping)
            await settle()
        assert pair.server._engine.session.is_congested
        await pair.server.wait_closed()
        assert 30 <= trio.current_time() - start < 50
        assert pair.server.faults.peer_faults == 1
        pair.server_wire.release()

    assert "the peer read none of the answers that wait for it" in caplog.text
    assert "half a frame" not in caplog.text


@each_row("size", [1, 2])
async def test_many_tiny_chunks_are_bounded_in_memory(size: int, autojump_clock: MockClock) -> None:
    slow = Slow()
    async with (
        streamux_pair(slow.responder, limits=SMALL, client=widths(4, 3), bounded=True) as pair,
        pair.client.request_channel(b"begin") as channel,
        trio.open_nursery() as nursery,
    ):

        async def send() -> None:
            for _ in range(200_000):
                await channel.send(bytes(size))

        nursery.start_soon(send)
        tracemalloc.start()
        try:
            await trio.sleep(30)
            allocated = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        accepted = pair.client_wire.size
        nursery.cancel_scope.cancel()

    # One read may bring 64 KiB of them at once: each counts, and costs, a few hundred bytes.
    assert accepted < 3 * WRITE
    assert allocated < 16 * KIB * KIB


# A budget for each message instead


def word(error: StreamError) -> bytes:
    return b"no: " + error.data


@each_row("encode", [None, word], ids=["without a word", "with a word"])
async def test_with_a_budget_a_message_that_waits_too_long_is_refused_and_others_go_on(
    encode: Callable[[StreamError], bytes] | None, autojump_clock: MockClock
) -> None:
    slow = Slow()
    server = widths(14, qa=True, message_budget=10 * KIB, encode_error=encode)
    async with streamux_pair(slow.responder, limits=SMALL, server=server, bounded=True) as pair:
        async with pair.client.request_channel() as channel:
            for _ in range(100):
                await channel.send(bytes(ITEM))
                await trio.sleep(0.1)
            assert (await pair.client.request_response(bytes(70_000))).data == b"answer"
            slow.may_read.set()
            with trio.move_on_after(10) as unanswered:
                answer = (await anext(channel)).data
                assert answer == b"no: more than 10240 bytes of a message waited for their reader"
            assert unanswered.cancelled_caught is (encode is None)
        assert 0 < slow.got <= 10 * KIB
        assert (await pair.client.request_response(b"q")).data == b"answer"
        assert (pair.server.status, pair.server.faults.dropped) == ("open", 1)
        await settle()
        assert pair.client._engine.session.is_quiet
        assert pair.server._engine.session.is_quiet


async def test_a_callers_budget_cancels_the_response_and_its_reader_hears_why(autojump_clock: MockClock) -> None:
    responder = Responder()
    ended: list[str] = []

    @responder.request_channel
    async def many(channel: Channel) -> None:
        try:
            for _ in range(100):
                await channel.send(bytes(ITEM))
                await trio.sleep(0.1)
        finally:
            ended.append("many")

    async with streamux_pair(responder, limits=SMALL, client=widths(0, message_budget=10 * KIB), bounded=True) as pair:
        async with pair.client.request_channel(b"begin") as channel:
            await trio.sleep(30)
            assert ended == ["many"]
            got = 0

            async def read() -> None:
                nonlocal got
                async for item in channel:
                    got += len(item.data)

            with pytest.raises(Rejected, match="more than 10240 bytes of a message waited for their reader"):
                await read()
            assert 0 < got <= 10 * KIB
        with trio.fail_after(1):
            await pair.client.ping()  # the id is free again
