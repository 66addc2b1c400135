"""Servers that are right and unusual get no failure, and those that are worse than wrong end their cases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from qa.wrong.findings import AT_ONCE, IDLE, cases_of, played_over_lines
from qa.wrong.right import Manner
from rsocket_trio.conformance.catalogue import NEEDS, read_chapter
from rsocket_trio.conformance.play import CaseOutcome
from rsocket_trio.conformance.report import failure_lines
from rsocket_trio.conformance.run import STEP_TIMEOUT, Target, WrongPeer, check_server, dial_to, run
from tests.conformance import raw
from tests.each_row import ALL_CASES, each_row

CASES = [case for case in cases_of(("rsocket/1.0", "server")) if not case.heavy and "resume" not in case.options]
"""Positions in a session that is resumed count what a manner changes."""
PLAIN = [case for case in CASES if not case.options]
FLOOD = raw.prefixed(raw.request_n(1, 1)) * 100_000
WORSE = {
    "says nothing": b"",
    "talks nonsense": b"HTTP/1.1 400 Bad Request\r\n\r\n<html>no</html>",
    "sends garbage": raw.prefixed(b"\xa7\x1c\x99\x02\xff\xfe\x00\x7b", b"\x31\x41\x59\x26\x53\x58\x97"),
}


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=IDLE)


@each_row("manner", Manner, ids=str)
async def test_an_unusual_server_that_is_right_has_no_failure(manner: Manner, clock: trio.testing.MockClock) -> None:
    cases = CASES[:: 1 if ALL_CASES else 6]
    results = [play.result for play in await played_over_lines(((case, None) for case in cases), manner=manner)]

    assert [failure_lines(result) for result in results if result.outcome is CaseOutcome.FAIL] == []


async def test_bits_that_should_be_0_cost_one_deviation_in_all(clock: trio.testing.MockClock) -> None:
    cases = CASES[:: 3 if ALL_CASES else 12]
    cases += [case for case in CASES if case.unused_bits and case not in cases]
    plays = await played_over_lines(((case, None) for case in cases), manner=Manner.SETS_BITS)

    assert [play.case.id for play in plays if play.result.outcome is not CaseOutcome.PASS] == ["bits-that-should-be-0"]


@asynccontextmanager
async def answering(answer: bytes, *, patience: float = STEP_TIMEOUT) -> AsyncIterator[Target]:
    """A server that answers whatever comes first with this, and then reads for ever."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            try:
                await stream.receive_some()
                await stream.send_all(answer)
                async for _ in stream:
                    pass
            except trio.BrokenResourceError:
                pass

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        uri = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        yield Target(dial_to(uri), frozenset(NEEDS), patience, AT_ONCE)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("what", "reason"), [("says nothing", "took no SETUP of"), ("talks nonsense", "HTTP/1.1 without TLS answered")]
)
async def test_a_server_that_speaks_nothing_known_is_told_apart(
    what: str, reason: str, clock: trio.testing.MockClock
) -> None:
    async with answering(WORSE[what]) as target:
        with pytest.raises(WrongPeer, match=reason):
            await check_server(target, "rsocket/1.0")


@pytest.mark.parametrize("what", WORSE)
async def test_a_server_that_is_silent_or_talks_nonsense_ends_its_cases_and_not_the_run(
    what: str, clock: trio.testing.MockClock
) -> None:
    some = PLAIN[::10]
    async with answering(WORSE[what]) as target:
        results = await run(some, target)

    assert [result.case for result in results] == some
    assert sum(result.outcome is CaseOutcome.FAIL for result in results) > len(some) / 4


async def test_a_server_that_floods_the_tester_ends_its_cases_before_their_time() -> None:
    [case] = [case for case in CASES if case.id == "served-an-unknown-type-with-i"]
    async with answering(FLOOD, patience=60) as target:
        with trio.fail_after(30):
            [result] = await run([case], target)

    assert result.outcome is CaseOutcome.FAIL
    assert result.why.startswith("5001 frames came in a row that say nothing, the last one 00 00 00 01 20")


async def test_a_server_that_is_gone_fails_every_case(clock: trio.testing.MockClock) -> None:
    async with answering(b"") as target:
        pass
    results = await run(PLAIN[:3], target)

    assert {result.outcome for result in results} == {CaseOutcome.FAIL}
    assert all("can't be reached any more" in result.why for result in results)


def test_a_length_that_is_below_its_own_size_does_not_hold_the_tester() -> None:
    notation = read_chapter("reactivesocket/0.0").notation

    assert notation.cut(bytes(4) + b"mor") == ([b""], b"mor")
