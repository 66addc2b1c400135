"""Summarizes a load: counts, errors by kind and quantiles of its times, by second and in total, and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from rsocket_trio.loadgen import measures
from rsocket_trio.loadgen.histogram import Histogram
from rsocket_trio.loadgen.measures import NS, Row
from rsocket_trio.loadgen.plan import CLOSED, Plan

QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
TIMES = (measures.LATENCY, measures.SERVICE, measures.LAG, measures.BEHIND, measures.FIRST_ITEM)

HEAD = ("second", "due", "done", "errors", "dropped", *(f"{name} ms" for name in QUANTILES))
MAX_LATENCY_SHARE = 0.2
"""Part of the p99 latency that a generator may be behind its schedule."""
MAX_BEHIND = 0.1
"""Seconds behind the schedule, at the 99th percentile, that no busy neighbour explains: it can do no more."""


@attrs.define
class Counts:
    """Outcomes and times of requests. The histograms are in nanoseconds."""

    due: int = 0
    """Requests that the schedule asked for."""
    ok: int = 0
    """Those that were answered; every answer of a server but an error is one."""
    errors: dict[str, int] = attrs.field(factory=dict)
    """Those that failed, by kind."""
    dropped: int = 0
    """Those that were not begun before their time was over."""
    late: int = 0
    """Those that had to wait to be begun, because too many were under way. They count elsewhere, too."""
    done: int = 0
    """Requests that were answered in this time, whenever they were due."""
    items: int = 0
    """Payloads that were received."""
    times: dict[str, Histogram] = attrs.field(factory=lambda: {name: Histogram() for name in TIMES})
    """``latency``, ``service``, ``lag``, ``behind`` and ``first_item``: see ``measures``."""

    @property
    def failed(self) -> int:
        """Return how many requests failed."""
        return sum(self.errors.values())

    @property
    def unfinished(self) -> int:
        """Return how many requests were under way or waiting when the load was stopped."""
        return self.due - self.ok - self.failed - self.dropped

    def quantiles(self, of: str = measures.LATENCY) -> dict[str, float | None]:
        """Return times in seconds by the names of ``QUANTILES``; ``None`` if nothing was measured.

        ``of`` is ``"latency"``, ``"service"``, ``"lag"``, ``"behind"`` or ``"first_item"``.
        """
        found = {name: self.times[of].quantile(part) for name, part in QUANTILES.items()}
        return {name: None if time is None else time / NS for name, time in found.items()}

    def _add(self, measure: str, name: str, bucket: int | None, count: int) -> None:
        """Add one row of a task: ``count`` for a ``measure``, with the ``name`` of an error or the ``bucket`` of a
        histogram.
        """
        if bucket is not None:
            self.times[measure].merge(Histogram([(bucket, count)]))
        elif measure == measures.ERROR:
            self.errors[name] = self.errors.get(name, 0) + count
        else:
            setattr(self, measure, getattr(self, measure) + count)

    def to_dict(self) -> dict[str, Any]:
        """Return the same for JSON, times in seconds."""
        counts = {name: getattr(self, name) for name in ("due", "ok", "dropped", "late", "unfinished", "items")}
        times = {name: self.quantiles(name) for name in TIMES if self.times[name].total}
        return {**counts, "errors": dict(sorted(self.errors.items())), **times}


@attrs.frozen(kw_only=True)
class Summary:
    """The results of a load, over all tasks; ``str()`` is a table.

    ``plan`` is the plan, ``total`` the counts of the whole load. ``interrupted`` is true if it was stopped by Ctrl-C.
    """

    plan: Plan
    seed: int
    """The seed of all random choices."""
    measured: float
    """Seconds that were measured: those of the plan, or less where the load was stopped."""
    total: Counts
    seconds: Mapping[int, Counts]
    """By the second in which requests were due; ``done`` by the one in which they were answered."""
    interrupted: bool = False
    lost: str | None = None
    """The reason why the last connection of a task ended, if the load ended without one; else ``None``."""

    @property
    def limited(self) -> bool:
        """Return whether the generator was the limit: it was far behind its schedule, so the server got less.

        A closed loop has no schedule, and no such limit.
        """
        behind, latency = (self.total.quantiles(of)["p99"] or 0.0 for of in (measures.BEHIND, measures.LATENCY))
        return behind > max(MAX_BEHIND, MAX_LATENCY_SHARE * latency)

    @property
    def offered(self) -> float:
        """Return the requests per second that the schedule asked for."""
        return self._per_second(self.total.due)

    @property
    def rps(self) -> float:
        """Return the requests per second answered while measuring: less than ``offered`` under overload."""
        if self.plan.arrivals == CLOSED and self.plan.requests is not None:
            # The load ended with the last answer, also where that came as a second was full.
            return self._per_second(self.total.done)
        last = int(self.measured) if self.measured % 1 else int(self.measured) - 1
        return self._per_second(sum(counts.done for second, counts in self.seconds.items() if second <= last))

    def to_dict(self) -> dict[str, Any]:
        """Return the same for JSON."""
        return {
            "uri": self.plan.uri,
            "tasks": self.plan.tasks,
            "arrivals": self.plan.arrivals,
            "rate": self.plan.rate,
            "requests": self.plan.requests,
            "seed": self.seed,
            "interrupted": self.interrupted,
            "measured": self.measured,
            "offered": self.offered,
            "rps": self.rps,
            "lost": self.lost,
            "generator": {"limit": self.limited},
            **self.total.to_dict(),
            "seconds": [
                {"second": second, "done": counts.done, **counts.to_dict()} for second, counts in self.seconds.items()
            ],
        }

    def __str__(self) -> str:
        return table(self)

    def _per_second(self, count: int) -> float:
        return count / self.measured if self.measured else 0.0


def summarize(plan: Plan, rows: Iterable[Row], *, seed: int, interrupted: bool = False) -> Summary:
    """Return the summary of the rows of all tasks, added up or not; what was measured is an average of theirs."""
    total, seconds = Counts(), dict[int, Counts]()
    measured, lost = 0, None
    for second, measure, name, bucket, count in rows:
        if measure == measures.MEASURED:
            measured += count
        elif measure == measures.LOST:
            lost = name
        elif measure not in measures.FACTS:
            for counts in (total, seconds.setdefault(second, Counts())):
                counts._add(measure, name, bucket, count)
    return Summary(
        plan=plan,
        seed=seed,
        measured=measured / plan.tasks / NS,
        total=total,
        seconds=dict(sorted(seconds.items())),
        interrupted=interrupted,
        lost=lost,
    )


def table(summary: Summary, *, per_second: bool = True) -> str:
    """Return the whole table with its notes, as lines; columns are right-aligned and as wide as their widest cell."""
    rows: list[Sequence[str]] = [HEAD]
    if per_second:
        rows += [_row(str(second), counts) for second, counts in summary.seconds.items()]
    rows.append(_row("all", summary.total))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
    return "\n".join([*lines, "", *_words(summary)])


def _row(name: str, counts: Counts) -> Sequence[str]:
    numbers = (counts.due, counts.done, counts.failed, counts.dropped)
    return (name, *map(str, numbers), *map(milliseconds, counts.quantiles().values()))


def milliseconds(seconds: float | None) -> str:
    """Return a time in milliseconds with its significant digits, or ``-``."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f}" if seconds >= 1 else f"{seconds * 1000:.4g}"


def _words(summary: Summary) -> Iterable[str]:
    total = summary.total
    yield f"{summary.rps:.1f} requests/s answered of {summary.offered:.1f} due, in {summary.measured:.1f} s"
    if summary.interrupted:
        yield f"interrupted: {total.unfinished} requests were not waited for"
    for kind, count in sorted(total.errors.items(), key=lambda pair: -pair[1]):
        yield f"{count} x {kind}"
    if total.late:
        yield (
            f"{total.late} requests had to wait because {summary.plan._max_in_flight} of a task were under way; "
            f"{total.dropped} of them were dropped after {summary.plan.timeout:g} s"
        )
    if summary.plan.interaction in ("stream", "channel") and total.items:
        first = " ".join(f"{name} {milliseconds(time)}" for name, time in total.quantiles(measures.FIRST_ITEM).items())
        yield f"{total.items} items; ms until the first: {first}"
    if summary.limited:
        behind = milliseconds(total.quantiles(measures.BEHIND)["p99"])
        yield (
            f"the generator was the limit: it began requests {behind} ms late (p99); use more tasks, or another machine"
        )
