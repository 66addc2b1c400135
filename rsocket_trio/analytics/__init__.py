"""Computes tables about the requests and frames of a capture, in DuckDB or Spark: as SQL views, and as data frames.

``open_duckdb`` and ``open_spark`` open a capture that ``rsocket_trio.capture`` has written, and answer questions about
it. ``create_duckdb_views`` and ``create_views`` register all tables as views. ``read_capture`` reads the capture into
data frames of Spark, and ``derive`` makes one table of others. All of it needs the extra ``report``, and Spark needs
the extra ``spark``, too.
"""

from __future__ import annotations

from rsocket_trio.analytics.capture_tables import Unreadable
from rsocket_trio.analytics.data_frames import CaptureTables, derive, name_frames, read_capture, table_schema
from rsocket_trio.analytics.local_spark import create_views, open_spark
from rsocket_trio.analytics.views import VIEWS, Answer, create_duckdb_views, open_duckdb

__all__ = [
    "VIEWS",
    "Answer",
    "CaptureTables",
    "Unreadable",
    "create_duckdb_views",
    "create_views",
    "derive",
    "name_frames",
    "open_duckdb",
    "open_spark",
    "read_capture",
    "table_schema",
]
