"""Whole conversations over networks that fail: nothing is lost, doubled or out of order, and everything ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qa.simulation import __main__ as command
from qa.simulation.plans import DIALECTS, RESUMABLE
from qa.simulation.scenario import run
from qa.simulation.tampering import (
    AGAIN,
    TamperedScenario,
    Tampering,
    deliver_twice,
    drop,
    duplicate,
    leave_alone,
    swap,
)
from rsocket_trio.testing import simulate
from tests.each_row import ALL_CASES, some

SEEDS = 50 if ALL_CASES else 5
"""Of each dialect."""
BLOCK = 10 if ALL_CASES else 5
AGAIN_SEEDS = 20 if ALL_CASES else 3
"""Seeds that are played twice."""


@pytest.mark.parametrize("start", range(0, SEEDS, BLOCK))
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_call_ends_and_every_item_arrives_once_and_in_order(dialect: str, start: int) -> None:
    wrong = {f"{dialect}, seed {seed}": run(seed, dialect).wrong for seed in range(start, start + BLOCK)}

    assert {seed: found for seed, found in wrong.items() if found} == {}


@pytest.mark.parametrize("start", range(0, SEEDS, BLOCK))
@pytest.mark.parametrize("dialect", RESUMABLE)
def test_with_resumption_no_cut_costs_an_item_or_a_call(dialect: str, start: int) -> None:
    reports = {seed: run(seed, dialect, resumes=True) for seed in range(start, start + BLOCK)}

    assert {seed: report.wrong for seed, report in reports.items() if report.wrong} == {}
    assert "is cut" in "".join(report.trace for report in reports.values())


@pytest.mark.parametrize("seed", range(AGAIN_SEEDS))
def test_a_seed_does_the_same_again(seed: int) -> None:
    dialect = DIALECTS[seed % len(DIALECTS)]

    assert run(seed, dialect).hash == run(seed, dialect).hash


@pytest.mark.parametrize("dialect", some(DIALECTS, 2))
def test_the_seeds_meet_what_they_are_meant_to_meet(dialect: str) -> None:
    reports = [run(seed, dialect) for seed in range(20)]

    outcomes = {outcome for report in reports for outcome in report.outcomes.values()}
    traces = "".join(report.trace for report in reports)
    assert {"result", "ConnectionLost", "TooSlowError"} <= outcomes
    assert [word for word in ("is cut", "is refused", "failed to send Cancelled") if word not in traces] == []


# The judge is judged


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (drop, {"lost": 1}),
        (duplicate, {"duplicated": 1}),
        (swap, {"reordered": 1}),
        (deliver_twice, {"duplicated": AGAIN}),
        (leave_alone, {}),
    ],
)
def test_what_a_link_may_not_do_is_found(
    spoil: Callable[[Tampering, bytes], list[bytes]], found: dict[str, int]
) -> None:
    report = simulate(TamperedScenario(spoil).run)

    kinds = [line.partition(":")[0] for line in report.wrong]
    assert {kind: kinds.count(kind) for kind in kinds} == found


# The command


def test_the_command_prints_what_a_seed_that_fails_has_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run", lambda seed, dialect, resumes: simulate(TamperedScenario(drop).run))

    assert command.main(["--seeds", "1", "--start", "7", "--dialect", "rsocket/1.0"]) == 1

    said = capsys.readouterr().out
    assert "seed 7, rsocket/1.0:\n    lost: client-stream-1 down item" in said
    assert "    faults: Faults(" in said
