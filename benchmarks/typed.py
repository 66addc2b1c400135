"""The cost of objects: the same order by typed calls, by bytes and msgspec, by rsocket-py and by gRPC, in one run."""

from __future__ import annotations

from typing import Any

from benchmarks import harness
from benchmarks.comparing import described, interleaved
from benchmarks.libraries import OBJECTS
from benchmarks.workloads import TYPED

OURS, RSOCKET_PY, GRPCIO = (library.name for library in OBJECTS)
BY_HAND, CONTRACT = "by hand", "contract"
"""This library with bytes, and msgspec called by hand; and with a class as the contract for both ends."""
TOLD: dict[str, tuple[str, ...]] = {OURS: (), CONTRACT: ("contract",), BY_HAND: ("bytes",)}
"""The arguments of the server and of the client."""
WAYS = {
    OURS: "typed calls",
    CONTRACT: "methods of a contract",
    BY_HAND: "bytes and msgspec by hand",
    RSOCKET_PY: "rsocket-py",
    GRPCIO: "grpcio aio",
}
BOUNDS: tuple[tuple[str, str, float, float | None], ...] = (
    (OURS, BY_HAND, 0, 1.5),
    (CONTRACT, BY_HAND, 0, 1.5),
    (RSOCKET_PY, OURS, 3, None),
    (GRPCIO, OURS, 1, None),
)
"""The bars: times the CPU seconds of the second way that the first one takes, at least or at most."""


def main(repeat: int) -> dict[str, Any]:
    """Print and return what each way cost, and with which versions."""
    there = [library.name for library in OBJECTS if library.missing() is None]
    columns = [column for name in there for column in (TOLD if name == OURS else (name,))]

    def run(workload: str, column: str) -> harness.Cost:
        told = TOLD.get(column, ())
        return harness.run(OURS if column in TOLD else column, workload, to_server=told, to_client=told)

    runs = interleaved({TYPED.name: columns}, repeat, run)[TYPED.name]
    return {"libraries": described(OBJECTS), "runs": runs}


if __name__ == "__main__":
    main(5)
