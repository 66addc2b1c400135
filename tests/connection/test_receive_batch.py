"""Everything that has come, taken at once: order, credit, ends and errors are those of reading item by item."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Channel,
    LocalProtocolError,
    Payload,
    Responder,
    StreamuxOptions,
)
from tests.connection.pairs import connected_pair, settle
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

    assert got == [b"%d" % number for number in range(600)]
    assert sum(pair.client_said.credit) in range(600 - initial, 600 + 1)


async def test_an_error_comes_behind_the_items_before_it(autojump_clock: MockClock) -> None:
    async with connected_pair(counting()) as pair, pair.client.request_stream(route="failing") as items:
        await settle()
        assert [payload.data for payload in await items.receive_batch()] == [b"one", b"two"]
        with pytest.raises(ApplicationError, match="no three"):
            await items.receive_batch()


async def test_a_second_reader_is_refused(autojump_clock: MockClock) -> None:
    async with connected_pair(counting()) as pair:
        async with (
            pair.client.request_stream(b"9", initial_request_n=1, refill=False) as items,
            trio.open_nursery() as nursery,
        ):
            await anext(items)
            nursery.start_soon(items.receive_batch)
            await settle()
            with pytest.raises(trio.BusyResourceError):
                await items.receive_batch()
            nursery.cancel_scope.cancel()
        with pytest.raises(LocalProtocolError, match="left"):
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
