"""Collects the rows of all tables of a report from one capture and computes the shared tables once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from rsocket_trio.analytics.views import create_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHARED: Final = (
    *("routes", "latency_histogram", "stalled_streams", "connection_seconds", "cancelled_streams"),
    *("error_minutes", "frame_sizes"),
)
"""Tables cached in memory: others read each of them, and each is much smaller than its sources."""


@attrs.frozen
class ReportTable:
    """A query of the report: a view, the order of its rows, and their greatest number."""

    view: str
    order: str
    limit: int = 10_000


REPORT_TABLES: Final = (
    ReportTable("red", "minute, role, route, interaction"),
    ReportTable("route_latency", "n DESC, role, route, interaction, metric"),
    ReportTable("latency_heatmap", "minute, role, metric, bucket, route", 200_000),
    ReportTable("credit_stalls", "stall_us DESC, role, route"),
    ReportTable("stalled_streams", "stall_us DESC, capture_id, conn_id, stream_id", 50),
    ReportTable("starved", "stall_us DESC, capture_id, conn_id, stream_id, bytes DESC", 200),
    ReportTable("cancellations", "cancels DESC, role, route, interaction"),
    ReportTable("bytes_after_cancel", "bytes DESC, cancel_dir, route"),
    ReportTable("leases", "lease_granted DESC, capture_id, conn_id", 200),
    ReportTable("errors", "minute, level, error_code, route"),
    ReportTable("connection_timeline", "t_start, capture_id, conn_id", 500),
    ReportTable("fan_in", "capture_id, kind, place"),
    ReportTable("fragmentation", "bytes DESC, side, dir, frame_name"),
    ReportTable("frame_sizes", "minute, side, dir, frame_name, bucket"),
    ReportTable("stream_rate", "second, side, dir, interaction", 50_000),
    ReportTable("client_server", "streams DESC, route, interaction"),
    ReportTable("capture_health", "capture_id, side"),
)


@attrs.frozen
class Answer:
    """Rows of one table, in order. ``more`` is true if rows beyond the limit were left out."""

    view: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    more: bool = False

    def dicts(self) -> Iterator[Mapping[str, object]]:
        """Return the rows as mappings from column name to cell."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


def answers(
    spark: SparkSession, directory: str | Path, *, server: str | Path | None = None, paired: bool = True
) -> Iterator[Answer]:
    """Yield each table of ``REPORT_TABLES`` as soon as it is computed. Takes the arguments of ``create_views``."""
    create_views(spark, directory, server=server, paired=paired)
    for name in SHARED if paired else ("interactions", *SHARED):
        spark.catalog.cacheTable(name)
    try:
        # Computed before it is joined: knowing how small it is, Spark need not shuffle the frames by stream.
        spark.table("cancelled_streams").count()
        roles = {row.role for row in spark.sql("SELECT DISTINCT role FROM latency_histogram").collect()}
        one_sided = server is None and len(roles) < 2
        for asked in REPORT_TABLES:
            if asked.view == "client_server" and one_sided:
                # A join with an empty side would still scan the other one.
                yield Answer(asked.view, tuple(spark.table(asked.view).columns), ())
                continue
            found = spark.sql(f"SELECT * FROM {asked.view} ORDER BY {asked.order} LIMIT {asked.limit + 1}")
            rows = tuple(tuple(map(_in_utc, row)) for row in found.collect())
            yield Answer(asked.view, tuple(found.columns), rows[: asked.limit], len(rows) > asked.limit)
    finally:
        for name in SHARED if paired else ("interactions", *SHARED):
            spark.catalog.uncacheTable(name)


def _in_utc(cell: object) -> object:
    """Convert a timestamp to UTC: Spark returns naive ones in the zone of this process."""
    return cell.astimezone(UTC) if isinstance(cell, datetime) else cell
