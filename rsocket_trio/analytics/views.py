"""SQL views of a capture's tables and of all derived ones, in Spark or DuckDB, and the rows of those in a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from rsocket_trio.analytics import request_tables, traffic_tables
from rsocket_trio.analytics.capture_tables import Files, capture_files, read_capture
from rsocket_trio.analytics.sql import (
    DEFAULT_DIALECT,
    DUCKDB_MACROS,
    DUCKDB_TYPES,
    Query,
    for_duckdb,
    for_spark,
    frame_names,
)
from rsocket_trio.capture.schema import BINARY, TABLES

if TYPE_CHECKING:
    import duckdb
    from pyspark.sql import SparkSession
if TYPE_CHECKING:
    from pyspark.sql import SparkSession


QUERIES: Final[tuple[Query, ...]] = (
    *(
        request_tables.ROUTES,
        request_tables.LATENCY_HISTOGRAM,
        request_tables.RED,
        request_tables.ROUTE_LATENCY,
        request_tables.LATENCY_HEATMAP,
    ),
    *(
        request_tables.CREDIT_STALLS,
        request_tables.STALLED_STREAMS,
        traffic_tables.CONNECTION_SECONDS,
        request_tables.STARVED,
    ),
    *(
        request_tables.CANCELLATIONS,
        traffic_tables.CANCELLED_STREAMS,
        traffic_tables.BYTES_AFTER_CANCEL,
        request_tables.LEASES,
    ),
    *(traffic_tables.ERROR_MINUTES, traffic_tables.ERRORS),
    *(
        traffic_tables.CONNECTION_TIMELINE,
        traffic_tables.FAN_IN,
        traffic_tables.FRAME_SIZES,
        traffic_tables.FRAGMENTATION,
        traffic_tables.STREAM_RATE,
    ),
    *(request_tables.CLIENT_SERVER_STREAMS, request_tables.CLIENT_SERVER, traffic_tables.CAPTURE_HEALTH),
)
"""All derived tables, each after the tables that it reads."""
INPUTS: Final = {"requesters": "interactions", "responders": "interactions"}
"""Without a second capture, requesters and responders of one directory are joined with each other."""
VIEWS: Final = (*TABLES, *(query.name for query in QUERIES))


def create_views(
    spark: SparkSession, directory: str | Path, *, server: str | Path | None = None, paired: bool = True
) -> tuple[str, ...]:
    """Register the tables of a capture and all derived tables as temporary views of ``spark``. Return their names.

    ``directory`` and ``paired`` are those of ``read_capture``. ``server`` is the directory of a second capture, of the
    other side: ``client_server`` then joins the requesters of the first with the responders of the second. Without it,
    both sides are read from the one directory.
    """
    capture = read_capture(spark, directory, paired=paired)
    capture.frames.createOrReplaceTempView("frames")
    capture.interactions.createOrReplaceTempView("interactions")
    capture.connections.createOrReplaceTempView("connections")
    names = dict(INPUTS)
    if server is not None:
        read_capture(spark, server, paired=paired).interactions.createOrReplaceTempView("responders")
        names["responders"] = "responders"
    for query in QUERIES:
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {query.name} AS {named(for_spark(query.sql), query, names)}")
    return VIEWS


def create_duckdb_views(connection: duckdb.DuckDBPyConnection, directory: str | Path) -> tuple[str, ...]:
    """Register the views of ``create_views`` in DuckDB, from the capture in ``directory``. Return their names.

    ``connection`` is an open connection of DuckDB. Raise ``Unreadable``.
    """
    for macro in DUCKDB_MACROS:
        connection.execute(macro)
    for table, files in capture_files(directory).items():
        connection.execute(
            f"CREATE OR REPLACE VIEW {'all_' if table == 'frames' else ''}{table} AS {_rows(table, files)}"
        )
    found = connection.execute("SELECT DISTINCT dialect FROM connections").fetchall()
    names = frame_names([dialect for (dialect,) in found] or [DEFAULT_DIALECT])
    source = "all_frames"
    if "dialect" in names:
        known = "(SELECT DISTINCT capture_id, conn_id, dialect FROM connections)"
        chosen = f"coalesce(dialect, '{DEFAULT_DIALECT}') AS dialect"
        source = f"(SELECT f.*, {chosen} FROM all_frames AS f LEFT JOIN {known} AS c USING (capture_id, conn_id))"
    connection.execute(f"CREATE OR REPLACE VIEW frames AS SELECT *, {names} AS frame_name FROM {source}")
    for query in QUERIES:
        text = named(for_duckdb(query.sql), query, INPUTS)
        connection.execute(f"CREATE OR REPLACE VIEW {query.name} AS {text}")
    return VIEWS


def named(sql: str, query: Query, names: dict[str, str]) -> str:
    """Return the query with the names of its input views filled in."""
    return sql.format(**{table: names.get(table, table) for table in query.reads})


def _rows(table: str, files: Files) -> str:
    columns = ", ".join(column.name for column in TABLES[table])
    parts = []
    if files.parquet:
        parts.append(f"SELECT {columns} FROM read_parquet({_list(files.parquet)}, union_by_name = true)")
    if files.jsonl:
        types = ", ".join(f"{column.name}: '{DUCKDB_TYPES[column.type]}'" for column in TABLES[table])
        chosen = ", ".join(
            f"unhex({column.name}) AS {column.name}" if column.type == BINARY else column.name
            for column in TABLES[table]
        )
        parts.append(
            f"SELECT {chosen} FROM read_json({_list(files.jsonl)}, columns = {{{types}}}, format = 'newline_delimited')"
        )
    if not parts:
        nothing = ", ".join(f"CAST(NULL AS {DUCKDB_TYPES[column.type]}) AS {column.name}" for column in TABLES[table])
        return f"SELECT {nothing} WHERE false"
    return " UNION ALL ".join(parts)


def _list(paths: tuple[Path, ...]) -> str:
    quoted = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
    return f"[{quoted}]"


SHARED: Final = (
    *("routes", "latency_histogram", "stalled_streams", "connection_seconds", "cancelled_streams"),
    *("error_minutes", "frame_sizes"),
)
"""Tables cached in memory: others read each of them, and each is much smaller than its sources."""


# The tables of a report


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
