"""A full disk loses the file that is being written, and nothing that was whole before."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsocket_trio.capture.schema import FRAMES
from rsocket_trio.capture.writers import FORMATS, ParquetPart, TableWriter
from rsocket_trio.connection.recording import recording_into
from tests.capture.reading import read
from tests.capture.test_files import ROWS
from tests.programs import run_program


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_without_room_loses_what_is_in_no_whole_file(format: str, tmp_path: Path) -> None:
    table = TableWriter(tmp_path, "frames", FORMATS[format], "x", 2**30, 60.0)
    table.add(ROWS, 0.0)
    table.complete()
    [whole] = tmp_path.rglob("*.*")
    whole.with_name(f".part-x-00001.{format}.tmp").symlink_to("/dev/full")
    table.add(ROWS, 0.0)
    with pytest.raises(OSError, match="No space left"):
        table.complete()
    table.save()

    assert list(tmp_path.rglob("*.*")) == [whole]
    assert (table.kept, table.unsaved) == (len(ROWS), 0)
    assert [row["seq"] for row in read(tmp_path, "frames")] == [row[4] for row in ROWS]


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
        async with open_connection(uri) as connection:
            await connection.request_response(b"before")
            await trio.to_thread.run_sync(capture.flush)
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
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
async def test_a_server_whose_capture_fills_the_disk_goes_on_and_what_was_whole_is_read(
    format: str, tmp_path: Path
) -> None:
    # More than one write, and less than two.
    group, limit = 2000, 1_700_000 if format == "jsonl" else 80_000
    done = await run_program("-c", SERVER, tmp_path / "frames", format, limit, group)

    assert done.code == 0, done.stderr
    dropped, kind = done.stdout.split()
    assert (int(dropped) >= group, kind) == (True, "OSError")
    assert done.stderr.count("records nothing more") == 1
    rows = read(tmp_path / "frames", "frames")
    assert [row["interaction"] for row in rows if row["interaction"]] == ["request_response"]


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
