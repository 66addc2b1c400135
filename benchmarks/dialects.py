"""The cost of each dialect beside ``rsocket/1.0``, in the same interleaved run."""

from __future__ import annotations

from benchmarks import harness
from benchmarks.comparing import Runs, interleaved
from rsocket_trio.connection.protocols import ALL, STREAMUX

YARDSTICK = "rsocket/1.0"
MEASURED = ("rr64", "stream", "large")
LACKING = {"stream": {STREAMUX: "has no streams"}}
"""The dialects that can't run a workload, each with the reason; by workload."""


def main(repeat: int) -> Runs:
    """Print and return what each dialect cost, by workload."""
    columns = {
        workload: [YARDSTICK, *(name for name in ALL if name != YARDSTICK and name not in LACKING.get(workload, {}))]
        for workload in MEASURED
    }
    return interleaved(columns, repeat, lambda workload, name: harness.run("trio", workload, dialect=name))


if __name__ == "__main__":
    main(5)
