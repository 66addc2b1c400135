"""The protocol between the harness and every client: ready, go, done, and then the figures of the run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from benchmarks.workloads import Workload

PERCENTILES = (50, 90, 99, 99.9)
SETTLE = 1.0
"""Seconds that what was opened is left alone for, before memory is read."""


def asked() -> tuple[str, int, Workload, str, list[str]]:
    """Return what the command line of a client says: scheme, port, workload, dialect, and what more it is told."""
    scheme, port, workload, dialect, *more = sys.argv[1:]
    return scheme, int(port), Workload(**json.loads(workload)), dialect, more


class Meter:
    """Measures the wall, and the waits of single operations where a workload has some.

    ``waits`` are seconds.
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.waits: list[float] = []

    def rounds(self) -> Iterator[Workload]:
        """Yield the first operations, and then, when told to, those that count."""
        yield self.workload.first
        self.waits.clear()
        say("ready")
        begun = time.perf_counter()
        yield self.workload
        wall = time.perf_counter() - begun
        # The processor's clock is read from outside: nothing more may happen until then.
        say("done")
        count = len(self.waits) or self.workload.count
        print(json.dumps({"wall": wall, "count": count, "waits": percentiles(self.waits)}), flush=True)


def say(word: str) -> None:
    """Print a word, and wait for a line."""
    print(word, flush=True)
    sys.stdin.readline()


def percentiles(waits: list[float]) -> dict[str, float]:
    """Milliseconds that so many percent did not exceed."""
    if not waits:
        return {}
    waits.sort()
    return {f"{cut:g}": 1000 * waits[min(len(waits) - 1, int(len(waits) * cut / 100))] for cut in PERCENTILES}
