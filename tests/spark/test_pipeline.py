"""The example of a pipeline runs, and its bars are those of its trades."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.session import require_spark

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_pipeline.py"
PATIENCE = 240.0
"""Seconds that it may take on a busy machine."""


def test_the_pipeline_ends_with_the_bars_of_all_trades() -> None:
    require_spark()
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "PYTHONPATH": str(EXAMPLE.parents[1])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # By hand: 40 trades a minute, of 1 + n % 3; each symbol has every third number, and so one size.
    sizes = {"ADA": 2, "BOB": 3, "EVE": 1}
    prices = {"ADA": 100, "BOB": 40, "EVE": 7}
    assert lines == [
        f"09:{minute:02} {symbol}: {prices[symbol]} to {prices[symbol] + 6}, {40 * sizes[symbol]} traded"
        for minute in range(5)
        for symbol in sizes
    ] + [f"15 bars, {5 * 40 * 6} traded in all"]
