"""Does every dialect cost about the same? Each against ``rsocket/1.0``, in the same interleaved run."""

from __future__ import annotations

import statistics

from benchmarks import harness
from rsocket_trio.rsocket.dialects import DIALECTS

MEASURED = ("rr64", "stream")


def main(repeat: int) -> dict[str, dict[str, float]]:
    """Print and return medians of CPU seconds, by workload and dialect."""
    figures: dict[str, dict[str, float]] = {}
    for workload in MEASURED:
        costs: dict[str, list[float]] = {name: [] for name in DIALECTS}
        for _ in range(repeat):
            for name in DIALECTS:
                costs[name].append(harness.run("trio", workload, dialect=name).cpu)
        figures[workload] = medians = {name: statistics.median(runs) for name, runs in costs.items()}
        best = medians["rsocket/1.0"]
        shown = ", ".join(f"{name} {100 * best / cpu:.0f} %" for name, cpu in medians.items() if name != "rsocket/1.0")
        print(f"{workload}: speed of rsocket/1.0 ({best:.2f} CPU s) is reached to: {shown}", flush=True)
    return figures


if __name__ == "__main__":
    main(5)
