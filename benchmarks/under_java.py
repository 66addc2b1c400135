"""Servers under rsocket-java's client on a warm JVM: ours, rsocket-java's own, and rsocket-go's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from benchmarks import harness
from benchmarks.comparing import described, print_row
from benchmarks.libraries import JAVA, UNDER_JAVA
from benchmarks.markdown import command, cpu, spread, table, versions
from benchmarks.workloads import BY_NAME, CREDIT, OPERATIONS, Workload

ROUNDS = {"rr64": 100_000, "stream": 200_000}
"""Operations that make a round of each workload."""
WARM = 10
"""Rounds that come first and are not counted: the compilers of the JVM are at work in them."""

Runs: TypeAlias = dict[str, list[dict[str, Any]]]
"""Rounds by server."""


@attrs.frozen
class Client:
    """rsocket-java's client, which works a round with whichever server it is told."""

    process: harness.Process
    errors: Path

    def round(self, server: harness.Server, workload: Workload, count: int) -> dict[str, Any]:
        """Work a round, and return what it cost the server: CPU seconds are those of 100,000 operations."""
        at_once = CREDIT if workload.kind == "stream" else workload.concurrency
        before = server.cpu()
        harness.tell(self.process, f"{server.port} {workload.kind} {count} {workload.size} {at_once}")
        wall = float(harness.line_of(self.process, self.errors))
        return {"count": count, "wall": wall, "cpu": (server.cpu() - before) / count * OPERATIONS}


@contextmanager
def asking() -> Iterator[Client]:
    """The client for as long as the block."""
    with harness.started(JAVA.command("client")) as (process, errors):
        assert harness.line_of(process, errors) == "ready\n"
        yield Client(process, errors)


def main(repeat: int, share: float = 1, warm: int = WARM) -> dict[str, Any]:
    """Print and return what each server cost, round by round in turn; or by a share of the operations.

    ``runs`` are the rounds that count, and ``early`` those behind the first one, in which the JVM still compiles.
    """
    for library in UNDER_JAVA:
        if why := library.missing():
            print(f"{library.title} is missing: {why}")
    there = [library.name for library in UNDER_JAVA if library.missing() is None]
    runs: dict[str, Runs] = {}
    early: dict[str, Runs] = {}
    for workload, count in ROUNDS.items() if JAVA.name in there else ():
        with ExitStack() as stack:
            client = stack.enter_context(asking())
            servers = {name: stack.enter_context(harness.server(name)) for name in there}
            made: Runs = {name: [] for name in there}
            for _ in range(warm + repeat):
                for name, server in servers.items():
                    made[name].append(client.round(server, BY_NAME[workload], round(count * share)))
        early[workload] = {name: rounds[1 : repeat + 1] for name, rounds in made.items()}
        runs[workload] = {name: rounds[warm:] for name, rounds in made.items()}
        print_row(workload, runs[workload])
    return {"libraries": described(UNDER_JAVA), "runs": runs, "early": early}


def written(figures: dict[str, Any]) -> list[str]:
    """The section of the report."""
    of = figures["java"]
    rows = []
    for name, runs in of["runs"].items():
        shown = [cpu(runs, library.name) for library in UNDER_JAVA] + [cpu(of["early"][name], JAVA.name)]
        cells = [spread(found) if found else "-" for found in shown]
        rows.append([f"{BY_NAME[name].label} {BY_NAME[name].what}", *cells])
    return [
        "## Under rsocket-java's client",
        (
            "CPU seconds of the server alone for 100,000 operations that rsocket-java's client asks for, on one "
            "connection. A round is 100,000 requests or 200,000 items; servers take turns. The JVM is warm: the first "
            f"{WARM} rounds are not counted. The last column is what its server took in the rounds behind the first, "
            "in which the JVM still compiles."
        ),
        *versions(of["libraries"]),
        table(
            ["CPU s of 100,000, server", *(library.title for library in UNDER_JAVA), f"{JAVA.title}, early rounds"],
            rows,
        ),
        command("java"),
    ]


if __name__ == "__main__":
    main(5)
