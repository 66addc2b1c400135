"""``python -m qa.spark_bars [--repeat N]``: raw rows through the Spark source and sink, with bars on rates and costs.

The jobs are those of the benchmark, in one run: server, Spark and its workers share two cores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any, NamedTuple

from benchmarks.spark import REPEAT
from benchmarks.spark import main as measured

FLOOR_RATIO = 1.3
"""The longest micro-batch of two rows, as a multiple of that of Spark's own rate source."""


class Bar(NamedTuple):
    """The least rate of a job in rows a second, and its highest cost in microseconds of CPU a row, if it has one."""

    job: str
    of: str
    store: str
    rate: float
    cost: float | None = None


BARS = (
    Bar("read raw", "2 partitions", "files", 1_200_000, 1.4),
    Bar("write exactlyOnce", "2 partitions", "files", 1_000_000, 1.7),
)


def missed(figures: dict[str, Any], bar: Bar) -> list[str]:
    """Return a line for each part of a bar that the figures miss, and one if they lack the job."""
    found = [job for job in figures["jobs"] if (job["job"], job["of"], job["store"]) == bar[:3]]
    if len(found) != 1:
        return [f"{bar.job} of {bar.of}, {bar.store}: measured {len(found)} times"]
    [job] = found
    rate = job["rows"] / statistics.median(job["seconds"])
    cost = statistics.median(job["cpu"]) / job["rows"] * 1e6
    wrong = []
    if rate < bar.rate:
        wrong.append(f"{bar.job}, {bar.store}: {rate:,.0f} rows/s, the bar is {bar.rate:,.0f}")
    if bar.cost is not None and cost > bar.cost:
        wrong.append(f"{bar.job}, {bar.store}: {cost:.2f} us of CPU a row, the bar is {bar.cost}")
    return wrong


def main(arguments: list[str]) -> int:
    """Measure, and print a line for each bar that was missed. Return 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m qa.spark_bars")
    parser.add_argument("--repeat", type=int, default=REPEAT, help=f"repetitions of each job ({REPEAT})")
    figures = measured(parser.parse_args(arguments).repeat)
    wrong = [line for bar in BARS for line in missed(figures, bar)]
    ours, own = (figures["floor_ms"][name] for name in ("rsocket", "rate"))
    if ours > FLOOR_RATIO * own:
        wrong.append(f"a micro-batch of two rows: {ours:.0f} ms, and {FLOOR_RATIO} times {own:.0f} ms is the bar")
    for line in wrong or ["all bars are held"]:
        print(line)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
