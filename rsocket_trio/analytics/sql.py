"""Queries in SQL: what they read, their translation for Spark, and expressions that several of them share.

They are written in the dialect of DuckDB. ``for_spark`` has sqlglot translate them, with ``IN_SPARK`` for functions
that sqlglot does not know. Times are cut by ``time_bucket``: over a stream this becomes a window in Spark, which would
otherwise keep its state for ever.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Final

from rsocket_trio.capture import schema
from rsocket_trio.capture.schema import signed, type_names
from rsocket_trio.errors import CONNECTION_CLOSE, CONNECTION_ERROR, SETUP_ERRORS, STREAM_ERRORS
from rsocket_trio.extras import install_command

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_DIALECT: Final = "rsocket/1.0"
NO_SQLGLOT: Final = f"tables in Spark need sqlglot: {install_command('spark', 'report')}"
TYPES: Final = {
    schema.STRING: "VARCHAR",
    schema.INT8: "TINYINT",
    schema.INT16: "SMALLINT",
    schema.INT32: "INTEGER",
    schema.INT64: "BIGINT",
    schema.BOOL: "BOOLEAN",
    schema.BINARY: "BLOB",
    schema.TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
    schema.COUNTS: "BIGINT[]",
}
"""Types of columns in SQL, by those of the schema."""
IN_SPARK: Final = {
    "epoch_us": "unix_micros",
    "make_timestamptz": "timestamp_micros",
    "list_extract": "element_at",
    "hash": "xxhash64",
}
"""Functions of DuckDB, and their names in Spark, that sqlglot does not translate."""

TOP: Final = 10
"""Number of streams of a route, connections or routes that are listed."""
ERROR_LEVEL: Final = "CASE WHEN stream_id = 0 THEN 'connection' ELSE 'stream' END"
SIZE_BUCKET: Final = "floor(log2(greatest(frame_bytes, 1)) + 1e-9)::INTEGER"
"""Bucket b holds sizes from 2**b bytes."""
OTHER_ROUTES: Final = "(other routes)"
OTHER_PEERS: Final = "(other peers)"
PER_OCTAVE: Final = 16
"""Buckets of a histogram between a latency and its double: 4.4 % wide each, so a percentile is right within 2.2 %."""
PER_OCTAVE_SHOWN: Final = 4
"""Buckets for each doubling in the heatmap: 19 % wide each."""
FREQUENT: Final = ("PAYLOAD", "CHUNK", "NEXT", "REQUEST_N", "REQUEST_RESPONSE", "REQUEST_STREAM", "KEEPALIVE", "CANCEL")
"""Names of most frames, in this order: an engine compares the number of a frame with each in turn."""


def reads_of(sql: str) -> tuple[str, ...]:
    """Return the names of the tables that a query reads."""
    own = set(re.findall(r"\b(\w+) AS \(", sql))
    return tuple(name for name in dict.fromkeys(re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", sql)) if name not in own)


# Spark


def need_sqlglot() -> ModuleType:
    """Return sqlglot. Raise ``ModuleNotFoundError`` naming the extras if it is missing."""
    try:
        import sqlglot
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_SQLGLOT, name=error.name) from error
    return sqlglot


@functools.cache
def for_spark(sql: str, tables: tuple[str, ...] = (), *, streams: bool = False) -> str:
    """Translate a query for Spark. The names of these ``tables`` become fields, ``{frames}``, for data frames.

    Over a stream, times are grouped by windows, which expire.
    """
    sqlglot = need_sqlglot()
    exp = sqlglot.exp
    tree = sqlglot.parse_one(sql, dialect="duckdb")
    for call in list(tree.find_all(exp.Anonymous)):
        call.set("this", IN_SPARK[call.name.lower()])
    for cut in list(tree.find_all(exp.DateBin)):
        length, time = cut.this.unit.name, cut.expression.sql("spark")
        if not streams:
            text = f"date_trunc('{length}', {time})"
        else:
            # A group is the window, from which Spark knows when it ends; a selection is its beginning.
            text = f"window({time}, '1 {length}')" + ("" if cut.find_ancestor(exp.Group) else ".start")
        cut.replace(sqlglot.parse_one(text, dialect="spark"))
    for table in list(tree.find_all(exp.Table)):
        if table.name in tables:
            name = table.name
            table.set("this", exp.to_identifier(f"{{{name}}}", quoted=False))
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(name)))
    translated: str = tree.sql(dialect="spark", unsupported_level=sqlglot.ErrorLevel.RAISE)
    return translated


def spark_type(kind: str) -> str:
    """Return the type of a column in Spark, by that of the schema."""
    name: str = need_sqlglot().exp.DataType.build(TYPES[kind], dialect="duckdb").sql("spark")
    return name


def ask(sql: str, **inputs: DataFrame) -> DataFrame:
    """Run a query in Spark over these tables."""
    session = next(iter(inputs.values())).sparkSession
    streams = any(table.isStreaming for table in inputs.values())
    return session.sql(for_spark(sql, tuple(inputs), streams=streams), args=None, **inputs)


# Names


def frames_query(dialects: Iterable[str]) -> str:
    """Return the query of ``frames`` with the column ``frame_name``, by the dialects that connections have.

    A connection that has not ended has no row yet, so its dialect is the default. ``connections`` is read only if two
    of the dialects name a number differently.
    """
    tables: dict[str, list[str]] = {}
    for dialect in dict.fromkeys(dialects):
        tables.setdefault(_cases(type_names(dialect)), []).append(dialect)
    known = [type_names(names[0]) for names in tables.values()]
    if all(_agree(first, second) for first, second in itertools.combinations(known, 2)):
        # If no number has two names, one merged table serves all dialects.
        merged = {number: name for names in known for number, name in names.items()}
        name = f"CASE frame_type {_cases(merged)} ELSE 'UNKNOWN' END"
        return f"SELECT *, {name} AS frame_name FROM all_frames"
    arms = []
    for cases, names in tables.items():
        listed = ", ".join(f"'{name}'" for name in names)
        arms.append(f"WHEN coalesce(dialect, '{DEFAULT_DIALECT}') IN ({listed}) THEN CASE frame_type {cases} END")
    return f"""
    SELECT all_frames.*, coalesce(CASE {" ".join(arms)} END, 'UNKNOWN') AS frame_name
    FROM all_frames LEFT JOIN (SELECT DISTINCT capture_id, conn_id, dialect FROM connections) AS known
      ON all_frames.capture_id = known.capture_id AND all_frames.conn_id = known.conn_id
    """


def _cases(names: Mapping[int, str]) -> str:
    def place(row: tuple[int, str]) -> int:
        return FREQUENT.index(row[1]) if row[1] in FREQUENT else len(FREQUENT)

    return " ".join(f"WHEN {number} THEN '{name}'" for number, name in sorted(names.items(), key=place))


def _agree(first: Mapping[int, str], second: Mapping[int, str]) -> bool:
    """Return whether no number has different names in the two tables."""
    return all(second.get(number, name) == name for number, name in first.items())


def error_names() -> str:
    """Return SQL for the name of ``error_code``; codes that no protocol names are ``application``."""
    named = {code: error.__name__ for table in (SETUP_ERRORS, STREAM_ERRORS) for code, error in table.items()}
    named |= {CONNECTION_ERROR: "ConnectionError", CONNECTION_CLOSE: "ConnectionClose"}
    cases = " ".join(f"WHEN {signed(code, 32)} THEN '{name}'" for code, name in sorted(named.items()))
    return f"CASE error_code {cases} ELSE 'application' END"


# Parts of queries


# A route's name would turn hash aggregates into sorting ones: everything is counted by number, and named at the end.
# Two routes with one hash share the name that comes first.
ROUTES: Final = """
    SELECT route_id, min(route) AS route
    FROM (SELECT DISTINCT route_id, route FROM interactions WHERE route_id IS NOT NULL AND route IS NOT NULL) AS named
    GROUP BY route_id
"""
METRICS: Final = "(VALUES ('first'), ('total')) AS metrics(metric)"
SHOWN_ROUTE: Final = f"CASE WHEN these.route_id IS NOT NULL THEN coalesce(shown_routes.shown, '{OTHER_ROUTES}') END"
"""SQL for the name by which the route of a row is shown."""
SHOWN: Final = """
    LEFT JOIN shown_routes ON these.route_id = shown_routes.route_id
    LEFT JOIN shown_peers ON these.capture_id = shown_peers.capture_id AND these.conn_id = shown_peers.conn_id
"""
"""SQL that joins a table, named ``these``, with the names by which routes and peers are shown."""


def ranked(source: str, keys: str) -> str:
    """Return SQL that adds running sums ``upto`` and a ``total`` of each combination of keys, for ``percentiles``."""
    return f"""
        SELECT *, sum(n) OVER (PARTITION BY {keys} ORDER BY bucket) AS upto,
               sum(n) OVER (PARTITION BY {keys}) AS total
        FROM {source}
    """


def percentiles(prefix: str, *shares: str, where: str = "true") -> str:
    """Return SQL for columns such as ``p99_us``: the middle, in us, of the bucket where the sum reaches a share.

    ``shares`` are the digits behind ``0.``, as in ``99``.
    """
    columns = []
    for share in shares:
        reached = f"({where}) AND upto * 1000 >= total * {share:0<3}"
        middle = f"(min(CASE WHEN {reached} THEN bucket END) + 0.5) / {PER_OCTAVE}"
        columns.append(f"round(pow(2, {middle}))::BIGINT AS {prefix}p{share}_us")
    return ", ".join(columns)


def bucket_of(column: str, per_octave: int | str = PER_OCTAVE) -> str:
    """Return SQL for the histogram bucket of a duration in us. A duration below 1 us counts as 1 us."""
    # log2 of an engine may miss a whole number by the last bit: 8 us would fall into the bucket below.
    return f"floor(log2(greatest({column}, 1)) * {per_octave} + 1e-9)::INTEGER"


def cell_of(time: str, length: str = "bucket_s") -> str:
    """Return SQL for the beginning of the cell of a time, in microseconds since 1970."""
    return f"(epoch_us({time}) - epoch_us({time}) % ({length} * 1000000))"
