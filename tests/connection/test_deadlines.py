"""One task rings for all deadlines: in time, never for those that were cleared, and without entries left behind."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio.connection.deadlines import BATCH, LATE_READ_LIMIT, SLACK, Deadlines, Timeout, Timer
from tests.connection.pairs import settle
from tests.each_row import each_row


class Bell(Timer):
    """Remembers when it rang, and may want to ring again."""

    def __init__(self, deadlines: Deadlines, started: float, every: float = 0.0) -> None:
        super().__init__()
        self._started = started
        self.rang: list[float] = []
        self._deadlines = deadlines
        self._every = every

    def expire(self, now: float) -> None:
        self.rang.append(now - self._started)
        if self._every:
            self._deadlines.set(self, now + self._every)


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Deadlines, float]]:
    """Deadlines at work, and the time now."""
    deadlines = Deadlines()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        await settle()
        yield deadlines, trio.current_time()
        nursery.cancel_scope.cancel()


async def test_each_rings_at_its_time_whatever_the_order_in_which_they_were_set(autojump_clock: MockClock) -> None:
    async with running() as (deadlines, started):
        bells = [Bell(deadlines, started) for _ in range(3)]
        for bell, seconds in zip(bells, (3, 1, 2), strict=True):
            deadlines.set(bell, started + seconds)
        await trio.sleep(5)

    assert [[round(at, 6) for at in bell.rang] for bell in bells] == [[3], [1], [2]]


async def test_one_that_was_cleared_does_not_ring(autojump_clock: MockClock) -> None:
    async with running() as (deadlines, started):
        bell = Bell(deadlines, started)
        deadlines.set(bell, started + 2)
        deadlines.clear(bell)
        assert len(deadlines) == 0
        await trio.sleep(5)

    assert bell.rang == []


async def test_others_run_between_portions_of_those_that_ring_at_once(autojump_clock: MockClock) -> None:
    rounds: list[int] = []
    async with running() as (deadlines, started), trio.open_nursery() as nursery:
        bells = [Bell(deadlines, started) for _ in range(3 * BATCH)]
        for bell in bells:
            deadlines.set(bell, started + 1)

        async def watch() -> None:
            await trio.sleep_until(started + 1)
            while not bells[-1].rang:
                rounds.append(sum(len(bell.rang) for bell in bells))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(watch)

    assert BATCH in rounds or 2 * BATCH in rounds


async def test_connections_that_come_and_go_leave_no_entries_for_deadlines_that_never_come(
    autojump_clock: MockClock,
) -> None:
    async with running() as (deadlines, started):
        for _ in range(10_000):
            bell = Bell(deadlines, started)
            deadlines.set(bell, started + 90)
            deadlines.clear(bell)
        assert len(deadlines._heap) <= SLACK + 1


# Judgements


class PeerTimer(Bell):
    """Gives somebody up who was not heard of for so long."""

    def __init__(self, deadlines: Deadlines, started: float, patience: float = 1.0) -> None:
        super().__init__(deadlines, started)
        self.heard = started
        self.patience = patience
        self.unread = False
        self.judged: list[float] = []
        deadlines.set(self, started + patience)

    @property
    def has_unread(self) -> bool:
        return self.unread

    def overdue_since(self, now: float) -> float:
        over = self.heard + self.patience
        return over if over <= now else math.inf

    def expire(self, now: float) -> None:
        super().expire(trio.current_time())
        if self.overdue_since(now) <= now:
            self.judged.append(trio.current_time())
        else:
            self._deadlines.set(self, self.heard + self.patience)


async def test_whoever_reads_gets_turns_before_a_judgement_that_comes_late(autojump_clock: MockClock) -> None:
    async with running() as (deadlines, started):
        judges = [PeerTimer(deadlines, started) for _ in range(40)]
        read = [judge for number, judge in enumerate(judges) if number % 4]

        async def listen() -> None:
            for turn in range(6):  # as many as a TLS connection takes, and more than a plain one
                await trio.lowlevel.checkpoint()
                del turn
            for judge in read:
                judge.heard = trio.current_time()

        autojump_clock.jump(2.5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
        await settle()

        silent = [judge for judge in judges if judge not in read]
        assert [judge.judged for judge in silent] == [[started + 2.5]] * 10
        assert not any(judge.judged for judge in read)
        await trio.sleep(5)

    assert [judge.judged for judge in read] == [[started + 3.5]] * 30


@each_row(("late", "more"), [(0.0, 0.0), (0.3, 0.3), (30.0, LATE_READ_LIMIT)])
async def test_of_who_has_more_to_be_read_a_late_judgement_waits_but_not_for_ever(
    late: float, more: float, autojump_clock: MockClock
) -> None:
    async with running() as (deadlines, started):
        judge = PeerTimer(deadlines, started)
        judge.unread = True
        autojump_clock.jump(1 + late)
        await trio.sleep(5)

    assert judge.judged == [pytest.approx(started + 1 + late + more)]
    assert not deadlines._put_off


# Blocks with a deadline


async def test_a_block_is_cancelled_at_its_deadline_and_not_before(autojump_clock: MockClock) -> None:
    async with running() as (deadlines, started):
        with Timeout(deadlines, started + 3) as patience:
            await trio.sleep_forever()
        assert patience.scope.cancelled_caught
        assert trio.current_time() == started + 3
        assert len(deadlines) == 0


async def test_a_block_gets_back_some_of_the_time_that_its_deadline_came_late_by(autojump_clock: MockClock) -> None:
    async with running() as (deadlines, started):
        with Timeout(deadlines, started + 3) as patience:
            autojump_clock.jump(3.4)
            await trio.sleep(0.3)
        assert not patience.scope.cancel_called

        with Timeout(deadlines, trio.current_time() + 3) as patience:
            began = trio.current_time()
            autojump_clock.jump(3.4)
            await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(began + 3.8)
