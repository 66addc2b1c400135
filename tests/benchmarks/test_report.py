"""The page of what was measured says what the results say, and names what is missing or too slow."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import aims, report, tls
from benchmarks.libraries import LIBRARIES, OBJECTS, OURS, ROOT, THEIRS
from benchmarks.workloads import BY_NAME, WORKLOADS, Workload

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
    ("share", "says"),
    [(1.01, "| aim |"), (0.99, "| must |")],
    ids=["above what it should be", "below it"],
)
def test_a_ratio_is_held_against_what_it_should_be(workload: Workload, share: float, says: str) -> None:
    row = row_of(report.page(results(workload.aim * share, workload)), workload)

    assert says in row


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_ratio_below_what_it_must_be_is_named(workload: Workload) -> None:
    row = row_of(report.page(results(workload.must * 0.99, workload)), workload)

    assert "| **missed** |" in row


def test_the_median_is_said_with_the_least_and_the_most() -> None:
    figures = results(4)
    figures["workloads"]["runs"]["rr64"][THEIRS.name] = [
        {"cpu": cost, "waits": {}, "wall": 1.0} for cost in (3.0, 9.0, 4.0)
    ]

    row = row_of(report.page(figures), BY_NAME["rr64"])

    assert "| 4.00 (3.00 to 9.00) | **4.00** |" in row


def test_a_library_that_is_missing_is_named_with_its_reason() -> None:
    figures = results(4)
    figures["workloads"]["libraries"]["purerpc"] |= {"version": None, "missing": "it is not installed"}

    text = report.page(figures)

    assert "Missing: purerpc, because it is not installed." in text
    assert "purerpc 1" not in text


def test_tables_of_the_pipeline_are_shown_as_they_are() -> None:
    part = {
        "title": "Reads",
        "text": "How fast.",
        "columns": ["", "rows/s"],
        "rows": [["raw", 12]],
        "command": "python x",
    }

    text = report.page({**results(4), "pipeline": [part]})

    assert "### Reads\n\nHow fast.\n\n|  | rows/s |\n| --- | --: |\n| raw | 12 |\n\nMeasured by `python x`." in text


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


def test_what_workers_bring_is_said_as_a_ratio_with_what_a_restart_did() -> None:
    restart = {"restarts": 3, "connections": 1_200, "failed": 2, "longest": 12.4}
    figures = {"machine": MACHINE, "repeat": 1, "workers": {"rates": {"1": [400.0], "2": [700.0]}, "restart": restart}}

    page = report.page(figures)

    assert "| 2 | 700 | 1.75x |" in page
    assert "1,200 new connections asked one request each: 2 failed, and the longest took 12 ms" in page


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


def test_aims_of_other_sections_are_judged_by_their_figures() -> None:
    kib = [{"count": 500, "server_memory": 500 * size * 1024, "client_memory": 0} for size in (11, 13, 14)]
    rates = {count: [{"rate": rate, "cpu": 1.0}] for count, rate in {"1": 100.0, "100": 90.0, "1000": 79.0}.items()}
    scaling = {"connections_64": rates, "connections_1": rates, "streams": rates, "collected": {}}
    figures = aimed(ours=1) | {"memory": {"runs": {"connection": {"trio": kib}}}, "scaling": scaling}

    rows = {row[0]: row[1:] for row in (aim.row(figures) for aim in aims.AIMS)}

    assert rows["W8c idle connection, KiB of the server"] == ["at most 12", "**13.00** (11.00 to 14.00)", "**missed**"]
    assert rows["1,000 connections, 64 in flight on each, to one"][1:] == ["**0.79** (0.79 to 0.79)", "**missed**"]


def test_memory_is_shown_of_both_ends_and_held_against_the_servers_bounds() -> None:
    def grown(server: float, client: float) -> list[dict[str, Any]]:
        return [{"count": 10, "server_memory": 10 * server * 1024, "client_memory": 10 * client * 1024}]

    runs = {name: {OURS.name: grown(4.5, 9), THEIRS.name: grown(7, 8)} for name in ("connection", "open")}

    page = report.page({"machine": MACHINE, "repeat": 1, "memory": {"runs": runs, "pause": 2**20}})

    assert "| W8s open stream, server (5,000 of them) | 4.5 | 7.0 | - | - | 5 | 4 | must |" in page
    assert "| W8s open stream, client (5,000 of them) | 9.0 | 8.0 | - | - |  |  |  |" in page
    assert "grow by 1.0 MiB" in page


COSTS = {"typed": 1.0, "contract": 1.2, "by hand": 0.8, "typed_asyncio": 2.9, "typed_grpcio": 8.0}


def test_objects_are_held_against_bytes_and_against_others() -> None:
    runs = {way: [{"cpu": cost}, {"cpu": 2 * cost}] for way, cost in COSTS.items()}
    figures = {"machine": MACHINE, "repeat": 2, "typed": {"libraries": {}, "runs": runs}}

    page = report.page(figures)

    assert "| typed calls / bytes and msgspec by hand | **1.25 (1.25 to 1.25)** | at most 1.5 | yes |" in page
    assert "| rsocket-py / typed calls | **2.90 (2.90 to 2.90)** | at least 3 | **missed** |" in page
    assert "| grpcio aio / typed calls | **8.00 (8.00 to 8.00)** | at least 1 | yes |" in page


def test_a_part_that_was_measured_by_itself_says_when_and_where() -> None:
    runs = {"typed": [{"cpu": 1.0}]}
    alone = {"typed": {"machine": {**MACHINE, "date": "2026-02-03"}, "repeat": 7}}

    page = report.page({"machine": MACHINE, "repeat": 2, "typed": {"libraries": {}, "runs": runs}, "alone": alone})

    assert "Measured by itself: A processor, 2 cores, 16 GiB; Linux 6; CPython 3.11.7; 2026-02-03; 7 rep" in page


def test_other_pythons_are_shown_as_ratios_to_the_first_beside_the_interpreter_alone() -> None:
    runs = {"3.11.7": [{"cpu": 1.0}, {"cpu": 1.0}], "3.13.0": [{"cpu": 1.2}, {"cpu": 1.2}]}
    pieces = {"create an object with slots": {"3.11.7": 100.0, "3.13.0": 125.0}}
    figures = {"machine": MACHINE, "repeat": 2, "interpreters": {"channel": runs, "pieces": pieces}}

    page = report.page(figures)

    assert "|  | 3.13.0 |" in page
    assert "1.00 (1.00 to 1.00) CPU s of 100,000 on 3.11.7 | 1.20 |" in page
    assert "| create an object with slots, 100 ns on 3.11.7 | 1.25 |" in page


@pytest.mark.parametrize(("theirs", "says"), [(1.01, "| yes |"), (0.99, "| **missed** |")], ids=["behind", "ahead"])
def test_tls_has_to_cost_others_more(theirs: float, says: str) -> None:
    costs = {tls.PLAIN: 0.8, OURS.name: 1.0, THEIRS.name: theirs, tls.GRPCIO.name: 2.0}
    runs = {name: {column: [{"cpu": cost}] for column, cost in costs.items()} for name in tls.NAMES}
    libraries = {one.name: {"title": one.title, "version": "1", "missing": None} for one in (OURS, THEIRS, tls.GRPCIO)}

    page = report.page({"machine": MACHINE, "repeat": 1, "tls": {"libraries": libraries, "runs": runs}})

    assert "## Over TLS" in page
    assert page.count(says) == len(tls.NAMES)
