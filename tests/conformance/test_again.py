"""Cases that run out of time are played again, with more time, before they fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
import trio.testing

from rsocket_trio.conformance.catalogue import Case, Level, Step, Word, read_chapter
from rsocket_trio.conformance.clients import Listening, start_clients
from rsocket_trio.conformance.play import CaseOutcome, CaseResult
from rsocket_trio.conformance.report import CaseRun, cost, told
from rsocket_trio.conformance.run import MORE_PATIENCE, Target, run
from rsocket_trio.transports.base import Transport
from rsocket_trio.transports.memory import memory_pair

DIALECT = "rsocket/1.0"
PATIENCE = 5.0
EVER = 10 * MORE_PATIENCE * PATIENCE


def cases(number: int) -> list[Case]:
    """So many cases that want a KEEPALIVE answered."""
    steps = (Step(Word.SEND, "setup", "> setup"), Step(Word.ALIVE, "", "alive"))
    clauses = ("RS10-KA-01",)
    return [Case(f"case-{one}", DIALECT, "server", "", clauses, Level.MUST, (), steps) for one in range(number)]


@attrs.define(eq=False)
class Peer:
    """A server that answers the KEEPALIVE of a connection after some seconds, by the number of the connection."""

    delay: Callable[[int], float]
    number: int = 0

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[Transport]:
        ours, theirs = memory_pair()
        self.number += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, theirs, self.delay(self.number))
            yield ours
            nursery.cancel_scope.cancel()

    async def _serve(self, end: Transport, seconds: float) -> None:
        with suppress(trio.BrokenResourceError):
            while frames := await end.receive():
                for frame in map(bytes, frames):
                    if frame[4:6] == b"\x0c\x80":
                        await trio.sleep(seconds)
                        await end.send([frame[:4] + b"\x0c\0" + frame[6:]])

    async def play(self, played: Sequence[Case], *, again: int = 1) -> list[CaseResult]:
        return await run(played, Target(self.dial, frozenset(), PATIENCE, again=again))


async def test_a_case_that_passes_at_its_second_play_is_a_pass(autojump_clock: object) -> None:
    peer = Peer(lambda number: 6.0 if number == 1 else 0.0)
    [result] = await peer.play(cases(1))

    assert (result.outcome, result.plays) == (CaseOutcome.PASS, 2)
    assert (result.seconds, result.connections) == (PATIENCE, 2)
    assert cost(CaseRun("x", DIALECT, "server", "", [result], 7.0)) == (
        "1 case over 2 connections in 7.0 s; 1 case ran out of time and had another play, 1 passed then"
    )


async def test_a_case_that_runs_out_of_time_again_fails_and_says_so(autojump_clock: object) -> None:
    # The fourth connection asks whether the server is there.
    peer = Peer(lambda number: EVER if number in {2, 5} else 0.0)
    results = await peer.play(cases(3))
    [late] = [result for result in results if result.plays > 1]

    assert (late.outcome, late.seconds) == (CaseOutcome.FAIL, PATIENCE + MORE_PATIENCE * PATIENCE)
    assert [result.outcome for result in results if result is not late] == [CaseOutcome.PASS] * 2


@pytest.mark.parametrize("again", [0, 1, 3])
async def test_a_case_is_played_again_as_often_as_is_said(autojump_clock: object, again: int) -> None:
    # The second connection asks whether the server is there.
    peer = Peer(lambda number: 0.0 if number == 2 else EVER)
    [result] = await peer.play(cases(1), again=again)

    assert (result.outcome, result.plays, result.connections) == (CaseOutcome.FAIL, 1 + again, 1 + again)
    assert (f"  played {1 + again} times" in told(result)) == (again > 0)


async def test_a_wrong_answer_is_not_played_again(autojump_clock: object) -> None:
    steps = (
        Step(Word.SEND, "setup", "> setup"),
        Step(Word.SEND, 'keepalive 0 "x"', ""),
        Step(Word.CLOSED, "", "closed"),
    )
    peer = Peer(lambda number: 0.0)
    [result] = await peer.play([attrs.evolve(cases(1)[0], steps=steps)])

    assert (result.outcome, result.plays) == (CaseOutcome.FAIL, 1)


async def test_nothing_is_played_again_at_a_server_that_has_fallen_silent(autojump_clock: object) -> None:
    peer = Peer(lambda number: EVER)
    results = await peer.play(cases(3))

    assert {(result.outcome, result.plays, result.timed_out) for result in results} == {(CaseOutcome.FAIL, 1, True)}


async def test_a_connection_that_takes_too_long_is_opened_again(autojump_clock: object) -> None:
    peer = Peer(lambda number: 0.0)

    @asynccontextmanager
    async def dial() -> AsyncIterator[Transport]:
        if not peer.number:
            peer.number += 1
            await trio.sleep(6)
        async with peer.dial() as transport:
            yield transport

    [result] = await run(cases(1), Target(dial, frozenset(), PATIENCE, again=1))

    assert (result.outcome, result.plays, result.connections) == (CaseOutcome.PASS, 2, 2)


async def test_a_client_that_is_late_is_started_again(autojump_clock: object) -> None:
    starts = 0

    @asynccontextmanager
    async def start(uri: str, dialect: str, asks: str, options: Sequence[str]) -> AsyncIterator[Callable[[], object]]:
        nonlocal starts
        starts += 1
        yield trio.sleep_forever

    case = next(case for case in read_chapter(DIALECT).cases if case.role == "client")
    listening = Listening("tcp://127.0.0.1:0", start, frozenset(), wait=3, again=2)  # type: ignore[arg-type]
    [result] = await start_clients([case], listening)

    assert (starts, result.plays, result.outcome) == (3, 3, CaseOutcome.FAIL)
    assert "no client connected" in result.why
