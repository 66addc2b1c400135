"""Races: whichever of two things comes first, the outcome is one of those that are meant, and nothing is left."""

from __future__ import annotations

import pytest

from qa.simulation.races import RACES, Race, play
from tests.each_row import some

SCHEDULES = 30


@pytest.mark.parametrize("race", some(RACES, 4), ids=lambda race: race.name)
def test_a_race_ends_in_one_of_its_outcomes_in_every_order(race: Race) -> None:
    outcomes = {play(race, schedule) for schedule in range(SCHEDULES)}

    # All of them: a race that only ever ends in one way is none.
    assert outcomes == race.outcomes
