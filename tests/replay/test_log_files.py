"""The file of a log: whose it is, what it gives back to the disk, and what becomes of it on a full or damaged one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import apsw
import pytest

from rsocket_trio.replay import CorruptLog, Element, Ledger, Log, Record, Retention, sqlite_log
from rsocket_trio.tools import filesystems
from tests.each_row import each_row
from tests.replay.stored import SmallDisk, beside, data_of, opened, rows_of


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    small = SmallDisk()
    yield small
    small.unregister()


# A file, and what is none


async def test_a_file_is_opened_again_with_its_partitions_and_more(tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    path.touch()
    async with Log(path, 2) as log:
        await log.append(b"one", partition=1)
    async with Log(path) as log:
        assert await rows_of(log, 1) == [Record(0, b"one")]
        assert list(log.partitions()) == [0, 1]
    async with Log(path, 3) as log:
        assert log.bounds(2) == (0, 0)
    with pytest.raises(ValueError, match=rf"{path} has 3 partitions, and 1 are asked for"):
        await Log(path, 1).open()
    with opened(path) as connection:
        assert connection.execute("SELECT number FROM partitions").fetchall() == [(0,), (1,), (2,)]
    # One that another process makes just now may be shorter than it says: the first look takes that for no damage.
    (tmp_path / "new.log").write_bytes(path.read_bytes()[:8192])
    Log(tmp_path / "new.log")._check_kind()
    with pytest.raises(CorruptLog, match="malformed"):
        await Log(tmp_path / "new.log").open()


def make_half_written(path: Path) -> None:
    """Leave the database of a program that was killed in a transaction: its journal has to be played back."""
    code = (
        "import apsw, os, sys; c = apsw.Connection(sys.argv[1]); c.execute('CREATE TABLE mine (x)'); "
        "c.pragma('cache_size', 1); c.execute('BEGIN'); "
        "[c.execute('INSERT INTO mine VALUES (?)', (bytes(9000),)) for _ in range(50)]; os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert beside(path, "journal").exists()


@each_row(
    ("content", "problem"),
    [
        (b"x", "it is no database"),
        (b"hello\n" * 1000, "file is not a database"),
        ("half written", "it is a database of another program"),
        ("CREATE TABLE mine (x); INSERT INTO mine VALUES (1)", "it is a database of another program"),
        ("PRAGMA journal_mode = wal; CREATE TABLE mine (x)", "it is a database of another program"),
        ("PRAGMA application_id = 7", "it is a database of another program"),
    ],
)
async def test_a_file_that_is_no_log_is_named_and_stays_as_it_is(
    content: bytes | str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.log"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "half written":
        make_half_written(path)
    else:
        with opened(path) as connection:
            connection.execute(content).fetchall()
    before = path.read_bytes()
    for log in (Log(path), Log(path, 3)):
        with pytest.raises(CorruptLog, match=problem) as caught:
            await log.open()
        assert caught.value.file == path
    assert path.read_bytes() == before


async def test_a_log_behind_a_link_has_its_files_beside_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "rows.log", tmp_path / "link.log"
    link.symlink_to(real)
    async with Log(link) as log:
        await log.append(b"x")
        assert log._wal_bytes == beside(real, "wal").stat().st_size > 0
        assert beside(real, "reserve").exists()
    assert sorted(os.listdir(tmp_path)) == ["link.log", "there"]


@pytest.mark.parametrize("place", [".", "no/folder.log"])
async def test_a_place_that_can_hold_no_file_is_an_error_of_the_disk(place: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"a folder|no folder") as caught:
        await Log(tmp_path / place).open()
    assert caught.value.filename == str(tmp_path / place)
    assert os.listdir(tmp_path) == []


async def test_a_file_that_another_process_makes_just_now_is_that_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path, connect = tmp_path / "made.log", tmp_path / "rows.log", Log._connect
    async with Log(made) as log:
        await log.append(b"x")

    def connected(log: Log, stack: ExitStack) -> apsw.Connection:
        def before(cursor: object, statement: str, bindings: object) -> bool:
            if "sqlite_schema" in statement and not path.stat().st_size:
                with opened(made) as source, opened(path) as other, other.backup("main", source, "main") as copy:
                    copy.step()
            return True

        connection = connect(log, stack)
        connection.exec_trace = before
        return connection

    monkeypatch.setattr(Log, "_connect", connected)
    async with Log(path) as log:
        assert await data_of(log) == [b"x"]


async def test_a_file_of_a_later_layout_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    async with Log(path) as log:
        await log.append(b"x")
    with opened(path) as connection:
        connection.pragma("user_version", sqlite_log.LAYOUT + 1)
    with pytest.raises(CorruptLog, match=f"the layout {sqlite_log.LAYOUT + 1}, .* knows {sqlite_log.LAYOUT}$"):
        await Log(path).open()


@each_row(
    ("kind", "outcome"),
    [("nfs4", "refused"), ("fuse.sshfs", "refused"), ("fuse.x", "warned"), ("", "warned"), ("ext4", "")],
)
async def test_a_file_system_of_several_machines_is_refused_or_warned_of(
    kind: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.log"
    caplog.clear()
    monkeypatch.setattr(filesystems, "filesystem_of", lambda folder: kind)
    if outcome == "refused":
        with pytest.raises(OSError, match=f"a log has to be on a local disk, and this one is on {kind}"):
            await Log(path).open()
        assert not path.exists()
        return
    async with Log(path):
        assert ("may be shared with other machines" in caplog.text) == (outcome == "warned")


def test_the_file_system_of_a_folder_is_known() -> None:
    assert filesystems.filesystem_of(Path("/proc")) == "proc"
    assert filesystems.filesystem_of(Path("/proc/self")) == "proc"


def test_a_mount_point_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["caf\xe9", "a\\040b", "n\xa0b", "\u2028", "\udcff", "\v"]
    mounts = [f"2 1 0:1 / /mnt/{name} rw - nfs4 server rw" for name in names]
    table = "\n".join(["1 1 8:1 / / rw - ext4 /dev/sda rw", *mounts, ""])
    monkeypatch.setattr(Path, "read_bytes", lambda path: os.fsencode(table))
    for name in names:
        assert filesystems.filesystem_of(Path("/mnt", name.replace("\\040", " "), "folder")) == "nfs4"
    assert filesystems.filesystem_of(Path("/mnt")) == "ext4"


async def test_rows_are_rows_without_arrow_and_bodies_in_arrow_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.log"
    rows = [Element(b"%d" % number) for number in range(5)]
    with monkeypatch.context() as without:
        for module in ("elements", "sqlite_log"):
            without.setattr(f"rsocket_trio.replay.{module}.has_arrow", lambda: False)
        async with Log(path) as log:
            await log.append_all({0: rows})
        async with Log(path) as log:
            assert await data_of(log) == [b"0", b"1", b"2", b"3", b"4"]
    async with Log(path) as log:
        await log.append_all({0: rows})
        [(singles, packs)] = log._ask("SELECT sum(form = 0), sum(form = 1) FROM bodies")
        assert (singles, packs) == (5, 1)
        assert len(await rows_of(log)) == 10
    monkeypatch.setattr("rsocket_trio.replay.sqlite_log.has_arrow", lambda: False)
    with pytest.raises(ModuleNotFoundError, match=rf"{path} has rows that are stored with Arrow: .*\[arrow\]"):
        await Log(path).open()


# Space


async def test_the_file_shrinks_when_rows_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    async with Log(path, sync="never") as log:
        await log.append_all({0: [Element(bytes(2**20)) for _ in range(20)]})
        assert log._ask("PRAGMA auto_vacuum") == [(2,)]
        log._reset_wal()
        assert path.stat().st_size > 20 * 2**20
        await log.trim(0, 18)
        assert path.stat().st_size < 4 * 2**20
        assert beside(path, "wal").stat().st_size < sqlite_log.CHECKPOINT_BYTES
        assert log.bounds(0) == (18, 20)
        # A quarter may be free, and is used again; a retention gives back as a trim does.
        log.set_retention(Retention(bytes=4 * 2**20))
        for _ in range(3):
            await log.append_all({0: [Element(bytes(2**20), timestamp=number) for number in range(20)]})
            await log.retain()
            [(free,)], [(pages,)] = log._ask("PRAGMA freelist_count"), log._ask("PRAGMA page_count")
            assert free <= 0.26 * pages
            assert path.stat().st_size < 8 * 2**20


async def test_on_a_full_disk_reads_go_on_and_trimming_makes_room(tmp_path: Path, disk: SmallDisk) -> None:
    path = tmp_path / "rows.log"
    async with Log(path) as log:
        for _ in range(40):
            await log.append(bytes(250_000))
        log._reset_wal()
        assert beside(path, "reserve").stat().st_size == sqlite_log.RESERVE_BYTES
        disk.room = 200_000
        await log.append(bytes(100_000))
        with pytest.raises(OSError, match="No space left on device") as caught:
            await log.append(bytes(200_000))
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
        disk.room = 0
        latest = log.bounds(0)[1]
        for record in await rows_of(log):
            assert record.data is not None
        with pytest.raises(OSError, match="No space left"):
            await log.append(bytes(100_000))

        disk.reserve = beside(path, "reserve")
        await log.trim(0, 30)
        assert log.bounds(0) == (30, latest)
        assert not disk.has_reserve
        assert beside(path, "reserve").exists()  # it is taken again: the real disk has room
        assert await log.append(bytes(100_000)) == latest
        assert len(await rows_of(log)) == latest - 29


# Damage


@each_row(
    ("statement", "position"),
    [
        ("DELETE FROM places WHERE position = 2", 2),
        ("DELETE FROM places WHERE position < 3", 0),
        ("DELETE FROM bodies WHERE id = 2", 1),
        ("UPDATE bodies SET data = CAST(x'00' AS BLOB) WHERE id = 2", 1),
        ("UPDATE bodies SET data = NULL WHERE id = 2", 1),
        ("UPDATE bodies SET data = 'text' WHERE id = 2", 1),
        ("UPDATE places SET time = time + 1 WHERE position = 1", 1),
        ("UPDATE places SET count = 2 WHERE position = 1", 1),
        ("UPDATE places SET body = 4 WHERE position = 1", 1),
        ("UPDATE partitions SET latest = latest + 1", None),
        ("UPDATE partitions SET earliest = 1", None),
        ("UPDATE partitions SET latest = 'text'", None),
        ("DELETE FROM partitions", None),
        ("DROP TABLE bodies", None),
    ],
)
async def test_rows_that_are_missing_or_changed_are_never_read(
    statement: str, position: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "rows.log"
    async with Log(path) as log:
        for number in range(6):
            await log.append(b"%d" % number)
        with opened(path) as connection:
            connection.execute(statement)
        with pytest.raises(CorruptLog) as caught:
            await rows_of(log)
        assert caught.value.file == path
        assert caught.value.position == position
        if position:
            # What is before and behind is there, and a trim ends where reads of places do.
            assert [record.data for record in await log.read_some(0, 0, position)] == [b"0", b"1"][:position]
            assert [record.data for record in await log.read_some(0, 4)] == [b"4", b"5"]
            log.set_retention(Retention(bytes=1))
            for attempt in (log.trim(0, 4), log.retain()) if "places" in statement else ():
                with pytest.raises(CorruptLog, match=f"at position {position}"):
                    await attempt
                assert log.bounds(0) == (position, 6)


@each_row("table", ["readers", "sinks", "attempts", "places", "epochs"])
@each_row("change", ["{} + 1", "CAST({} AS BLOB)", "-{}"])
async def test_a_changed_row_of_a_ledger_or_a_reader_is_damage(table: str, change: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    columns = {"sinks": "batch", "attempts": "sealed", "places": "size"}
    column = columns.get(table, "value")
    stored_in = table if table in columns else "facts"
    async with Log(path) as log:
        ledger = Ledger(log)
        await log.acknowledge("reader", {0: 0})
        await ledger.commit("sink", 1, {})
        stage = await ledger.begin("sink", "a", 0, batch=2, epoch=5)
        await stage.add(Element(b"x"))
        await stage.seal()
        with opened(path) as connection:
            connection.execute(f"UPDATE {stored_in} SET {column} = {change.format(column)}")
        with pytest.raises(CorruptLog) as caught:
            log.readers() if table == "readers" else await ledger.commit("sink", 2, {"a": 1}, epoch=5)
        assert caught.value.file == path
        assert log.bounds(0) == (0, 0)
