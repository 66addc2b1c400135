"""All tables of a capture as SQL views, those of a report with their order, and DuckDB, which answers in this process.

Spark answers the same questions: ``rsocket_trio.analytics.local_spark``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from rsocket_trio.analytics import cell_tables, request_tables, traffic_tables
from rsocket_trio.analytics.capture_tables import (
    HALF_WRITTEN,
    UTC_TIME,
    Files,
    Unreadable,
    capture_files,
    check_dialects,
)
from rsocket_trio.analytics.pairing import CONNECTIONS_OF_FRAMES, PAIR
from rsocket_trio.analytics.sql import (
    DEFAULT_DIALECT,
    DUCKDB_MACROS,
    DUCKDB_TYPES,
    ROUTES,
    Query,
    for_duckdb,
    frame_names,
)
from rsocket_trio.capture.schema import BINARY, TABLES
from rsocket_trio.extras import install_command

if TYPE_CHECKING:
    import duckdb

NO_DUCKDB: Final = f"an analysis needs duckdb: {install_command('report')}"
MEMORY_MIB: Final = 384
"""Memory that DuckDB may take; what needs more is put into files for a while."""
WORDS: Final = {
    "VARCHAR": "string",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "BOOLEAN": "bool",
    "BLOB": BINARY,
    "TIMESTAMP WITH TIME ZONE": UTC_TIME,
    "TIMESTAMP": "timestamp[us]",
    "TIMESTAMP_NS": "timestamp[ns]",
    "DOUBLE": "double",
    "FLOAT": "float",
    "BIGINT[]": "list<int64>",
}
"""Types of columns in Parquet files, by their names in DuckDB."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

QUERIES: Final[tuple[Query, ...]] = (
    ROUTES,
    request_tables.LATENCY_HISTOGRAM,
    request_tables.ROUTE_LATENCY,
    *(request_tables.CREDIT_STALLS, request_tables.STALLED_STREAMS),
    *(traffic_tables.CONNECTION_SECONDS, request_tables.STARVED),
    *(request_tables.CANCELLATIONS, traffic_tables.CANCELLED_STREAMS, traffic_tables.BYTES_AFTER_CANCEL),
    request_tables.LEASES,
    *(traffic_tables.ERROR_MINUTES, traffic_tables.ERRORS),
    *(traffic_tables.CONNECTION_TIMELINE, traffic_tables.FAN_IN),
    *(traffic_tables.FRAME_SIZES, traffic_tables.FRAGMENTATION, traffic_tables.STREAM_RATE),
    *(request_tables.CLIENT_SERVER_STREAMS, request_tables.CLIENT_SERVER, traffic_tables.CAPTURE_HEALTH),
    *cell_tables.QUERIES,
    *(request_tables.SLOW_STREAMS, request_tables.SLOW_MARKS),
    *(request_tables.SLOW_FRAMES_QUERY, request_tables.SLOW_REQUESTS),
)
"""All derived tables, each after the tables that it reads."""
BY_NAME: Final = {query.name: query for query in QUERIES}
INPUTS: Final = {"requesters": "interactions", "responders": "interactions"}
"""Without a second capture, requesters and responders of one directory are joined with each other."""
VIEWS: Final = (*TABLES, *BY_NAME)
KEPT: Final = (
    *("routes", "latency_histogram", "stalled_streams", "connection_seconds", "cancelled_streams", "error_minutes"),
    *("frame_sizes", "capture_span", "shown_routes", "shown_peers", "cells", "request_cells"),
    *("latency_cells", "slow_streams", "slow_marks", "slow_frames"),
)
"""Tables that an engine computes once: others read each of them, and each is much smaller than its sources."""


def kept_for(view: str) -> list[str]:
    """Return the tables of ``KEPT`` that a view reads, itself included, each after those that it reads."""
    needed: dict[str, None] = {}

    def walk(name: str) -> None:
        query = BY_NAME.get(name)
        for source in query.reads if query is not None else ():
            walk(source)
        if name in KEPT:
            needed[name] = None

    walk(view)
    return list(needed)


@attrs.frozen
class ReportTable:
    """A query: a view, the order of its rows, and their greatest number. ``shown``: whether the report reads it."""

    view: str
    order: str
    limit: int = 10_000
    shown: bool = True


REPORT_TABLES: Final = (
    ReportTable("capture_span", "t_from"),
    ReportTable("cells", "t_from, role", 50_000),
    ReportTable("red", "t_from, role, route, interaction"),
    ReportTable("route_latency", "n DESC, role, route, interaction, metric"),
    ReportTable("latency_heatmap", "t_from, role, metric, bucket, route", 200_000, shown=False),
    ReportTable("rate_cells", "t_from, role, route, interaction, peer", 250_000),
    ReportTable("latency_cells", "t_from, role, metric, route, interaction, peer, bucket", 250_000),
    ReportTable("credit_stalls", "stall_us DESC, role, route"),
    ReportTable("stalled_streams", "stall_us DESC, capture_id, conn_id, stream_id", 50),
    ReportTable("starved", "stall_us DESC, capture_id, conn_id, stream_id, bytes DESC", 200),
    ReportTable("starved_pairs", "stall_us DESC, capture_id, conn_id, stream_id, bytes DESC, by_route", 1000),
    ReportTable("cancellations", "cancels DESC, role, route, interaction"),
    ReportTable("bytes_after_cancel", "bytes DESC, cancel_dir, route"),
    ReportTable("leases", "lease_granted DESC, capture_id, conn_id", 200),
    ReportTable("errors", "minute, level, error_code, route"),
    ReportTable("error_cells", "t_from, level, error_code, route, peer, side, dir", 100_000),
    ReportTable("connection_timeline", "t_start, capture_id, conn_id", 500),
    ReportTable("connection_routes", "streams DESC, capture_id, conn_id, route", 20_000),
    ReportTable("shown_peers", "capture_id, conn_id", 20_000),
    ReportTable("shown_routes", "route_id", 20_000, shown=False),
    ReportTable("fan_in", "capture_id, kind, place", shown=False),
    ReportTable("traffic_cells", "t_from, route, peer, conn_id", 100_000),
    ReportTable("fragmentation", "bytes DESC, side, dir, frame_name"),
    ReportTable("frame_sizes", "minute, side, dir, frame_name, bucket", shown=False),
    ReportTable("size_cells", "t_from, dir, frame_name, route, peer, bucket", 200_000),
    ReportTable("stream_rate", "second, side, dir, interaction", 50_000, shown=False),
    ReportTable("slow_requests", "place", 400),
    ReportTable("slow_frames", "place, seq", 30_000),
    ReportTable("client_server", "streams DESC, route, interaction"),
    ReportTable("capture_health", "capture_id, side"),
)


@attrs.frozen
class Answer:
    """The ``rows`` of one ``view``, in order, with its ``columns``; ``more`` is true if rows beyond the limit were left
    out.
    """

    view: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    more: bool = False

    def dicts(self) -> Iterator[Mapping[str, object]]:
        """Return the rows as mappings from column name to cell."""
        return (dict(zip(self.columns, row, strict=True)) for row in self.rows)


class Engine(Protocol):
    """An engine that runs the SQL over one capture."""

    def ask(self, view: str) -> Answer:
        """Return the rows of a view, in the order of the report if it is part of that. Raise ``KeyError``."""
        ...


def answers(engine: Engine) -> Iterator[Answer]:
    """Yield each table that the report reads as soon as the engine has computed it."""
    return (engine.ask(asked.view) for asked in REPORT_TABLES if asked.shown)


def question_of(view: str) -> ReportTable:
    """Return the question for a view; one that is not part of the report is asked for all its columns in order."""
    if view not in VIEWS:
        raise KeyError(f"no view is named {view!r}")
    return next((asked for asked in REPORT_TABLES if asked.view == view), ReportTable(view, "ALL"))


def select(asked: ReportTable, times: Mapping[str, bool]) -> str:
    """Return the SQL of a question. ``times`` says of each column whether it is a timestamp: these come as numbers."""
    chosen = ", ".join(f"unix_micros({name}) AS {name}" if is_time else name for name, is_time in times.items())
    return f"SELECT {chosen} FROM {asked.view} ORDER BY {asked.order} LIMIT {asked.limit + 1}"


def answer_of(asked: ReportTable, times: Mapping[str, bool], rows: list[tuple[object, ...]]) -> Answer:
    """Return the answer with the rows that the SQL of ``select`` gave."""
    cut = rows[: asked.limit]
    if any(times.values()):
        cut = [tuple(map(_cell, row, times.values())) for row in cut]
    return Answer(asked.view, tuple(times), tuple(map(tuple, cut)), len(rows) > asked.limit)


def _cell(cell: object, is_time: bool) -> object:
    return EPOCH + timedelta(microseconds=cell) if is_time and isinstance(cell, int) else cell


def named(sql: str, query: Query, names: Mapping[str, str]) -> str:
    """Return the query with the names of its input views filled in."""
    return sql.format(**{table: names.get(table, table) for table in query.reads})


# DuckDB


class Damaged(Exception):
    """Raised for a file of a capture whose rows cannot be read, though its columns can. Names the file."""


@attrs.define
class DuckdbEngine:
    """Answers questions in DuckDB; ``connection`` has the views of ``create_duckdb_views``."""

    connection: duckdb.DuckDBPyConnection
    _kept: set[str] = attrs.field(factory=set)

    def ask(self, view: str) -> Answer:
        """Return the rows of a view, in the order of the report if it is part of that. Raise ``KeyError``."""
        asked = question_of(view)
        for name in kept_for(view):
            self._keep(name)
        described = self.connection.execute(f"DESCRIBE {view}").fetchall()
        times = {str(row[0]): str(row[1]) == "TIMESTAMP WITH TIME ZONE" for row in described}
        return answer_of(asked, times, self.connection.execute(select(asked, times)).fetchall())

    def _keep(self, name: str) -> None:
        if name not in self._kept:
            self.connection.execute(f"CREATE OR REPLACE TEMPORARY TABLE kept_{name} AS FROM {name}")
            self.connection.execute(f"CREATE OR REPLACE VIEW {name} AS FROM kept_{name}")
            self._kept.add(name)


def need_duckdb() -> Any:
    """Return DuckDB. Raise ``ModuleNotFoundError`` naming the extra if it is missing."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_DUCKDB, name=error.name) from error
    return duckdb


@contextmanager
def open_duckdb(
    directory: str | Path,
    *,
    server: str | Path | None = None,
    paired: bool = True,
    settings: Mapping[str, str] | None = None,
) -> Iterator[DuckdbEngine]:
    """Open the capture in ``directory`` in DuckDB for the block. Raise ``Unreadable``.

    ``server`` and ``paired`` are those of ``create_duckdb_views``; ``settings`` those of DuckDB, as ``memory_limit``.
    A file that turns out to be damaged raises ``Damaged``. Raise ``ModuleNotFoundError`` naming the extra if DuckDB is
    missing.
    """
    duckdb = need_duckdb()
    with tempfile.TemporaryDirectory(prefix="rsocket-trio-") as scratch:
        config: dict[str, Any] = {
            "memory_limit": f"{MEMORY_MIB}MiB",
            "temp_directory": scratch,
            "preserve_insertion_order": "false",
            **(settings or {}),
        }
        with duckdb.connect(config=config) as connection:
            # NULL comes where Spark has it, and times are cut in UTC.
            connection.execute("SET TimeZone = 'UTC'; SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
            connection.execute("SET enable_progress_bar = false")
            create_duckdb_views(connection, directory, server=server, paired=paired)
            try:
                if not paired:
                    _write_pairs(connection, Path(scratch), "interactions")
                    if server is not None:
                        _write_pairs(connection, Path(scratch), "responders")
                yield DuckdbEngine(connection)
            except duckdb.Error as error:
                # What DuckDB says of a damaged page does not say in which file it is.
                for one in (directory, *([server] if server is not None else [])):
                    _find_damage(connection, one, paired, error)
                raise


def create_duckdb_views(
    connection: duckdb.DuckDBPyConnection,
    directory: str | Path,
    *,
    server: str | Path | None = None,
    paired: bool = True,
) -> tuple[str, ...]:
    """Register the views of ``create_views`` in DuckDB, from the capture in ``directory``. Return their names.

    ``connection`` is an open connection of DuckDB; ``server`` and ``paired`` are those of ``create_views``. Raise
    ``Unreadable``.
    """
    for macro in DUCKDB_MACROS:
        connection.execute(macro)
    _read_capture(connection, directory, paired, "")
    names = dict(INPUTS)
    if server is not None:
        _read_capture(connection, server, paired, "server_")
        connection.execute("CREATE OR REPLACE VIEW responders AS FROM server_interactions")
        names["responders"] = "responders"
    for query in QUERIES:
        text = named(for_duckdb(query.sql), query, names)
        connection.execute(f"CREATE OR REPLACE VIEW {query.name} AS {text}")
    return VIEWS


def _read_capture(connection: duckdb.DuckDBPyConnection, directory: str | Path, paired: bool, prefix: str) -> None:
    """Create the views of the three tables of a capture, with this prefix to their names."""
    tables = tuple(TABLES) if paired else ("frames",)
    for table, files in capture_files(directory, tables, partial(_types_of, connection)).items():
        name = f"{prefix}all_frames" if table == "frames" else f"{prefix}{table}"
        connection.execute(f"CREATE OR REPLACE VIEW {name} AS {_rows(table, files)}")
    frames, source = f"{prefix}frames", f"{prefix}all_frames"
    dialects = [DEFAULT_DIALECT]
    if paired:
        found = connection.execute(f"SELECT DISTINCT dialect FROM {prefix}connections").fetchall()
        dialects = [str(dialect) for (dialect,) in found] or dialects
        check_dialects(directory, dialects)
    names = frame_names(dialects)
    if "dialect" in names:
        known = f"(SELECT DISTINCT capture_id, conn_id, dialect FROM {prefix}connections)"
        chosen = f"coalesce(dialect, '{DEFAULT_DIALECT}') AS dialect"
        source = f"(SELECT f.*, {chosen} FROM {source} AS f LEFT JOIN {known} AS c USING (capture_id, conn_id))"
    chosen = ", ".join(column.name for column in TABLES["frames"])
    connection.execute(f"CREATE OR REPLACE VIEW {frames} AS SELECT {chosen}, {names} AS frame_name FROM {source}")
    if not paired:
        for table, query in (("interactions", PAIR), ("connections", CONNECTIONS_OF_FRAMES)):
            text = named(for_duckdb(query.sql), query, {"frames": frames})
            connection.execute(f"CREATE OR REPLACE VIEW {prefix}{table} AS {text}")


def _types_of(connection: duckdb.DuckDBPyConnection, path: Path) -> dict[str, str]:
    import duckdb

    try:
        found = connection.execute(f"DESCRIBE SELECT * FROM read_parquet({_list((path,))})").fetchall()
    except duckdb.Error as error:
        raise Unreadable(f"{path}: {HALF_WRITTEN}: {first_line(error)}") from error
    return {str(row[0]): WORDS.get(str(row[1]), str(row[1]).lower()) for row in found}


def _find_damage(connection: duckdb.DuckDBPyConnection, directory: str | Path, paired: bool, cause: Exception) -> None:
    """Read each file of a capture by itself. Raise ``Damaged`` for the first that cannot be read."""
    import duckdb

    tables = tuple(TABLES) if paired else ("frames",)
    for files in capture_files(directory, tables, partial(_types_of, connection)).values():
        for path in files.parquet:
            try:
                connection.execute(f"SELECT sum(hash(file) % 2) FROM read_parquet({_list((path,))}) AS file").fetchall()
            except duckdb.OutOfMemoryException:
                return
            except duckdb.Error as error:
                raise Damaged(f"{path}: it is damaged: {first_line(error)}") from cause


def first_line(error: Exception) -> str:
    """Return the first line of an error of DuckDB."""
    return str(error).partition("\n")[0]


def _rows(table: str, files: Files) -> str:
    null = {column.name: f"CAST(NULL AS {_type(column.type)}) AS {column.name}" for column in TABLES[table]}
    parts = []
    if files.parquet:
        chosen = ", ".join(
            null[column.name] if column.name in files.absent else column.name for column in TABLES[table]
        )
        parts.append(f"SELECT {chosen} FROM read_parquet({_list(files.parquet)}, union_by_name = true)")
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
        return f"SELECT {', '.join(null.values())} WHERE false"
    return " UNION ALL ".join(parts)


def _type(kind: str) -> str:
    return "BLOB" if kind == BINARY else DUCKDB_TYPES[kind]


def _list(paths: tuple[Path, ...]) -> str:
    return f"[{', '.join(_quoted(path) for path in paths)}]"


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _write_pairs(connection: duckdb.DuckDBPyConnection, scratch: Path, name: str) -> None:
    """Pair frames once, into a file: it takes less memory than a table."""
    path = _quoted(scratch / f"{name}.parquet")
    connection.execute(f"COPY (FROM {name}) TO {path} (FORMAT parquet, COMPRESSION zstd)")
    connection.execute(f"CREATE OR REPLACE VIEW {name} AS FROM read_parquet({path})")
