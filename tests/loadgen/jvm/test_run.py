"""Loads by a real Spark on a real server: tasks begin together, and their counts add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rsocket_trio.loadgen import Histogram, Plan, run
from tests.blocks import page, snippets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_tasks_make_a_load_together(spark: SparkSession, uri: str) -> None:
    result = run(
        spark, Plan(uri=uri, route="echo", rate=200, seconds=2, tasks=2, connections=2, sizes=(0, 100), seed=5)
    )

    total = result.summary.total
    assert total.due == total.ok + total.failed + total.dropped
    assert total.ok == total.times["latency"].total == total.times["service"].total > 0
    assert total.due == pytest.approx(400, abs=100)
    assert result.summary.measured == pytest.approx(2.0)
    assert not result.summary.interrupted

    rows = result.rows.collect()
    merged = Histogram((row["bucket"], row["count"]) for row in rows if row["measure"] == "latency")
    assert list(merged.counts()) == list(total.times["latency"].counts())
    assert {row["task"] for row in rows if row["measure"] == "ok"} == {0, 1}


def test_the_page_shows_what_works(spark: SparkSession, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    [_, snippet] = snippets(page("docs/howto/loadgen.md"))

    exec(compile(snippet.text, "docs/howto/loadgen.md", "exec"), {"spark": spark, "uri": uri})

    assert "requests/s answered of" in capsys.readouterr().out
