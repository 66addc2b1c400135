"""What a run costs is read from outside, of both processes; what a peer says last is what an error shows."""

from __future__ import annotations

import os
import sys
import time

import pytest

from benchmarks import harness, typed
from benchmarks.libraries import BY_LIBRARY
from benchmarks.workloads import TYPED
from tests.missing import require

WORK = "large"
"""The workload that ends soonest."""


@pytest.mark.parametrize("library", ["trio", "asyncio", "floor"])
def test_a_run_counts_what_both_processes_used(library: str) -> None:
    require(BY_LIBRARY[library].missing())

    cost = harness.run(library, WORK)

    assert min(cost.wall, cost.client_cpu, cost.server_cpu) > 0
    assert cost.cpu == cost.client_cpu + cost.server_cpu
    assert list(cost.waits) == ["50", "90", "99", "99.9"]
    assert 0 < cost.waits["50"] <= cost.waits["99.9"]


@pytest.mark.parametrize("told", typed.TOLD.values(), ids=typed.TOLD)
def test_objects_are_exchanged_in_each_way_of_ours(told: tuple[str, ...]) -> None:
    cost = harness.run(typed.OURS, TYPED.name, to_server=told, to_client=told)

    assert min(cost.wall, cost.client_cpu, cost.server_cpu) > 0


def test_the_clock_of_a_process_is_the_one_that_it_sees_itself() -> None:
    before = time.process_time()
    seen = harness.cpu_of(os.getpid())

    assert before <= seen <= time.process_time()


def test_a_peer_that_ends_too_soon_is_named_with_its_last_words() -> None:
    program = [sys.executable, "-c", "raise SystemExit('no such workload')"]

    with harness.started(program) as (process, errors), pytest.raises(RuntimeError, match="no such workload"):
        harness.line_of(process, errors)
