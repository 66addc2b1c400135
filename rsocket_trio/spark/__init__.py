"""Streams of RSocket peers as Spark data: batch and streaming reads of replayable routes and of live streams.

Needs the extra ``spark``; ``ensure_java`` finds the Java that Spark needs, or makes one of the extra ``spark-jre`` fit.
"""

from __future__ import annotations

from rsocket_trio.spark.delivering import SinkError
from rsocket_trio.spark.java import JavaNotFoundError, ensure_java
from rsocket_trio.spark.options import OptionError
from rsocket_trio.spark.ranges import CheckpointError, DataLossError
from rsocket_trio.spark.records import SchemaMismatchError
from rsocket_trio.spark.request_rows import RowError
from rsocket_trio.spark.source import RSocketDataSource, register

__all__ = [
    "CheckpointError",
    "DataLossError",
    "JavaNotFoundError",
    "OptionError",
    "RSocketDataSource",
    "RowError",
    "SchemaMismatchError",
    "SinkError",
    "ensure_java",
    "register",
]
