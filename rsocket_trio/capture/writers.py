"""How do rows become files? Whole ones only: each is written under another name, and renamed when it is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Protocol

from rsocket_trio.capture.rows import Row
from rsocket_trio.capture.schema import (
    BINARY,
    BOOL,
    COUNTS,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TABLES,
    TIMESTAMP,
    Column,
)

GROUP: Final = 16384
"""Rows that are written together."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DAY: Final = 86_400_000_000
"""Microseconds."""
NO_PYARROW: Final = (
    "a capture in Parquet needs pyarrow: pip install 'rsocket-trio[capture]', or capture with format=\"jsonl\""
)


class Part(Protocol):
    """One file that is being written."""

    def write(self, rows: Sequence[Row]) -> None:
        """Add rows. Raises ``OSError`` where the disk is full."""
        ...

    @property
    def size(self) -> int:
        """Bytes so far."""
        ...

    def close(self) -> None:
        """Complete the file."""
        ...


class JsonPart:
    """JSON lines: an object a row, timestamps as ISO 8601, bytes as hex."""

    suffix = ".jsonl"

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._names = [column.name for column in columns]
        self._said = [_said(column) for column in columns]
        self.size = 0

    def write(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        lines = []
        for row in rows:
            cells = [
                cell if cell is None or say is None else say(cell) for cell, say in zip(row, self._said, strict=True)
            ]
            lines.append(json.dumps(dict(zip(self._names, cells, strict=True)), separators=(",", ":")) + "\n")
        text = "".join(lines)
        self.size += len(text)
        self._file.write(text)

    def close(self) -> None:
        """Complete the file."""
        self._file.close()


class ParquetPart:
    """Parquet, compressed with zstd, a row group for each write."""

    suffix = ".parquet"

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        from pyarrow.parquet import ParquetWriter

        self._schema = arrow_schema(columns)
        self._file = path.open("wb")
        try:
            self._writer = ParquetWriter(self._file, self._schema, compression="zstd")
        except BaseException:
            self._file.close()
            raise

    def write(self, rows: Sequence[Row]) -> None:
        """Add a row group."""
        pa = need_pyarrow()
        arrays = [
            pa.array(cells, type=field.type) for cells, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._file.tell()

    def close(self) -> None:
        """Write the footer."""
        try:
            self._writer.close()
        finally:
            self._file.close()


FORMATS: Final[dict[str, type[JsonPart] | type[ParquetPart]]] = {"parquet": ParquetPart, "jsonl": JsonPart}


def arrow_schema(columns: Sequence[Column]) -> Any:
    """The columns as an Arrow schema. Raises ``ModuleNotFoundError`` naming the extra where pyarrow is missing."""
    pa = need_pyarrow()
    types = {
        STRING: pa.string(),
        INT8: pa.int8(),
        INT16: pa.int16(),
        INT32: pa.int32(),
        INT64: pa.int64(),
        BOOL: pa.bool_(),
        BINARY: pa.binary(),
        TIMESTAMP: pa.timestamp("us", tz="UTC"),
        COUNTS: pa.list_(pa.int64()),
    }
    return pa.schema([pa.field(column.name, types[column.type], nullable=not column.required) for column in columns])


def need_pyarrow() -> Any:
    """The module. Raises ``ModuleNotFoundError`` that names the extra."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_PYARROW, name="pyarrow") from error
    return pa


class TableWriter:
    """The files of one table, by date. Times are seconds of any clock that does not jump.

    ``kept`` are rows that are in whole files.
    """

    def __init__(
        self,
        directory: Path,
        table: str,
        kind: type[JsonPart] | type[ParquetPart],
        name: str,
        most_bytes: int,
        age: float,
    ) -> None:
        self._directory = directory / table
        self._columns = TABLES[table]
        self._when = [column.name for column in self._columns].index("ts" if table == "frames" else "t_end")
        self._kind = kind
        self._name = name
        self._most_bytes = most_bytes
        self._age = age
        self._rows: list[Row] = []
        self._part: Part | None = None
        self._in_part = 0
        self._paths = Path(), Path()
        self._date = ""
        self._since = 0.0
        self._parts = 0
        self.kept = 0

    @property
    def unsaved(self) -> int:
        """Rows that are in no whole file yet."""
        return len(self._rows) + self._in_part

    def add(self, rows: Sequence[Row], now: float) -> None:
        """Take rows; write them once they are worth it."""
        if rows and not self.unsaved:
            self._since = now
        self._rows += rows
        if len(self._rows) >= GROUP:
            self._write()
        self.tick(now)

    def tick(self, now: float) -> None:
        """Complete a file that is large or old enough."""
        if self.unsaved and (
            now - self._since >= self._age or (self._part is not None and self._part.size >= self._most_bytes)
        ):
            self.complete()
            self._since = now

    def complete(self) -> None:
        """Complete the file that is being written, with all rows so far."""
        self._write()
        part, self._part = self._part, None
        if part is None:
            return
        part.close()
        temporary, final = self._paths
        os.replace(temporary, final)
        self.kept += self._in_part
        self._in_part = 0

    def abandon(self) -> None:
        """Give up what is in no whole file; its space is given back as far as that can be done."""
        part, self._part = self._part, None
        self._rows = []
        self._in_part = 0
        if part is None:
            return
        try:
            part.close()
        except (OSError, ValueError):
            pass  # It could not be written before, either.
        try:
            self._paths[0].unlink(missing_ok=True)
        except OSError:
            pass  # A leftover that no reader takes for a file of the capture.

    def _write(self) -> None:
        rows, self._rows = self._rows, []
        while rows:
            day = rows[0][self._when] // DAY
            same = [row for row in rows if row[self._when] // DAY == day]
            rest = [] if len(same) == len(rows) else [row for row in rows if row[self._when] // DAY != day]
            self._rows = rows  # they are not lost sight of if this fails
            self._part_for(day).write(same)
            self._in_part += len(same)
            self._rows = rest
            rows = rest

    def _part_for(self, day: int) -> Part:
        date = (EPOCH + timedelta(days=day)).date().isoformat()
        if self._part is not None and date != self._date:
            rows, self._rows = self._rows, []
            self.complete()
            self._rows = rows
        if self._part is None:
            self._date = date
            folder = self._directory / f"date={date}"
            folder.mkdir(parents=True, exist_ok=True)
            name = f"part-{self._name}-{self._parts:05d}{self._kind.suffix}"
            self._parts += 1
            # Readers of such directories pass over names that begin with a dot.
            self._paths = folder / f".{name}.tmp", folder / name
            self._part = self._kind(self._paths[0], self._columns)
        return self._part


def _said(column: Column) -> Callable[[Any], Any] | None:
    """How a cell is said in JSON, where that is not as it is."""
    if column.type == TIMESTAMP:
        return lambda us: (EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if column.type == BINARY:
        return bytes.hex
    return None
