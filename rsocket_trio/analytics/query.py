"""What is a query here? A name, its SQL for both engines, and the tables that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from rsocket_trio.analytics.dialect import ask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@attrs.frozen
class Query:
    """One table that is made of others. ``streams``: whether Spark can keep it up to date over a stream."""

    name: str
    reads: tuple[str, ...]
    sql: str
    streams: bool = False

    def __call__(self, *inputs: DataFrame) -> DataFrame:
        """The table, made of these in the order of ``reads``."""
        return ask(self.sql, **dict(zip(self.reads, inputs, strict=True)))


def percentile(per_mille: int, *, where: str, bucket: str = "bucket") -> str:
    """SQL: the middle of the bucket, in us, that a share of ``total`` reaches; ``upto`` is the running sum."""
    reached = f"({where}) AND upto * 1000 >= total * {per_mille}"
    return f"CAST(round(pow(2, (min(CASE WHEN {reached} THEN {bucket} END) + 0.5) / {PER_OCTAVE})) AS BIGINT)"


PER_OCTAVE = 16
"""Buckets of a histogram between a latency and its double: 4.4 % wide each, so a percentile is right within 2.2 %."""
PER_OCTAVE_SHOWN = 4
"""The same in the heatmap: 19 % wide."""


def bucket_of(column: str) -> str:
    """SQL: the bucket of a histogram that a number of us lies in. Below 1 us counts as 1 us."""
    # An engine's log2 may miss a whole number by the last bit, and would put 8 below 8.
    return f"CAST(floor(log2(greatest({column}, 1)) * {PER_OCTAVE} + 1e-9) AS INT)"
