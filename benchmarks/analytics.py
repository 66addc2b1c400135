"""The time that the report of a capture takes in Spark and in DuckDB, cold, over the same Parquet files.

``python -m benchmarks.analytics write|spark|duckdb DIRECTORY [FRAMES]`` is one step in a process of its own, as
``main`` runs them; each prints one JSON line.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.descendants import cpu_of_tree, peak_memory
from benchmarks.harness import ROOT

if TYPE_CHECKING:
    from rsocket_trio.analytics.views import Answer

FRAMES = 10_000_000
LONGEST = 1200
"""Seconds after which a step is given up."""


def write(directory: str, frames: int) -> dict[str, Any]:
    """Make the capture."""
    from qa.synthetic import write_capture

    begun = time.perf_counter()
    streams = write_capture(directory, frames)
    spent = time.perf_counter() - begun
    size = sum(path.stat().st_size for path in Path(directory).rglob("*.parquet"))
    return {"seconds": spent, "streams": streams, "bytes": size}


def in_spark(directory: str) -> dict[str, Any]:
    """Every table, from the start of the session on."""
    begun = time.perf_counter()
    from rsocket_trio.analytics.local_spark import open_spark

    with open_spark(directory) as engine:
        ready = time.perf_counter()
        result = _ask_all(engine.ask, begun, ready)
        memory, cpu = peak_memory(os.getpid()), cpu_of_tree(os.getpid())
    return {"session": ready - begun, **result, "memory": memory, "cpu": cpu}


def in_duckdb(directory: str) -> dict[str, Any]:
    """The same tables of the same files."""
    begun = time.perf_counter()
    from rsocket_trio.analytics.views import open_duckdb

    with open_duckdb(directory) as engine:
        result = _ask_all(engine.ask, begun, time.perf_counter())
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {**result, "memory": used.ru_maxrss * 1024, "cpu": used.ru_utime + used.ru_stime}


def _ask_all(ask: Callable[[str], Answer], begun: float, last: float) -> dict[str, Any]:
    """Return the seconds until the last table, those of each, and what the tables sum up to."""
    from rsocket_trio.analytics.views import answers

    tables, sums = {}, {}
    for answer in answers(ask):
        now = time.perf_counter()
        tables[answer.view], last = now - last, now
        sums[answer.view] = digest(answer.rows)
    return {"seconds": last - begun, "tables": tables, "sums": sums}


def digest(rows: Any) -> list[float]:
    """Return the number of rows and the sum of all their numbers, which must be the same in both engines."""
    total = 0.0
    for row in rows:
        for cell in row:
            if isinstance(cell, int | float) and not isinstance(cell, bool) and abs(cell) < 2**53:
                total += cell
            elif isinstance(cell, datetime):
                total += cell.timestamp() % 86400
    return [len(rows), float(f"{total:.9g}") if math.isfinite(total) else 0.0]


def main(frames: int = FRAMES) -> dict[str, Any]:
    """Print and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        directory = str(Path(folder, "capture"))
        made = _step("write", directory, str(frames))
        print(f"a capture of {frames} frames, {made['bytes'] / 2**20:.0f} MiB: written in {made['seconds']:.1f} s")
        spark, duck = _step("spark", directory), _step("duckdb", directory)
    print(f"{'table':24} {'Spark s':>8} {'DuckDB s':>9}  {'rows':>7}")
    for name, seconds in spark["tables"].items():
        agree = (
            ""
            if spark["sums"][name] == duck["sums"][name]
            else f"  DIFFERENT {spark['sums'][name]} {duck['sums'][name]}"
        )
        print(f"{name:24} {seconds:8.1f} {duck['tables'][name]:9.1f}  {spark['sums'][name][0]:7}{agree}")
    print(f"{'all, from a cold start':24} {spark['seconds']:8.1f} {duck['seconds']:9.1f}")
    print(f"{'CPU seconds of it':24} {spark['cpu']:8.1f} {duck['cpu']:9.1f}")
    print(f"{'peak memory, MiB':24} {spark['memory'] / 2**20:8.0f} {duck['memory'] / 2**20:9.0f}")
    return {"frames": frames, "write": made, "spark": spark, "duckdb": duck}


def _step(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.analytics", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{arguments[0]}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


STEPS = {"spark": in_spark, "duckdb": in_duckdb}

if __name__ == "__main__":
    step, where, *more = sys.argv[1:]
    print(json.dumps(write(where, int(more[0])) if step == "write" else STEPS[step](where)))
