"""The bars of Spark: figures that miss one are told, and so are figures that lack a job."""

from __future__ import annotations

from typing import Any

import pytest

from qa.spark_bars import BARS, Bar, missed


def figures(seconds: float, cpu: float) -> dict[str, Any]:
    rows = 1_000_000
    return {
        "jobs": [
            {"job": bar.job, "of": bar.of, "store": bar.store, "rows": rows, "seconds": [seconds] * 3, "cpu": [cpu] * 3}
            for bar in BARS
        ]
    }


@pytest.mark.parametrize("bar", BARS)
def test_a_bar_is_held_or_its_figures_are_told(bar: Bar) -> None:
    assert missed(figures(0.8, 1.3), bar) == ""
    assert "250,000 rows/s and 1.40 us" in missed(figures(4.0, 1.4), bar)
    assert "1,250,000 rows/s and 2.00 us" in missed(figures(0.8, 2.0), bar)
    assert missed({"jobs": []}, bar).endswith("not measured once")
