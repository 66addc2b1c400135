"""The tester is honest about itself: it passes a right server, and catches each fault of a wrong one."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.testing

from qa.wrong.findings import CASES, IDLE, played, serving
from qa.wrong.server import Rule, Switch
from rsocket_trio.conformance.catalogue import read_chapter
from rsocket_trio.conformance.play import CaseOutcome
from rsocket_trio.conformance.report import told
from rsocket_trio.conformance.run import WrongServer, check_server, run
from tests.each_row import each_row

NAMED = {case.id: case for case in CASES}


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=IDLE)


async def test_a_server_without_faults_passes_cases(clock: trio.testing.MockClock) -> None:
    # One of two: all of them are played by ``python -m qa.wrong.findings --check``.
    assert [told(result) for result in await played(None, CASES[::2]) if result.outcome is not CaseOutcome.PASS] == []


@each_row("switch", Switch, ids=str)
async def test_each_fault_is_caught_by_the_case_that_it_names(switch: Switch, clock: trio.testing.MockClock) -> None:
    case = NAMED[switch.caught_by]
    [result] = await played(switch, [case])

    assert result.outcome is (CaseOutcome.FAIL if case.level.is_binding and not switch.mild else CaseOutcome.DEVIATION)


def test_every_rule_of_the_server_is_broken_by_a_switch() -> None:
    assert len(Switch) >= 60
    assert set(Rule) - {rule for switch in Switch for rule in switch.rules} == set()


# A server that is worse than wrong


@pytest.mark.parametrize(
    ("switch", "reason"),
    [
        (Switch.SAYS_NOTHING, "took no SETUP of"),
        (Switch.CLOSES_AT_ONCE, "took no SETUP of"),
        (Switch.TALKS_NONSENSE, "HTTP/1.1 without TLS answered"),
    ],
)
async def test_a_server_that_speaks_nothing_known_is_told_apart(
    switch: Switch, reason: str, clock: trio.testing.MockClock
) -> None:
    async with serving(switch) as target:
        with pytest.raises(WrongServer, match=reason):
            await check_server(target, "rsocket/1.0")


@pytest.mark.parametrize(
    "switch", [Switch.SAYS_NOTHING, Switch.CLOSES_AT_ONCE, Switch.TALKS_NONSENSE, Switch.GARBAGE, Switch.NO_KEEPALIVE]
)
async def test_a_server_that_is_silent_or_talks_nonsense_ends_its_cases_and_not_the_run(
    switch: Switch, clock: trio.testing.MockClock
) -> None:
    some = CASES[::5]
    results = await played(switch, some)

    assert [result.case for result in results] == some
    outcomes = Counter(result.outcome for result in results)
    assert outcomes[CaseOutcome.FAIL] > len(some) / 4, outcomes


@pytest.mark.parametrize("switch", [Switch.DIES_AMID_A_FRAME, Switch.HANGS_AFTER_A_REQUEST, Switch.DIES_AT_A_STREAM])
async def test_a_server_that_dies_or_hangs_ends_the_case_and_the_next_ones_are_played(
    switch: Switch, clock: trio.testing.MockClock
) -> None:
    fine = NAMED["served-an-unknown-type-with-i"]
    async with serving(switch, at_once=1) as target:
        first, second = await run([NAMED[switch.caught_by], fine], target)

    assert (first.outcome, second.outcome) == (CaseOutcome.FAIL, CaseOutcome.PASS)
    assert first.why
    assert first.step


async def test_a_server_that_floods_the_tester_ends_its_cases_before_their_time() -> None:
    async with serving(Switch.FLOODS, patience=60) as target:
        with trio.fail_after(30):
            [result] = await run([NAMED["served-an-unknown-type-with-i"]], target)

    assert result.outcome is CaseOutcome.FAIL
    assert result.why.startswith("5001 frames came in a row that say nothing, the last one 00 00 00 01 20")


async def test_a_server_that_is_gone_fails_every_case(clock: trio.testing.MockClock) -> None:
    async with serving(None) as target:
        pass
    results = await run(CASES[:3], target)

    assert {result.outcome for result in results} == {CaseOutcome.FAIL}
    assert all("can't be reached any more" in result.why for result in results)


def test_a_length_that_is_below_its_own_size_does_not_hold_the_tester() -> None:
    notation = read_chapter("reactivesocket/0.0").notation

    assert notation.cut(bytes(4) + b"mor") == ([b""], b"mor")
