"""A writer that is killed in the middle of commits, and does them again, has each row once."""

from __future__ import annotations

import signal
from pathlib import Path

from rsocket_trio.replay import Log
from tests.programs import program
from tests.replay.mortal_writer import ROWS
from tests.replay.stored import data_of, opened

WRITER = Path(__file__).with_name("mortal_writer.py")
CALLS = ("write 1", "write 2", "write 5", "write 9", "write 14", "sync 1", "none 1")


async def test_a_writer_killed_in_the_middle_of_commits_has_each_row_once(tmp_path: Path) -> None:
    path, is_promoted = tmp_path / "rows.log", []
    for batch, call in enumerate(CALLS):
        async with program(WRITER, path, batch, *call.split()) as running:
            if batch:
                # It does not know what became of its last commit, so it does that batch again.
                is_promoted.append(await running.line() == "True")
            assert await running.process.wait() == (0 if call == "none 1" else -signal.SIGKILL)
        with opened(path) as connection:
            assert connection.pragma("integrity_check") == "ok"
    async with Log(path) as log:
        for partition in range(2):
            rows = [f"{batch}-{partition}-{row}".encode() for batch in range(len(CALLS)) for row in range(ROWS)]
            assert await data_of(log, partition) == rows
    # Killed before the transaction was whole in the file, the batch is promoted anew; killed later, it had been.
    assert is_promoted[0]
    assert not all(is_promoted)
