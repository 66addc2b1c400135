"""Computes tables about the requests and frames of a capture, in DuckDB or Spark, as SQL views and as functions.

``open_duckdb`` and ``open_spark`` open a capture that ``rsocket_trio.capture`` has written, and answer questions about
it. ``create_views`` and ``create_duckdb_views`` register all tables as views. ``read_capture`` reads the capture into
data frames of Spark, and each function derives one table from others. DuckDB needs the extra ``report``, Spark the
extra ``spark``.
"""

from __future__ import annotations

from rsocket_trio.analytics.capture_tables import CaptureTables, Unreadable, name_frames, read_capture, table_schema
from rsocket_trio.analytics.cell_tables import capture_span, cells, latency_heatmap, red
from rsocket_trio.analytics.local_spark import create_views, open_spark
from rsocket_trio.analytics.pairing import connections_of, pair, pair_stream, route_names
from rsocket_trio.analytics.request_tables import (
    cancellations,
    client_server,
    client_server_streams,
    credit_stalls,
    latency_histogram,
    leases,
    route_latency,
    routes,
    stalled_streams,
    starved,
)
from rsocket_trio.analytics.traffic_tables import (
    bytes_after_cancel,
    cancelled_streams,
    capture_health,
    connection_seconds,
    connection_timeline,
    error_minutes,
    errors,
    fan_in,
    fragmentation,
    frame_sizes,
    stream_rate,
)
from rsocket_trio.analytics.views import VIEWS, Answer, create_duckdb_views, open_duckdb

__all__ = [
    "VIEWS",
    "Answer",
    "CaptureTables",
    "Unreadable",
    "bytes_after_cancel",
    "cancellations",
    "cancelled_streams",
    "capture_health",
    "capture_span",
    "cells",
    "client_server",
    "client_server_streams",
    "connection_seconds",
    "connection_timeline",
    "connections_of",
    "create_duckdb_views",
    "create_views",
    "credit_stalls",
    "error_minutes",
    "errors",
    "fan_in",
    "fragmentation",
    "frame_sizes",
    "latency_heatmap",
    "latency_histogram",
    "leases",
    "name_frames",
    "open_duckdb",
    "open_spark",
    "pair",
    "pair_stream",
    "read_capture",
    "red",
    "route_latency",
    "route_names",
    "routes",
    "stalled_streams",
    "starved",
    "stream_rate",
    "table_schema",
]
