"""Samples of stacks are counted for the part that was at work, and the report says where the CPU of a workload goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import harness, profiles, profiling
from benchmarks.profiling import KERNEL, OURS, PROGRAM, REST, TRIO

LOOP = "trio._core._run:unrolled_run"
WRITE = "rsocket_trio.connection.link:Link.write"


@pytest.mark.parametrize(
    ("stack", "part", "function"),
    [
        ([LOOP, WRITE], OURS, WRITE),
        ([WRITE, LOOP], TRIO, LOOP),
        ([LOOP, WRITE, "socket:socket.send"], OURS, WRITE),
        ([LOOP, WRITE, "[kernel]"], KERNEL, WRITE),
        ([LOOP, "__main__:echo"], PROGRAM, "__main__:echo"),
        (["threading:Thread.run"], REST, "threading:Thread.run"),
    ],
    ids=["ours", "Trio", "called by ours", "the kernel for ours", "a handler", "nobody's"],
)
def test_a_stack_is_counted_for_its_innermost_function_that_belongs_to_a_part(
    stack: list[str], part: str, function: str
) -> None:
    assert profiling.place(stack) == (part, function)


def test_a_run_under_the_sampler_writes_the_stacks_of_both_processes(tmp_path: Path) -> None:
    def profiles() -> list[profiling.Profile]:
        harness.run("trio", "stream", share=0.2, profile=tmp_path / "run")
        return [profiling.read([tmp_path / f"run-{role}.folded"]) for role in ("client", "server")]

    # The ticks of a busy machine may meet neither of so short a run.
    found = next((run for run in (profiles() for _ in range(20)) if all(one.parts[OURS] for one in run)), [])

    assert len(found) == 2
    for profile in found:
        assert profile.parts[OURS] > 0
        assert profile.samples == sum(profile.functions.values())


def test_nothing_is_said_of_profiles_that_were_not_kept(tmp_path: Path) -> None:
    assert profiles.main(None) is None
    assert profiles.main(tmp_path) is None
