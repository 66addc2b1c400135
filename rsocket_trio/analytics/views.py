"""All tables of a capture as SQL views, those of a report with their order, and DuckDB, which answers in this process.

Spark answers the same questions: ``rsocket_trio.analytics.local_spark``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from rsocket_trio.analytics import cell_tables, request_tables, traffic_tables
from rsocket_trio.analytics.capture_tables import Files, capture_files, check_dialects, first_line, need_duckdb, quoted
from rsocket_trio.analytics.sql import DEFAULT_DIALECT, ROUTES, TYPES, frames_query, reads_of
from rsocket_trio.capture.schema import BINARY, TABLES

if TYPE_CHECKING:
    import duckdb

MEMORY_MIB: Final = 384
"""Memory that DuckDB may take; what needs more is put into files for a while."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

QUERIES: Final = {"routes": ROUTES, **request_tables.QUERIES, **traffic_tables.QUERIES, **cell_tables.QUERIES}
"""The queries of all derived tables, by name."""
READS: Final = {name: reads_of(sql) for name, sql in QUERIES.items()}
IN_ORDER: Final = tuple(name for name in TopologicalSorter(READS).static_order() if name in QUERIES)
"""All derived tables, each after those that it reads."""
SIDES: Final = ("requesters", "responders")
"""The interactions of both sides. Without a second capture, those of one directory are joined with each other."""
VIEWS: Final = (*TABLES, *IN_ORDER)
KEPT: Final = (
    *("routes", "latency_histogram", "stalled_streams", "connection_seconds", "cancelled_streams", "error_minutes"),
    *("frame_sizes", "capture_span", "shown_routes", "shown_peers", "request_cells"),
    *("latency_cells", "slow_streams", "slow_marks", "slow_frames"),
)
"""Tables that an engine computes once: others read each of them, and each is much smaller than its sources."""


@attrs.frozen
class ReportTable:
    """A query of the report: a view, the order of its rows, and their greatest number."""

    view: str
    order: str
    limit: int = 10_000


REPORT_TABLES: Final = (
    ReportTable("capture_span", "t_from"),
    ReportTable("red", "t_from, role, route, interaction"),
    ReportTable("route_latency", "n DESC, role, route, interaction, metric"),
    ReportTable("rate_cells", "t_from, role, route, interaction, peer", 250_000),
    ReportTable("latency_cells", "t_from, role, metric, route, interaction, peer, bucket", 250_000),
    ReportTable("credit_stalls", "stall_us DESC, role, route"),
    ReportTable("stalled_streams", "stall_us DESC, capture_id, conn_id, stream_id", 50),
    ReportTable("starved", "stall_us DESC, capture_id, conn_id, stream_id, bytes DESC, by_route", 1000),
    ReportTable("cancellations", "cancels DESC, role, route, interaction"),
    ReportTable("bytes_after_cancel", "bytes DESC, cancel_dir, route"),
    ReportTable("leases", "lease_granted DESC, capture_id, conn_id", 200),
    ReportTable("errors", "minute, level, error_code, route"),
    ReportTable("error_cells", "t_from, level, error_code, route, peer, side, dir", 100_000),
    ReportTable("connection_timeline", "t_start, capture_id, conn_id", 500),
    ReportTable("connection_routes", "streams DESC, capture_id, conn_id, route", 20_000),
    ReportTable("shown_peers", "capture_id, conn_id", 20_000),
    ReportTable("traffic_cells", "t_from, route, peer, conn_id", 100_000),
    ReportTable("fragmentation", "bytes DESC, side, dir, frame_name"),
    ReportTable("size_cells", "t_from, dir, frame_name, route, peer, bucket", 200_000),
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


def answers(ask: Callable[[str], Answer]) -> Iterator[Answer]:
    """Yield each table that the report reads as soon as ``ask`` has computed it."""
    return (ask(asked.view) for asked in REPORT_TABLES)


def question_of(view: str) -> ReportTable:
    """Return the question for a view; one that is not part of the report is asked for all its columns in order."""
    if view not in VIEWS:
        raise KeyError(f"no view is named {view!r}")
    return next((asked for asked in REPORT_TABLES if asked.view == view), ReportTable(view, "ALL"))


def select(asked: ReportTable, times: Mapping[str, bool]) -> str:
    """Return the SQL of a question. ``times`` says of each column whether it is a timestamp: these come as numbers."""
    chosen = ", ".join(f"epoch_us({name}) AS {name}" if is_time else name for name, is_time in times.items())
    return f"SELECT {chosen} FROM {asked.view} ORDER BY {asked.order} LIMIT {asked.limit + 1}"


def answer_of(asked: ReportTable, times: Mapping[str, bool], rows: list[tuple[object, ...]]) -> Answer:
    """Return the answer with the rows that the SQL of ``select`` gave."""
    cut = rows[: asked.limit]
    if any(times.values()):
        cut = [tuple(map(_cell, row, times.values())) for row in cut]
    return Answer(asked.view, tuple(times), tuple(map(tuple, cut)), len(rows) > asked.limit)


def _cell(cell: object, is_time: bool) -> object:
    return EPOCH + timedelta(microseconds=cell) if is_time and isinstance(cell, int) else cell


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
        self._keep(view)
        described = self.connection.execute(f"DESCRIBE {view}").fetchall()
        times = {str(row[0]): str(row[1]) == "TIMESTAMP WITH TIME ZONE" for row in described}
        return answer_of(asked, times, self.connection.execute(select(asked, times)).fetchall())

    def _keep(self, view: str) -> None:
        """Compute once what a view reads, and the view itself, if they are of ``KEPT``."""
        if view in self._kept or view not in READS:
            return
        for source in READS[view]:
            self._keep(source)
        if view in KEPT:
            self.connection.execute(f"CREATE OR REPLACE TEMPORARY TABLE kept_{view} AS FROM {view}")
            self.connection.execute(f"CREATE OR REPLACE VIEW {view} AS FROM kept_{view}")
        self._kept.add(view)


@contextmanager
def open_duckdb(
    directory: str | Path, *, server: str | Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[DuckdbEngine]:
    """Open the capture in ``directory`` in DuckDB for the block. Raise ``Unreadable``.

    ``server`` is that of ``create_duckdb_views``; ``settings`` are those of DuckDB, as ``memory_limit``.
    A file that turns out to be damaged raises ``Damaged``. Raise ``ModuleNotFoundError`` naming the extra if DuckDB is
    missing.
    """
    duckdb = need_duckdb()
    with tempfile.TemporaryDirectory(prefix="rsocket-trio-") as scratch:
        config: dict[str, object] = {
            "memory_limit": f"{MEMORY_MIB}MiB",
            "temp_directory": scratch,
            "preserve_insertion_order": "false",
            **(settings or {}),
        }
        with duckdb.connect(config=config) as connection:
            connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
            create_duckdb_views(connection, directory, server=server)
            try:
                yield DuckdbEngine(connection)
            except duckdb.Error as error:
                # What DuckDB says of a damaged page does not say in which file it is.
                for folder in (directory, *([server] if server is not None else [])):
                    _find_damage(connection, folder, error)
                raise


def create_duckdb_views(
    connection: duckdb.DuckDBPyConnection, directory: str | Path, *, server: str | Path | None = None
) -> tuple[str, ...]:
    """Register the views of ``create_views`` in DuckDB, from the capture in ``directory``. Return their names.

    ``connection`` is an open connection of DuckDB; ``server`` is that of ``create_views``. Raise ``Unreadable``.
    """
    ours = capture_files(directory, connection)
    theirs = ours if server is None else capture_files(server, connection)
    for name, sql in {
        "all_frames": _rows("frames", ours["frames"]),
        "interactions": _rows("interactions", ours["interactions"]),
        "connections": _rows("connections", ours["connections"]),
        "requesters": "FROM interactions",
        "responders": "FROM interactions" if server is None else _rows("interactions", theirs["interactions"]),
    }.items():
        _create_view(connection, name, sql)
    dialects = _check_dialects(connection, directory, ours)
    if server is not None:
        _check_dialects(connection, server, theirs)
    _create_view(connection, "frames", frames_query(dialects))
    for name in IN_ORDER:
        _create_view(connection, name, QUERIES[name])
    return VIEWS


def _check_dialects(connection: duckdb.DuckDBPyConnection, directory: str | Path, files: dict[str, Files]) -> list[str]:
    rows = connection.execute(f"SELECT DISTINCT dialect FROM ({_rows('connections', files['connections'])})").fetchall()
    dialects = [str(dialect) for (dialect,) in rows]
    check_dialects(directory, dialects)
    return dialects or [DEFAULT_DIALECT]


def _create_view(connection: duckdb.DuckDBPyConnection, name: str, sql: str) -> None:
    connection.execute(f"CREATE OR REPLACE VIEW {name} AS {sql}")


def _find_damage(connection: duckdb.DuckDBPyConnection, directory: str | Path, cause: Exception) -> None:
    """Read each file of a capture by itself. Raise ``Damaged`` for the first that cannot be read."""
    import duckdb

    for files in capture_files(directory, connection).values():
        for path in files.parquet:
            try:
                connection.execute(
                    f"SELECT sum(hash(file) % 2) FROM read_parquet({quoted((path,))}) AS file"
                ).fetchall()
            except duckdb.OutOfMemoryException:
                return
            except duckdb.Error as error:
                raise Damaged(f"{path}: it is damaged: {first_line(error)}") from cause


def _rows(table: str, files: Files) -> str:
    """Return SQL for the rows of a table. Bytes are hex in JSON lines."""
    null = {column.name: f"NULL::{TYPES[column.type]} AS {column.name}" for column in TABLES[table]}
    parts = []
    if files.parquet:
        chosen = ", ".join(null[name] if name in files.absent else name for name in null)
        parts.append(f"SELECT {chosen} FROM read_parquet({quoted(files.parquet)}, union_by_name = true)")
    if files.jsonl:
        hexed = {column.name for column in TABLES[table] if column.type == BINARY}
        types = ", ".join(
            f"{column.name}: '{'VARCHAR' if column.name in hexed else TYPES[column.type]}'" for column in TABLES[table]
        )
        chosen = ", ".join(f"unhex({name}) AS {name}" if name in hexed else name for name in null)
        source = f"read_json({quoted(files.jsonl)}, columns = {{{types}}}, format = 'newline_delimited')"
        parts.append(f"SELECT {chosen} FROM {source}")
    return " UNION ALL ".join(parts) or f"SELECT {', '.join(null.values())} WHERE false"
