"""Reading the answers of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rsocket_trio.analytics.local_spark import SparkEngine, spark_engine
from rsocket_trio.analytics.views import Answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def opened_in_spark(spark: SparkSession, directory: Path) -> Iterator[SparkEngine]:
    """An engine in the session of the tests, which keeps nothing of the capture afterwards."""
    try:
        yield spark_engine(spark, directory)
    finally:
        spark.catalog.clearCache()


def rows(answer: Answer, *columns: str, **where: object) -> list[tuple[Any, ...]]:
    """These columns of the rows that have these values."""
    return [
        tuple(row[column] for column in columns)
        for row in answer.dicts()
        if all(row[column] == value for column, value in where.items())
    ]


def exactly(answer: Answer) -> tuple[str, tuple[str, ...], list[tuple[object, ...]]]:
    """Rows in their order; floats as far as they agree."""
    return answer.view, answer.columns, [tuple(map(comparable, row)) for row in answer.rows]


def comparable(cell: object) -> object:
    if isinstance(cell, float):
        return float(f"{cell:.9g}")
    return cell.astimezone(UTC).isoformat() if isinstance(cell, datetime) else cell
