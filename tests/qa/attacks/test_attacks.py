"""Each attack in a quick size: the reaction asked for, bounded memory, nothing left, the neighbour served."""

from __future__ import annotations

import pytest

from qa.attacks.harness import Attack, run
from qa.attacks.rows import ATTACKS
from tests.missing import missing_aeron, require


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_costs_no_more_than_it_may_and_harms_nobody_else(attack: Attack) -> None:
    if "aeron" in attack.options.get("schemes", ()):  # type: ignore[operator]
        require(missing_aeron())
    result = run(attack)

    assert result.misses == []
    assert result.probed > 0


def test_each_attack_has_a_name_of_its_own_and_says_what_it_is() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert all(attack.run.__doc__ for attack in ATTACKS)
