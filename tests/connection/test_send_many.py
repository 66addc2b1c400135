"""Many items in one call: credit, and what is left when it ends early."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    Canceled,
    Channel,
    Outgoing,
    Payload,
    Responder,
)
from tests.connection.pairs import connected_pair
from tests.each_row import each_row


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


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
