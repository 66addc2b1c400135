"""When is each request due? In seconds from the start, known beforehand: no answer, however late, moves the next."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from rsocket_trio.loadgen.plan import Plan


def constant(rate: float, tasks: int = 1, task: int = 0) -> Iterator[float]:
    """Equal distances between the requests of all tasks together, which take turns."""
    for number in itertools.count(task, tasks):
        yield number / rate


def poisson(rate: float, seed: str) -> Iterator[float]:
    """Distances as those of many users who do not know of each other: exponential, ``1 / rate`` on average."""
    chance = random.Random(seed)
    now = 0.0
    while True:
        now += chance.expovariate(rate)
        yield now


def arrivals(plan: Plan, task: int, seed: int) -> Iterator[float]:
    """When the requests of one task are due, warm-up included. Nothing for a closed loop, which has no schedule."""
    if plan.rate is None:
        return iter(())
    if plan.arrivals == "constant":
        offsets = constant(plan.rate, plan.tasks, task)
    else:
        offsets = poisson(plan.rate / plan.tasks, f"{seed}/{task}")
    end = plan.warm_up + plan.seconds
    return itertools.takewhile(lambda offset: offset < end, offsets)
