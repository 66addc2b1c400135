"""Connections act on their frames in turn: one pass of the scheduler does not begin all that a thousand ask for."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from rsocket_trio import Payload, Responder, open_connection, serve
from rsocket_trio.connection.link import FEW, FRAMES_IN_TURN, Turns
from tests.each_row import each_row

EIGHTH, NINTH, HALF = FRAMES_IN_TURN // 8, FRAMES_IN_TURN // 9 + 1, FRAMES_IN_TURN // 2


class Passes(trio.abc.Instrument):
    """Counts the passes of the scheduler."""

    number = 0

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1


def took(turns: Turns, reader: int, frames: int) -> bool:
    """Take off the frames that a reader acts on, as a link does. Return whether it may."""
    if turns.left <= 0 and not turns.begin_at_once():
        return False
    turns.left -= frames
    turns.takers.add(reader)
    return True


async def acting(passes: Passes, readers: int, frames: int, rounds: int = 1) -> list[tuple[int, int]]:
    """Return which of so many readers acted in which pass, when all had read so many frames at once."""
    turns, acted = Turns(), list[tuple[int, int]]()

    async def read(reader: int) -> None:
        for _ in range(rounds):
            if not took(turns, reader + 1, frames):
                await turns.wait(frames)
            acted.append((reader, passes.number))

    trio.lowlevel.add_instrument(passes)
    async with trio.open_nursery() as nursery:
        for reader in range(readers):
            nursery.start_soon(read, reader)
    trio.lowlevel.remove_instrument(passes)
    return acted


@each_row(("frames", "at_once"), [(1, 30), (EIGHTH, 8), (NINTH, 9)])
async def test_so_many_act_in_a_pass_as_their_frames_fit_into_a_turn(frames: int, at_once: int) -> None:
    acted = await acting(Passes(), 30, frames)

    assert sorted(reader for reader, _ in acted) == [*range(30)]
    of_pass = [sum(number == each for _, each in acted) for number in {number for _, number in acted}]
    assert max(of_pass) <= at_once + 1  # the one that ends a pass comes beside those that it wakes
    assert len(of_pass) <= 30 // at_once + 2


@each_row("readers", [1, FEW])
async def test_a_few_readers_never_wait(readers: int) -> None:
    acted = await acting(Passes(), readers, FRAMES_IN_TURN, rounds=20)

    assert len({number for _, number in acted}) == 1


async def test_readers_act_in_the_order_in_which_they_came() -> None:
    turns, acted = Turns(), list[int]()

    async def read(reader: int) -> None:
        await turns.wait(HALF)
        acted.append(reader)

    async with trio.open_nursery() as nursery:
        for other in range(FEW + 1):
            assert took(turns, 100 + other, FRAMES_IN_TURN // (FEW + 1) + 1)
        assert not took(turns, 99, 1)
        turns._goes_on = True  # some other ends this pass
        for reader in range(6):
            nursery.start_soon(read, reader)
            await wait_all_tasks_blocked()
        turns._begin()
        await wait_all_tasks_blocked()

    assert [{*acted[:2]}, {*acted[2:4]}, {*acted[4:]}] == [{0, 1}, {2, 3}, {4, 5}]


@each_row("cancelled", [*range(8)])
async def test_a_reader_that_is_cancelled_keeps_no_other_waiting(cancelled: int) -> None:
    turns, acted = Turns(), list[int]()
    scopes = [trio.CancelScope() for _ in range(8)]

    async def read(reader: int) -> None:
        with scopes[reader]:
            for _ in range(3):
                if not took(turns, reader + 1, HALF):
                    await turns.wait(HALF)
                await trio.lowlevel.checkpoint()
            acted.append(reader)

    async with trio.open_nursery() as nursery:
        for reader in range(8):
            nursery.start_soon(read, reader)
        for _ in range(cancelled % 4 + 1):
            await trio.lowlevel.checkpoint()
        scopes[cancelled].cancel()

    assert {*acted} >= {*range(8)} - {cancelled}


async def test_many_connections_that_ask_at_once_are_all_answered_and_begin_in_turn(autojump_clock: MockClock) -> None:
    responder = Responder()
    running = most = 0

    @responder.request_response
    async def answer(request: Payload) -> Payload:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.lowlevel.checkpoint()
        running -= 1
        return request

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve, responder, "memory://turns"))
        async with trio.open_nursery() as asking:

            async def ask() -> None:
                async with open_connection("memory://turns") as connection, trio.open_nursery() as requests:
                    for number in range(64):
                        requests.start_soon(connection.request_response, b"%d" % number)

            for _ in range(60):
                asking.start_soon(ask)
        nursery.cancel_scope.cancel()

    assert running == 0
    assert most < 60 * 64 / 2
