"""``python -m qa.analytics``: the report of a large capture, with bars on its time and memory.

The command runs as users start it, on two cores: with DuckDB, and with Spark. Over a hundredth of the capture both
engines must have the same answers.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.analytics import in_duckdb, in_spark
from qa.synthetic import write_capture

FRAMES = 10_000_000
CORES = 2
MOST_SECONDS = 10.0
MOST_MIB = 600
MOST_SECONDS_IN_SPARK = 110.0
MOST_MIB_IN_SPARK = 600
"""Of Python: the heap of Spark's Java is a setting, of 2 GiB."""
COMMAND = ("-c", "from rsocket_trio.cli.entry import main; main()", "analyze")


class Spent(NamedTuple):
    """The seconds, CPU seconds and MiB of memory that one run of a command took, and its exit code."""

    seconds: float
    cpu: float
    mib: float
    code: int


def run(*arguments: str) -> Spent:
    """Run this Python on two cores, and return what it took."""
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    begun = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, *arguments], os.environ)
    os.sched_setaffinity(pid, cores)
    _, status, used = os.wait4(pid, 0)
    seconds = time.perf_counter() - begun
    return Spent(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, os.waitstatus_to_exitcode(status))


def judge(spent: Spent, most_seconds: float, most_mib: float) -> list[str]:
    """Return a line for each bar that was missed."""
    wrong = []
    if spent.code:
        wrong.append(f"the command exited with {spent.code}")
    if spent.seconds > most_seconds:
        wrong.append(f"{spent.seconds:.1f} s, and {most_seconds:.1f} s is the bar")
    if spent.mib > most_mib:
        wrong.append(f"{spent.mib:.0f} MiB, and {most_mib:.0f} MiB is the bar")
    return wrong


def differences(directory: Path) -> list[str]:
    """Return the names of the tables that Spark and DuckDB answer differently."""
    ours, theirs = in_duckdb(str(directory))["sums"], in_spark(str(directory))["sums"]
    return [f"{name}: {ours[name]} in DuckDB, {theirs[name]} in Spark" for name in ours if ours[name] != theirs[name]]


def main() -> int:
    """Print a line for each run. Return 1 if a bar was missed."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        large, small, page = Path(folder, "large"), Path(folder, "small"), Path(folder, "report.html")
        # Elsewhere: the peak of a process counts that of the one that started it.
        run("-m", "benchmarks.analytics", "write", str(large), str(FRAMES))
        bars = {"duckdb": (MOST_SECONDS, MOST_MIB), "spark": (MOST_SECONDS_IN_SPARK, MOST_MIB_IN_SPARK)}
        for engine, (most_seconds, most_mib) in bars.items():
            spent = run(*COMMAND, str(large), "--out", str(page), "--engine", engine)
            wrong += [f"{engine}: {line}" for line in judge(spent, most_seconds, most_mib)]
            size = page.stat().st_size / 2**20 if page.exists() else 0.0
            print(
                f"{engine}, {FRAMES} frames: {spent.seconds:.1f} s on {CORES} cores, {spent.cpu:.1f} s of CPU "
                f"and {spent.mib:.0f} MiB of Python, a page of {size:.1f} MiB",
                flush=True,
            )
            page.unlink(missing_ok=True)
        write_capture(small, FRAMES // 100)
        found = differences(small)
        wrong += found
        print(f"{FRAMES // 100} frames: {'different answers' if found else 'Spark gives the same answers'}")
    for line in wrong:
        print(f"MISSED: {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
