"""Streams and channels as users hold them: credit, the ends of each half, and who may read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    Connection,
    Incoming,
    Limits,
    LocalProtocolError,
    Outgoing,
    Payload,
    Rejected,
    RemoteProtocolError,
    Responder,
)
from rsocket_trio.connection.streams import PendingResponse
from tests.conformance import raw
from tests.connection.pairs import connected_pair, settle
from tests.each_row import each_row


def counting() -> Responder:
    responder = Responder()

    @responder.request_stream
    async def count(request: Payload) -> AsyncIterator[bytes]:
        for number in range(int(request.data)):
            yield b"%d" % number

    return responder


# Credit


@each_row("initial", [1, 2, 3, 8, 256])
async def test_credit_is_topped_up_at_half(initial: int, autojump_clock: MockClock) -> None:
    async with (
        connected_pair(counting()) as pair,
        pair.client.request_stream(b"600", initial_request_n=initial) as items,
    ):
        assert [item.data async for item in items] == [b"%d" % number for number in range(600)]

    half = max(1, initial // 2)
    # Grants that meet in one tick go out as one.
    assert all(half <= granted <= initial for granted in pair.client_said.credit)
    assert sum(pair.client_said.credit) in range(600 - initial, 600 + 1)


async def test_a_stream_that_was_not_opened_says_so_to_whoever_reads(autojump_clock: MockClock) -> None:
    async with connected_pair(counting()) as pair:
        with pytest.raises(LocalProtocolError, match="use it under 'async with'"):
            await anext(pair.client.request_stream(b"1"))
        with pytest.raises(LocalProtocolError, match="use it under 'async with'"):
            await anext(pair.client.request_stream(b"1"), None)


async def test_without_refill_the_credit_is_the_users(autojump_clock: MockClock) -> None:
    async with (
        connected_pair(counting()) as pair,
        pair.client.request_stream(b"100", initial_request_n=4, refill=False) as items,
    ):
        got = [await anext(items) for _ in range(4)]
        with trio.move_on_after(10) as waiting:
            await anext(items)
        assert waiting.cancelled_caught
        items.request_n(2)
        items.request_n(3)
        got += [await anext(items) for _ in range(5)]

    assert [item.data for item in got] == [b"%d" % number for number in range(9)]
    assert sum(pair.client_said.credit) == 5


async def test_credit_granted_before_the_request_left_follows_it(autojump_clock: MockClock) -> None:
    async with connected_pair(counting()) as pair:
        pair.client_wire.hold()
        with trio.move_on_after(1):
            await pair.client.ping()
        async with pair.client.request_stream(b"10", initial_request_n=1, refill=False) as items:
            items.request_n(2)
            items.request_n(2)
            pair.client_wire.release()
            got = [(await anext(items)).data for _ in range(5)]

    assert len(got) == 5
    assert pair.client_said.names[:3] == ["KEEPALIVE", "REQUEST_STREAM", "REQUEST_N"]
    assert pair.client_said.credit == [4]


async def test_items_that_nobody_reads_withhold_credit_above_the_inbox_limit(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream
    async def bulk(request: Payload) -> AsyncIterator[bytes]:
        for _ in range(100):
            yield bytes(1000)

    limits = Limits(inbox_size=20_000)
    async with (
        connected_pair(responder, limits=limits) as pair,
        pair.client.request_stream(initial_request_n=40, refill=False) as idle,
        pair.client.request_stream(initial_request_n=8) as busy,
    ):
        await settle()
        for _ in range(8):
            await anext(busy)
        await trio.sleep(1)
        # 40,000 bytes wait in the other stream: no new credit, although this one is read.
        assert pair.client_said.credit == []
        for _ in range(21):
            await anext(idle)
        await settle()
        assert sum(pair.client_said.credit) >= 8
        rest = [item async for item in busy]
        assert len(rest) == 92


async def test_two_items_more_than_were_granted_end_the_stream(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer):
        async with connection.request_stream(initial_request_n=2, refill=False) as items:
            await peer.receive()
            await peer.send(*(raw.payload(1, b"%d" % number) for number in range(4)))
            assert [(await anext(items)).data for _ in range(3)] == [b"0", b"1", b"2"]
            with pytest.raises(RemoteProtocolError, match="more items than were granted"):
                await anext(items)
        assert (await peer.receive()).type == raw.CANCEL


async def test_a_reader_of_a_full_inbox_lets_others_run(autojump_clock: MockClock) -> None:
    async with (
        raw.client(raw.RS10) as (connection, peer),
        connection.request_stream(initial_request_n=100_000, refill=False) as items,
    ):
        await peer.receive()
        for _ in range(10):
            await peer.send(*(raw.payload(1, b"") for _ in range(200)))
        await settle()
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            await trio.lowlevel.checkpoint()
            before = turns
            for _ in range(2000):
                await anext(items)
            assert turns - before >= 2000 // 128 - 1
            nursery.cancel_scope.cancel()


async def test_two_tasks_cannot_read_one_stream(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer), connection.request_stream() as items:
        await peer.receive()
        got: list[bytes] = []

        async def read() -> None:
            got.append((await anext(items)).data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await settle()
            with pytest.raises(trio.BusyResourceError):
                await anext(items)
            await peer.send(raw.payload(1, b"one"))
        # Whoever waits gets the item; nobody can take it between its arrival and that task's next step.
        assert got == [b"one"]


@each_row("turn", range(20))
async def test_a_second_reader_never_takes_the_item_that_woke_the_first(turn: int, autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer), connection.request_stream() as items:
        await peer.receive()
        outcomes: list[object] = []

        async def read() -> None:
            try:
                outcomes.append((await anext(items)).data)
            except trio.BusyResourceError:
                outcomes.append("busy")
            except StopAsyncIteration:
                outcomes.append("cut short")

        async def watch() -> None:
            # Reads in the very tick in which the item came.
            for _ in range(50):
                if items._inbox is not None and items._inbox._items:
                    break
                await trio.lowlevel.checkpoint()
            await read()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await settle()
            nursery.start_soon(watch)
            await peer.send(raw.payload(1, b"one"))
            await trio.sleep(1)
            await peer.send(raw.payload(1, b"two"))
        assert "cut short" not in outcomes
        assert b"one" in outcomes


async def test_a_reader_in_another_task_hears_that_the_stream_was_left(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, _), trio.open_nursery() as nursery:

        async def read(items: Incoming) -> None:
            with pytest.raises(LocalProtocolError, match="left"):
                await anext(items)

        async with connection.request_stream() as items:
            nursery.start_soon(read, items)
            await settle()


# Channels


async def test_a_channel_carries_items_both_ways_and_its_opening_payload_apart(autojump_clock: MockClock) -> None:
    responder = Responder()
    opened: list[Payload] = []

    @responder.request_channel("chat")
    async def chat(channel: Channel) -> None:
        opened.append(channel.request)
        async for message in channel:
            await channel.send(b"> " + message.data)

    async with connected_pair(responder) as pair, pair.client.request_channel(b"opening", route="chat") as channel:
        assert channel.request.data == b"opening"
        for word in (b"one", b"two"):
            await channel.send(word)
            assert (await anext(channel)).data == b"> " + word
        await channel.send_eof()
        await channel.send_eof()
        with pytest.raises(StopAsyncIteration):
            await anext(channel)
        with pytest.raises(LocalProtocolError, match="completed"):
            await channel.send(b"late")

    assert [one.data for one in opened] == [b"opening"]
    assert pair.client_said.count(raw.CANCEL) == 0


async def test_a_handler_that_returns_while_the_peers_half_is_open_completes_then_cancels(
    autojump_clock: MockClock,
) -> None:
    responder = Responder()

    @responder.request_channel
    async def leave(channel: Channel) -> None:
        await channel.send(b"bye")

    async with connected_pair(responder) as pair, pair.client.request_channel() as channel:
        assert [item.data async for item in channel] == [b"bye"]
        with pytest.raises(Canceled):
            await channel.send(b"anyone?")

    # Credit that had not left when the handler returned is not needed any more.
    assert pair.server_said.names[-3:] == ["PAYLOAD", "PAYLOAD", "CANCEL"]
    assert pair.server_said[-2].flags == raw.C
    assert pair.client_said.names == ["REQUEST_CHANNEL"]


@each_row(
    ("peer_done", "we_done", "raises", "said"),
    [
        (False, False, False, [raw.CANCEL]),
        (False, True, False, [raw.PAYLOAD, raw.CANCEL]),
        (True, False, False, [raw.PAYLOAD]),
        (True, True, False, [raw.PAYLOAD]),
        (False, False, True, [raw.CANCEL]),
        (False, True, True, [raw.PAYLOAD, raw.CANCEL]),
        (True, False, True, [raw.CANCEL]),
        (True, True, True, [raw.PAYLOAD]),
    ],
)
async def test_how_a_channel_is_left_is_what_the_peer_hears(
    peer_done: bool, we_done: bool, raises: bool, said: list[int], autojump_clock: MockClock
) -> None:
    async with raw.client(raw.RS10) as (connection, peer):
        try:
            async with connection.request_channel() as channel:
                await peer.receive()
                if peer_done:
                    await peer.send(raw.complete(1))
                    await settle()
                if we_done:
                    await channel.send_eof()
                    await settle()  # unsent, it would be discarded by the CANCEL
                if raises:
                    raise KeyError
        except KeyError:
            assert raises
        got = [await peer.receive() for _ in said]
        assert [one.type for one in got] == said
        assert all(one.flags == raw.C for one in got if one.type == raw.PAYLOAD)
        await peer.expect_silence(1)


async def test_after_the_peer_cancelled_our_half_send_raises_and_iteration_goes_on(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer):
        async with connection.request_channel() as channel, trio.open_nursery() as nursery:
            await peer.receive()

            async def send() -> None:
                with pytest.raises(Canceled):
                    await channel.send(b"waits for credit")

            nursery.start_soon(send)
            await settle()
            await peer.send(raw.cancel(1), raw.payload(1, b"still here"))
            assert (await anext(channel)).data == b"still here"
            with pytest.raises(Canceled):
                await channel.send(b"again")
            await peer.send(raw.payload(1, b"last", raw.N | raw.C))
            assert [item.data async for item in channel] == [b"last"]
        await peer.expect_silence(1)


async def test_an_error_on_a_channel_reaches_reader_and_sender(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS10) as (connection, peer):
        async with connection.request_channel() as channel, trio.open_nursery() as nursery:
            await peer.receive()

            async def send() -> None:
                with pytest.raises(Rejected, match="no more"):
                    await channel.send(b"waits for credit")

            nursery.start_soon(send)
            await settle()
            await peer.send(raw.payload(1, b"one"), raw.error(1, raw.REJECTED, b"no more"))
            assert (await anext(channel)).data == b"one"
            with pytest.raises(Rejected, match="no more"):
                await anext(channel)
        await peer.expect_silence(1)


async def test_a_requesters_error_reaches_the_handlers_iteration(autojump_clock: MockClock) -> None:
    responder = Responder()
    heard: list[str] = []

    @responder.request_channel
    async def listen(channel: Channel) -> None:
        try:
            async for item in channel:
                heard.append(item.data.decode())
        except ApplicationError as error:
            heard.append(error.text)
            await trio.sleep(1)  # it is not cut short
            heard.append("done")

    async with raw.server(raw.RS10, responder) as peer:
        await peer.send(raw.channel(1, 5))
        assert (await peer.receive()).type == raw.REQUEST_N
        await peer.send(raw.payload(1, b"one"), raw.error(1, raw.APPLICATION_ERROR, b"broken"))
        await trio.sleep(2)
        await peer.expect_alive()

    assert heard == ["one", "broken", "done"]


async def test_a_requesters_cancel_ends_both_halves_and_the_handler(autojump_clock: MockClock) -> None:
    responder = Responder()
    ended: list[str] = []

    @responder.request_channel
    async def listen(channel: Channel) -> None:
        try:
            async for _ in channel:
                pass
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    async with raw.server(raw.RS10, responder) as peer:
        await peer.send(raw.channel(1, 5))
        await peer.receive()
        await peer.send(raw.cancel(1))
        await peer.expect_alive()

    assert ended == ["Cancelled"]


async def test_a_channel_that_the_requester_completed_at_once_has_no_items(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_channel
    async def listen(channel: Channel) -> None:
        await channel.send(b"%d items" % len([item async for item in channel]))

    async with raw.server(raw.RS10, responder) as peer:
        await peer.send(raw.channel(1, 5, flags=raw.C))
        assert (await peer.receive()).body == b"0 items"
        await peer.expect(raw.complete(1))


async def test_channel_handlers_choose_the_credit_of_their_requester(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_channel(initial_request_n=3, refill=False)
    async def listen(channel: Channel) -> None:
        async for _ in channel:
            channel.request_n(7)

    async with raw.server(raw.RS10, responder) as peer:
        await peer.send(raw.channel(1, 5))
        await peer.expect(raw.request_n(1, 3))
        await peer.send(raw.payload(1, b"x"))
        await peer.expect(raw.request_n(1, 7))
        await peer.send(raw.cancel(1))


async def test_in_a_dialect_without_halves_the_responders_complete_ends_both(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_channel
    async def leave(channel: Channel) -> None:
        await channel.send(b"bye")

    async with (
        connected_pair(responder, dialect="reactivesocket/0.2") as pair,
        pair.client.request_channel() as channel,
    ):
        assert [item.data async for item in channel] == [b"bye"]
        with pytest.raises(Canceled):
            await channel.send(b"anyone?")

    assert pair.server_said.count(raw.CANCEL) == 0
    assert pair.client_said.count(raw.CANCEL) == 0


async def test_in_0_2_what_comes_with_the_end_is_an_item(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS02) as (connection, peer), connection.request_stream() as items:
        await peer.receive()
        await peer.send(raw.payload(1, b"one", 0), raw.payload(1, b"last", raw.C))
        assert [item.data async for item in items] == [b"one", b"last"]


async def test_send_eof_tells_senders_that_wait(autojump_clock: MockClock) -> None:
    async with (
        raw.client(raw.RS10) as (connection, peer),
        connection.request_channel() as channel,
        trio.open_nursery() as nursery,
    ):
        await peer.receive()

        async def send() -> None:
            with pytest.raises(LocalProtocolError, match="completed"):
                await channel.send(b"waits for credit")

        nursery.start_soon(send)
        await settle()
        await channel.send_eof()


# Waiting to send


async def test_a_cancelled_send_has_sent_nothing_and_took_no_credit(autojump_clock: MockClock) -> None:
    responder = Responder()
    got: list[bytes] = []

    @responder.request_channel(initial_request_n=1, refill=False)
    async def listen(channel: Channel) -> None:
        got.append((await anext(channel)).data)
        await trio.sleep(5)
        channel.request_n(2)
        got.extend([item.data async for item in channel])

    async with connected_pair(responder) as pair, pair.client.request_channel() as channel:
        await channel.send(b"one")
        with trio.move_on_after(1):
            await channel.send(b"given up")
        await channel.send(b"two")
        await channel.send(b"three")
        await channel.send_eof()
        assert [item async for item in channel] == []

    assert got == [b"one", b"two", b"three"]


async def test_sixteen_producers_of_large_items_stay_below_the_outbox_mark(autojump_clock: MockClock) -> None:
    responder = Responder()
    size = 1024 * 1024

    @responder.request_stream
    async def bulk(request: Payload, out: Outgoing) -> None:
        for _ in range(4):
            await out.send(bytes(size))

    received = 0

    async def read(connection: Connection) -> None:
        nonlocal received
        async with connection.request_stream() as items:
            async for item in items:
                received += len(item.data)

    async with connected_pair(responder) as pair:
        pair.server_wire.hold()
        outbox = pair.server._engine.session.outbox
        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(read, pair.client)
            await settle()
            # One write of 64 KiB is on its way.
            assert 4 * size - 65536 <= outbox.size <= 5 * size
            pair.server_wire.release()

    assert received == 16 * 4 * size


async def test_small_requests_are_answered_beside_a_large_payload(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response
    async def echo(request: Payload) -> Payload:
        return request

    frames_between: list[int] = []

    async with connected_pair(responder) as pair, trio.open_nursery() as nursery:
        nursery.start_soon(pair.client.request_response, bytes(48 * 1024 * 1024))
        await trio.lowlevel.checkpoint()
        for _ in range(20):
            before = len(pair.client_said)
            assert (await pair.client.request_response(bytes(64))).data == bytes(64)
            frames_between.append(len(pair.client_said) - before)

    # Fragments of 64 KiB take turns with it: one answer never waits for the 768 of the payload.
    assert max(frames_between) < 30


async def test_the_outcome_that_wakes_a_requester_can_be_sent_on_as_any_other() -> None:
    neither: Any = None
    woken = PendingResponse(trio.lowlevel.current_task(), neither, neither)
    woken._payload = Payload(b"answer")

    def generator() -> Generator[str, Payload, None]:
        yield (yield "first").text

    async def async_generator() -> AsyncGenerator[str, Payload]:
        yield (yield "first").text

    plain, waiting = generator(), async_generator()
    next(plain)
    await anext(waiting)

    assert woken.unwrap() == Payload(b"answer")
    assert woken.send(plain) == "answer"
    assert await woken.asend(waiting) == "answer"
    plain.close()
    await waiting.aclose()
