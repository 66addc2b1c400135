"""Finds the highest rate that a server holds within a bound of latency and errors: doubles, then halves the interval.

A rate is held if a trial, a load of its own with connections of its own, stays within the bound. Latencies count from
when requests were due, so a server that falls behind shows in them: the longer a trial, the smaller the overload that
it finds, namely the bound's latency divided by the trial's seconds. A rate that fails is tried once more, since a busy
machine may be the reason, and fails only twice. Where the generator could not keep the schedule, the result says that
it was the limit, and not the server.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Unpack

import attrs
import trio

from rsocket_trio.loadgen import measures
from rsocket_trio.loadgen.histogram import bounds_of
from rsocket_trio.loadgen.load_task import LoadError
from rsocket_trio.loadgen.load_workers import run_plan
from rsocket_trio.loadgen.mix import CLOSED
from rsocket_trio.loadgen.plan import Plan, Terms
from rsocket_trio.loadgen.summary import Summary, milliseconds
from rsocket_trio.values import Unsaid, between

FIRST_RATE = 100.0
"""Requests per second of the first trial, by default."""
TRIAL_SECONDS = 5.0
"""Seconds of a trial, by default."""
PRECISION = 0.05
"""Part of the limit that it may be above the result, by default."""
ATTEMPTS = 2
"""Trials that a rate must fail in."""
SLACK = 1.1
"""The factor by which random arrivals may make more requests due than planned."""
MIN_PRECISION = 0.01
DIGITS = 4
"""Digits of the rates that are tried."""

SERVER, GENERATOR, MAX_RATE = "server", "generator", "max_rate"


@attrs.frozen(kw_only=True)
class Bound:
    """The bound within which a rate is held.

    ``quantile`` of the answered requests, 0 to 1, took ``latency`` seconds at most, and at most ``errors`` of all that
    were due, 0 to 1, failed or were dropped. Raise ``ValueError`` for a part out of its range.
    """

    latency: float = attrs.field(default=0.1, validator=between(1e-6, 3600))
    quantile: float = attrs.field(default=0.99, validator=between(0, 1))
    errors: float = attrs.field(default=0.001, validator=between(0, 1))

    def __str__(self) -> str:
        return f"{_quantile(self.quantile)} at most {milliseconds(self.latency)} ms, errors at most {self.errors:.2%}"

    def broken(self, summary: Summary) -> str:
        """Return how the load of ``summary`` broke the bound; nothing if it was held."""
        total = summary.total
        bad = total.failed + total.dropped
        if bad > self.errors * total.due:
            kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(total.errors.items()))
            dropped = f"{total.dropped} dropped" if total.dropped else ""
            return f"{bad / total.due:.2%} failed or were dropped: {', '.join(filter(None, [kinds, dropped]))}"
        took = total.times[measures.LATENCY].quantile(self.quantile)
        if took is None:
            return "nothing was answered"
        if took > self.latency * measures.NS:
            return f"{_quantile(self.quantile)} was {milliseconds(took / measures.NS)} ms"
        return ""

    def hopeless(self, plan: Plan, summary: Summary) -> bool:
        """Return whether the load of ``plan`` breaks the bound whatever comes behind ``summary``."""
        planned = max((plan.rate or 0.0) * plan.seconds * SLACK, summary.total.due) + 1
        counts = summary.total.times[measures.LATENCY].counts()
        over = sum(count for bucket, count in counts if bounds_of(bucket)[1] > self.latency * measures.NS)
        bad = summary.total.failed + summary.total.dropped
        return over > (1 - self.quantile) * planned + 1 or bad > self.errors * planned + 1


@attrs.frozen(kw_only=True)
class Trial:
    """One load of a search: its ``rate``, whether it ``held`` the bound, and its ``summary``."""

    rate: float
    held: bool
    reason: str
    """The part of the bound that the load broke, with the figure; empty if it held the bound."""
    summary: Summary

    def to_dict(self) -> dict[str, Any]:
        """Return the same for JSON."""
        said = self.summary.to_dict()
        kept = ("measured", "offered", "rps", "due", "ok", "dropped", "late", "errors", "latency", "generator")
        return {
            "rate": self.rate,
            "held": self.held,
            "reason": self.reason,
            **{name: said[name] for name in kept if name in said},
        }

    def __str__(self) -> str:
        times = self.summary.total.quantiles()
        shown = f"p50 {milliseconds(times['p50'])} p99 {milliseconds(times['p99'])} max {milliseconds(times['max'])} ms"
        outcome = "held" if self.held else f"not held: {self.reason}"
        if not self.held and self.summary.limited:
            outcome += ", by the generator"
        return f"{self.rate:g}/s  {self.summary.rps:.1f}/s answered  {shown}  {outcome}"


@attrs.frozen(kw_only=True)
class Limit:
    """The result of a search; ``str()`` is a few lines.

    ``plan`` is that of the last trial, ``bound`` what a rate had to hold, ``trials`` are all in their order.
    """

    plan: Plan
    bound: Bound
    trials: tuple[Trial, ...]
    interrupted: bool = False
    """True if the search was stopped before its end."""
    problem: str | None = None
    """The error that ended the search early, such as the loss of the server; ``None`` if there was none."""

    @property
    def best(self) -> Trial | None:
        """Return the trial with the highest rate that was held; ``None`` if none was."""
        return max((trial for trial in self.trials if trial.held), key=lambda trial: trial.rate, default=None)

    @property
    def rate(self) -> float | None:
        """Return the highest rate that was held, in requests per second; ``None`` if none was."""
        return self.best.rate if self.best is not None else None

    @property
    def broken(self) -> Trial | None:
        """Return the last trial of the lowest rate that was not held; ``None`` if all were."""
        held = self.rate or 0.0
        failed = [trial for trial in reversed(self.trials) if not trial.held and trial.rate > held]
        return min(failed, key=lambda trial: trial.rate, default=None)

    @property
    def of(self) -> str | None:
        """Return what the limit is of: ``"server"``, ``"generator"``, ``"max_rate"``; ``None`` for no full search."""
        if self.interrupted or self.problem is not None:
            return None
        if self.broken is None:
            return MAX_RATE
        return GENERATOR if self.broken.summary.limited else SERVER

    def to_dict(self) -> dict[str, Any]:
        """Return the same for JSON."""
        return {
            "uri": self.plan.uri,
            "tasks": self.plan.tasks,
            "bound": attrs.asdict(self.bound),
            "limit": self.rate,
            "of": self.of,
            "reason": self.broken.reason if self.broken is not None else "",
            "interrupted": self.interrupted,
            "problem": self.problem,
            "trials": [trial.to_dict() for trial in self.trials],
            "best": self.best.summary.to_dict() if self.best is not None else None,
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Sequence[str]:
        held = f"held {self.rate:g} requests/s" if self.rate is not None else "no rate was held"
        lines = [f"{held}: {self.bound}"]
        if self.broken is not None:
            said = f"at {self.broken.rate:g} requests/s {self.broken.reason}"
            if self.of == GENERATOR:
                said = f"the generator was the limit, the server may hold more: {said}; use more workers"
            lines.append(said)
        elif self.of == MAX_RATE:
            lines.append("it was the highest rate to try")
        if self.interrupted:
            lines.append("interrupted: the search was not at its end")
        return lines


def _quantile(part: float) -> str:
    return "max" if part == 1 else f"p{part * 100:g}"


def next_rate(
    low: float | None, high: float | None, *, first: float, lowest: float, highest: float, precision: float
) -> float | None:
    """Return the rate to try, where ``low`` was held and ``high`` was not; ``None`` for one that is not known yet.

    Return ``None`` if the limit is known well enough.
    """
    if low is None:
        if high is None:
            return min(first, highest)
        return high / 2 if high / 2 >= lowest else None
    if high is None:
        return min(2 * low, highest) if low < highest else None
    if high <= low * (1 + precision):
        return None
    middle = float(f"{math.sqrt(low * high):.{DIGITS}g}")
    return middle if low < middle < high else None


async def search(
    make: Callable[..., Awaitable[Summary]],
    plan: Plan,
    bound: Bound,
    stop: trio.Event,
    *,
    max_rate: float = math.inf,
    precision: float = PRECISION,
    on_trial: Callable[[Trial], object] = lambda trial: None,
) -> Limit:
    """Find the limit with loads that ``make`` makes, as ``run_plan`` does; ``plan`` is that of the first trial.

    A ``LoadError`` of ``make`` ends the search if it comes twice in a row. Raise it if it comes first, ``ValueError``
    for a ``max_rate`` or ``precision`` that cannot be.
    """
    if not max_rate > 0:
        raise ValueError(f"max_rate of {max_rate}: more than 0")
    if not MIN_PRECISION <= precision <= 1:
        raise ValueError(f"precision of {precision}: between {MIN_PRECISION} and 1")
    assert plan.rate is not None
    # A trial with less than one request says nothing.
    choose = partial(next_rate, first=plan.rate, lowest=1 / plan.seconds, highest=max_rate, precision=precision)
    low: float | None = None
    high: float | None = None
    trials: list[Trial] = []
    problem: str | None = None
    while problem is None and (rate := choose(low, high)) is not None:
        plan = attrs.evolve(plan, rate=rate)
        for _ in range(ATTEMPTS):
            try:
                summary = await make(plan, stop=stop, watch=partial(bound.hopeless, plan))
            except LoadError as error:
                if not trials:
                    raise
                # The server may still be busy with what the last trial left.
                problem = str(error)
                continue
            problem = None
            # One that was broken off, since it can't be held any more, was not interrupted.
            summary = attrs.evolve(summary, interrupted=stop.is_set())
            if summary.interrupted:
                return Limit(plan=plan, bound=bound, trials=tuple(trials), interrupted=True)
            reason = bound.broken(summary)
            trials.append(Trial(rate=rate, held=not reason, reason=reason, summary=summary))
            on_trial(trials[-1])
            if not reason:
                break
        if problem is None:
            low, high = (rate, high) if trials[-1].held else (low, rate)
    return Limit(plan=plan, bound=bound, trials=tuple(trials), problem=problem)


def first_plan(uri: str, **terms: Unpack[Terms]) -> Plan:
    """Return the plan of the first trial of a search. Raise ``ValueError`` for terms that no search can have."""
    if terms.get("stages"):
        raise ValueError("a search for the limit chooses its rates: it has no stages")
    if terms.get("arrivals") == CLOSED:
        raise ValueError("a search for the limit chooses its rates: a closed loop has none")
    if terms.get("requests") is not None:
        raise ValueError("a search for the limit has trials of so many seconds, not of so many requests")
    if terms.get("rate") is None:
        terms["rate"] = FIRST_RATE
    if isinstance(terms.get("seconds"), Unsaid | None):
        terms["seconds"] = TRIAL_SECONDS
    return Plan(uri=uri, **terms)


async def find_limit(
    uri: str,
    *,
    bound: Bound | None = None,
    max_rate: float = math.inf,
    precision: float = PRECISION,
    stop: trio.Event | None = None,
    on_trial: Callable[[Trial], object] = lambda trial: None,
    **terms: Unpack[Terms],
) -> Limit:
    """Find the highest rate that the server at ``uri`` holds within ``bound``, with processes of this machine.

    ``terms`` are the fields of ``Plan``: ``rate`` is the first one to try (100), ``seconds`` are those of a trial (5).
    ``max_rate`` is the highest one to try; the search ends when the rate that was not held is at most ``precision``
    above the one that was, 0.05 for 5 %. Setting ``stop`` ends it with what there is. ``on_trial`` gets each trial.

    Raise ``ValueError`` for invalid terms, ``LoadError`` if the first trial cannot begin, ``WorkerError`` if a worker
    dies.
    """
    bound = bound if bound is not None else Bound()
    stop = stop if stop is not None else trio.Event()

    plan = first_plan(uri, **terms)
    return await search(run_plan, plan, bound, stop, max_rate=max_rate, precision=precision, on_trial=on_trial)
