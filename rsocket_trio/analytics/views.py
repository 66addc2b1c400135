"""Registers the tables of a capture and all tables derived from them as SQL views of Spark or DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

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
