"""Writes rows to Parquet or JSON lines files, each under a temporary name until it is complete."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from typing import Any, Final, Protocol

from rsocket_trio.capture.footers import shortened
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
from rsocket_trio.extras import install_command

GROUP: Final = 16384
"""Rows in one write."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DAY: Final = 86_400_000_000
"""Microseconds."""
MAGIC: Final = b"PAR1"
SIZE: Final = struct.Struct("<I")
END: Final = SIZE.pack(0) + MAGIC
"""As long as the bytes that follow a footer: its size and the magic bytes of Parquet."""
NO_PYARROW: Final = f'a capture in Parquet needs pyarrow: {install_command("capture")}, or capture with format="jsonl"'


class Part(Protocol):
    """A file that is being written."""

    rows: int
    """Rows that are whole in the file and can be read once it is complete."""

    def write(self, rows: Sequence[Row]) -> None:
        """Add rows. Raise ``OSError`` if they do not fit; earlier rows stay."""
        ...

    @property
    def size(self) -> int:
        """Return bytes so far."""
        ...

    def close(self) -> None:
        """Complete the file. Raise ``OSError`` if not all of it fits; ``rows`` is then the number of rows in it."""
        ...


class JsonPart:
    """JSON lines: an object a row, timestamps as ISO 8601, bytes as hex."""

    suffix = ".jsonl"

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        # Unbuffered: the bytes that a write reports are in the file, and no buffer is left when the disk is full.
        self._file = path.open("wb", buffering=0)
        self._names = [column.name for column in columns]
        self._said = [_said(column) for column in columns]
        self.size = self.rows = 0

    def write(self, rows: Sequence[Row]) -> None:
        """Add rows. If not all of them fit, the first ones stay."""
        lines = []
        for row in rows:
            cells = [
                cell if cell is None or say is None else say(cell) for cell, say in zip(row, self._said, strict=True)
            ]
            lines.append(json.dumps(dict(zip(self._names, cells, strict=True)), separators=(",", ":")) + "\n")
        text = "".join(lines).encode()
        written = 0
        try:
            for size in _writes(self._file, text):
                written += size
        finally:
            whole = len(text) if written == len(text) else text.rfind(b"\n", 0, written) + 1
            self.size += whole
            self.rows += len(rows) if whole == len(text) else text.count(b"\n", 0, whole)

    def close(self) -> None:
        """Complete the file, without an incomplete last line."""
        try:
            self._file.truncate(self.size)
        finally:
            self._file.close()


class ParquetPart:
    """Parquet, compressed with zstd, a row group for each write.

    The footer comes at the end, and a reader needs it. If it does not fit, it replaces the last row groups.
    """

    suffix = ".parquet"

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        from pyarrow.parquet import ParquetWriter

        self._schema = arrow_schema(columns)
        self._file = path.open("w+b", buffering=0)
        self._sink = _Sink(self._file)
        self.rows = 0
        try:
            self._writer = ParquetWriter(self._sink, self._schema, compression="zstd")
        except BaseException:
            self._file.close()
            raise
        # Where the file's head and each row group end, and the rows until there.
        self._ends = [(self._sink.size, 0)]

    def write(self, rows: Sequence[Row]) -> None:
        """Add a row group."""
        pa = need_pyarrow()
        arrays = [
            pa.array(cells, type=field.type) for cells, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        if self._sink.error is not None:
            raise self._sink.error
        self.rows += len(rows)
        self._ends.append((self._sink.size, self.rows))

    @property
    def size(self) -> int:
        """Return bytes so far."""
        return self._sink.size

    def close(self) -> None:
        """Write the footer, after as many row groups as leave room for it."""
        sink, error = self._sink, self._sink.error
        try:
            tail = len(sink.held)
            sink.holds = True
            self._writer.close()
            footer = bytes(sink.held[tail : -len(END)])
            while self._ends:
                try:
                    self._end_with(footer if error is None else shortened(footer, len(self._ends) - 1, self.rows))
                    break
                except OSError as failure:
                    error = failure
                    self._ends.pop()
                    self.rows = self._ends[-1][1] if self._ends else 0
        finally:
            self._file.close()
        if error is not None:
            raise error

    def _end_with(self, footer: bytes) -> None:
        self._file.truncate(self._ends[-1][0])
        self._file.seek(self._ends[-1][0])
        for _ in _writes(self._file, footer + SIZE.pack(len(footer)) + MAGIC):
            continue


class _Sink:
    """The file object that Arrow writes to. Bytes that do not fit are held: Arrow cannot go on after a failure."""

    closed = False

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self.size = 0
        self.held = bytearray()
        self.holds = False
        """True if further bytes are held instead of written."""
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        """Write the bytes, or hold them after a failure."""
        if not self.holds:
            try:
                for size in _writes(self._file, data):
                    self.size += size
                return len(data)
            except OSError as error:
                self.error = error
                self.holds = True
        self.held += data
        return len(data)

    def flush(self) -> None:
        """Do nothing: no bytes are buffered."""

    def close(self) -> None:
        """Do nothing: the opener of the file closes it."""


def _writes(file: FileIO, data: bytes) -> Iterator[int]:
    """Write all bytes; yield the number of bytes of each write."""
    view = memoryview(data)
    while view:
        size = file.write(view)
        assert size is not None  # a file is always ready
        yield size
        view = view[size:]


FORMATS: Final[dict[str, type[JsonPart] | type[ParquetPart]]] = {"parquet": ParquetPart, "jsonl": JsonPart}


def arrow_schema(columns: Sequence[Column]) -> Any:
    """Return the columns as an Arrow schema. Raise ``ModuleNotFoundError`` naming the extra if pyarrow is missing."""
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
    """Return the module pyarrow. Raise ``ModuleNotFoundError`` naming the extra if it is missing."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(NO_PYARROW, name="pyarrow") from error
    return pa


class TableWriter:
    """Writes the files of one table, by date. Times are seconds of any clock that does not jump.

    ``kept`` is the number of rows in whole files.
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
        """Return the number of rows that are in no whole file yet."""
        return len(self._rows) + self._in_part

    def add(self, rows: Sequence[Row], now: float) -> None:
        """Take rows; write them once there are ``GROUP`` of them."""
        if rows and not self.unsaved:
            self._since = now
        self._rows += rows
        if len(self._rows) >= GROUP:
            self._write()
        self.tick(now)

    def tick(self, now: float) -> None:
        """Complete the file if it is large or old enough."""
        if self.unsaved and (
            now - self._since >= self._age or (self._part is not None and self._part.size >= self._most_bytes)
        ):
            self.complete()
            self._since = now

    def complete(self) -> None:
        """Complete the file that is being written, with all rows so far."""
        self._write()
        self._finish()

    def save(self) -> None:
        """Complete the file with the rows that fit, after a write has failed here or elsewhere.

        Rows that do not fit are lost. Never raises.
        """
        try:
            self.complete()
        except OSError:
            self._rows = []
            self._keep_what_fits()
        except Exception:
            # A fault leaves the file in an unknown state. The first failure is the one that is reported.
            self.abandon()

    def _keep_what_fits(self) -> None:
        try:
            self._finish()
        except OSError:
            return  # The rows that fit are in the file.

    def _finish(self) -> None:
        """Rename the file to its final name if it has rows. Raise ``OSError`` if not all of them fit."""
        part, self._part = self._part, None
        if part is None:
            return
        self._in_part = 0
        temporary, final = self._paths
        try:
            part.close()
        finally:
            if part.rows:
                os.replace(temporary, final)
                self.kept += part.rows
            else:
                temporary.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Discard the rows that are in no whole file, and remove the temporary file if possible."""
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
            part = self._part_for(day)
            # Rows are not written twice: some of them may be in the file when this fails.
            self._rows = rest
            self._in_part += len(same)
            part.write(same)
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
    """Return the conversion of a cell to JSON, or ``None`` if it needs none."""
    if column.type == TIMESTAMP:
        return lambda us: (EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if column.type == BINARY:
        return bytes.hex
    return None
