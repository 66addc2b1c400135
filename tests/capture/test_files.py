"""Files are whole or not there: rotation, dates, full disks, killed processes, and directories that are none."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rsocket_trio.capture.writers
from rsocket_trio.capture import Capture
from rsocket_trio.capture.writers import GROUP, JsonPart, ParquetPart, TableWriter
from rsocket_trio.mux.framing import Facts
from tests.blocks import ROOT
from tests.capture import golden
from tests.capture.reading import read
from tests.programs import program

ROWS = golden.rows()["frames"]
DAY = 86_400_000_000


def writer(directory: Path, kind: type[JsonPart] | type[ParquetPart] = JsonPart, most: int = 2**20) -> TableWriter:
    """The writer of ``frames``, whose files are complete after 60 s."""
    return TableWriter(directory, "frames", kind, "x", most, 60.0)


def names(directory: Path) -> list[str]:
    """All files below, hidden ones too."""
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", [JsonPart, ParquetPart])
def test_a_file_appears_when_it_is_large_enough(
    kind: type[JsonPart] | type[ParquetPart], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rsocket_trio.capture.writers, "GROUP", 1000)
    table = writer(tmp_path, kind, most=1000)
    for _ in range(2000 // len(ROWS) + 2):
        table.add(ROWS, 0.0)

    assert len(names(tmp_path)) == 2
    assert not any(name.endswith(".tmp") for name in names(tmp_path))
    assert table.kept >= 2000
    assert len(read(tmp_path, "frames")) == table.kept


def test_rows_of_two_days_are_in_two_directories(tmp_path: Path) -> None:
    table = writer(tmp_path)
    later = [(*row[:5], row[5] + DAY, *row[6:]) for row in ROWS[:3]]
    table.add([ROWS[0], *later, ROWS[1]], 0.0)
    table.complete()

    assert [name.split("/")[1] for name in names(tmp_path)] == ["date=2026-01-01", "date=2026-01-02"]
    assert [row["seq"] for row in read(tmp_path, "frames")] == [0, 1, 0, 1, 2]


def test_what_is_being_written_has_a_name_that_readers_pass_over(tmp_path: Path) -> None:
    table = writer(tmp_path, most=2**30)
    for _ in range(GROUP // len(ROWS) + 1):
        table.add(ROWS, 0.0)

    assert names(tmp_path) == ["frames/date=2026-01-01/.part-x-00000.jsonl.tmp"]

    table.abandon()

    assert (names(tmp_path), table.unsaved) == ([], 0)


def test_without_pyarrow_parquet_names_the_extra_and_json_lines_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[capture\]'.*jsonl"):
        Capture(tmp_path)
    with Capture(tmp_path, format="jsonl") as capture:
        converse(capture)

    assert len(read(tmp_path, "frames")) == 2


def test_importing_the_package_or_its_capture_loads_neither_pyarrow_nor_files() -> None:
    code = "import sys, rsocket_trio, rsocket_trio.capture; print('pyarrow' in sys.modules)"
    alone = "import sys, rsocket_trio; print('rsocket_trio.capture' in sys.modules)"

    for each in code, alone:
        assert subprocess.check_output([sys.executable, "-c", each], text=True) == "False\n"


def converse(capture: Capture) -> None:
    """A SETUP and a request pass over a connection."""
    recorder = capture._opened(Facts("client", "rsocket/1.0"))
    recorder.sent([golden.SETUP])
    recorder.sent([golden.GET_5])


def test_flush_puts_all_that_was_seen_into_whole_files(tmp_path: Path) -> None:
    with Capture(tmp_path) as capture:
        converse(capture)
        assert capture.flush()
        assert len(read(tmp_path, "frames")) == 2
        assert read(tmp_path, "connections") == []
    assert [row["close_reason"] for row in read(tmp_path, "connections")] == ["the capture ended first"]
    assert "closed" in repr(capture)
    assert not capture.flush(), "nobody is left who could"


KILLED = """
import sys, itertools
from pathlib import Path
from rsocket_trio.capture import Capture
from rsocket_trio.mux.framing import Facts
from tests.capture import golden

capture = Capture(sys.argv[1], format=sys.argv[2])
recorder = capture._opened(Facts("client", "rsocket/1.0"))
recorder.sent([golden.SETUP])
for number in itertools.count():
    recorder.sent([golden.GET_5] * 100)
    recorder.received([golden.ERROR_5])
    if number % 20 == 0:
        print(capture.flush(), flush=True)
"""


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
async def test_a_process_that_is_killed_leaves_whole_files_only(format: str, tmp_path: Path) -> None:
    async with program("-c", KILLED, tmp_path, format, cwd=ROOT) as running:
        assert [await running.line() for _ in range(3)] == ["True"] * 3
        running.process.kill()
        await running.process.wait()
    rows = read(tmp_path, "frames")

    assert [row["seq"] for row in rows] == list(range(len(rows)))
    assert len(rows) > 3000
    assert {row["outcome"] for row in read(tmp_path, "interactions")} <= {"error", "unknown"}


def test_a_disk_that_does_not_answer_holds_up_close_no_longer_than_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, free = threading.Event(), threading.Event()

    def add(self: TableWriter, rows: object, now: float) -> None:
        stuck.set()
        free.wait(60)

    monkeypatch.setattr(rsocket_trio.capture.writers.TableWriter, "add", add)
    capture = Capture(tmp_path, format="jsonl")
    converse(capture)
    assert stuck.wait(60)
    converse(capture)
    capture.close(timeout=0.05)
    free.set()
    capture._thread.join(60)

    assert isinstance(capture.error, TimeoutError)
    assert len(caplog.records) == 1
    assert os.path.isdir(tmp_path)
