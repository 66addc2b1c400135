"""Figures of two processes, second by second, and their bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import attrs

from qa.processes import MIB, descriptors, resident

FLAT = 0.05
"""Share by which a figure may grow after the first tenth."""
SLOPE = 0.5
"""MiB a minute."""
JUDGED = 120.0
"""Seconds of a run from which on what it costs is judged: before, connections are still young."""
SLOPE_JUDGED = 240.0
ADRIFT = 1.1
"""Descriptors for each connection: some are just being replaced."""


@attrs.frozen
class Process:
    """The figures of one process at one moment."""

    memory: int
    tasks: int
    descriptors: int


@attrs.frozen
class Sample:
    """Both at one moment."""

    at: float
    server: Process
    client: Process


def looked_at(pid: int, tasks: int) -> Process:
    """Return the figures that the system has of a process."""
    return Process(resident(pid), tasks, descriptors(pid))


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Return the growth of each second, by the line that fits best."""
    if len(samples) < 2:
        return 0.0
    seconds, values = zip(*samples, strict=True)
    return statistics.linear_regression(seconds, values).slope


@attrs.frozen
class Trend:
    """The course of a figure after the first tenth: its mean in the second tenth and in the last one, and its slope."""

    first: float
    last: float
    slope: float

    @property
    def grown(self) -> float:
        """The part that was added."""
        return self.last / self.first - 1 if self.first else math.inf if self.last else 0.0


def trend(samples: Sequence[Sample], side: str, figure: str) -> Trend:
    """Return the course of a figure of one side."""
    end = samples[-1].at
    points: list[tuple[float, float]] = [
        (sample.at, float(getattr(getattr(sample, side), figure))) for sample in samples if sample.at >= end / 10
    ]
    first = [value for at, value in points if at <= end / 5] or [points[0][1]]
    last = [value for at, value in points if at >= end * 0.9]
    return Trend(statistics.fmean(first), statistics.fmean(last), slope(points))


def misses(samples: Sequence[Sample], connections: int) -> list[str]:
    """Bars that were missed while it ran."""
    found: list[str] = []
    last = samples[-1]
    for side in ("server", "client"):
        start: Process = getattr(samples[0], side)
        most = max(getattr(sample, side).descriptors for sample in samples)
        if most > start.descriptors + connections * ADRIFT + 10:
            found.append(f"{side}: {most} descriptors for {connections} connections")
        if last.at < JUDGED:
            continue
        for figure in ("memory", "tasks"):
            went = trend(samples, side, figure)
            if went.grown > FLAT:
                found.append(
                    f"{side}: {figure} grew by {went.grown:.1%} after the first tenth, and not at most {FLAT:.0%}"
                )
        memory = trend(samples, side, "memory").slope * 60 / MIB
        if last.at >= SLOPE_JUDGED and memory > SLOPE:
            found.append(f"{side}: memory grew by {memory:.2f} MiB a minute, and not at most {SLOPE}")
    return found


def left(before: Sample, after: Sample) -> list[str]:
    """Return the resources that are there at the end and were not at the start."""
    found: list[str] = []
    for side in ("server", "client"):
        for figure in ("tasks", "descriptors"):
            was, now = getattr(getattr(before, side), figure), getattr(getattr(after, side), figure)
            if now > was:
                found.append(f"{side}: {now} {figure} at the end, and {was} at the start")
    return found
