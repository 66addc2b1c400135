"""A full disk loses the file that is being written, and nothing that was whole before."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsocket_trio.capture.writers import FORMATS
from tests.capture.reading import read
from tests.programs import run_program

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
                while len(capture._buffer) and capture.error is None:
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
