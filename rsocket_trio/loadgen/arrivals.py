"""Computes the due times of a load task's requests, in seconds from the start.

The times are known beforehand: no answer, however late, moves the next request.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from rsocket_trio.loadgen.plan import Plan


def constant(rate: float, tasks: int = 1, task: int = 0) -> Iterator[float]:
    """Yield due times at equal distances over all tasks together; the tasks take turns."""
    for number in itertools.count(task, tasks):
        yield number / rate


def poisson(rate: float, seed: str) -> Iterator[float]:
    """Yield due times as independent users make them: exponential distances, ``1 / rate`` seconds on average."""
    chance = random.Random(seed)
    now = 0.0
    while True:
        now += chance.expovariate(rate)
        yield now


def arrivals(plan: Plan, task: int, seed: int) -> Iterator[float]:
    """Return the due times of one task, warm-up included: none for a closed loop, which has no schedule."""
    if plan.rate is None:
        return iter(())
    if plan.arrivals == "constant":
        offsets = constant(plan.rate, plan.tasks, task)
    else:
        offsets = poisson(plan.rate / plan.tasks, f"{seed}/{task}")
    end = plan.warm_up + plan.seconds
    return itertools.takewhile(lambda offset: offset < end, offsets)
