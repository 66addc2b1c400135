"""How is one text of SQL put to Spark and to DuckDB? The few words in which they differ, and frame names.

A query names what it reads in braces, ``{frames}``, and the places where the engines part with a dollar sign:

- ``$minute_of_TIME`` and ``$by_minute_of_TIME``: the minute that a column lies in, where it is selected and where it
  is grouped by. Over a stream Spark must be told of a window there, or it would keep its state for ever. The same
  with ``second``.
- ``$errors``: the name of ``error_code``. ``$div``: division of whole numbers.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from rsocket_trio.capture.schema import as_int8, as_int32, type_names
from rsocket_trio.errors import CONNECTION_CLOSE, CONNECTION_ERROR, SETUP_ERRORS, STREAM_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_DIALECT: Final = "rsocket/1.0"
TIMES: Final = ("ts", "t_start", "t_end")
LENGTHS: Final = ("second", "minute")

DUCKDB_MACROS: Final = (
    "CREATE OR REPLACE MACRO unix_micros(t) AS epoch_us(t)",
    "CREATE OR REPLACE MACRO unix_seconds(t) AS CAST(floor(epoch(t)) AS BIGINT)",
    "CREATE OR REPLACE MACRO timestamp_micros(us) AS make_timestamptz(us)",
    "CREATE OR REPLACE MACRO element_at(list, n) AS list[n]",
    "CREATE OR REPLACE MACRO xxhash64(one, two, three) AS hash(one, two, three)",
)
"""Functions of Spark that DuckDB calls otherwise."""


def frame_names(dialects: Iterable[str]) -> str:
    """SQL: the name of ``frame_type``, by ``dialect`` where these dialects need more than one table of names."""
    tables: dict[str, list[str]] = {}
    for dialect in dict.fromkeys(dialects):
        cases = " ".join(f"WHEN {number} THEN '{name}'" for number, name in type_names(dialect).items())
        tables.setdefault(cases, []).append(dialect)
    if all(is_part_of(type_names(one), type_names(two)) for one, two in itertools.permutations(_all(tables), 2)):
        # Where the tables differ at most in rows that only one has, one does for all.
        merged: dict[int, str] = {}
        for dialect in _all(tables):
            merged.update(type_names(dialect))
        cases = " ".join(f"WHEN {number} THEN '{name}'" for number, name in merged.items())
        return f"CASE frame_type {cases} ELSE 'UNKNOWN' END"
    arms = []
    for cases, names in tables.items():
        listed = ", ".join(f"'{name}'" for name in names)
        arms.append(f"WHEN dialect IN ({listed}) THEN CASE frame_type {cases} ELSE 'UNKNOWN' END")
    return f"CASE {' '.join(arms)} ELSE 'UNKNOWN' END"


def is_part_of(one: Mapping[int, str], two: Mapping[int, str]) -> bool:
    """Whether no number has two names."""
    return all(two.get(number, name) == name for number, name in one.items())


def _all(tables: Mapping[str, list[str]]) -> list[str]:
    return [dialect for dialects in tables.values() for dialect in dialects]


def error_names() -> str:
    """SQL: the name of ``error_code``, of those that the protocols name."""
    named = {code: error.__name__ for table in (SETUP_ERRORS, STREAM_ERRORS) for code, error in table.items()}
    named |= {CONNECTION_ERROR: "ConnectionError", CONNECTION_CLOSE: "ConnectionClose"}
    cases = " ".join(f"WHEN {as_int32(code)} THEN '{name}'" for code, name in sorted(named.items()))
    return f"CASE error_code {cases} ELSE 'application' END"


def for_spark(sql: str, *, streams: bool = False) -> str:
    """A query in Spark's words; the braces stay. Over a stream, times are grouped by windows, which it can forget."""
    return _said(sql, "div", windows=streams)


def for_duckdb(sql: str) -> str:
    """A query in DuckDB's words, with ``DUCKDB_MACROS`` in place; the braces stay."""
    return _said(sql, "//")


def ask(sql: str, **inputs: DataFrame) -> DataFrame:
    """The answer of Spark to a query over these tables."""
    session = next(iter(inputs.values())).sparkSession
    streams = any(table.isStreaming for table in inputs.values())
    return session.sql(for_spark(sql, streams=streams), args=None, **inputs)


def _said(sql: str, div: str, *, windows: bool = False) -> str:
    words = {"errors": error_names(), "div": div}
    for length in LENGTHS:
        for time in TIMES:
            # Both engines know date_trunc, which is much the cheaper.
            truncated = f"date_trunc('{length}', {time})"
            words[f"{length}_of_{time}"] = "window.start" if windows else truncated
            words[f"by_{length}_of_{time}"] = f"window({time}, '1 {length}')" if windows else truncated
    return string.Template(sql).substitute(words)


NUMBER_OF_TYPE: Final = {name: as_int8(number) for number, name in type_names(DEFAULT_DIALECT).items()}
"""The numbers of ``rsocket/1.0``, by name."""
