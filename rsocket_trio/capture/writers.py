"""Writes rows to Parquet or JSON lines files, each under a temporary name until it is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from rsocket_trio.capture.rows import Row
from rsocket_trio.capture.schema import COUNTS, TABLES, TIMESTAMP, Column
from rsocket_trio.extras import install_command

if TYPE_CHECKING:
    from types import ModuleType

    import pyarrow as pa

GROUP: Final = 16384
"""Rows in one write."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DAY: Final = 86_400_000_000
"""Microseconds."""
NO_PYARROW: Final = f'a capture in Parquet needs pyarrow: {install_command("capture")}, or capture with format="jsonl"'


class JsonPart:
    """A file of JSON lines: an object a row, timestamps as ISO 8601, bytes as hex."""

    suffix = ".jsonl"

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._file = path.open("wb")
        self._columns = [(column.name, column.type == TIMESTAMP) for column in columns]
        self.size = 0
        """Bytes so far."""

    def write(self, rows: Sequence[Row]) -> None:
        """Add rows."""
        for row in rows:
            cells = {
                name: iso_time(cell) if is_time and cell is not None else cell
                for (name, is_time), cell in zip(self._columns, row, strict=True)
            }
            self.size += self._file.write(json.dumps(cells, separators=(",", ":"), default=bytes.hex).encode() + b"\n")

    def close(self) -> None:
        """Complete the file. Raise ``OSError`` if not all of it fits."""
        self._file.close()


class ParquetPart:
    """A file of Parquet, compressed with zstd, a row group for each write; its footer comes with ``close``."""

    suffix = ".parquet"

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        from pyarrow.parquet import ParquetWriter

        self._schema = arrow_schema(columns)
        self._file = path.open("wb")
        self._writer = ParquetWriter(self._file, self._schema, compression="zstd")

    @property
    def size(self) -> int:
        """Return bytes so far."""
        return self._file.tell()

    def write(self, rows: Sequence[Row]) -> None:
        """Add a row group."""
        pa = need_pyarrow()
        arrays = [
            pa.array(cells, type=field.type) for cells, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Complete the file. Raise ``OSError`` if not all of it fits."""
        try:
            self._writer.close()
        finally:
            # After a failure the writer would try once more when it is collected.
            self._writer.is_open = False
            self._file.close()


Part: TypeAlias = JsonPart | ParquetPart
PartKind: TypeAlias = type[JsonPart] | type[ParquetPart]
FORMATS: Final[dict[str, PartKind]] = {"parquet": ParquetPart, "jsonl": JsonPart}


def iso_time(us: int) -> str:
    """Return a time, in microseconds since 1970, as ISO 8601."""
    return (EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the columns as an Arrow schema. Raise ``ModuleNotFoundError`` naming the extra if pyarrow is missing."""
    pa = need_pyarrow()
    special = {TIMESTAMP: pa.timestamp("us", tz="UTC"), COUNTS: pa.list_(pa.int64())}
    return pa.schema(
        [
            pa.field(column.name, special.get(column.type) or pa.type_for_alias(column.type), not column.required)
            for column in columns
        ]
    )


def need_pyarrow() -> ModuleType:
    """Return the module pyarrow. Raise ``ModuleNotFoundError`` naming the extra if it is missing."""
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_PYARROW, name="pyarrow") from error


class TableWriter:
    """Writes the files of one table, by date. Times are seconds of any clock that does not jump.

    ``kept`` is the number of rows in whole files.
    """

    def __init__(self, directory: Path, table: str, kind: PartKind, name: str, max_bytes: int, max_age: float) -> None:
        self._directory = directory / table
        self._columns = TABLES[table]
        self._when = [column.name for column in self._columns].index("ts" if table == "frames" else "t_end")
        self._kind = kind
        self._name = name
        self._max_bytes = max_bytes
        self._max_age = max_age
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
        """Return the number of rows that are in no whole file yet."""
        return len(self._rows) + self._in_part

    def add(self, rows: Sequence[Row], now: float) -> None:
        """Take rows; write them once there are ``GROUP``, and complete the file if it is large or old enough."""
        if rows and not self.unsaved:
            self._since = now
        self._rows += rows
        if len(self._rows) >= GROUP:
            self._write()
        is_large = self._part is not None and self._part.size >= self._max_bytes
        if self.unsaved and (is_large or now - self._since >= self._max_age):
            self.complete()
            self._since = now

    def complete(self) -> None:
        """Complete the file that is being written, with all rows so far."""
        self._write()
        self._finish()

    def abandon(self) -> None:
        """Discard the rows that are in no whole file, and remove the temporary file if possible. Never raises."""
        part, self._part = self._part, None
        self._rows = []
        self._in_part = 0
        if part is not None:
            # It could not be written before, either; and no reader takes a leftover for a file of the capture.
            with suppress(OSError, ValueError):
                part.close()
            with suppress(OSError):
                self._paths[0].unlink()

    def _finish(self) -> None:
        """Complete the file and give it its final name, if there is one."""
        if self._part is None:
            return
        try:
            self._part.close()
            os.replace(*self._paths)
        except OSError:
            self.abandon()
            raise
        self._part = None
        self.kept += self._in_part
        self._in_part = 0

    def _write(self) -> None:
        by_day: dict[int, list[Row]] = {}
        for row in self._rows:
            by_day.setdefault(row[self._when] // DAY, []).append(row)
        self._rows = []
        for day, rows in by_day.items():
            part = self._part_for(day)
            self._in_part += len(rows)
            try:
                part.write(rows)
            except BaseException:
                # The state of the file is unknown.
                self.abandon()
                raise

    def _part_for(self, day: int) -> Part:
        date = (EPOCH + timedelta(days=day)).date().isoformat()
        if date != self._date:
            self._finish()
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
