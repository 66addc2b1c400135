"""Finds the files of each table of a capture and checks them and their columns before Spark reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from rsocket_trio.capture.schema import BINARY, BOOL, COUNTS, INT64, STRING, TABLES, TIMESTAMP, Column
from rsocket_trio.capture.writers import arrow_schema

SUFFIXES: Final = (".parquet", ".jsonl")
INTEGERS: Final = {"int8": 2**7, "int16": 2**15, "int32": 2**31, INT64: 2**63}
"""Integer types, and the first number that is too large for each."""


class Unreadable(ValueError):
    """Raised for a directory that is not a readable capture. Names the file, and the column if there is one."""


@attrs.frozen
class Files:
    """The files of one table, by format."""

    parquet: tuple[Path, ...] = ()
    jsonl: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.parquet or self.jsonl)

    @property
    def size(self) -> int:
        """Return the total size of the files in bytes."""
        return sum(path.stat().st_size for path in (*self.parquet, *self.jsonl))


def capture_files(directory: str | Path, tables: tuple[str, ...] = tuple(TABLES)) -> dict[str, Files]:
    """Return the files of these tables, each checked. Raise ``Unreadable`` if one is broken or missing.

    A capture without frames is refused; ``interactions`` and ``connections`` may have no rows, as nothing may have
    ended yet. Files that a running capture has not completed are passed over.
    """
    root = Path(directory)
    if not root.is_dir():
        raise Unreadable(f"{root}: no such directory")
    found = {table: _files(root, table) for table in tables}
    if not found.get("frames", True):
        raise Unreadable(
            f"{root / 'frames'}: there is no file of a capture (part-*.parquet or part-*.jsonl): it is empty"
        )
    for table, files in found.items():
        for path in files.parquet:
            _check_parquet(path, TABLES[table])
        for path in files.jsonl:
            _check_jsonl(path, TABLES[table])
    return found


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
    return Files(*(tuple(path for path in paths if path.suffix == suffix) for suffix in SUFFIXES))


def _check_parquet(path: Path, columns: tuple[Column, ...]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise Unreadable(f"{path}: no complete Parquet file, it may be half written: {error}") from error
    for column, wanted in zip(columns, arrow_schema(columns), strict=True):
        index = schema.get_field_index(column.name)
        if index < 0:
            if column.required:
                raise Unreadable(f"{path}: the column {column.name} is missing")
            continue
        found = schema.field(index).type
        if pa.types.is_dictionary(found):
            found = found.value_type
        if pa.types.is_list(found) and pa.types.is_list(wanted.type):
            found = pa.list_(found.value_type)
        if found != wanted.type:
            raise Unreadable(f"{path}: the column {column.name} is {found}, not {wanted.type}")


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
            except ValueError as error:
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
