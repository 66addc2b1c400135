"""Every case of the conformance tester, of any dialect and role, fails against a fault that the file names."""

from __future__ import annotations

import pytest
import trio.testing

from qa.wrong.findings import CHAPTERS, IDLE, Chapter, cases_of, check, played_over_lines, read
from rsocket_trio.conformance.play import CaseOutcome
from rsocket_trio.conformance.report import failure_lines
from tests.each_row import ALL_CASES, some

PART = 40 if ALL_CASES else 160
"""One case of so many is played here; all of them are by ``python -m qa.wrong.findings --check``."""


@pytest.fixture
def clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=IDLE)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=" ".join)
def test_the_file_knows_a_fault_for_every_case(chapter: Chapter) -> None:
    # Mend it by ``python -m qa.wrong.findings``.
    names = {case.id for case in cases_of(chapter)}

    assert sorted(names ^ read()[chapter].keys()) == []


@pytest.mark.parametrize("chapter", some(CHAPTERS, 4), ids=" ".join)
async def test_cases_fail_against_the_faults_that_the_file_says(
    chapter: Chapter, clock: trio.testing.MockClock
) -> None:
    cases = [case for case in cases_of(chapter) if not case.heavy]

    assert await check(chapter, cases[len(chapter[0]) % PART :: PART]) == []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=" ".join)
async def test_cases_pass_over_a_line_that_spoils_nothing(chapter: Chapter, clock: trio.testing.MockClock) -> None:
    cases = [case for case in cases_of(chapter) if not case.heavy]
    plays = await played_over_lines((case, None) for case in cases[::PART])

    assert [failure_lines(play.result) for play in plays if play.result.outcome is not CaseOutcome.PASS] == []
