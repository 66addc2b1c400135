"""Finds and checks the files of a capture, Parquet or JSON lines.

Files and columns are checked before an engine reads them, so that an error names the file and the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs
import msgspec
from msgspec import Meta

from rsocket_trio.analytics.sql import TYPES
from rsocket_trio.capture import schema
from rsocket_trio.capture.schema import TABLES, Column, type_names
from rsocket_trio.extras import install_command

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NO_DUCKDB: Final = f"an analysis needs duckdb: {install_command('report')}"

SUFFIXES: Final = (".parquet", ".jsonl")
JSON_TYPES: Final[Mapping[str, Any]] = {
    **{f"int{bits}": Annotated[int, Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)] for bits in (8, 16, 32, 64)},
    schema.STRING: str,
    schema.BOOL: bool,
    schema.BINARY: Annotated[str, Meta(pattern="^([0-9a-fA-F]{2})*$")],
    schema.TIMESTAMP: Annotated[datetime, Meta(tz=True)],
    schema.COUNTS: list[int],
}
"""The types of cells in JSON lines, by that of the column."""
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


def need_duckdb() -> ModuleType:
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


def capture_files(directory: str | Path, connection: DuckDBPyConnection | None = None) -> dict[str, Files]:
    """Return the files of each table. Raise ``Unreadable`` if one is broken.

    All are checked; DuckDB, by its ``connection`` or a new one, tells the types of Parquet files. A capture without
    frames is refused; ``interactions`` and ``connections`` may have no rows, as nothing may have ended yet. Files that
    a running capture has not completed are passed over.
    """
    root = Path(directory)
    if not root.is_dir():
        raise Unreadable(f"{root}: {'no directory' if root.exists() else 'no such directory'}")
    files_by_table = {table: _files(root, table) for table in TABLES}
    if not files_by_table["frames"]:
        raise Unreadable(
            f"{root / 'frames'}: there is no file of a capture (part-*.parquet or part-*.jsonl): it is empty"
        )
    reading = connection or need_duckdb().connect()
    for table, files in files_by_table.items():
        absent = {column.name for column in TABLES[table]}
        for path in files.parquet:
            types = _types_of(reading, path)
            _check_types(path, types, TABLES[table])
            absent -= types.keys()
        for path in files.jsonl:
            _check_jsonl(path, table)
        files_by_table[table] = attrs.evolve(files, absent=frozenset(absent))
    return files_by_table


def check_capture(directory: str | Path) -> int:
    """Return the bytes of the capture in ``directory``. Raise ``Unreadable``."""
    return sum(files.size for files in capture_files(directory).values())


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


def _types_of(connection: DuckDBPyConnection, path: Path) -> dict[str, str]:
    try:
        described = connection.execute(f"DESCRIBE SELECT * FROM read_parquet({quoted((path,))})").fetchall()
    except need_duckdb().Error as error:
        raise Unreadable(f"{path}: {HALF_WRITTEN}: {first_line(error)}") from error
    return {str(name): str(kind) for name, kind, *_ in described}


def _check_types(path: Path, types: Mapping[str, str], columns: tuple[Column, ...]) -> None:
    for column in columns:
        kind = types.get(column.name)
        if kind is None:
            if column.required:
                raise Unreadable(f"{path}: the column {column.name} is missing")
        elif kind != TYPES[column.type]:
            raise Unreadable(f"{path}: the column {column.name} is {kind}, not {TYPES[column.type]}")


def _check_jsonl(path: Path, table: str) -> None:
    decoder = row_decoder(table)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                decoder.decode(line)
            except msgspec.ValidationError as error:
                raise Unreadable(f"{path}: line {number}: {error}") from None
            except (ValueError, RecursionError) as error:
                raise Unreadable(f"{path}: line {number} is no JSON, it may be half written: {error}") from error


@cache
def row_decoder(table: str) -> msgspec.json.Decoder[msgspec.Struct]:
    """Return the decoder of a row of JSON lines, which refuses one that lacks a column or has another type in it."""
    required = [(column.name, JSON_TYPES[column.type]) for column in TABLES[table] if column.required]
    others = [(column.name, JSON_TYPES[column.type] | None, None) for column in TABLES[table] if not column.required]
    return msgspec.json.Decoder(msgspec.defstruct(table, [*required, *others]))


def check_dialects(directory: str | Path, dialects: Iterable[str]) -> None:
    """Raise ``Unreadable`` if the connections of the capture in ``directory`` have a dialect without known names."""
    for dialect in dialects:
        try:
            type_names(dialect)
        except KeyError:
            raise Unreadable(
                f"{Path(directory) / 'connections'}: the column dialect has {dialect!r}: unknown"
            ) from None
