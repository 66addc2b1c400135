"""The check asks each interpreter of a real Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rsocket_trio.spark.check import check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_every_interpreter_is_asked(spark: SparkSession) -> None:
    found = check(spark)

    assert [(one.place, one.lacks) for one in found] == [("driver", ""), ("planner", ""), ("executor", "")]
    assert found[0].description == found[2].description
