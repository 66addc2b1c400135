"""Tasks wait in the order in which they came, and a cancelled one leaves no trace."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from rsocket_trio.tools.parking_lot import ParkingLot
from tests.connection.pairs import settle
from tests.each_row import each_row


async def test_one_is_woken_at_a_time_in_the_order_of_arrival_and_gets_the_gift(autojump_clock: MockClock) -> None:
    parking = ParkingLot()
    got: list[tuple[int, object]] = []

    async def wait(number: int) -> None:
        got.append((number, await parking.park()))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(wait, number)
            await settle()
        for number in range(5):
            parking.wake_one(f"value {number}")
            await settle()

    assert got == [(number, f"value {number}") for number in range(5)]
    assert parking.first is None


async def test_all_are_woken_at_once_and_those_who_park_again_wait_for_the_next_time(autojump_clock: MockClock) -> None:
    parking = ParkingLot()
    rounds: list[int] = []

    async def wait(number: int) -> None:
        for _ in range(2):
            assert await parking.park() is None
            rounds.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(wait, number)
        await settle()
        parking.wake_all()
        await settle()
        assert sorted(rounds) == [0, 1, 2]
        assert parking.first is not None
        parking.wake_all()


@each_row("leaver", range(3))
async def test_those_behind_one_who_is_cancelled_keep_their_order(leaver: int, autojump_clock: MockClock) -> None:
    parking = ParkingLot()
    scopes = [trio.CancelScope() for _ in range(3)]
    woken: list[int] = []

    async def wait(number: int) -> None:
        with scopes[number]:
            await parking.park(number)
            woken.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(wait, number)
            await settle()
        scopes[leaver].cancel()
        await settle()
        left = [number for number in range(3) if number != leaver]
        for number in left:
            assert parking.first is not None
            assert parking.first.size == number
            parking.wake_one()
            await settle()

    assert woken == left
    assert parking.first is None


async def test_waking_nobody_does_nothing(autojump_clock: MockClock) -> None:
    parking = ParkingLot()

    parking.wake_one()
    parking.wake_all()

    assert parking.first is None
