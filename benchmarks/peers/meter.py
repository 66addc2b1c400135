"""What every client does at the borders of what is measured: says that it is ready, waits, and says how it went."""

from __future__ import annotations

import json
import sys
import time

PERCENTILES = (50, 90, 99, 99.9)


class Meter:
    """Measures the wall, and the waits of single operations where a workload has some.

    Used as a context manager around the work; ``waits`` are seconds.
    """

    def __init__(self) -> None:
        self.waits: list[float] = []
        self._begun = 0.0

    def __enter__(self) -> Meter:
        print("ready", flush=True)
        sys.stdin.readline()
        self._begun = time.perf_counter()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            wall = time.perf_counter() - self._begun
            print(json.dumps({"wall": wall, "waits": percentiles(self.waits)}), flush=True)
            # The processor's clock is read from outside: nothing more may happen until then.
            sys.stdin.readline()


def percentiles(waits: list[float]) -> dict[str, float]:
    """Milliseconds that so many percent did not exceed."""
    if not waits:
        return {}
    waits.sort()
    return {f"{cut:g}": 1000 * waits[min(len(waits) - 1, int(len(waits) * cut / 100))] for cut in PERCENTILES}
