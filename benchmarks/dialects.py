"""Does every dialect cost about the same? Each against ``rsocket/1.0``, in the same interleaved run."""

from __future__ import annotations

import statistics

from benchmarks import harness
from rsocket_trio.connection.dialects import ALL, STREAMUX

YARDSTICK = "rsocket/1.0"
MEASURED = ("rr64", "stream", "large")
LACKING = {"stream": {STREAMUX: "has no streams"}}
"""What a dialect can't be asked for."""


def main(repeat: int) -> dict[str, dict[str, float]]:
    """Print and return medians of CPU seconds, by workload and dialect."""
    figures: dict[str, dict[str, float]] = {}
    for workload in MEASURED:
        lacking = LACKING.get(workload, {})
        costs: dict[str, list[float]] = {name: [] for name in ALL if name not in lacking}
        for _ in range(repeat):
            for name, runs in costs.items():
                runs.append(harness.run("trio", workload, dialect=name).cpu)
        figures[workload] = medians = {name: statistics.median(of_one) for name, of_one in costs.items()}
        best = medians[YARDSTICK]
        shown = [f"{name} {100 * best / cpu:.0f} %" for name, cpu in medians.items() if name != YARDSTICK]
        shown += [f"{name} {why}" for name, why in lacking.items()]
        print(f"{workload}: speed of {YARDSTICK} ({best:.2f} CPU s) is reached to: {', '.join(shown)}", flush=True)
    return figures


if __name__ == "__main__":
    main(5)
