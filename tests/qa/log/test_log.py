"""Short runs of the gate of the log, and each of its judges judged: damage that it is to find is found."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
import trio

from qa.log import flips, kills, large, wal
from rsocket_trio.replay import CorruptLog
from tests.missing import missing_module, require

require(missing_module("pyarrow"))


@pytest.mark.timeout(120)
def test_killed_writers_of_a_log_and_a_ledger_lose_and_repeat_nothing(tmp_path: Path) -> None:
    assert kills.play(tmp_path, log=2, ledger=2, both=1) == []


def test_a_log_that_lost_rows_and_has_a_body_too_many_is_bad(tmp_path: Path) -> None:
    assert kills.play(tmp_path, log=1, ledger=0, both=0) == []
    connection = apsw.Connection(str(tmp_path / "log-1"))
    connection.execute(
        "DELETE FROM places WHERE partition = 1 AND position = (SELECT min(position) FROM places WHERE partition = 1)"
    )
    connection.execute("UPDATE partitions SET crc = crc + 1 WHERE number = 0")
    connection.close()

    assert kills.damage(tmp_path / "log-1") == ["1 bodies belong to nothing"]
    with pytest.raises(CorruptLog):
        trio.run(kills.Rows(tmp_path / "log-1").new)


def test_flipped_bits_are_errors_or_change_nothing(tmp_path: Path) -> None:
    assert flips.play(tmp_path, 60) == []


def test_the_wal_of_a_log_with_readers_stays_short(tmp_path: Path) -> None:
    assert [line for line in wal.play(tmp_path, seconds=2) if "WAL" in line] == []


def test_a_large_log_takes_no_more_memory_than_a_small_one(tmp_path: Path) -> None:
    assert [line for line in large.play(tmp_path, 200 * 2**20) if "MiB" in line] == []
