"""One task rings for everybody: in time, never for who wants it no more, and it forgets whom it forgot to ring for."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio.connection.timers import PORTION, SLACK, Timers
from tests.connection.pairs import settle


class Bell:
    """Remembers when it rang, and may want to ring again."""

    def __init__(self, timers: Timers, started: float, every: float = 0.0) -> None:
        self._started = started
        self.due = math.inf
        self.rang: list[float] = []
        self._timers = timers
        self._every = every

    def ring(self, now: float) -> None:
        self.rang.append(now - self._started)
        if self._every:
            self._timers.set(self, now + self._every)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Timers, float]]:
    """Timers at work, and the time now."""
    timers = Timers()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await settle()
        yield timers, trio.current_time()
        nursery.cancel_scope.cancel()


async def test_each_rings_at_its_time_whatever_the_order_in_which_they_were_set(autojump_clock: MockClock) -> None:
    async with running() as (timers, started):
        bells = [Bell(timers, started) for _ in range(3)]
        for bell, seconds in zip(bells, (3, 1, 2), strict=True):
            timers.set(bell, started + seconds)
        await trio.sleep(5)

    assert [[round(at, 6) for at in bell.rang] for bell in bells] == [[3], [1], [2]]


async def test_one_that_is_set_earlier_rings_once_and_at_the_earlier_time(autojump_clock: MockClock) -> None:
    async with running() as (timers, started):
        bell = Bell(timers, started)
        timers.set(bell, started + 9)
        timers.set(bell, started + 4)
        assert len(timers) == 1
        await trio.sleep(20)

    assert [round(at, 6) for at in bell.rang] == [4]


async def test_one_that_was_cleared_does_not_ring(autojump_clock: MockClock) -> None:
    async with running() as (timers, started):
        bell = Bell(timers, started)
        timers.set(bell, started + 2)
        timers.clear(bell)
        assert len(timers) == 0
        await trio.sleep(5)

    assert bell.rang == []


@pytest.mark.parametrize("seconds", [0, 3])
async def test_who_stops_hears_of_nothing_more_and_nobody_was_cancelled(
    seconds: float, autojump_clock: MockClock
) -> None:
    timers = Timers()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        bells = [Bell(timers, trio.current_time()) for _ in range(2)]
        for bell, due in zip(bells, (1, 5), strict=True):
            timers.set(bell, trio.current_time() + due)
        if seconds:
            await trio.sleep(seconds)
        timers.stop()

    assert not nursery.cancel_scope.cancelled_caught
    assert [len(bell.rang) for bell in bells] == [1 if seconds else 0, 0]


async def test_one_that_sets_itself_again_rings_again(autojump_clock: MockClock) -> None:
    async with running() as (timers, started):
        bell = Bell(timers, started, every=2)
        timers.set(bell, started + 2)
        await trio.sleep(7)

    assert [round(at, 6) for at in bell.rang] == [2, 4, 6]


async def test_others_run_between_portions_of_those_that_ring_at_once(autojump_clock: MockClock) -> None:
    rounds: list[int] = []
    async with running() as (timers, started), trio.open_nursery() as nursery:
        bells = [Bell(timers, started) for _ in range(3 * PORTION)]
        for bell in bells:
            timers.set(bell, started + 1)

        async def watch() -> None:
            await trio.sleep_until(started + 1)
            while not bells[-1].rang:
                rounds.append(sum(len(bell.rang) for bell in bells))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(watch)

    assert PORTION in rounds or 2 * PORTION in rounds


async def test_connections_that_come_and_go_leave_no_entries_for_deadlines_that_never_come(
    autojump_clock: MockClock,
) -> None:
    async with running() as (timers, started):
        for _ in range(10_000):
            bell = Bell(timers, started)
            timers.set(bell, started + 90)
            timers.clear(bell)
        assert len(timers._heap) <= SLACK + 1


class Fault:
    """Fails to ring."""

    due = math.inf

    def ring(self, now: float) -> None:
        raise KeyError("it could not ring")


async def test_one_that_fails_silences_no_other_and_the_log_hears(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async with running() as (timers, started):
        fault = Fault()
        bells = [Bell(timers, started) for _ in range(3)]
        timers.set(bells[0], started + 1)
        timers.set(fault, started + 1)
        timers.set(bells[1], started + 1)
        timers.set(bells[2], started + 2)
        await trio.sleep(5)

        assert [[round(at, 6) for at in bell.rang] for bell in bells] == [[1], [1], [2]]
        assert len(timers) == 0
    assert "it could not ring" in caplog.text
