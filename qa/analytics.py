"""``python -m qa.analytics [--frames N]``: the report of a large capture, with bars on its time and memory.

The command runs as users start it, on two cores: once over a capture that is paired, and with Spark over a hundredth of
it, whose tables must agree with those of DuckDB.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

FRAMES = 10_000_000
CORES = 2
MOST_SECONDS = 10.0
MOST_MIB = 600
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
    from benchmarks.analytics import in_duckdb, in_spark

    ours, theirs = in_duckdb(str(directory))["sums"], in_spark(str(directory))["sums"]
    return [f"{name}: {ours[name]} in DuckDB, {theirs[name]} in Spark" for name in ours if ours[name] != theirs[name]]


def main(arguments: list[str]) -> int:
    """Print a line for each run. Return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m qa.analytics")
    parser.add_argument("--frames", type=int, default=FRAMES, help="of the capture (10000000)")
    parser.add_argument("--no-spark", action="store_true", help="leave out the comparison with Spark")
    asked = parser.parse_args(arguments)
    from rsocket_trio.analytics.synthetic import write_capture

    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        large, small, page = Path(folder, "large"), Path(folder, "small"), Path(folder, "report.html")
        write_capture(large, asked.frames)
        spent = run(*COMMAND, str(large), "--out", str(page))
        wrong += judge(spent, MOST_SECONDS, MOST_MIB)
        print(
            f"{asked.frames} frames: {spent.seconds:.1f} s on {CORES} cores, {spent.cpu:.1f} s of CPU, "
            f"{spent.mib:.0f} MiB, a page of {page.stat().st_size / 2**20:.1f} MiB",
            flush=True,
        )
        if not asked.no_spark:
            write_capture(small, asked.frames // 100)
            found = differences(small)
            wrong += found
            print(f"{asked.frames // 100} frames: {'different answers' if found else 'Spark gives the same answers'}")
    for line in wrong:
        print(f"MISSED: {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
