"""What a run costs is read from outside, of both processes; what a peer says last is what an error shows."""

from __future__ import annotations

import sys

import pytest

from benchmarks import harness, tls, typed
from benchmarks.libraries import BY_LIBRARY
from benchmarks.workloads import BY_NAME, TYPED, WORKLOADS
from tests.each_row import some, whole
from tests.missing import require

TINY = 0.01
"""The share of a workload that a test runs."""


EVERY = [workload.name for workload in WORKLOADS]
PLAYED = {
    "trio": [*EVERY, "connection"],
    "floor": [*EVERY, "open"],
    "js": ["rr1", "channel", "connect"],
    "asyncio": ["bulk"],
}


@pytest.mark.parametrize(
    ("library", "name"), some([(library, name) for library, names in PLAYED.items() for name in names], 2)
)
def test_a_run_counts_what_both_processes_used(library: str, name: str) -> None:
    require(BY_LIBRARY[library].missing())
    workload = BY_NAME[name]

    cost = harness.run(library, name, share=TINY)

    assert min(cost.wall, cost.client_cpu, cost.server_cpu) > 0
    assert cost.count == workload.count * TINY or workload.seconds
    assert cost.cpu == pytest.approx((cost.client_cpu + cost.server_cpu) / cost.count * 100_000)
    assert list(cost.waits) == (["50", "90", "99", "99.9"] if workload.seconds else [])
    assert all(wait > 0 for wait in cost.waits.values())


@whole
@pytest.mark.parametrize("told", typed.TOLD.values())
def test_objects_are_exchanged_in_each_way_of_ours(told: tuple[str, ...]) -> None:
    cost = harness.run(typed.OURS, TYPED.name, to_server=told, to_client=told, share=TINY)

    assert min(cost.wall, cost.client_cpu, cost.server_cpu) > 0


@whole
@pytest.mark.parametrize("library", ["trio", "asyncio"])
def test_a_run_over_tls_counts_what_both_processes_used(library: str) -> None:
    require(BY_LIBRARY[library].missing())
    with tls.certificates() as word:
        cost = tls.run("bulk", library, word=word, share=TINY)

    assert min(cost.wall, cost.client_cpu, cost.server_cpu) > 0


def test_a_peer_that_ends_too_soon_is_named_with_its_last_words() -> None:
    program = [sys.executable, "-c", "raise SystemExit('no such workload')"]

    with harness.started(program) as (process, errors), pytest.raises(RuntimeError, match="no such workload"):
        harness.line_of(process, errors)
