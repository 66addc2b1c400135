"""Samples of stacks are counted for the part that was at work, and the report says where the CPU of a workload goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import harness, profiles, profiling, report
from benchmarks.profiling import KERNEL, OURS, PROGRAM, REST, TRIO

MACHINE = {"processor": "", "cores": 2, "memory_gib": 16, "system": "", "python": "", "date": "", "load": [0.0]}
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


def test_samples_of_all_repetitions_are_added_up_by_workload_and_way(tmp_path: Path) -> None:
    for name in ("rr64-ours-0-client", "rr64-ours-7-server"):
        (tmp_path / f"{name}.folded").write_text(f"{LOOP};{WRITE} 3\n{LOOP} 1\n")
    (tmp_path / "rr64-ws-1-client.folded").write_text(f"{LOOP} 90\n")

    found = profiles.main(tmp_path)

    assert found == {
        "rr64": {
            "ours": {
                "samples": 8,
                "parts": {KERNEL: 0, TRIO: 2, OURS: 6, PROGRAM: 0, REST: 0},
                "functions": {KERNEL: [], TRIO: [[LOOP, 2]], OURS: [[WRITE, 6]], PROGRAM: [], REST: []},
            }
        }
    }


def test_nothing_is_said_of_profiles_that_were_not_kept(tmp_path: Path) -> None:
    assert profiles.main(None) is None
    assert profiles.main(tmp_path) is None


def test_the_page_says_where_the_cpu_goes_in_seconds_and_what_is_next() -> None:
    functions = {KERNEL: [[WRITE, 2]], TRIO: [[LOOP, 2]], OURS: [[WRITE, 6]]}
    parts = {KERNEL: 2, TRIO: 2, OURS: 6, PROGRAM: 0, REST: 0}
    sampled = {"rr64": {"ours": {"samples": 10, "parts": parts, "functions": functions}}}
    aims = {"libraries": {}, "runs": {"rr64": {"ours": [{"cpu": 2.0}]}}}

    page = report.page({"machine": MACHINE, "repeat": 1, "aims": aims, "profiles": sampled})

    row = "| W2 request/response 64 B, 64 in flight, ours | 0.4 (20%) | 0.4 (20%) | 1.2 (60%) | 0 (0%) |"
    assert row in page
    assert "The kernel for `link.Link.write` 20%; Trio in `_run.unrolled_run` 20%; rsocket_trio in" in page
    assert f"Next: {profiles.NEXT['rr64']}" in page
