"""Servers are asked by rsocket-java's client, round by round, and what they cost stands in the report."""

from __future__ import annotations

import pytest

from benchmarks import under_java
from benchmarks.libraries import UNDER_JAVA
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
