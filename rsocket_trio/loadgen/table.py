"""Renders the summary of a load as a plain-text table: one line for each second and one for the total."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rsocket_trio.loadgen import recording
from rsocket_trio.loadgen.plan import CLOSED
from rsocket_trio.loadgen.summary import QUANTILES, Counts, Summary

HEAD = ("second", "due", "done", "errors", "dropped", *(f"{name} ms" for name in QUANTILES))
SHARE_OF_LAG = 0.2
"""Part of the p99 latency that may be our own lag before the table warns of it."""
COARSE = 0.002
"""Seconds of lag that timers cause by themselves: no reason for a warning."""


def table(summary: Summary, *, per_second: bool = True) -> str:
    """Return the whole table with its notes, as lines."""
    total = summary.total
    rows: list[Sequence[str]] = [HEAD]
    if per_second:
        rows += [_row(str(second), counts) for second, counts in summary.seconds.items()]
    rows.append(_row("all", total))
    return "\n".join([*aligned(rows), "", *_words(summary)])


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
    if summary.plan.interaction in ("stream", "channel") and total.items:
        first = " ".join(f"{name} {milliseconds(time)}" for name, time in total.quantiles(recording.FIRST_ITEM).items())
        yield f"{total.items} items; ms until the first: {first}"
    if summary.plan.arrivals != CLOSED:
        lag, latency = (total.quantiles(of)["p99"] or 0.0 for of in (recording.LAG, recording.LATENCY))
        if lag > max(COARSE, SHARE_OF_LAG * latency) and not total.late:
            yield (
                f"the load itself was late: p99 of its lag is {milliseconds(lag)} ms, which is part of the latency; "
                "its machine is busy, or the rate is too high for so few tasks"
            )
