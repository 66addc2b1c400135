"""Servers are asked by rsocket-java's client, round by round, and what they cost stands in the report."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import report, under_java
from benchmarks.libraries import JAVA, UNDER_JAVA
from tests.missing import require


def test_each_server_answers_rounds_of_rsocket_java(capsys: pytest.CaptureFixture[str]) -> None:
    for library in UNDER_JAVA:
        require(library.missing())

    of = under_java.main(1, share=0.01, warm=0)

    assert set(of["runs"]) == set(under_java.ROUNDS)
    for name, count in under_java.ROUNDS.items():
        assert set(of["runs"][name]) == {library.name for library in UNDER_JAVA}
        for [one] in of["runs"][name].values():
            assert one["count"] == count / 100
            assert min(one["wall"], one["cpu"]) > 0
    assert all(one["version"] for one in of["libraries"].values())
    assert "W2" in capsys.readouterr().out


def test_servers_under_rsocket_java_stand_side_by_side_and_a_missing_one_is_named() -> None:
    libraries = {one.name: {"title": one.title, "version": "1", "missing": None} for one in UNDER_JAVA}
    libraries["go"] |= {"version": None, "missing": "it is not built"}
    runs = {"rr64": {"trio": [{"cpu": 0.7}], JAVA.name: [{"cpu": 0.2}]}}
    early = {"rr64": {"trio": [], JAVA.name: [{"cpu": 0.4}]}}
    machine = {"processor": "", "cores": 2, "memory_gib": 16, "system": "", "python": "", "date": "", "load": [0.0]}

    aims: dict[str, Any] = {"libraries": {}, "runs": {}}
    page = report.page(
        {"machine": machine, "repeat": 1, "aims": aims, "java": {"libraries": libraries, "runs": runs, "early": early}}
    )

    cells = ["0.700 (0.700 to 0.700)", "0.200 (0.200 to 0.200)", "-", "0.400 (0.400 to 0.400)"]
    assert f"| W2 request/response 64 B, 64 in flight | {' | '.join(cells)} |" in page
    assert "| W2 under rsocket-java's client, to its own server | at most 3.5 | **3.50** (3.50 to 3.50) | yes |" in page
    assert "Missing: rsocket-go, because it is not built." in page
