"""``python -m qa.spark_bars [--repeat N]``: raw rows through the Spark source and sink, with bars on rates and costs.

The jobs are those of the benchmark, in one run: server, Spark and its workers share two cores. Where they are slow, a
former state of this project is measured behind them, and they have to reach a part of its rates.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import ROOT
from benchmarks.spark import REPEAT
from benchmarks.spark import main as measured

FLOOR_RATIO = 1.3
"""The longest micro-batch of two rows, as a multiple of that of Spark's own rate source."""
FORMER = "c14d5c0"
"""The commit whose rates are measured where a bar is missed."""
FORMER_SHARE = 0.8
"""The least rate of a job that misses its bar, as a part of the former's."""


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


def rate_and_cost(figures: dict[str, Any], bar: Bar) -> tuple[float, float] | None:
    """Return rows a second and microseconds a row of a bar's job, ``None`` unless it was measured once."""
    jobs = [job for job in figures["jobs"] if (job["job"], job["of"], job["store"]) == bar[:3]]
    if len(jobs) != 1:
        return None
    [job] = jobs
    return job["rows"] / statistics.median(job["seconds"]), statistics.median(job["cpu"]) / job["rows"] * 1e6


def missed(figures: dict[str, Any], bar: Bar) -> str:
    """Return a line that says how the figures miss a bar, an empty one if they hold it."""
    if (reached := rate_and_cost(figures, bar)) is None:
        return f"{bar.job} of {bar.of}, {bar.store}: not measured once"
    rate, cost = reached
    if rate >= bar.rate and cost <= bar.cost:
        return ""
    return (
        f"{bar.job}, {bar.store}: {rate:,.0f} rows/s and {cost:.2f} us of CPU a row, the bars are {bar.rate:,.0f} and "
        f"{bar.cost}"
    )


def missed_beside(figures: dict[str, Any], former: dict[str, Any], bar: Bar) -> str:
    """Return the same beside the former's figures."""
    ours, theirs = rate_and_cost(figures, bar), rate_and_cost(former, bar)
    if ours is not None and theirs is not None and ours[0] >= FORMER_SHARE * theirs[0]:
        return ""
    shown = "not measured" if theirs is None else f"{theirs[0]:,.0f} rows/s"
    return f"{missed(figures, bar)}, or {FORMER_SHARE} of the former's rate: {shown}"


def former_figures(repeat: int) -> dict[str, Any]:
    """Measure the former state of the project."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", FORMER], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        words = [sys.executable, "-m", "benchmarks", "spark", "--repeat", str(repeat), "--json", "result.json"]
        subprocess.run(words, cwd=folder, env=os.environ | {"PYTHONPATH": folder}, check=True)
        figures: dict[str, Any] = json.loads(Path(folder, "result.json").read_text())["spark"]
        return figures


def main(arguments: list[str]) -> int:
    """Measure, and print a line for each bar that was missed. Return 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m qa.spark_bars")
    parser.add_argument("--repeat", type=int, default=REPEAT, help=f"repetitions of each job ({REPEAT})")
    repeat = parser.parse_args(arguments).repeat
    figures = measured(repeat)
    slow = [bar for bar in BARS if missed(figures, bar)]
    wrong = []
    if slow:
        print(*(missed(figures, bar) for bar in slow), f"{FORMER}, for comparison:", sep="\n")
        former = former_figures(repeat)
        wrong = [line for bar in slow if (line := missed_beside(figures, former, bar))]
    ours, own = (statistics.median(figures["floor_ms"][name]) for name in ("rsocket", "rate"))
    if ours > FLOOR_RATIO * own:
        wrong.append(f"a micro-batch of two rows: {ours:.0f} ms, and {FLOOR_RATIO} times {own:.0f} ms is the bar")
    for line in wrong or ["all bars are held"]:
        print(line)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
