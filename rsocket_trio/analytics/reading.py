"""Reads the tables of a capture from Parquet or JSON lines into Spark, each column with its declared type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from rsocket_trio.analytics.dialect import DEFAULT_DIALECT, frame_names
from rsocket_trio.analytics.files import Files, Unreadable, capture_files
from rsocket_trio.analytics.pairing import connections_of, pair
from rsocket_trio.capture.schema import BINARY, TABLES, type_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

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


def read_capture(spark: SparkSession, directory: str | Path, *, paired: bool = True) -> CaptureTables:
    """Return the tables of the capture in ``directory``, as ``rsocket_trio.capture`` writes them, read by ``spark``.

    A foreign capture may consist of frames alone: with ``paired=False`` the other two tables are not read but derived
    from the frames, which takes much longer (see ``pair``). Raise ``Unreadable``, naming the file and the column, if a
    file is broken or a column is missing or has another type.
    """
    if not paired:
        frames = _read(spark, "frames", capture_files(directory, ("frames",))["frames"])
        named = name_frames(frames)
        return CaptureTables(named, pair(named), connections_of(named))
    files = capture_files(directory)
    tables = {table: _read(spark, table, files[table]) for table in TABLES}
    dialects = [row.dialect for row in tables["connections"].select("dialect").distinct().collect()]
    for dialect in dialects:
        try:
            type_names(dialect)
        except KeyError:
            raise Unreadable(
                f"{Path(directory) / 'connections'}: the column dialect has {dialect!r}: unknown"
            ) from None
    frames = name_frames(tables["frames"], tables["connections"], dialects)
    return CaptureTables(frames, tables["interactions"], tables["connections"])


def name_frames(
    frames: DataFrame, connections: DataFrame | None = None, dialects: Iterable[str] = (DEFAULT_DIALECT,)
) -> DataFrame:
    """Return ``frames`` with the column ``frame_name``.

    ``dialects`` are those that may occur. ``connections`` is read only if two of them name a number differently.
    """
    from pyspark.sql import functions as sf

    chosen = list(dialects) or [DEFAULT_DIALECT]
    names = frame_names(chosen)
    if "dialect" in names:
        assert connections is not None
        known = connections.select("capture_id", "conn_id", "dialect").distinct()
        # A connection that has not ended has no row yet, so its dialect is the default.
        joined = frames.join(sf.broadcast(known), ["capture_id", "conn_id"], "left")
        frames = joined.withColumn("dialect", sf.coalesce("dialect", sf.lit(DEFAULT_DIALECT)))
    return frames.withColumn("frame_name", sf.expr(names)).drop("dialect")


def table_schema(table: str, *, as_json: bool = False) -> StructType:
    """Return the Spark schema of ``table``. With ``as_json`` it is that of JSON lines, where bytes are text."""
    from pyspark.sql.types import StructField, StructType, _parse_datatype_string

    types: Mapping[str, str] = SPARK_TYPES | ({BINARY: "string"} if as_json else {})
    return StructType(
        [StructField(column.name, _parse_datatype_string(types[column.type])) for column in TABLES[table]]
    )


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
