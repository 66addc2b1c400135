"""The bars of Spark: figures that miss one are told, and so are figures that lack a job."""

from __future__ import annotations

from typing import Any

import pytest

from qa.spark_bars import BARS, missed


def figures(seconds: float, cpu: float) -> dict[str, Any]:
    rows = 1_000_000
    return {
        "jobs": [
            {"job": bar.job, "of": bar.of, "store": bar.store, "rows": rows, "seconds": [seconds] * 3, "cpu": [cpu] * 3}
            for bar in BARS
        ]
    }


@pytest.mark.parametrize("bar", BARS)
def test_a_bar_is_held_or_its_figure_is_told(bar: Any) -> None:
    assert missed(figures(0.8, 1.3), bar) == []
    slow = missed(figures(4.0, 1.4), bar)
    assert [line.partition(": ")[2] for line in slow] == [f"250,000 rows/s, the bar is {bar.rate:,.0f}"]
    assert len(missed(figures(0.8, 2.0), bar)) == (bar.cost is not None)
    assert missed({"jobs": []}, bar) == [f"{bar.job} of {bar.of}, {bar.store}: measured 0 times"]
