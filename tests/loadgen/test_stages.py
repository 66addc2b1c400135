"""Rates over time: as many requests are due as the area below the rate, and each when the area reaches its number."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from rsocket_trio.loadgen import Stage
from rsocket_trio.loadgen.load_task import arrivals
from rsocket_trio.loadgen.stages import constant, due_times, poisson
from tests.each_row import each_row
from tests.loadgen.loads import plan


def test_a_ramp_reaches_each_request_when_the_area_below_it_says_so() -> None:
    # 2 * t**2 requests are due after t seconds.
    times = list(constant([Stage(0, 10, to=40)]))

    assert len(times) == 200
    assert times == pytest.approx([math.sqrt(number / 2) for number in range(200)])


def test_a_ramp_down_is_one_up_backwards() -> None:
    up = list(due_times([Stage(0, 10, to=40)], [0.5 + number for number in range(200)]))
    down = list(due_times([Stage(40, 10, to=0)], [0.5 + number for number in range(200)]))

    assert [10 - time for time in reversed(up)] == pytest.approx(down)


def test_stages_follow_each_other_and_a_rate_of_nought_is_a_pause() -> None:
    times = list(constant([Stage(10, 1), Stage(0, 2), Stage(5, 1)]))

    assert times == pytest.approx([*(number / 10 for number in range(10)), *(3 + number / 5 for number in range(5))])


@pytest.mark.parametrize("tasks", [1, 3])
def test_constant_arrivals_of_all_tasks_are_those_of_one(tasks: int) -> None:
    stages = [Stage(3, 2, to=50), Stage(50, 1), Stage(50, 2, to=1)]

    times = sorted(itertools.chain.from_iterable(constant(stages, tasks, task) for task in range(tasks)))

    assert times == list(constant(stages))
    assert len(times) == math.ceil(sum(stage._count for stage in stages))


def test_random_arrivals_follow_the_ramp() -> None:
    stages = [Stage(0, 10, to=1000), Stage(1000, 10)]

    times = [time for task in range(2) for time in poisson(stages, 2, f"7/{task}")]

    assert sum(time < 5 for time in times) == pytest.approx(1250, rel=0.1)
    assert sum(5 <= time < 10 for time in times) == pytest.approx(3750, rel=0.1)
    assert sum(time >= 10 for time in times) == pytest.approx(10_000, rel=0.05)
    assert max(times) < 20


def test_any_stages_give_times_that_never_fall_and_end_in_time() -> None:
    chance = random.Random(3)
    for _ in range(200):
        rates = [chance.choice([0.0, 0.1, 1.0, 33.3, chance.uniform(0, 300)]) for _ in range(8)]
        stages = [
            Stage(rate, chance.choice([0.1, 1.0, chance.uniform(0.01, 3)]), to=chance.choice([None, rate, to]))
            for rate, to in itertools.pairwise(rates)
        ]
        times = list(constant(stages))

        assert times == sorted(times)
        assert all(0 <= time < sum(stage.seconds for stage in stages) + 1e-9 for time in times)
        assert len(times) == pytest.approx(sum(stage._count for stage in stages), abs=1.01)


def test_warm_up_is_at_the_first_rate() -> None:
    wanted = plan(rate=None, seconds=3, stages=(Stage(2, 1), Stage(4, 2)), warm_up=1)

    assert list(arrivals(wanted, 0, 1)) == [0.0, 0.5, 1.0, 1.5, 2.0, 2.25, 2.5, 2.75, 3.0, 3.25, 3.5, 3.75]


@each_row(
    ("terms", "said"),
    [
        ((-1.0, 1.0), "rate of -1.0: 0 or more"),
        ((1.0, 1.0, math.inf), "rate of inf: 0 or more"),
        ((math.nan, 1.0), "rate of nan"),
        ((1.0, 0.0), "stage of 0.0 seconds: more than 0"),
    ],
)
def test_a_stage_that_cannot_be_is_refused(terms: tuple[float, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Stage(*terms)
