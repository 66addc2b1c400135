"""The comparison: every library on every workload, in turn, again and again."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from benchmarks import harness
from benchmarks.libraries import BY_LIBRARY, LIBRARIES, OURS, THEIRS, Library
from benchmarks.workloads import BY_NAME, IDLE, WORKLOADS

Runs = dict[str, dict[str, list[dict[str, Any]]]]
"""Of each workload, and of each library (or dialect): what the repetitions cost."""
EVERY = tuple(workload.name for workload in WORKLOADS)
OVER_WEBSOCKET = ("rr64", "stream")


def compare(repeat: int, names: Sequence[str] = EVERY) -> dict[str, Any]:
    """Every library that is there, over TCP, on workloads."""
    there = [library for library in LIBRARIES if library.missing() is None]
    for library in LIBRARIES:
        if why := library.missing():
            print(f"{library.title} is missing: {why}")
    columns = {name: [of.name for of in there if name in of.workloads] for name in names}
    runs = interleaved(columns, repeat, lambda name, library: harness.run(library, name, share=share_of(library, name)))
    return {"libraries": described(LIBRARIES), "runs": runs}


def over_websocket(repeat: int) -> Runs:
    """Ours and rsocket-py over aiohttp."""
    there = [library.name for library in (OURS, THEIRS) if library.missing() is None]
    columns = dict.fromkeys(OVER_WEBSOCKET, there)
    return interleaved(
        columns, repeat, lambda name, library: harness.run(library, name, "ws", share=share_of(library, name))
    )


def share_of(library: str, name: str) -> float:
    """The share of the operations that a library is measured on: of those that are counted, slow ones do few."""
    return 1 if BY_NAME[name].seconds else BY_LIBRARY[library].share


def interleaved(columns: dict[str, list[str]], repeat: int, run: Callable[[str, str], harness.Cost]) -> Runs:
    """Run each column of each workload ``repeat`` times, all of them once before any of them again; print medians.

    Whoever comes first in one repetition comes last in the next, so that a machine that slows down slows all.
    """
    runs: Runs = {name: {column: [] for column in of_workload} for name, of_workload in columns.items()}
    for number in range(repeat):
        print(f"repetition {number + 1} of {repeat}", file=sys.stderr)
        for name, of_workload in columns.items():
            for column in of_workload if number % 2 == 0 else reversed(of_workload):
                cost = run(name, column)
                runs[name][column].append({**attrs.asdict(cost), "cpu": cost.cpu})
    for name, of_name in runs.items():
        print_row(name, of_name)
    return runs


def print_row(name: str, runs: dict[str, list[dict[str, Any]]]) -> None:
    """CPU seconds of each column, median (least, most), and what ours is to the first of them; or memory."""
    workload = BY_NAME[name]
    print(f"{workload.label} {workload.what}")
    if workload in IDLE:
        for column, of_column in runs.items():
            kib = {
                role: statistics.median(one[f"{role}_memory"] / one["count"] / 1024 for one in of_column)
                for role in ("server", "client")
            }
            print(
                f"    {column:20} {kib['server']:7.1f} KiB in the server, {kib['client']:7.1f} in the client",
                flush=True,
            )
        return
    first = next(iter(runs), None)
    for column, of_column in runs.items():
        costs = [one["cpu"] for one in of_column]
        middle = statistics.median(costs)
        ratio = middle / statistics.median(one["cpu"] for one in runs[first]) if first else 1
        rate = statistics.median(one["count"] / one["wall"] for one in of_column)
        print(
            f"    {column:20} {middle:7.3f} CPU s of 100,000 ({min(costs):.3f} to {max(costs):.3f}), {ratio:6.2f}x, "
            f"{rate:,.0f}/s",
            flush=True,
        )


def described(libraries: Sequence[Library]) -> dict[str, dict[str, str | None]]:
    """Name, version, and why it is missing, of each library."""
    return {
        library.name: {
            "title": library.title,
            "version": None if library.missing() else library.version(),
            "missing": library.missing(),
        }
        for library in libraries
    }
