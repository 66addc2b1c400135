"""Finds and checks the files of a capture, Parquet or JSON lines.

Files and columns are checked before an engine reads them, so that an error names the file and the column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from rsocket_trio.analytics.sql import TYPES
from rsocket_trio.capture.schema import BINARY, BOOL, COUNTS, INT64, STRING, TABLES, TIMESTAMP, Column, type_names
from rsocket_trio.extras import install_command

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NO_DUCKDB: Final = f"an analysis needs duckdb: {install_command('report')}"

SUFFIXES: Final = (".parquet", ".jsonl")
INTEGERS: Final = {"int8": 2**7, "int16": 2**15, "int32": 2**31, INT64: 2**63}
"""Integer types, and the first number that is too large for each."""
HALF_WRITTEN: Final = "no complete Parquet file, it may be half written"


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


def need_duckdb() -> Any:
    """Return DuckDB. Raise ``ModuleNotFoundError`` naming the extra if it is missing."""
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_DUCKDB, name=error.name) from error
    return duckdb


def quoted(paths: Iterable[Path]) -> str:
    """Return SQL for a list of paths."""
    return "[" + ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths) + "]"


def first_line(error: Exception) -> str:
    """Return the first line of an error of DuckDB."""
    return str(error).partition("\n")[0]


def capture_files(
    directory: str | Path, *, paired: bool = True, connection: DuckDBPyConnection | None = None
) -> dict[str, Files]:
    """Return the files of each table, or of frames alone if not ``paired``. Raise ``Unreadable`` if one is broken.

    All are checked; DuckDB, by its ``connection`` or a new one, tells the types of Parquet files. A capture without
    frames is refused; ``interactions`` and ``connections`` may have no rows, as nothing may have ended yet. Files that
    a running capture has not completed are passed over.
    """
    root = Path(directory)
    if not root.is_dir():
        raise Unreadable(f"{root}: {'no directory' if root.exists() else 'no such directory'}")
    found = {table: _files(root, table) for table in (TABLES if paired else ("frames",))}
    if not found["frames"]:
        raise Unreadable(
            f"{root / 'frames'}: there is no file of a capture (part-*.parquet or part-*.jsonl): it is empty"
        )
    reading = connection or need_duckdb().connect()
    for table, files in found.items():
        absent = {column.name for column in TABLES[table]}
        for path in files.parquet:
            types = _types_of(reading, path)
            _check_types(path, types, TABLES[table])
            absent -= types.keys()
        for path in files.jsonl:
            _check_jsonl(path, TABLES[table])
        found[table] = attrs.evolve(files, absent=frozenset(absent))
    return found


def check_capture(directory: str | Path, *, paired: bool = True) -> int:
    """Return the bytes of the capture in ``directory``, of frames alone if not ``paired``. Raise ``Unreadable``."""
    return sum(files.size for files in capture_files(directory, paired=paired).values())


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


def _types_of(connection: Any, path: Path) -> dict[str, str]:
    try:
        found = connection.execute(f"DESCRIBE SELECT * FROM read_parquet({quoted((path,))})").fetchall()
    except need_duckdb().Error as error:
        raise Unreadable(f"{path}: {HALF_WRITTEN}: {first_line(error)}") from error
    return {str(name): str(kind) for name, kind, *_ in found}


def _check_types(path: Path, found: Mapping[str, str], columns: tuple[Column, ...]) -> None:
    for column in columns:
        kind = found.get(column.name)
        if kind is None:
            if column.required:
                raise Unreadable(f"{path}: the column {column.name} is missing")
        elif kind != TYPES[column.type]:
            raise Unreadable(f"{path}: the column {column.name} is {kind}, not {TYPES[column.type]}")


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


def check_dialects(directory: str | Path, dialects: Iterable[str]) -> None:
    """Raise ``Unreadable`` if the connections of the capture in ``directory`` have a dialect without known names."""
    for dialect in dialects:
        try:
            type_names(dialect)
        except KeyError:
            raise Unreadable(
                f"{Path(directory) / 'connections'}: the column dialect has {dialect!r}: unknown"
            ) from None
