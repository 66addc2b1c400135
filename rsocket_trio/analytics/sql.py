"""A table as a query in SQL for Spark and for DuckDB: ``Query``, the translation of its text, types and names.

A query names its input tables in braces, ``{frames}``, and marks the expressions that differ with a dollar sign:

- ``$minute_of_TIME`` and ``$by_minute_of_TIME``: the minute of a time column, for use in ``SELECT`` and in
  ``GROUP BY``. Over a stream it becomes a window in Spark, as Spark would otherwise keep its state for ever. ``second``
  works in the same way.
- ``$errors``: the name of ``error_code``. ``$div``: division of whole numbers.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from rsocket_trio.capture.schema import as_int8, as_int32, type_names
from rsocket_trio.errors import CONNECTION_CLOSE, CONNECTION_ERROR, SETUP_ERRORS, STREAM_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_DIALECT: Final = "rsocket/1.0"
TIMES: Final = ("ts", "t_start", "t_end")
LENGTHS: Final = {"second": 1, "minute": 60}
"""Seconds of the lengths to which times are cut."""
WINDOW: Final = ("window.start", "window({time}, '1 {length}')")
"""SQL that cuts a time of a stream in Spark: in a selection, and in its groups."""
TRUNCATED: Final = ("date_trunc('{length}', {time})",) * 2
"""The same for a table: it costs Spark much less."""
REMAINDER: Final = ("timestamp_micros(unix_micros({time}) - unix_micros({time}) % {us})",) * 2
"""The same in DuckDB, where ``date_trunc`` asks the calendar of a time zone for each row."""

SPARK_TYPES: Final = {
    "string": "string",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "bool": "boolean",
    "binary": "binary",
    "timestamp": "timestamp",
    "list<int64>": "array<bigint>",
}
"""Types of columns in Spark, by those of the schema."""
DUCKDB_TYPES: Final = {
    "string": "VARCHAR",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "bool": "BOOLEAN",
    "binary": "VARCHAR",
    "timestamp": "TIMESTAMPTZ",
    "list<int64>": "BIGINT[]",
}
"""Types of columns in JSON lines, where bytes are hex."""

DUCKDB_MACROS: Final = (
    "CREATE OR REPLACE MACRO unix_micros(t) AS epoch_us(t)",
    "CREATE OR REPLACE MACRO unix_seconds(t) AS CAST(floor(epoch(t)) AS BIGINT)",
    "CREATE OR REPLACE MACRO timestamp_micros(us) AS make_timestamptz(us)",
    "CREATE OR REPLACE MACRO element_at(list, n) AS list[n]",
    "CREATE OR REPLACE MACRO array_repeat(cell, n) AS list_resize([cell], n, cell)",
    "CREATE OR REPLACE MACRO xxhash64(one, two, three) AS hash(one, two, three)",
)
"""Functions of Spark that have another name in DuckDB."""


TOP: Final = 10
"""Number of streams of a route, connections or routes that are listed."""
ERROR_LEVEL: Final = "CASE WHEN stream_id = 0 THEN 'connection' ELSE 'stream' END"
SIZE_BUCKET: Final = "CAST(floor(log2(greatest(frame_bytes, 1)) + 1e-9) AS INT)"
"""Bucket b holds sizes from 2**b bytes."""
OTHER_ROUTES: Final = "(other routes)"
OTHER_PEERS: Final = "(other peers)"
PER_OCTAVE = 16
"""Buckets of a histogram between a latency and its double: 4.4 % wide each, so a percentile is right within 2.2 %."""
PER_OCTAVE_SHOWN = 4
"""Buckets for each doubling in the heatmap: 19 % wide each."""


FREQUENT: Final = ("PAYLOAD", "CHUNK", "NEXT", "REQUEST_N", "REQUEST_RESPONSE", "REQUEST_STREAM", "KEEPALIVE", "CANCEL")
"""Names of most frames, in this order: an engine compares the number of a frame with each in turn."""


def _cases(names: Mapping[int, str]) -> str:
    def place(row: tuple[int, str]) -> int:
        return FREQUENT.index(row[1]) if row[1] in FREQUENT else len(FREQUENT)

    return " ".join(f"WHEN {number} THEN '{name}'" for number, name in sorted(names.items(), key=place))


def frame_names(dialects: Iterable[str]) -> str:
    """Return SQL for the name of ``frame_type``; it reads ``dialect`` only if their names differ."""
    tables: dict[str, list[str]] = {}
    for dialect in dict.fromkeys(dialects):
        cases = _cases(type_names(dialect))
        tables.setdefault(cases, []).append(dialect)
    if all(is_part_of(type_names(one), type_names(two)) for one, two in itertools.permutations(_all(tables), 2)):
        # If no number has two names, one merged table serves all dialects.
        merged: dict[int, str] = {}
        for dialect in _all(tables):
            merged.update(type_names(dialect))
        return f"CASE frame_type {_cases(merged)} ELSE 'UNKNOWN' END"
    arms = []
    for cases, names in tables.items():
        listed = ", ".join(f"'{name}'" for name in names)
        arms.append(f"WHEN dialect IN ({listed}) THEN CASE frame_type {cases} ELSE 'UNKNOWN' END")
    return f"CASE {' '.join(arms)} ELSE 'UNKNOWN' END"


def is_part_of(one: Mapping[int, str], two: Mapping[int, str]) -> bool:
    """Return whether no number has different names in the two tables."""
    return all(two.get(number, name) == name for number, name in one.items())


def _all(tables: Mapping[str, list[str]]) -> list[str]:
    return [dialect for dialects in tables.values() for dialect in dialects]


def error_names() -> str:
    """Return SQL for the name of ``error_code``; codes that no protocol names are ``application``."""
    named = {code: error.__name__ for table in (SETUP_ERRORS, STREAM_ERRORS) for code, error in table.items()}
    named |= {CONNECTION_ERROR: "ConnectionError", CONNECTION_CLOSE: "ConnectionClose"}
    cases = " ".join(f"WHEN {as_int32(code)} THEN '{name}'" for code, name in sorted(named.items()))
    return f"CASE error_code {cases} ELSE 'application' END"


def for_spark(sql: str, *, streams: bool = False) -> str:
    """Translate a query for Spark; the braces stay. Over a stream, times are grouped by windows, which expire."""
    return _said(sql, "div", WINDOW if streams else TRUNCATED)


def for_duckdb(sql: str) -> str:
    """Translate a query for DuckDB, where ``DUCKDB_MACROS`` are defined; the braces stay."""
    return _said(sql, "//", REMAINDER)


def ask(sql: str, **inputs: DataFrame) -> DataFrame:
    """Run a query in Spark over these tables."""
    session = next(iter(inputs.values())).sparkSession
    streams = any(table.isStreaming for table in inputs.values())
    return session.sql(for_spark(sql, streams=streams), args=None, **inputs)


def _said(sql: str, div: str, cut: tuple[str, str]) -> str:
    words = {"errors": error_names(), "div": div}
    for length, seconds in LENGTHS.items():
        for time in TIMES:
            chosen, grouped = (text.format(time=time, length=length, us=seconds * 1_000_000) for text in cut)
            words[f"{length}_of_{time}"] = chosen
            words[f"by_{length}_of_{time}"] = grouped
    return string.Template(sql).substitute(words)


NUMBER_OF_TYPE: Final = {name: as_int8(number) for number, name in type_names(DEFAULT_DIALECT).items()}
"""The numbers of ``rsocket/1.0``, by name."""


@attrs.frozen
class Query:
    """One table that is derived from others. ``streams``: whether Spark can keep it up to date over a stream."""

    name: str
    reads: tuple[str, ...]
    sql: str
    streams: bool = False

    def __call__(self, *inputs: DataFrame) -> DataFrame:
        """Return the table, derived from these inputs in the order of ``reads``."""
        return ask(self.sql, **dict(zip(self.reads, inputs, strict=True)))


# A route's name would turn hash aggregates into sorting ones: everything is counted by number, and named at the end.
# Two routes with one hash share the name that comes first.
ROUTES: Final = Query(
    "routes",
    ("interactions",),
    """
    SELECT route_id, min(route) AS route
    FROM (SELECT DISTINCT route_id, route FROM {interactions} WHERE route_id IS NOT NULL AND route IS NOT NULL) AS named
    GROUP BY route_id
    """,
)


def percentile(per_mille: int, *, where: str, bucket: str = "bucket") -> str:
    """Return SQL for the middle, in us, of the bucket where the running sum ``upto`` reaches a share of ``total``."""
    reached = f"({where}) AND upto * 1000 >= total * {per_mille}"
    return f"CAST(round(pow(2, (min(CASE WHEN {reached} THEN {bucket} END) + 0.5) / {PER_OCTAVE})) AS BIGINT)"


def bucket_of(column: str) -> str:
    """Return SQL for the histogram bucket of a duration in us. A duration below 1 us counts as 1 us."""
    # log2 of an engine may miss a whole number by the last bit: 8 us would fall into the bucket below.
    return f"CAST(floor(log2(greatest({column}, 1)) * {PER_OCTAVE} + 1e-9) AS INT)"


def cell_of(time: str, length: str = "bucket_s") -> str:
    """Return SQL for the beginning of the cell of a time, in microseconds since 1970."""
    return f"(unix_micros({time}) - unix_micros({time}) % ({length} * 1000000))"


SHOWN_ROUTE: Final = f"CASE WHEN these.route_id IS NOT NULL THEN coalesce(shown_routes.shown, '{OTHER_ROUTES}') END"
"""SQL for the name by which the route of a row is shown."""
SHOWN: Final = """
    LEFT JOIN {shown_routes} AS shown_routes ON these.route_id = shown_routes.route_id
    LEFT JOIN {shown_peers} AS shown_peers
      ON these.capture_id = shown_peers.capture_id AND these.conn_id = shown_peers.conn_id
"""
"""SQL that joins a table, named ``these``, with the names by which routes and peers are shown."""
