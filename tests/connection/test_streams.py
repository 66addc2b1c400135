"""Streams and channels as users hold them: credit, the ends of each half, items one by one and many at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Canceled,
    Channel,
    ConnectionLost,
    Limits,
    LocalProtocolError,
    Outgoing,
    Payload,
    RemoteProtocolError,
    Responder,
    StreamuxOptions,
)
from tests.conformance import raw
from tests.conformance.raw import INVALID, RS10, cancel, client, error, request_n, server, settle, stream
from tests.connection.pairs import connected_pair
from tests.connection.resuming import numbers
from tests.connection.streamux_pairs import streamux_pair
from tests.each_row import each_row


def counting() -> Responder:
    responder = Responder()

    @responder.request_stream
    async def count(request: Payload) -> AsyncIterator[bytes]:
        for number in range(int(request.data)):
            yield b"%d" % number

    @responder.request_stream("failing")
    async def fail(request: Payload) -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"
        raise ApplicationError("no three")

    return responder


# Credit


@each_row("initial", [1, 2, 3, 8, 256])
async def test_credit_is_topped_up_at_half(initial: int, autojump_clock: MockClock) -> None:
    async with (
        connected_pair(counting()) as pair,
        pair.client.request_stream(b"600", initial_request_n=initial) as items,
    ):
        assert [item.data async for item in items] == numbers(600)

    half = max(1, initial // 2)
    # Grants that meet in one tick go out as one.
    assert all(half <= granted <= initial for granted in pair.client_said.credit)
    assert sum(pair.client_said.credit) in range(600 - initial, 600 + 1)


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
            with pytest.raises(trio.BusyResourceError):
                await items.receive_batch()
            await peer.send(raw.payload(1, b"one"))
        # Whoever waits gets the item; nobody can take it between its arrival and that task's next step.
        assert got == [b"one"]


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


async def test_in_0_2_what_comes_with_the_end_is_an_item(autojump_clock: MockClock) -> None:
    async with raw.client(raw.RS02) as (connection, peer), connection.request_stream() as items:
        await peer.receive()
        await peer.send(raw.payload(1, b"one", 0), raw.payload(1, b"last", raw.C))
        assert [item.data async for item in items] == [b"one", b"last"]


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


def sending(function: Callable[[Outgoing], object]) -> Responder:
    """Answers each stream by this."""
    responder = Responder()

    @responder.request_stream
    async def stream(request: Payload, out: Outgoing) -> None:
        await function(out)  # type: ignore[misc]

    return responder


@each_row("initial", [1, 2, 127, 128, 129, 1000])
async def test_all_arrive_in_order_whatever_the_credit(initial: int, autojump_clock: MockClock) -> None:
    async with (
        connected_pair(sending(lambda out: out.send_many(numbers(600)))) as pair,
        pair.client.request_stream(b"", initial_request_n=initial) as items,
    ):
        assert [item.data async for item in items] == numbers(600)


async def test_no_more_is_taken_than_there_is_credit_for(autojump_clock: MockClock) -> None:
    taken: list[int] = []

    def made() -> Iterator[bytes]:
        for number in range(100):
            taken.append(number)
            yield b"%d" % number

    async with (
        connected_pair(sending(lambda out: out.send_many(made()))) as pair,
        pair.client.request_stream(b"", initial_request_n=5, refill=False) as items,
    ):
        for _ in range(5):
            await anext(items)
        with trio.move_on_after(10) as waiting:
            await anext(items)
        assert waiting.cancelled_caught
        # The sixth waits for credit.
        assert taken == list(range(6))
        items.request_n(2)
        assert [(await anext(items)).data for _ in range(2)] == [b"5", b"6"]


async def test_the_requester_of_a_channel_sends_many_and_the_peer_may_stop_it(autojump_clock: MockClock) -> None:
    async def take(channel: Channel) -> None:
        for _ in range(3):
            await anext(channel)

    responder = Responder()
    responder.request_channel(take)
    async with connected_pair(responder) as pair, pair.client.request_channel(b"") as channel:
        with pytest.raises(Canceled):
            await channel.send_many(b"%d" % number for number in range(10**6))


async def test_what_was_sent_before_an_error_of_the_iterable_leaves_at_once(autojump_clock: MockClock) -> None:
    def broken() -> Iterator[bytes]:
        yield from numbers(3)
        raise ValueError("here")

    async def send(out: Outgoing) -> None:
        with pytest.raises(ValueError, match="here"):
            await out.send_many(broken())
        await trio.sleep_forever()

    async with (
        connected_pair(sending(send)) as pair,
        pair.client.request_stream(b"") as items,
    ):
        with trio.fail_after(1):
            assert [(await anext(items)).data for _ in range(3)] == numbers(3)


async def test_no_item_leaves_without_a_checkpoint(autojump_clock: MockClock) -> None:
    ended = trio.Event()

    async def send(out: Outgoing) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await out.send_many(numbers(10))
        assert scope.cancelled_caught
        ended.set()

    async with (
        connected_pair(sending(send)) as pair,
        pair.client.request_stream(b"") as items,
    ):
        assert [item async for item in items] == []
    assert ended.is_set()


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


@each_row("initial", [1, 2, 3, 8, 256])
async def test_batches_are_the_items_in_order_and_the_end_is_an_empty_one(
    initial: int, autojump_clock: MockClock
) -> None:
    got: list[bytes] = []
    async with (
        connected_pair(counting()) as pair,
        pair.client.request_stream(b"600", initial_request_n=initial) as items,
    ):
        while batch := await items.receive_batch():
            assert len(batch) <= initial
            got += [payload.data for payload in batch]
        assert await items.receive_batch() == []

    assert got == numbers(600)
    assert sum(pair.client_said.credit) in range(600 - initial, 600 + 1)


async def test_an_error_comes_behind_the_items_before_it(autojump_clock: MockClock) -> None:
    async with connected_pair(counting()) as pair, pair.client.request_stream(route="failing") as items:
        await settle()
        assert [payload.data for payload in await items.receive_batch()] == [b"one", b"two"]
        with pytest.raises(ApplicationError, match="no three"):
            await items.receive_batch()


async def test_what_a_batch_took_waits_no_more_and_its_budget_is_free_again(autojump_clock: MockClock) -> None:
    responder = Responder()
    sizes: list[int] = []

    @responder.request_channel
    async def measure(channel: Channel) -> None:
        while batch := await channel.receive_batch():
            sizes.append(sum(payload.size for payload in batch))

    options = StreamuxOptions(message_budget=10_000)
    async with streamux_pair(responder, server=options) as pair, pair.client.request_channel() as channel:
        for _ in range(10):
            for _ in range(5):
                await channel.send(bytes(1000))
            await trio.sleep(1)

    assert sum(sizes) == 50_000
