"""Finds and checks the files of a capture, Parquet or JSON lines, and reads its tables into Spark.

Files and columns are checked before Spark reads them, so that an error names the file and the column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from rsocket_trio.analytics.sql import DEFAULT_DIALECT, SPARK_TYPES, frame_names
from rsocket_trio.capture.schema import BINARY, BOOL, COUNTS, INT64, STRING, TABLES, TIMESTAMP, Column, type_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


SUFFIXES: Final = (".parquet", ".jsonl")
INTEGERS: Final = {"int8": 2**7, "int16": 2**15, "int32": 2**31, INT64: 2**63}
"""Integer types, and the first number that is too large for each."""
HALF_WRITTEN: Final = "no complete Parquet file, it may be half written"
UTC_TIME: Final = "timestamp[us, tz=UTC]"
PATTERN: Final = re.compile(r"[\[\]{}*?\\]")
"""Characters that Hadoop reads as a pattern in a path."""


# Files


class Unreadable(ValueError):
    """Raised for a directory that is not a readable capture. Names the file, and the column if there is one."""


@attrs.frozen
class Files:
    """The files of one table, by format."""

    parquet: tuple[Path, ...] = ()
    jsonl: tuple[Path, ...] = ()
    absent: frozenset[str] = frozenset()
    """Columns that no Parquet file has."""

    def __bool__(self) -> bool:
        return bool(self.parquet or self.jsonl)

    @property
    def size(self) -> int:
        """Return the total size of the files in bytes."""
        return sum(path.stat().st_size for path in (*self.parquet, *self.jsonl))


def arrow_types(path: Path) -> dict[str, str]:
    """Return the types of the columns of a Parquet file as pyarrow reads them. Raise ``Unreadable``."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise Unreadable(f"{path}: {HALF_WRITTEN}: {error}") from error
    return {field.name: _word(field.type) for field in schema}


def _word(kind: Any) -> str:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return str(kind.value_type)
    return f"list<{kind.value_type}>" if pa.types.is_list(kind) else str(kind)


def capture_files(
    directory: str | Path,
    tables: tuple[str, ...] = tuple(TABLES),
    types_of: Callable[[Path], Mapping[str, str]] = arrow_types,
) -> dict[str, Files]:
    """Return the files of these tables, each checked. Raise ``Unreadable`` if one is broken or missing.

    ``types_of`` returns the types of the columns of a Parquet file. A capture without frames is refused;
    ``interactions`` and ``connections`` may have no rows, as nothing may have ended yet. Files that a running capture
    has not completed are passed over.
    """
    root = Path(directory)
    if not root.is_dir():
        raise Unreadable(f"{root}: {'no directory' if root.exists() else 'no such directory'}")
    found = {table: _files(root, table) for table in tables}
    if not found.get("frames", True):
        raise Unreadable(
            f"{root / 'frames'}: there is no file of a capture (part-*.parquet or part-*.jsonl): it is empty"
        )
    for table, files in found.items():
        absent = {column.name for column in TABLES[table]}
        for path in files.parquet:
            types = types_of(path)
            _check_types(path, types, TABLES[table])
            absent -= types.keys()
        for path in files.jsonl:
            _check_jsonl(path, TABLES[table])
        found[table] = attrs.evolve(files, absent=frozenset(absent))
    return found


def check_capture(directory: str | Path, *, paired: bool = True) -> int:
    """Return the bytes of the capture in ``directory``, of frames alone if not ``paired``. Raise ``Unreadable``."""
    found = capture_files(directory, tuple(TABLES) if paired else ("frames",))
    return sum(files.size for files in found.values())


def _files(root: Path, table: str) -> Files:
    folder = root / table
    if not folder.is_dir():
        raise Unreadable(f"{folder}: the table is missing: a capture has the directories {', '.join(TABLES)}")
    # A name that begins with a dot or an underscore belongs to an incomplete file, or to no file of the table.
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in SUFFIXES and not any(part[0] in "._" for part in path.relative_to(folder).parts)
    )
    parquet, jsonl = (tuple(path for path in paths if path.suffix == suffix) for suffix in SUFFIXES)
    return Files(parquet, jsonl)


def _check_types(path: Path, found: Mapping[str, str], columns: tuple[Column, ...]) -> None:
    for column in columns:
        kind = found.get(column.name)
        wanted = UTC_TIME if column.type == TIMESTAMP else column.type
        if kind is None:
            if column.required:
                raise Unreadable(f"{path}: the column {column.name} is missing")
        elif kind != wanted:
            raise Unreadable(f"{path}: the column {column.name} is {kind}, not {wanted}")


def _check_jsonl(path: Path, columns: tuple[Column, ...]) -> None:
    for number, row in _json_rows(path):
        for column in columns:
            cell = row.get(column.name)
            if cell is None:
                if column.required:
                    raise Unreadable(f"{path}: line {number}: the column {column.name} is missing")
            elif not _fits(column.type, cell):
                raise Unreadable(f"{path}: line {number}: the column {column.name} is no {column.type}: {cell!r:.80}")


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise Unreadable(f"{path}: line {number} is no JSON, it may be half written: {error}") from error
            if not isinstance(row, dict):
                raise Unreadable(f"{path}: line {number} is no JSON object")
            yield number, row


def _fits(kind: str, cell: Any) -> bool:
    if kind in INTEGERS:
        return type(cell) is int and -INTEGERS[kind] <= cell < INTEGERS[kind]
    if kind == BOOL:
        return isinstance(cell, bool)
    if kind == COUNTS:
        return isinstance(cell, list) and all(_fits(INT64, count) for count in cell)
    if not isinstance(cell, str):
        return False
    if kind == TIMESTAMP:
        return _is_time(cell)
    if kind == BINARY:
        return len(cell) % 2 == 0 and all(digit in "0123456789abcdefABCDEF" for digit in cell)
    return kind == STRING


def _is_time(text: str) -> bool:
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


# Tables


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

    A foreign capture may consist of frames alone: with ``paired=False`` the other two tables are not read but
    derived from the frames, which takes much longer (see ``pair``). Raise ``Unreadable``, naming the file and the
    column, if a file is broken or a column is missing or has another type.
    """
    if not paired:
        from rsocket_trio.analytics.pairing import connections_of, pair

        frames = _read(spark, "frames", capture_files(directory, ("frames",))["frames"])
        named = name_frames(frames)
        return CaptureTables(named, pair(named), connections_of(named))
    files = capture_files(directory)
    tables = {table: _read(spark, table, files[table]) for table in TABLES}
    dialects = [row.dialect for row in tables["connections"].select("dialect").distinct().collect()]
    check_dialects(directory, dialects)
    frames = name_frames(tables["frames"], tables["connections"], dialects)
    return CaptureTables(frames, tables["interactions"], tables["connections"])


def check_dialects(directory: str | Path, dialects: Iterable[str]) -> None:
    """Raise ``Unreadable`` if the connections of the capture in ``directory`` have a dialect without known names."""
    for dialect in dialects:
        try:
            type_names(dialect)
        except KeyError:
            raise Unreadable(
                f"{Path(directory) / 'connections'}: the column dialect has {dialect!r}: unknown"
            ) from None


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
