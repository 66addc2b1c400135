"""Samples of stacks are counted for the part that was at work, and the report says where the CPU of a workload goes."""

from __future__ import annotations

from pathlib import Path

from benchmarks import harness, profiling
from benchmarks.profiling import OURS


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
