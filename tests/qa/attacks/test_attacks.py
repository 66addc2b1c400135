"""Attacks in a quick size: the reaction asked for, bounded memory, nothing left, the neighbour served.

Their bounds are times and sizes, which want a quiet machine: some are made here, all by ``make gate``.
"""

from __future__ import annotations

import pytest

from qa.attacks.harness import Attack, run
from qa.attacks.rows import ATTACKS
from tests.each_row import ALL_CASES
from tests.missing import missing_aeron, require

HERE = ("tiny-fragments", "rapid-reset")
MORE = (
    "before-setup",
    "kept-streams",
    "keepalive-unread",
    "long-text",
    "http2-resets",
    "announced",
    "entries-bomb",
    "push-flood",
    "unknown-streams",
    "beyond-lease",
    "sleepers-cut",
)
"""Those that are made too where all cases are."""
PLAYED = (*HERE, *MORE) if ALL_CASES else HERE


@pytest.mark.parametrize("attack", [each for each in ATTACKS if each.name in PLAYED], ids=lambda attack: attack.name)
def test_an_attack_costs_no_more_than_it_may_and_harms_nobody_else(attack: Attack) -> None:
    if "aeron" in attack.options.get("schemes", ()):  # type: ignore[operator]
        require(missing_aeron())
    result = run(attack)

    assert result.misses == []
    assert result.probed > 0
