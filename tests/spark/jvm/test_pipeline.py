"""The example of a pipeline runs, its bars are those of its trades, and the service and the view tell the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from examples import spark_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_pipeline_ends_with_the_bars_of_all_trades(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The job takes the session that there is, and must leave it to the other tests.
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    monkeypatch.setattr("sys.argv", ["spark_pipeline.py"])

    spark_pipeline.main()

    lines = capsys.readouterr().out.splitlines()
    # By hand: 40 trades a minute, of 1 + n % 3; each symbol has every third number, and so one size.
    sizes = {"ADA": 2, "BOB": 3, "EVE": 1}
    prices = {"ADA": 100, "BOB": 40, "EVE": 7}
    assert lines == [
        "3 bars are complete after three minutes",
        *(
            f"09:{minute:02} {symbol}: {prices[symbol]} to {prices[symbol] + 6}, {40 * sizes[symbol]} traded"
            for minute in range(5)
            for symbol in sizes
        ),
        "the day in SQL:",
        *(
            f"{symbol}: {prices[symbol]} to {prices[symbol] + 6}, {200 * sizes[symbol]} traded in 5 bars"
            for symbol in sizes
        ),
    ]
    # What it made in the session is gone with it.
    assert not spark.catalog.tableExists("bars")
