"""Where Spark looks for data sources by itself: in top-level modules whose names begin with ``pyspark_``."""

from __future__ import annotations

from rsocket_trio.spark.source import RSocketDataSource as DefaultSource

__all__ = ["DefaultSource"]
