"""Schedules: how many requests are due, and when."""

from __future__ import annotations

import itertools
import statistics

import pytest

from rsocket_trio.loadgen.load_task import Part, arrivals
from tests.each_row import each_row
from tests.loadgen.loads import plan


def test_poisson_arrivals_come_at_the_rate_and_vary_as_they_should() -> None:
    wanted = plan(arrivals="poisson", rate=2000, tasks=2, seconds=10)

    times = list(arrivals(Part(plan=wanted, task=0, seed=7)))

    distances = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert len(times) == pytest.approx(10_000, rel=0.05)
    # Of an exponential distribution mean and deviation are the same.
    assert statistics.mean(distances) == pytest.approx(0.001, rel=0.05)
    assert statistics.stdev(distances) == pytest.approx(0.001, rel=0.05)


@each_row("arrivals_of", ["constant", "poisson"])
@each_row("tasks", [1, 3])
@each_row("warm_up", [0, 1.5])
def test_a_number_of_requests_is_due_exactly_over_all_tasks(arrivals_of: str, tasks: int, warm_up: float) -> None:
    wanted = plan(rate=7, requests=100, tasks=tasks, arrivals=arrivals_of, warm_up=warm_up)

    by_task = [list(arrivals(Part(plan=wanted, task=task, seed=5))) for task in range(tasks)]

    measured = sorted(time for times in by_task for time in times if time >= warm_up)
    assert len(measured) == 100
    assert wanted._length == 100 / 7
    assert all(times == sorted(times) for times in by_task)
    assert [Part(plan=wanted, task=task, seed=5).requests for task in range(tasks)] == [
        sum(time >= warm_up for time in times) for times in by_task
    ]
    if arrivals_of == "constant" and not warm_up:
        assert measured == [number / 7 for number in range(100)]
