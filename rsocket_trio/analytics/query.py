"""Defines ``Query``: a named table, its SQL for Spark and DuckDB, and the tables that it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from rsocket_trio.analytics.dialect import ask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@attrs.frozen
class Query:
    """One table that is derived from others. ``streams``: whether Spark can keep it up to date over a stream."""

    name: str
    reads: tuple[str, ...]
    sql: str
    streams: bool = False

    def __call__(self, *inputs: DataFrame) -> DataFrame:
        """Return the table, derived from these inputs in the order of ``reads``."""
        return ask(self.sql, **dict(zip(self.reads, inputs, strict=True)))


def percentile(per_mille: int, *, where: str, bucket: str = "bucket") -> str:
    """Return SQL for the middle, in us, of the bucket where the running sum ``upto`` reaches a share of ``total``."""
    reached = f"({where}) AND upto * 1000 >= total * {per_mille}"
    return f"CAST(round(pow(2, (min(CASE WHEN {reached} THEN {bucket} END) + 0.5) / {PER_OCTAVE})) AS BIGINT)"


PER_OCTAVE = 16
"""Buckets of a histogram between a latency and its double: 4.4 % wide each, so a percentile is right within 2.2 %."""
PER_OCTAVE_SHOWN = 4
"""Buckets for each doubling in the heatmap: 19 % wide each."""


def bucket_of(column: str) -> str:
    """Return SQL for the histogram bucket of a duration in us. A duration below 1 us counts as 1 us."""
    # log2 of an engine may miss a whole number by the last bit: 8 us would fall into the bucket below.
    return f"CAST(floor(log2(greatest({column}, 1)) * {PER_OCTAVE} + 1e-9) AS INT)"
