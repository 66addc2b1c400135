"""Streams of RSocket peers as Spark data: batch and streaming reads of replayable routes and of live streams.

Needs the extra ``spark``; ``ensure_java`` finds the Java that Spark needs, or makes one of the extra ``spark-jre`` fit.
"""

from __future__ import annotations

# ruff: noqa: E402  # with older packages the modules below fail to import, with errors that name no version
from rsocket_trio.spark.installation import JavaNotFoundError, ensure_java, require_versions

require_versions()

from rsocket_trio.spark.errors import (
    CheckpointError,
    DataLossError,
    OptionError,
    RowError,
    SchemaMismatchError,
    SinkError,
    SourceError,
)
from rsocket_trio.spark.progress import Progress
from rsocket_trio.spark.server_sources import ListedSource, list_sources
from rsocket_trio.spark.source import RSocketDataSource, activate, create_view, register

__all__ = [
    "CheckpointError",
    "DataLossError",
    "JavaNotFoundError",
    "ListedSource",
    "OptionError",
    "Progress",
    "RSocketDataSource",
    "RowError",
    "SchemaMismatchError",
    "SinkError",
    "SourceError",
    "activate",
    "create_view",
    "ensure_java",
    "list_sources",
    "register",
]
