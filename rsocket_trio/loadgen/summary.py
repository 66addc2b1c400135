"""Summarizes a load: counts, errors by kind and quantiles of its times, by second and in total, and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rsocket_trio.loadgen import measures
from rsocket_trio.loadgen.histogram import Histogram
from rsocket_trio.loadgen.measures import NS, Row
from rsocket_trio.loadgen.mix import CLOSED

if TYPE_CHECKING:
    from rsocket_trio.loadgen.plan import Plan

QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
TIMES = (measures.LATENCY, measures.SERVICE, measures.LAG, measures.BEHIND, measures.FIRST_ITEM)

HEAD = ("second", "due", "done", "errors", "dropped", *(f"{name} ms" for name in QUANTILES))
SHARE_OF_LAG = 0.2
"""Part of the p99 latency that may be our own lag before the table warns of it."""
COARSE = 0.002
"""Seconds of lag that timers cause by themselves: no reason for a warning."""
BUSY = 0.9
"""Part of its time that a generator's thread runs or waits for a processor when it can do no more."""
FAR_BEHIND = 0.1
"""Seconds behind the schedule, at the 99th percentile, that no busy neighbour explains: it can do no more."""
REACHED = 0.98
"""Part of the rate that was due that counts as all of it."""


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
    busy: float = 0.0
    """The part of its time that the busiest task ran or waited for a processor, 0 to 1."""
    shares: Mapping[str, Counts] = attrs.field(factory=dict)
    """The counts of each share of a mix by its name; empty where requests are all of one kind."""
    lost: str | None = None
    """The reason why the last connection of a task ended, if the load ended without one; else ``None``."""

    @property
    def limited(self) -> bool:
        """Return whether the generator was the limit: it could not keep the schedule, so the server got less.

        Its thread was busy all the time, or far behind, and requests were begun late, waited, or were not answered in
        time. A closed loop has no schedule: there it is enough to be busy.
        """
        if self.plan.arrivals == CLOSED:
            return self.busy >= BUSY
        behind, latency = (self.total.quantiles(of)["p99"] or 0.0 for of in (measures.BEHIND, measures.LATENCY))
        if behind > max(FAR_BEHIND, SHARE_OF_LAG * latency):
            return True
        short = not self.interrupted and self.rps < REACHED * self.offered
        return self.busy >= BUSY and (behind > max(COARSE, SHARE_OF_LAG * latency) or self.total.late > 0 or short)

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
            "stages": [{"rate": stage.rate, "to": stage._end, "seconds": stage.seconds} for stage in self.plan.stages],
            "seed": self.seed,
            "interrupted": self.interrupted,
            "measured": self.measured,
            "offered": self.offered,
            "rps": self.rps,
            "lost": self.lost,
            "generator": {"busy": self.busy, "limit": self.limited},
            **self.total.to_dict(),
            "shares": {name: {"done": counts.done, **counts.to_dict()} for name, counts in self.shares.items()},
            "seconds": [
                {"second": second, "done": counts.done, **counts.to_dict()} for second, counts in self.seconds.items()
            ],
        }

    def __str__(self) -> str:
        return table(self)

    def _per_second(self, count: int) -> float:
        return count / self.measured if self.measured else 0.0


def summarize(plan: Plan, rows: Iterable[Row], *, seed: int, interrupted: bool = False) -> Summary:
    """Return the summary of the rows of all tasks, added up or not."""
    total, seconds = Counts(), dict[int, Counts]()
    shares = {share.name: Counts() for share in plan.mix}
    measured, busy, lost = 0, 0, None
    for second, measure, name, bucket, count in rows:
        if measure == measures.MEASURED:
            measured = max(measured, count)
        elif measure == measures.BUSY:
            busy = max(busy, count)
        elif measure == measures.LOST:
            lost = name
        elif measure not in measures.FACTS:
            share, kind = name, name
            if plan.mix and measure == measures.ERROR:
                share, _, kind = name.rpartition("\t")
            for counts in (total, seconds.setdefault(second, Counts()), *([shares[share]] if plan.mix else [])):
                counts._add(measure, kind, bucket, count)
    return Summary(
        plan=plan,
        seed=seed,
        measured=measured / NS,
        total=total,
        seconds=dict(sorted(seconds.items())),
        interrupted=interrupted,
        busy=busy / 1e6,
        shares=shares,
        lost=lost,
    )


def table(summary: Summary, *, per_second: bool = True) -> str:
    """Return the whole table with its notes, as lines."""
    total = summary.total
    rows: list[Sequence[str]] = [HEAD]
    if per_second:
        rows += [_row(str(second), counts) for second, counts in summary.seconds.items()]
    rows.append(_row("all", total))
    lines = list(aligned(rows))
    if summary.shares:
        lines += [
            "",
            *aligned([("share", *HEAD[1:]), *(_row(name, counts) for name, counts in summary.shares.items())]),
        ]
    return "\n".join([*lines, "", *_words(summary)])


def aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Yield the rows as lines, columns right-aligned and as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))


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
            f"{total.late} requests had to wait because {summary.plan.bound} of a task were under way; "
            f"{total.dropped} of them were dropped after {summary.plan.timeout:g} s"
        )
    if any(share.interaction in ("stream", "channel") for share in summary.plan.shares) and total.items:
        first = " ".join(f"{name} {milliseconds(time)}" for name, time in total.quantiles(measures.FIRST_ITEM).items())
        yield f"{total.items} items; ms until the first: {first}"
    if summary.limited:
        behind = total.quantiles(measures.BEHIND)["p99"]
        late = "" if behind is None else f", and begun requests {milliseconds(behind)} ms late (p99)"
        yield (
            f"the generator was the limit: a task was busy {summary.busy:.0%} of its time{late}; "
            "use more tasks, or another machine"
        )
    elif summary.plan.arrivals != CLOSED:
        lag, latency = (total.quantiles(of)["p99"] or 0.0 for of in (measures.LAG, measures.LATENCY))
        if lag > max(COARSE, SHARE_OF_LAG * latency) and not total.late:
            yield (
                f"the load itself was late: p99 of its lag is {milliseconds(lag)} ms, which is part of the latency; "
                "its machine is busy, or the rate is too high for so few tasks"
            )
