"""The rates of a load over time: stages that hold a rate or change it in a straight line, and when requests are due."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence

import attrs


@attrs.frozen
class Stage:
    """A part of a load: ``rate`` requests per second for ``seconds`` seconds.

    With ``to`` the rate changes in a straight line and ends there. A rate of 0 is a pause. Raise ``ValueError`` for a
    rate below 0 and for seconds that are not more than 0.
    """

    rate: float
    seconds: float
    to: float | None = None

    def __attrs_post_init__(self) -> None:
        for rate in (self.rate, self._end):
            if not 0 <= rate < math.inf:
                raise ValueError(f"stage with a rate of {rate}: 0 or more requests per second")
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"stage of {self.seconds} seconds: more than 0")

    @property
    def _end(self) -> float:
        """Return the rate at the end of the stage."""
        return self.rate if self.to is None else self.to

    @property
    def _count(self) -> float:
        """Return how many requests are due in the stage."""
        return (self.rate + self._end) / 2 * self.seconds

    def _reached(self, count: float) -> float:
        """Return the seconds after which ``count`` requests were due: past the stage, or infinite, if it has fewer."""
        if self.rate == self._end:
            return count / self.rate if self.rate else math.inf
        # The root of rate * t + slope / 2 * t**2 = count, in the form that is exact where the slope is small.
        root = self.rate**2 + 2 * (self._end - self.rate) / self.seconds * count
        if root < 0:
            return math.inf
        return 2 * count / (self.rate + math.sqrt(root)) if count else 0.0


def due_times(stages: Iterable[Stage], counts: Iterable[float]) -> Iterator[float]:
    """Yield when each of the ``counts``, which never fall, is reached, in seconds from the start of the first stage.

    End with the last stage.
    """
    begin = before = 0.0
    rest = iter(stages)
    stage = next(rest, None)
    for count in counts:
        while stage is not None and (offset := stage._reached(max(count - before, 0.0))) >= stage.seconds:
            begin, before = begin + stage.seconds, before + stage._count
            stage = next(rest, None)
        if stage is None:
            return
        yield begin + offset


def constant(stages: Iterable[Stage], tasks: int = 1, task: int = 0) -> Iterator[float]:
    """Yield due times at equal distances over all tasks together; the tasks take turns."""
    return due_times(stages, itertools.count(task, tasks))


def poisson(stages: Iterable[Stage], tasks: int, seed: str) -> Iterator[float]:
    """Yield due times as independent users make them: exponential distances, ``tasks / rate`` seconds on average."""
    chance = random.Random(seed)
    distances = (chance.expovariate(1.0) * tasks for _ in itertools.count())
    return due_times(stages, itertools.accumulate(distances))


def random_times(number: int, seconds: float, seed: str) -> Iterator[float]:
    """Yield the due times of so many independent users within so many seconds, in order.

    They are those of ``poisson`` where it happens to make so many requests due.
    """
    chance = random.Random(seed)
    left = 1.0
    for remaining in range(number, 0, -1):
        # The first of so many times that are spread evenly over what is left.
        left *= chance.random() ** (1 / remaining)
        yield seconds * (1 - left)


def seconds_of(stages: Sequence[Stage]) -> float:
    """Return the length of all stages together."""
    return math.fsum(stage.seconds for stage in stages)
