"""Lets Spark find the data source by itself: it searches top-level modules whose names begin with ``pyspark_``."""

from __future__ import annotations

from rsocket_trio.spark.source import RSocketDataSource as DefaultSource

__all__ = ["DefaultSource"]
