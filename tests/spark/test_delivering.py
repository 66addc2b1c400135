"""Rows on their way to a server: acknowledged, refused, skipped, cut off in the middle, and held back."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import ApplicationError, Payload, Rejected, Responder
from rsocket_trio.spark.errors import SinkError
from tests.spark.deliveries import Flaky, deliver_rows, options, rows_in, sink_of
from tests.spark.serving import pool, served
from tests.spark.sinks import ROUTE, numbers


@pytest.mark.parametrize("count", [0, 1, 2, 99, 1000])
async def test_every_row_arrives_once(count: int, autojump_clock: MockClock) -> None:
    responder, _, log = await sink_of()
    async with served(responder) as connections:
        report = await deliver_rows(connections, options(inFlight=16), count)

    assert Counter(await rows_in(log)) == Counter(numbers(count))
    assert report.skipped == 0


async def test_a_task_without_rows_asks_nobody(autojump_clock: MockClock) -> None:
    async with pool() as connections:
        for delivery in ("atLeastOnce", "exactlyOnce"):
            await deliver_rows(connections, options(delivery=delivery), 0)
        assert len(connections._pooled) == 0


@pytest.mark.parametrize("in_flight", [1, 4, 32])
async def test_no_more_than_in_flight_wait_for_their_answers(in_flight: int, autojump_clock: MockClock) -> None:
    responder = Responder()
    waiting = most = 0

    @responder.request_response(ROUTE)
    async def answer(request: Payload) -> bytes:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await trio.sleep(1)
        waiting -= 1
        return b""

    async with served(responder) as connections:
        await deliver_rows(connections, options(inFlight=in_flight), 100)

    assert most == in_flight


async def test_what_was_not_acknowledged_is_sent_again_when_the_server_is_back(autojump_clock: MockClock) -> None:
    responder, _, log = await sink_of()
    async with pool() as connections, trio.open_nursery() as nursery:
        flaky = Flaky(responder, nursery)
        taken = 0

        def cut_sometimes(piece: object) -> None:
            nonlocal taken
            taken += 1
            if taken in {20, 60}:
                flaky.cut()

        began = trio.current_time()
        chosen = options(inFlight=16)
        await deliver_rows(connections, chosen, 10_000, hook=cut_sometimes)
        nursery.cancel_scope.cancel()

    assert flaky.cuts == 2
    found = Counter(await rows_in(log))
    assert set(found) == set(numbers(10_000))
    assert sum(found.values()) <= 10_000 + 2 * 16
    assert trio.current_time() - began < 30


@pytest.mark.parametrize("delivery", ["atLeastOnce", "exactlyOnce"])
async def test_a_server_that_is_not_there_is_named(delivery: str, autojump_clock: MockClock) -> None:
    async with pool() as connections:
        with pytest.raises(SinkError) as caught:
            await deliver_rows(connections, options(delivery=delivery, reconnectMaxAttempts=2), 10)

    assert "memory://spark" in str(caught.value)
    assert "'path'" in str(caught.value)
    assert "given up after 3 tries" in str(caught.value)


@pytest.mark.parametrize("delivery", ["atLeastOnce", "exactlyOnce"])
async def test_a_route_that_does_not_exist_is_named_at_once(delivery: str, autojump_clock: MockClock) -> None:
    responder, _, _ = await sink_of()
    async with served(responder) as connections:
        began = trio.current_time()
        with pytest.raises(SinkError, match="option 'route': there is no route 'nowhere") as caught:
            await deliver_rows(connections, options(route="nowhere", delivery=delivery), 10)
        assert trio.current_time() == began

    assert "memory://spark" in str(caught.value)


def picky(refused: set[bytes], error: Exception) -> tuple[Responder, list[bytes]]:
    """A sink that refuses some rows."""
    responder = Responder()
    kept: list[bytes] = []

    def take(payload: Payload) -> bytes:
        if payload.data in refused:
            raise error
        kept.append(payload.data)
        return b""

    responder.request_response(ROUTE)(take)

    return responder, kept


async def test_a_refused_row_fails_the_task(autojump_clock: MockClock) -> None:
    responder, _ = picky({b"7"}, ApplicationError("no sevens", code=0x400))
    async with served(responder) as connections:
        with pytest.raises(SinkError, match=r"'orders' at memory://spark refused: no sevens.*errorPolicy=skip"):
            await deliver_rows(connections, options(), 10)


async def test_refused_rows_are_skipped_and_counted_where_that_is_wanted(autojump_clock: MockClock) -> None:
    responder, kept = picky({b"0", b"7", b"8", b"499"}, ApplicationError("not this"))
    async with served(responder) as connections:
        report = await deliver_rows(connections, options(errorPolicy="skip"), 500)

    assert (report.skipped, report.problem) == (4, "not this")
    assert set(kept) == set(numbers(500)) - {b"0", b"7", b"8", b"499"}


async def test_a_server_that_is_full_is_asked_again(autojump_clock: MockClock) -> None:
    refused = {b"7"}
    responder, kept = picky(refused, Rejected("full"))
    async with served(responder) as connections, trio.open_nursery() as nursery:
        nursery.start_soon(deliver_rows, connections, options(errorPolicy="skip"), 100)
        await trio.sleep(1)
        assert b"7" not in kept
        refused.clear()

    assert set(kept) == set(numbers(100))


async def test_a_server_that_answers_no_more_is_taken_for_lost(autojump_clock: MockClock) -> None:
    responder = Responder()
    asked = 0

    @responder.request_response(ROUTE)
    async def silent(request: Payload) -> bytes:
        nonlocal asked
        asked += 1
        await trio.sleep_forever()

    chosen = options(readTimeout="10s", reconnectMaxAttempts=1)
    async with served(responder) as connections:
        began = trio.current_time()
        with pytest.raises(SinkError, match="no answer within 10 s"):
            await deliver_rows(connections, chosen, 1)
        assert 20 < trio.current_time() - began < 22

    assert asked == 2


async def test_a_cancelled_task_cancels_its_requests(autojump_clock: MockClock) -> None:
    responder = Responder()
    cancelled = 0

    @responder.request_response(ROUTE)
    async def answer(request: Payload) -> None:
        nonlocal cancelled
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            cancelled += 1
            raise

    async with served(responder) as connections:
        with trio.move_on_after(1):
            await deliver_rows(connections, options(), 5)
        await trio.sleep(1)
        assert cancelled == 5
