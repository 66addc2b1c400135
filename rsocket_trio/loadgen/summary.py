"""Counts outcomes and times of a load by second, as rows that add up, and summarizes them: quantiles, and a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import attrs

from rsocket_trio.errors import ApplicationError, RSocketError
from rsocket_trio.loadgen.histogram import Histogram, bucket_of
from rsocket_trio.loadgen.plan import Plan

NS = 1e9

Outcome: TypeAlias = Literal["due", "ok", "error", "dropped", "late", "items", "done"]
"""The outcomes, counted in the second in which a request was due, but ``done`` in the one of its answer."""
Time: TypeAlias = Literal["latency", "service", "lag", "behind", "first_item"]
"""Times in nanoseconds: ``latency`` from when a request was due to the end of its answer, ``service`` the same from
when it was begun, ``lag`` the difference; ``behind`` the part of the lag that the server has no part in, until the load
came to the request; ``first_item`` from when it was due to the first item of a stream or channel."""
Fact: TypeAlias = Literal["measured", "lost", "failed"]
"""Facts of a whole task: the nanoseconds that it measured, why it had no connection at the end of measuring, and why
there was no load."""

TIMEOUT = "Timeout"
"""The kind of error of a request that was not answered in time."""

Row: TypeAlias = tuple[int, str, str, int | None, int]
"""Second, measure, name, bucket, count. The name is the kind of an error or the reason in a fact, else nothing; times
have a bucket of ``histogram``."""


class LoadRecorder:
    """Counts of one task. ``at`` is in seconds from the start, warm-up included; the warm-up is not counted."""

    def __init__(self, warm_up: float = 0.0) -> None:
        self._warm_up = warm_up
        self._counts = Counter[tuple[int, str, str, int | None]]()

    def count(self, at: float, measure: Outcome, name: str = "", number: int = 1) -> None:
        """Count ``number`` events of a measure."""
        if at >= self._warm_up:
            self._counts[math.floor(at - self._warm_up), measure, name, None] += number

    def took(self, at: float, measure: Time, seconds: float) -> None:
        """Record a time in seconds."""
        if at >= self._warm_up:
            # Two readings of a clock that is a float may be apart by less than nothing.
            bucket = bucket_of(max(round(seconds * NS), 0))
            self._counts[math.floor(at - self._warm_up), measure, "", bucket] += 1

    def fact(self, measure: Fact, number: int, name: str = "") -> None:
        """Record a fact of the whole task."""
        self._counts[0, measure, name, None] = number

    def rows(self) -> list[Row]:
        """Return all rows."""
        return [(*key, number) for key, number in self._counts.items()]


def kind_of(error: RSocketError) -> str:
    """Return the kind that an error counts as: its class, and the code of an application error if it chose one."""
    name = type(error).__name__
    if isinstance(error, ApplicationError) and error.code != ApplicationError.default_code:
        return f"{name} 0x{error.code:X}"
    return name


QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
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
    errors: Counter[str] = attrs.field(factory=Counter[str])
    """Those that failed, by kind."""
    dropped: int = 0
    """Those that were not begun before their time was over."""
    late: int = 0
    """Those that had to wait to be begun, because too many were under way. They count elsewhere, too."""
    done: int = 0
    """Requests that were answered in this time, whenever they were due."""
    items: int = 0
    """Payloads that were received."""
    times: dict[str, Histogram] = attrs.field(factory=lambda: {name: Histogram() for name in get_args(Time)})
    """``latency``, ``service``, ``lag``, ``behind`` and ``first_item``: see ``Time``."""

    @property
    def failed(self) -> int:
        """Return how many requests failed."""
        return self.errors.total()

    @property
    def unfinished(self) -> int:
        """Return how many requests were under way or waiting when the load was stopped."""
        return self.due - self.ok - self.failed - self.dropped

    def quantiles(self, of: str = "latency") -> dict[str, float | None]:
        """Return times in seconds by the names of ``QUANTILES``; ``None`` if nothing was measured.

        ``of`` is ``"latency"``, ``"service"``, ``"lag"``, ``"behind"`` or ``"first_item"``.
        """
        times = {name: self.times[of].quantile(part) for name, part in QUANTILES.items()}
        return {name: None if time is None else time / NS for name, time in times.items()}

    def _add(self, measure: str, name: str, bucket: int | None, count: int) -> None:
        if bucket is not None:
            self.times[measure].merge(Histogram([(bucket, count)]))
        elif measure == "error":
            self.errors[name] += count
        else:
            setattr(self, measure, getattr(self, measure) + count)

    def to_dict(self) -> dict[str, Any]:
        """Return the same for JSON, times in seconds."""
        counts = {name: getattr(self, name) for name in ("due", "ok", "dropped", "late", "unfinished", "items")}
        times = {name: self.quantiles(name) for name in self.times if self.times[name].total}
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
        """Return whether the generator was the limit: it was far behind its schedule, so the server got less."""
        behind, latency = (self.total.quantiles(of)["p99"] or 0.0 for of in ("behind", "latency"))
        return behind > max(MAX_BEHIND, MAX_LATENCY_SHARE * latency)

    @property
    def offered(self) -> float:
        """Return the requests per second that the schedule asked for."""
        return self._per_second(self.total.due)

    @property
    def rps(self) -> float:
        """Return the requests per second answered while measuring: less than ``offered`` under overload."""
        last = int(self.measured) if self.measured % 1 else int(self.measured) - 1
        return self._per_second(sum(counts.done for second, counts in self.seconds.items() if second <= last))

    def to_dict(self) -> dict[str, Any]:
        """Return the same for JSON."""
        return {
            **{name: getattr(self.plan, name) for name in ("uri", "tasks", "arrivals", "rate", "requests")},
            **{name: getattr(self, name) for name in ("seed", "interrupted", "measured", "offered", "rps", "lost")},
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
        if measure == "measured":
            measured += count
        elif measure == "lost":
            lost = name
        elif measure not in get_args(Fact):
            for counts in (total, seconds.setdefault(second, Counts())):
                counts._add(measure, name, bucket, count)
    ordered = dict(sorted(seconds.items()))
    time = measured / plan.tasks / NS
    return Summary(
        plan=plan, seed=seed, measured=time, total=total, seconds=ordered, interrupted=interrupted, lost=lost
    )


def table(summary: Summary, *, per_second: bool = True) -> str:
    """Return the whole table with its notes, as lines; columns are right-aligned and as wide as their widest cell."""
    lines = {str(second): counts for second, counts in summary.seconds.items()} if per_second else {}
    rows: list[Sequence[str]] = [HEAD]
    for name, counts in {**lines, "all": summary.total}.items():
        numbers = (counts.due, counts.done, counts.failed, counts.dropped)
        rows.append((name, *map(str, numbers), *map(milliseconds, counts.quantiles().values())))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join([*("  ".join(map(str.rjust, row, widths)) for row in rows), "", *notes(summary)])


def milliseconds(seconds: float | None) -> str:
    """Return a time in milliseconds with its significant digits, or ``-``."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f}" if seconds >= 1 else f"{seconds * 1000:.4g}"


def notes(summary: Summary) -> Iterable[str]:
    """Generate the lines below the table."""
    total = summary.total
    yield f"{summary.rps:.1f} requests/s answered of {summary.offered:.1f} due, in {summary.measured:.1f} s"
    if summary.interrupted:
        yield f"interrupted: {total.unfinished} requests were not waited for"
    for kind, count in total.errors.most_common():
        yield f"{count} x {kind}"
    if total.late:
        yield (
            f"{total.late} requests had to wait because {summary.plan.in_flight} of a task were under way; "
            f"{total.dropped} of them were dropped after {summary.plan.timeout:g} s"
        )
    if summary.plan.interaction in ("stream", "channel") and total.items:
        first = " ".join(f"{name} {milliseconds(time)}" for name, time in total.quantiles("first_item").items())
        yield f"{total.items} items; ms until the first: {first}"
    if summary.limited:
        behind = milliseconds(total.quantiles("behind")["p99"])
        yield (
            f"the generator was the limit: it began requests {behind} ms late (p99); use more tasks, or another machine"
        )
