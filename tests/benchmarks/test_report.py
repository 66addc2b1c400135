"""The page of what was measured says what the results say, and names what is missing or too slow."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import report
from benchmarks.libraries import LIBRARIES, OBJECTS, OURS, ROOT, THEIRS
from benchmarks.workloads import WORKLOADS, Workload

MACHINE = {
    "processor": "A processor",
    "cores": 2,
    "memory_gib": 16,
    "system": "Linux 6",
    "python": "CPython 3.11.7",
    "date": "2026-01-02",
    "load": [0.0, 0.0, 0.0],
}


def results(ratio: float, workload: Workload = WORKLOADS[1]) -> dict[str, Any]:
    """Of one workload, in which rsocket-py takes so many times our CPU seconds."""
    cost = {"wall": 1.0, "client_cpu": 0.5, "server_cpu": 0.5, "waits": {"50": 1.5, "99": 2.5}}
    runs = {OURS.name: [{**cost, "cpu": 1.0}], THEIRS.name: [{**cost, "cpu": ratio}]}
    libraries = {one.name: {"title": one.title, "version": "1", "missing": None} for one in LIBRARIES}
    return {"machine": MACHINE, "repeat": 1, "workloads": {"libraries": libraries, "runs": {workload.name: runs}}}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
@pytest.mark.parametrize(
    ("share", "says"), [(1.01, "| aim |"), (0.99, "| must |")], ids=["above what it should be", "below it"]
)
def test_a_ratio_is_held_against_what_it_should_be(workload: Workload, share: float, says: str) -> None:
    row = row_of(report.page(results(workload.aim * share, workload)), workload)

    assert says in row


def test_the_page_in_the_documentation_is_the_one_of_the_results_beside_it() -> None:
    files = [file for file in (report.RESULT, report.PIPELINE) if file.exists()]
    plots = [file.stem for file in sorted((report.PAGE.parent / report.FOLDER).glob("*.svg"))]

    assert report.page(report.read(files), plots) == report.PAGE.read_text()


def test_every_library_has_a_server_and_a_client() -> None:
    for library in (*LIBRARIES, *OBJECTS):
        for role in ("server", "client"):
            suffix = {"node": "js", "python": "py"}[library.runtime]
            assert (ROOT / "benchmarks" / "peers" / f"{library.name}_{role}.{suffix}").is_file()


def row_of(text: str, workload: Workload) -> str:
    """The first row of a workload."""
    return next(line for line in text.splitlines() if line.startswith(f"| {workload.label} "))


def aimed(**cpu: float) -> dict[str, Any]:
    """Results of the aims, of W2 alone."""
    runs = {way: [{"cpu": cost}, {"cpu": 2 * cost}] for way, cost in cpu.items()}
    return {"machine": MACHINE, "repeat": 2, "aims": {"libraries": {}, "runs": {"rr64": runs}}}


@pytest.mark.parametrize(
    ("what", "figures", "row"),
    [
        ("W2 to the floor", aimed(ours=1.5, floor=1), "| at most 1.6 | **1.50** (1.50 to 1.50) | yes |"),
        ("W2 to the floor", aimed(ours=1.7, floor=1), "| at most 1.6 | **1.70** (1.70 to 1.70) | **missed** |"),
        ("W2 to rsocket-js", aimed(ours=1.7, js=2), "| at most 1 | **0.85** (0.85 to 0.85) | yes |"),
        ("W3 to the floor", aimed(ours=1.7, floor=2), "| at most 1.8 | not measured |  |"),
    ],
    ids=["met", "missed", "another library", "not measured"],
)
def test_an_aim_is_met_or_missed_by_the_ratio_of_the_medians(what: str, figures: dict[str, Any], row: str) -> None:
    assert f"| {what} {row}" in report.page(figures)
