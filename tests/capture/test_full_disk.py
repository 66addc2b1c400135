"""A full disk loses what did not fit, and nothing that was written: each file stays one that can be read."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rsocket_trio.capture.footers import shortened
from rsocket_trio.capture.rows import Row
from rsocket_trio.capture.schema import FRAMES
from rsocket_trio.capture.writers import FORMATS, GROUP, JsonPart, ParquetPart, TableWriter
from rsocket_trio.connection.recording import recording_into
from tests.capture.reading import read
from tests.capture.test_files import ROWS
from tests.each_row import ALL_CASES
from tests.programs import run_program
from tests.rows import Rows

SIZES = [1, 100, 1000, 4000, 8000, 9000, 10_000, 12_000, 15_000, 20_000, 30_000, 100_000]
WRITES = 40


@contextmanager
def disk_of(size: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file grows beyond so many bytes: a write that crosses that is short, and the next one fails."""

    class Small(io.FileIO):
        def write(self, data: Any) -> int:
            room = size - self.tell()
            if room <= 0:
                raise OSError(28, "No space left on device")
            return super().write(memoryview(data)[:room])

    def small(path: Path, mode: str, **options: object) -> io.FileIO:
        return Small(path, mode.replace("b", ""))

    monkeypatch.setattr(Path, "open", small)
    try:
        yield
    finally:
        monkeypatch.undo()


def rows_of(number: int) -> list[Row]:
    """Rows that can be told from those of other numbers by their sequence."""
    return [(*row[:4], 100 * number + row[4], *row[5:]) for row in ROWS]


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS)
def test_a_part_keeps_the_rows_that_fit(
    kind: type[JsonPart] | type[ParquetPart], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rows() as row:
        for size in SIZES:
            with row(size):
                check_part(kind, size, tmp_path / f"{size}{kind.suffix}", monkeypatch)


def check_part(
    kind: type[JsonPart] | type[ParquetPart], size: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[Row] = []
    failures = 0
    with disk_of(size, monkeypatch):
        part = kind(path, FRAMES)
        try:
            for number in range(WRITES):
                added += rows_of(number)
                part.write(rows_of(number))
        except OSError:
            failures += 1
        try:
            part.close()
        except OSError:
            failures += 1

    whole = WRITES * len(ROWS)
    assert (part.rows < whole) == bool(failures)
    assert part.rows == whole or path.stat().st_size <= size
    if part.rows:
        assert [row["seq"] for row in content(path)] == [row[4] for row in added[: part.rows]]


def content(path: Path) -> list[dict[str, Any]]:
    """The rows of one file, as any reader finds them."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    assert file.metadata.num_rows == sum(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))
    rows: list[dict[str, Any]] = file.read().to_pylist()
    return rows


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_names_the_file_that_it_could_not_finish_and_knows_what_is_in_it(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rsocket_trio.capture.writers.GROUP", 2000)
    table = TableWriter(tmp_path, "frames", FORMATS[format], "x", 2**30, 60.0)
    group = [row for number in range(2000 // len(ROWS) + 1) for row in rows_of(number)]
    with disk_of(750_000 if format == "jsonl" else 50_000, monkeypatch):
        with pytest.raises(OSError, match="No space left"):
            add_often(table, group)
        table.save()

    names = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert names == [f"part-x-00000.{format}"]
    rows = read(tmp_path, "frames")
    assert table.kept == len(rows) > 0
    assert [row["seq"] for row in rows[: len(group)]] == [row[4] for row in group][: len(rows)]


def add_often(table: TableWriter, rows: list[Row]) -> None:
    for _ in range(100):
        table.add(rows, 0.0)


def test_a_footer_is_shortened_to_its_first_row_groups(tmp_path: Path) -> None:
    part = ParquetPart(tmp_path / "whole.parquet", FRAMES)
    ends = []
    for number in range(40):
        part.write(rows_of(number))
        ends.append((part.size, part.rows))
    part.close()
    data = (tmp_path / "whole.parquet").read_bytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") : -8]

    with Rows() as row:
        for groups in (1, 2, 14, 15, 16, 40):
            with row(groups):
                size, rows = ends[groups - 1]
                short = shortened(footer, groups, rows)
                (tmp_path / "short.parquet").write_bytes(
                    data[:size] + short + len(short).to_bytes(4, "little") + b"PAR1"
                )

                assert len(content(tmp_path / "short.parquet")) == rows

    assert shortened(footer, 40, ends[-1][1]) == footer


SERVER = """
import resource, sys, trio
from functools import partial
from rsocket_trio import Responder, open_connection, serve
from rsocket_trio.capture import Capture, writers

writers.GROUP = int(sys.argv.pop())

responder = Responder()
responder.request_response(lambda request: request.data)

async def main(directory, format, limit):
    capture = Capture(directory, format=format)
    async with trio.open_nursery() as nursery:
        [uri] = await nursery.start(partial(serve, responder, "tcp://127.0.0.1:0", capture=capture))
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
        async with open_connection(uri) as connection:
            while capture.error is None:
                # As fast as the capture looks, so that it drops nothing for another reason.
                for _ in range(1000):
                    await connection.request_response(b"x")
                while capture._buffer.frames and capture.error is None:
                    await trio.sleep(0.001)
            for _ in range(100):
                await connection.request_response(b"the server goes on")
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(capture.close)
    print(capture.dropped, type(capture.error).__name__)

trio.run(main, *sys.argv[1:])
"""


@pytest.mark.parametrize("format", FORMATS)
async def test_a_server_whose_capture_fills_the_disk_goes_on_and_what_was_written_is_read(
    format: str, tmp_path: Path
) -> None:
    # More than one write, and less than two.
    group, limit = 2000, 1_700_000 if format == "jsonl" else 80_000
    if ALL_CASES:
        group, limit = GROUP, 14_000_000 if format == "jsonl" else 600_000
    done = await run_program("-c", SERVER, tmp_path / "frames", format, limit, group)

    assert done.code == 0, done.stderr
    dropped, kind = done.stdout.split()
    assert (int(dropped) > 0, kind) == (True, "OSError")
    assert done.stderr.count("records nothing more") == 1
    rows = read(tmp_path / "frames", "frames")
    assert len(rows) >= group
    assert len({(row["conn_id"], row["seq"]) for row in rows}) == len(rows)


async def test_a_server_that_owns_its_capture_says_how_many_frames_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with recording_into(tmp_path) as recording:
        recording._buffer.dropped = 7

    assert [record.getMessage() for record in caplog.records] == [f"the capture in {tmp_path} lacks 7 frames"]


def test_a_parquet_file_without_rows_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "empty.parquet"

    ParquetPart(path, FRAMES).close()

    from pyarrow.parquet import read_table

    assert read_table(path).num_rows == 0
