"""``python -m qa.spark_bars``: raw rows through the Spark source and sink, with bars on rates and costs.

The jobs are those of the benchmark, in one run: server, Spark and its workers share two cores.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any, NamedTuple

from benchmarks.spark import REPEAT
from benchmarks.spark import main as measured

FLOOR_RATIO = 1.3
"""The longest micro-batch of two rows, as a multiple of that of Spark's own rate source."""


class Bar(NamedTuple):
    """The least rate of a job in rows a second, and its highest cost in microseconds of CPU a row."""

    job: str
    of: str
    store: str
    rate: float
    cost: float


BARS = (
    Bar("read raw", "2 partitions", "files", 1_200_000, 1.4),
    Bar("write exactlyOnce", "2 partitions", "files", 1_200_000, 1.4),
)


def missed(figures: dict[str, Any], bar: Bar) -> str:
    """Return a line that says how the figures miss a bar, an empty one if they hold it."""
    jobs = [job for job in figures["jobs"] if (job["job"], job["of"], job["store"]) == bar[:3]]
    if len(jobs) != 1:
        return f"{bar.job} of {bar.of}, {bar.store}: not measured once"
    [job] = jobs
    rate = job["rows"] / statistics.median(job["seconds"])
    cost = statistics.median(job["cpu"]) / job["rows"] * 1e6
    if rate >= bar.rate and cost <= bar.cost:
        return ""
    return (
        f"{bar.job}, {bar.store}: {rate:,.0f} rows/s and {cost:.2f} us of CPU a row, the bars are {bar.rate:,.0f} and "
        f"{bar.cost}"
    )


def main() -> int:
    """Measure, and print a line for each bar that was missed. Return 1 if there is one."""
    figures = measured(REPEAT)
    wrong = [line for bar in BARS if (line := missed(figures, bar))]
    ours, own = (statistics.median(figures["floor_ms"][name]) for name in ("rsocket", "rate"))
    if ours > FLOOR_RATIO * own:
        wrong.append(f"a micro-batch of two rows: {ours:.0f} ms, and {FLOOR_RATIO} times {own:.0f} ms is the bar")
    for line in wrong or ["all bars are held"]:
        print(line)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
