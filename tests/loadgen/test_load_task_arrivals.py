"""Schedules: how many requests are due, and when."""

from __future__ import annotations

import itertools
import statistics

import pytest

from rsocket_trio.loadgen.load_task import Part, arrivals
from rsocket_trio.loadgen.plan import SECONDS
from rsocket_trio.loadgen.stages import random_times
from tests.each_row import each_row
from tests.loadgen.loads import plan


def test_constant_arrivals_of_all_tasks_together_are_apart_by_the_same() -> None:
    wanted = plan(rate=8, tasks=3, seconds=2)

    times = sorted(itertools.chain.from_iterable(arrivals(wanted, task, 1) for task in range(3)))

    assert times == [number / 8 for number in range(16)]


def test_poisson_arrivals_come_at_the_rate_and_vary_as_they_should() -> None:
    wanted = plan(arrivals="poisson", rate=2000, tasks=2, seconds=10)

    times = list(arrivals(wanted, 0, 7))

    distances = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) == pytest.approx(10_000, rel=0.05)
    # Of an exponential distribution mean and deviation are the same.
    assert statistics.mean(distances) == pytest.approx(0.001, rel=0.05)
    assert statistics.stdev(distances) == pytest.approx(0.001, rel=0.05)


def test_a_seed_gives_each_task_arrivals_of_its_own_that_come_again() -> None:
    wanted = plan(arrivals="poisson", tasks=2)

    first, second = list(arrivals(wanted, 0, 7)), list(arrivals(wanted, 1, 7))

    assert first != second
    assert list(arrivals(wanted, 0, 7)) == first
    assert list(arrivals(wanted, 0, 8)) != first


def test_warm_up_makes_a_schedule_longer() -> None:
    assert list(arrivals(plan(rate=2, seconds=1, warm_up=1), 0, 1)) == [0.0, 0.5, 1.0, 1.5]


def test_a_closed_loop_has_no_schedule() -> None:
    assert list(arrivals(plan(arrivals="closed", rate=None), 0, 1)) == []


@each_row("arrivals_of", ["constant", "poisson"])
@each_row("tasks", [1, 3])
@each_row("warm_up", [0, 1.5])
def test_a_number_of_requests_is_due_exactly_over_all_tasks(arrivals_of: str, tasks: int, warm_up: float) -> None:
    wanted = plan(rate=7, seconds=SECONDS, requests=100, tasks=tasks, arrivals=arrivals_of, warm_up=warm_up)

    by_task = [list(arrivals(wanted, task, 5)) for task in range(tasks)]

    measured = sorted(time for times in by_task for time in times if time >= warm_up)
    assert len(measured) == 100
    assert measured[-1] < warm_up + wanted.seconds
    assert wanted.seconds == 100 / 7
    assert all(times == sorted(times) for times in by_task)
    assert [Part(plan=wanted, task=task, seed=5).requests for task in range(tasks)] == [
        sum(time >= warm_up for time in times) for times in by_task
    ]
    if arrivals_of == "constant":
        assert measured == [warm_up + number / 7 for number in range(100)]


def test_a_number_of_random_times_is_spread_evenly() -> None:
    times = list(random_times(10_000, 10, "seed"))

    distances = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times == sorted(times)
    assert sum(time < 5 for time in times) == pytest.approx(5000, rel=0.05)
    # Of an exponential distribution mean and deviation are the same.
    assert statistics.mean(distances) == pytest.approx(0.001, rel=0.05)
    assert statistics.stdev(distances) == pytest.approx(0.001, rel=0.05)
