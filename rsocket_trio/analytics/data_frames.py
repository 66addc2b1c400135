"""The tables of a capture as data frames of Spark: reads those of its files, and derives the others from them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from rsocket_trio.analytics.capture_tables import Files, capture_files, check_dialects
from rsocket_trio.analytics.sql import DEFAULT_DIALECT, ask, frames_query, reads_of, spark_type
from rsocket_trio.analytics.views import QUERIES, READS, SIDES
from rsocket_trio.capture.schema import BINARY, STRING, TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PATTERN: Final = re.compile(r"[\[\]{}*?\\]")
"""Characters that Hadoop reads as a pattern in a path."""


@attrs.frozen
class CaptureTables:
    """The three tables of a capture: ``frames``, ``interactions`` and ``connections``, as data frames.

    ``frames`` has one more column, ``frame_name``: the name of ``frame_type``.
    """

    frames: DataFrame
    interactions: DataFrame
    connections: DataFrame

    def table(self, name: str) -> DataFrame:
        """Return the derived table that is named ``name``. Raise ``KeyError`` if there is none."""
        return derive(name, frames=self.frames, interactions=self.interactions, connections=self.connections)


def derive(name: str, **tables: DataFrame) -> DataFrame:
    """Return the table that is named ``name``, derived from ``tables`` by their names.

    Tables in between are derived, too. Over a stream, the time that is grouped by needs a watermark: ``ts``, or
    ``t_end`` of interactions.
    Raise ``KeyError`` if no table has this name, and ``TypeError`` if one that it is made of is not given.
    """
    if name not in QUERIES and name not in tables:
        raise KeyError(f"no table is named {name!r}")
    made = dict(tables)

    def make(table: str) -> DataFrame:
        if table in SIDES and table not in made:
            return make("interactions")
        if table not in made:
            if table not in QUERIES:
                raise TypeError(f"{name} is made of {table}, too: derive({name!r}, {table}=...)")
            made[table] = ask(QUERIES[table], **{source: make(source) for source in READS[table]})
        return made[table]

    return make(name)


# Files


def read_capture(spark: SparkSession, directory: str | Path) -> CaptureTables:
    """Return the tables of the capture in ``directory``, as ``rsocket_trio.capture`` writes them, read by ``spark``.

    Raise ``Unreadable``, naming the file and the column, if a file is broken or a column is missing or has another
    type.
    """
    tables = {table: _read(spark, table, files) for table, files in capture_files(directory).items()}
    dialects = [row.dialect for row in tables["connections"].select("dialect").distinct().collect()]
    check_dialects(directory, dialects)
    frames = name_frames(tables["frames"], tables["connections"], dialects or [DEFAULT_DIALECT])
    return CaptureTables(frames, tables["interactions"], tables["connections"])


def name_frames(
    frames: DataFrame, connections: DataFrame | None = None, dialects: Iterable[str] = (DEFAULT_DIALECT,)
) -> DataFrame:
    """Return ``frames`` with the column ``frame_name``.

    ``dialects`` are those that may occur. ``connections`` is read only if two of them name a number differently.
    """
    sql = frames_query(dialects)
    if "connections" not in reads_of(sql):
        return ask(sql, all_frames=frames)
    assert connections is not None
    return ask(sql, all_frames=frames, connections=connections)


def table_schema(table: str, *, as_json: bool = False) -> StructType:
    """Return the Spark schema of ``table``. With ``as_json`` it is that of JSON lines, where bytes are text."""
    from pyspark.sql.types import StructType

    types = {
        column.name: spark_type(STRING if as_json and column.type == BINARY else column.type)
        for column in TABLES[table]
    }
    schema = StructType.fromDDL(", ".join(f"{name} {kind}" for name, kind in types.items()))
    assert isinstance(schema, StructType)
    return schema


def _read(spark: SparkSession, table: str, files: Files) -> DataFrame:
    from pyspark.sql import functions as sf

    parts: list[DataFrame] = []
    names = [column.name for column in TABLES[table]]
    if files.parquet:
        parts.append(spark.read.schema(table_schema(table)).parquet(*_absolute(files.parquet)).select(names))
    if files.jsonl:
        rows = spark.read.schema(table_schema(table, as_json=True)).json(_absolute(files.jsonl))
        for column in TABLES[table]:
            if column.type == BINARY:
                rows = rows.withColumn(column.name, sf.unhex(column.name))
        parts.append(rows.select(names))
    if not parts:
        return spark.createDataFrame([], table_schema(table))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _absolute(paths: Iterable[Path]) -> list[str]:
    """Return absolute, escaped paths: Java has its own working directory, and Hadoop reads patterns in paths."""
    return [PATTERN.sub(r"\\\g<0>", str(path.absolute())) for path in paths]
