"""Servers that are right and unusual get no failure."""

from __future__ import annotations

import pytest
import trio.testing

from qa.wrong.findings import CASES, IDLE, played
from qa.wrong.right import Manner
from rsocket_trio.conformance.play import CaseOutcome
from rsocket_trio.conformance.report import told
from tests.each_row import ALL_CASES, each_row


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=IDLE)


@each_row("manner", Manner, ids=str)
async def test_an_unusual_server_that_is_right_has_no_failure(manner: Manner, clock: trio.testing.MockClock) -> None:
    cases = [case for case in CASES if not case.heavy][:: 1 if ALL_CASES else 6]
    results = await played(None, cases, manner.make)

    assert [told(result) for result in results if result.outcome is CaseOutcome.FAIL] == []


async def test_bits_that_should_be_0_cost_one_deviation_in_all(clock: trio.testing.MockClock) -> None:
    cases = [case for case in CASES if not case.heavy][:: 3 if ALL_CASES else 12]
    cases += [case for case in CASES if case.unused_bits and case not in cases]
    results = await played(None, cases, Manner.SETS_BITS.make)

    assert [result.case.id for result in results if result.outcome is not CaseOutcome.PASS] == ["bits-that-should-be-0"]
