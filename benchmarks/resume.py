"""What does resumption cost? The same work with it off, offered by the server, and on, in the same interleaved run."""

from __future__ import annotations

import statistics

from benchmarks import harness
from benchmarks.workloads import BY_NAME

MEASURED = ("stream", "bulk", "rr1", "rr64", "large")
OFF, OFFERED, ON = "off", "offered", "on"
TOLD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    OFF: ((), ()),
    OFFERED: (("resume",), ()),
    ON: (("resume",), ("resume",)),
}
"""What the server and the client are told."""


def main(repeat: int) -> dict[str, dict[str, float]]:
    """Print and return medians of CPU seconds, by workload and by how much of resumption there is."""
    figures: dict[str, dict[str, float]] = {}
    for workload in MEASURED:
        costs: dict[str, list[float]] = {name: [] for name in TOLD}
        for _ in range(repeat):
            for name, (to_server, to_client) in TOLD.items():
                costs[name].append(harness.run("trio", workload, to_server=to_server, to_client=to_client).cpu)
        figures[workload] = medians = {name: statistics.median(runs) for name, runs in costs.items()}
        off = medians[OFF]
        print(
            f"{BY_NAME[workload].what:38} without resumption {off:.2f} CPU s; "
            f"offered {medians[OFFERED] / off:.2f}x, on {medians[ON] / off:.2f}x",
            flush=True,
        )
    return figures


if __name__ == "__main__":
    main(5)
