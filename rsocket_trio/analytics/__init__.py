"""Computes tables about the requests and frames of a capture in Spark, as functions and as SQL views.

``read_capture`` reads a capture that ``rsocket_trio.capture`` has written. Each function derives one table from others.
``create_views`` registers all tables as views; ``create_duckdb_views`` registers them in DuckDB, which is enough for a
capture that fits on one machine. Needs the extra ``spark``.
"""

from __future__ import annotations

from rsocket_trio.analytics.capture_tables import CaptureTables, Unreadable, name_frames, read_capture, table_schema
from rsocket_trio.analytics.pairing import connections_of, pair, pair_stream, route_names
from rsocket_trio.analytics.request_tables import (
    cancellations,
    client_server,
    client_server_streams,
    credit_stalls,
    latency_heatmap,
    latency_histogram,
    leases,
    red,
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
from rsocket_trio.analytics.views import VIEWS, create_duckdb_views, create_views

__all__ = [
    "VIEWS",
    "CaptureTables",
    "Unreadable",
    "bytes_after_cancel",
    "cancellations",
    "cancelled_streams",
    "capture_health",
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
