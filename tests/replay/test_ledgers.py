"""Ledgers in memory and on files: a batch counts once, whole, and whatever is killed in between."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio import Rejected
from rsocket_trio.replay import (
    Commit,
    CorruptLog,
    Element,
    FileLedger,
    FileLog,
    Ledger,
    LedgerMismatch,
    LogLocked,
    MemoryLog,
    NotStaged,
)
from rsocket_trio.replay import journal as journal_module
from rsocket_trio.replay.segments import Segments
from tests.each_row import ALL_CASES, each_row
from tests.replay.disks import BadDisk, Died, FullDisk, MortalDisk, QuickDisk, UnpluggedDisk

KINDS = ["memory", "files"]


def new_ledger(kind: str, directory: Path, **options: Any) -> Ledger:
    if kind == "memory":
        return Ledger(MemoryLog(2), **options)
    return FileLedger(directory, **{"partitions": 2, "filesystem": QuickDisk(), **options})


async def stage(ledger: Ledger, attempt: str, rows: Iterable[bytes], *, sink: str = "sink", partition: int = 0) -> None:
    staged = await ledger.begin(sink, attempt, partition)
    for row in rows:
        await staged.add(Element(row))
    await staged.seal()


async def rows_of(ledger: Ledger, partition: int = 0) -> list[bytes]:
    earliest, latest = ledger.log.bounds(partition)
    async with aclosing(ledger.log.read(partition, earliest, latest)) as records:
        return [record.data async for record in records]


# What holds for both


@pytest.mark.parametrize("kind", KINDS)
async def test_a_commit_promotes_the_attempts_that_it_names_in_order(kind: str, tmp_path: Path) -> None:
    async with new_ledger(kind, tmp_path) as ledger:
        await stage(ledger, "loser", [b"never"])
        await stage(ledger, "b", [b"3", b"4"])
        await stage(ledger, "a", [b"1", b"2"])
        await stage(ledger, "c", [b"5"], partition=3)
        assert await rows_of(ledger) == []

        assert await ledger.commit("sink", 7, {"a": 2, "b": 2, "c": 1}) == Commit(promoted=True, rows=5, last=7)

        assert await rows_of(ledger) == [b"1", b"2", b"3", b"4"]
        assert await rows_of(ledger, 1) == [b"5"]
        assert (list(ledger.staged), ledger.last("sink"), ledger.last("other")) == (["loser"], 7, None)
        assert await ledger.abort("sink", ["loser", "a", "unknown"]) == 1
        assert (list(ledger.staged), ledger.staged_bytes) == ([], 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_batch_counts_once_for_its_sink(kind: str, tmp_path: Path) -> None:
    async with new_ledger(kind, tmp_path) as ledger:
        await stage(ledger, "a", [b"1"])
        await ledger.commit("sink", 5, {"a": 1})
        await stage(ledger, "again", [b"1"])
        await stage(ledger, "other", [b"2"], sink="other")

        assert await ledger.commit("sink", 5, {"again": 1}) == Commit(promoted=False, rows=0, last=5)
        assert await ledger.commit("sink", 4, {}) == Commit(promoted=False, rows=0, last=5)
        assert list(ledger.staged) == ["other"]
        assert await ledger.commit("other", 5, {"other": 1}) == Commit(promoted=True, rows=1, last=5)
        assert await ledger.commit("sink", 6, {}) == Commit(promoted=True, rows=0, last=6)
        assert await ledger.commit("sink", 6, {}) == Commit(promoted=False, rows=0, last=6)
        assert await rows_of(ledger) == [b"1", b"2"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_commit_that_does_not_fit_what_is_staged_promotes_nothing(kind: str, tmp_path: Path) -> None:
    async with new_ledger(kind, tmp_path) as ledger:
        await stage(ledger, "a", [b"1", b"2"])
        await stage(ledger, "foreign", [b"3"], sink="other")
        open_one = await ledger.begin("sink", "open", 0)
        await open_one.add(Element(b"4"))

        for attempts, reason in (
            ({"a": 2, "unknown": 1}, "attempt unknown is not staged for sink sink"),
            ({"a": 2, "foreign": 1}, "attempt foreign is not staged for sink sink"),
            ({"a": 2, "open": 1}, "attempt open is not complete"),
            ({"a": 3}, "attempt a has 2 rows, not 3"),
        ):
            with pytest.raises(NotStaged, match=reason) as caught:
                await ledger.commit("sink", 1, attempts)
            assert caught.value.code == 0x320
        assert (await rows_of(ledger), ledger.last("sink")) == ([], None)
        assert (await ledger.commit("sink", 1, {"a": 2})).promoted
        await ledger.discard(open_one)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_staged_is_bounded(kind: str, tmp_path: Path) -> None:
    async with new_ledger(kind, tmp_path, staged_bytes=5000, staged_attempts=2) as ledger:
        await stage(ledger, "a", [bytes(1000)])
        staged = await ledger.begin("sink", "b", 0)
        await staged.add(Element(bytes(2000)))
        with pytest.raises(Rejected, match=r"bytes are staged and \d+ more do not fit: the limit is 5000"):
            await staged.add(Element(bytes(2000)))
        with pytest.raises(Rejected, match="attempt a is staged already"):
            await ledger.begin("sink", "a", 0)
        with pytest.raises(Rejected, match="2 attempts are staged: that is the limit"):
            await ledger.begin("sink", "c", 0)
        await ledger.discard(staged)
        await stage(ledger, "c", [bytes(2000)])
        with pytest.raises(ValueError, match="a record of"):
            await (await new_stage_after_abort(ledger)).add(Element(bytes(64 * 2**20 + 1)))
        await ledger.abort("sink", ["c", "last"])
        assert ledger.staged_bytes == 0


async def new_stage_after_abort(ledger: Ledger) -> Any:
    await ledger.abort("sink", ["a"])
    return await ledger.begin("sink", "last", 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_attempts_expire(kind: str, tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with new_ledger(kind, tmp_path, staged_seconds=100) as ledger:
        await stage(ledger, "old", [b"1"])
        unfinished = await ledger.begin("sink", "unfinished", 0)
        await trio.sleep(60)
        await stage(ledger, "young", [b"2"])
        await trio.sleep(60)
        with pytest.raises(NotStaged, match="attempt old is not staged"):
            await ledger.commit("sink", 1, {"old": 1})
        with pytest.raises(Rejected, match="is staged no longer"):
            await unfinished.add(Element(b"late"))
        with pytest.raises(Rejected, match="is staged no longer"):
            await unfinished.seal()
        assert (await ledger.commit("sink", 1, {"young": 1})).rows == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sink_reaches_no_attempts_but_its_own(kind: str, tmp_path: Path) -> None:
    async with new_ledger(kind, tmp_path) as ledger:
        await stage(ledger, "a", [b"1", b"2"])
        unfinished = await ledger.begin("sink", "b", 0)
        assert await ledger.abort("other", ["a", "b"]) == 0
        with pytest.raises(NotStaged, match="attempt a is not staged for sink other"):
            await ledger.commit("other", 1, {"a": 2})
        await ledger.commit("other", 1, {})
        # What comes after its batch drops the attempts that it names: those of this sink.
        assert not (await ledger.commit("other", 1, {"a": 2, "b": 0})).promoted
        assert (list(ledger.staged), await rows_of(ledger)) == (["a", "b"], [])

        await unfinished.add(Element(b"3"))
        await unfinished.seal()
        assert (await ledger.commit("sink", 1, {"a": 2, "b": 1})).promoted
        assert await rows_of(ledger) == [b"1", b"2", b"3"]


async def test_attempts_belong_to_their_sink_in_the_next_process_too(tmp_path: Path) -> None:
    async with new_ledger("files", tmp_path) as ledger:
        await stage(ledger, "a", [b"1"])
        await ledger.commit("other", 1, {})
    async with new_ledger("files", tmp_path) as ledger:
        assert await ledger.abort("other", ["a"]) == 0
        assert not (await ledger.commit("other", 1, {"a": 1})).promoted
        assert (await ledger.commit("sink", 1, {"a": 1})).promoted
        assert await rows_of(ledger) == [b"1"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_commit_that_is_cancelled_promotes_whole_or_not_at_all(kind: str, tmp_path: Path) -> None:
    async with new_ledger(kind, tmp_path) as ledger:
        await stage(ledger, "a", [b"1", b"2"])
        with trio.CancelScope() as scope:
            scope.cancel()
            await ledger.commit("sink", 1, {"a": 2})
        assert (await rows_of(ledger), ledger.last("sink")) == ([], None)
        assert (await ledger.commit("sink", 1, {"a": 2})).promoted


@pytest.mark.parametrize("kind", KINDS)
async def test_plain_writes_and_commits_at_once_lose_nothing(kind: str, tmp_path: Path) -> None:
    async with new_ledger(kind, tmp_path) as ledger:
        for number in range(10):
            await stage(ledger, f"a{number}", [b"staged"] * 10, sink=f"sink{number}")
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ledger.write, {number: [Element(b"plain")] * 3})
                nursery.start_soon(ledger.commit, f"sink{number}", 1, {f"a{number}": 10})
        found = await rows_of(ledger) + await rows_of(ledger, 1)
        assert (found.count(b"plain"), found.count(b"staged")) == (30, 100)


# Sinks are remembered up to a number of bytes: here a name of one character counts 101


class Calendar:
    """The time of the day, which a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.7e9
        monkeypatch.setattr(time, "time", lambda: self.now)


@pytest.mark.parametrize("kind", KINDS)
async def test_one_sink_too_many_is_rejected_until_one_is_forgotten(kind: str, tmp_path: Path) -> None:
    async with new_ledger(kind, tmp_path, sink_bytes=2 * 101) as ledger:
        await ledger.commit("a", 5, {})
        await ledger.commit("b", 6, {})
        await stage(ledger, "staged", [b"1"], sink="c")
        with pytest.raises(Rejected, match="2 sinks have committed, their names take 202 bytes: the limit"):
            await ledger.commit("c", 0, {"staged": 1})
        assert (await ledger.commit("a", 6, {})).promoted
        assert ledger.sinks == {"a": 6, "b": 6}

        assert await ledger.forget("a")
        assert not await ledger.forget("a")
        assert (await ledger.commit("c", 0, {"staged": 1})).promoted
        assert ledger.sinks == {"b": 6, "c": 0}
    if kind == "files":
        async with new_ledger(kind, tmp_path) as ledger:
            assert ledger.sinks == {"b": 6, "c": 0}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_sink_that_has_not_committed_for_long_makes_room_for_a_new_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calendar = Calendar(monkeypatch)
    limits = {"sink_bytes": 3 * 101, "sink_seconds": 60.0}
    async with new_ledger(kind, tmp_path, **limits) as ledger:
        for sink in "abc":
            await ledger.commit(sink, 1, {})
        calendar.now += 50
        await ledger.commit("a", 2, {})
    async with new_ledger(kind, tmp_path, **limits) as ledger:
        if kind == "memory":
            return
        calendar.now += 20
        await ledger.commit("d", 1, {})

        assert ledger.sinks == {"c": 1, "a": 2, "d": 1}
        assert "sink b is forgotten: it was not written to for 70 s" in caplog.text
        await ledger.commit("e", 1, {})
        with pytest.raises(Rejected, match="has not committed for 60 s goes"):
            await ledger.commit("f", 1, {})
        assert ledger.sinks == {"a": 2, "d": 1, "e": 1}


@pytest.mark.parametrize("kind", KINDS)
async def test_sinks_that_write_but_once_never_run_out(kind: str, tmp_path: Path) -> None:
    async with new_ledger(kind, tmp_path, sink_bytes=106 + 3 * 104) as ledger:
        await ledger.commit("stream", 7, {})
        for number in range(10):
            await stage(ledger, f"a{number}", [b"%d" % number], sink=f"job{number}")
            assert (await ledger.commit(f"job{number}", 0, {f"a{number}": 1}, once=True)).promoted
        # The writer that did not hear the answer.
        assert not (await ledger.commit("job9", 0, {"a9": 1}, once=True)).promoted
        # Nobody asks after so many others. Should one, nothing counts twice.
        with pytest.raises(NotStaged):
            await ledger.commit("job0", 0, {"a0": 1}, once=True)
        assert [ledger.last(sink) for sink in ("stream", "job0", "job7")] == [7, None, 0]
        assert await rows_of(ledger) == [b"%d" % number for number in range(10)]
    if kind == "files":
        async with new_ledger(kind, tmp_path) as ledger:
            assert [ledger.last(sink) for sink in ("stream", "job7", "job9")] == [7, 0, 0]


async def test_many_sinks_with_long_names_survive_a_journal_that_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "JOURNAL_BYTES", 5000)
    monkeypatch.setattr(journal_module, "ENTRY_SINKS", 7)
    names = ["\u0000" * 200 + str(number) for number in range(60)]
    async with new_ledger("files", tmp_path) as ledger:
        for batch in range(3):
            for name in names:
                await ledger.commit(name, batch, {}, once=name.endswith("0"))
        sinks, times = ledger.sinks, dict(ledger._committed.times)
    async with new_ledger("files", tmp_path) as ledger:
        assert ledger.sinks == sinks
        assert ledger._committed.times == pytest.approx(times, abs=5)
        assert ledger.last(names[0]) == 2


async def test_a_journal_without_times_is_read(tmp_path: Path) -> None:
    write_journal(tmp_path, {"last": {"a": 3}})
    write_journal(tmp_path, {"once": {"b": 0}})
    write_journal(tmp_path, {"done": {"sink": "c", "batch": 4}})
    async with new_ledger("files", tmp_path) as ledger:
        assert ledger.sinks == {"a": 3, "c": 4}
        assert ledger.last("b") == 0


# On files: what survives


async def test_sealed_attempts_and_last_batches_survive_the_process(tmp_path: Path) -> None:
    async with new_ledger("files", tmp_path) as ledger:
        await stage(ledger, "a", [b"1"])
        await ledger.commit("sink", 3, {"a": 1})
        await stage(ledger, "sealed", [b"2", b"3"], partition=1)
        size = ledger.staged_bytes
        unfinished = await ledger.begin("sink", "unfinished", 0)
        await unfinished.add(Element(bytes(2 * 2**20)))
        assert (tmp_path / "staged/unfinished.rows").exists()
        with pytest.raises(LogLocked, match=f"process {os.getpid()}"):
            await FileLedger(tmp_path, ledger.log).open()
    (tmp_path / "staged/left.rows").write_bytes(b"by a process that was killed")
    (tmp_path / "staged/left.new").write_bytes(b"")
    (tmp_path / "staged/odd.json").write_bytes(b"[]")
    async with new_ledger("files", tmp_path) as ledger:
        assert (ledger.last("sink"), list(ledger.staged), ledger.staged_bytes) == (3, ["sealed"], size)
        assert sorted(os.listdir(tmp_path / "staged")) == ["sealed.json", "sealed.rows"]
        assert (await ledger.commit("sink", 4, {"sealed": 2})).promoted
        assert (await rows_of(ledger), await rows_of(ledger, 1)) == ([b"1"], [b"2", b"3"])
        assert os.listdir(tmp_path / "staged") == []


async def test_the_journal_begins_anew_before_it_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "JOURNAL_BYTES", 2000)
    async with new_ledger("files", tmp_path) as ledger:
        for number in range(100):
            await ledger.commit(f"sink{number % 3}", number, {})
            if number < 3:
                await ledger.commit(f"job{number}", 0, {}, once=True)
        await ledger.forget("sink2")
        assert sum(path.stat().st_size for path in (tmp_path / "journal").iterdir()) < 3000
    async with new_ledger("files", tmp_path) as ledger:
        assert [ledger.last(f"sink{number}") for number in range(3)] == [99, 97, None]
        assert [ledger.last(f"job{number}") for number in range(3)] == [0, 0, 0]
        assert ledger.sinks == {"sink0": 99, "sink1": 97}


async def test_a_staged_file_that_is_damaged_is_told_and_promotes_nothing(tmp_path: Path) -> None:
    async with new_ledger("files", tmp_path) as ledger:
        await stage(ledger, "a", [b"1"] * 100)
        path = tmp_path / "staged/a.rows"
        content = bytearray(path.read_bytes())
        content[500] ^= 1
        path.write_bytes(content)
        with pytest.raises(CorruptLog, match=r"a\.rows is damaged"):
            await ledger.commit("sink", 1, {"a": 100})
        content[500] ^= 1
        path.write_bytes(content)
        assert (await ledger.commit("sink", 1, {"a": 100})).promoted
        assert await rows_of(ledger) == [b"1"] * 100


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_full_disk_at_any_point_of_a_commit_leaves_it_to_be_tried_again(restarts: bool, tmp_path: Path) -> None:
    failures, step = 0, 13 if ALL_CASES else 39
    for room in range(0, 900, step):
        disk, folder = FullDisk(), tmp_path / str(room)
        async with new_ledger("files", folder, filesystem=disk) as ledger:
            await stage(ledger, "a", [b"first"] * 3)
            await stage(ledger, "b", [b"second"] * 3, partition=1)
            disk.room = room
            try:
                await ledger.commit("sink", 1, {"a": 3, "b": 3})
            except OSError as error:
                failures += 1
                if error.errno != errno.ENOSPC:
                    raise
                assert (await rows_of(ledger), await rows_of(ledger, 1), ledger.last("sink")) == ([], [], None)
                disk.room = 2**40
                if not restarts:
                    assert (await ledger.commit("sink", 1, {"a": 3, "b": 3})).promoted
        async with new_ledger("files", folder) as ledger:
            if restarts and disk.room == 2**40:
                # What was told to have failed is not done behind the writer's back.
                assert (list(ledger.staged), await rows_of(ledger), ledger.last("sink")) == (["a", "b"], [], None)
                await ledger.commit("sink", 1, {"a": 3, "b": 3})
            assert (await rows_of(ledger), await rows_of(ledger, 1)) == ([b"first"] * 3, [b"second"] * 3)
            assert not (await ledger.commit("sink", 1, {})).promoted
    assert 260 < failures * step < 780


async def test_a_full_disk_while_rows_are_staged_leaves_no_file(tmp_path: Path) -> None:
    disk = FullDisk()
    async with new_ledger("files", tmp_path, filesystem=disk) as ledger:
        for room in (0, 50, 130, 200):
            disk.room = room
            staged = await ledger.begin("sink", "a", 0)
            await staged.add(Element(bytes(100)))
            with pytest.raises(OSError, match="No space left"):
                await staged.seal()
            await ledger.discard(staged)
            assert os.listdir(tmp_path / "staged") == []
            assert ledger.staged_bytes == 0


async def test_a_disk_that_fails_under_the_journal_ends_the_commits(tmp_path: Path) -> None:
    disk = BadDisk()
    async with (
        FileLog(tmp_path / "log", filesystem=QuickDisk()) as log,
        FileLedger(tmp_path, log, filesystem=disk) as ledger,
    ):
        await stage(ledger, "a", [b"1"])
        disk.failing = {"sync": errno.EIO}
        for _ in range(2):
            with pytest.raises(OSError, match=r"Input/output error"):
                await ledger.commit("sink", 1, {"a": 1})
            disk.failing = {}
        assert await rows_of(ledger) == []
    async with FileLog(tmp_path / "log") as log, FileLedger(tmp_path, log) as ledger:
        assert (await ledger.commit("sink", 1, {"a": 1})).promoted


@each_row("failing", [["sync"], ["sync", "truncate"], ["write", "truncate"]])
async def test_a_log_that_fails_after_the_decision_gets_the_rows_once_when_it_is_opened_anew(
    failing: list[str], tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    disk = BadDisk()
    folder = tmp_path / "ledger"
    async with FileLog(tmp_path / "log", filesystem=disk) as log, FileLedger(folder, log, staged_seconds=10) as ledger:
        await stage(ledger, "a", [b"1", b"2"])
        disk.failing = dict.fromkeys(failing, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            await ledger.commit("sink", 0, {"a": 2})
        disk.failing = {}
        # Neither the writer's despair nor time may take away what was decided.
        assert await ledger.abort("sink", ["a"]) == 0
        await trio.sleep(20)
        with pytest.raises(OSError, match="can't be written since a failure, open it anew"):
            await ledger.commit("sink", 0, {"a": 2})

    async with FileLog(tmp_path / "log") as log, FileLedger(folder, log) as ledger:
        assert await rows_of(ledger) == [b"1", b"2"]
        assert await ledger.commit("sink", 0, {"a": 2}) == Commit(promoted=False, rows=0, last=0)
        assert list(ledger.staged) == []


async def test_nothing_is_decided_once_the_log_has_failed(tmp_path: Path) -> None:
    disk = BadDisk()
    folder = tmp_path / "ledger"
    async with FileLog(tmp_path / "log", filesystem=disk) as log, FileLedger(folder, log) as ledger:
        await stage(ledger, "a", [b"staged"])
        disk.failing = dict.fromkeys(["sync", "truncate"], errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            await ledger.write({0: [Element(b"plain")]})
        disk.failing = {}
        with pytest.raises(OSError, match="can't be written since a failure"):
            await ledger.commit("sink", 0, {"a": 1})

    async with FileLog(tmp_path / "log") as log, FileLedger(folder, log) as ledger:
        assert await rows_of(ledger) == [b"plain"]
        assert (await ledger.commit("sink", 0, {"a": 1})).promoted
        assert await rows_of(ledger) == [b"plain", b"staged"]


# Killed at any moment


@asynccontextmanager
async def killed_with(ledger: FileLedger) -> AsyncGenerator[None, None]:
    """Let the process of a ledger die in the block: afterwards only its files are left."""
    try:
        yield
    except BaseException as error:
        if not isinstance(only(error), Died):
            raise
    finally:
        disk_is_left(ledger)


def only(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def disk_is_left(ledger: FileLedger) -> None:
    """Let go of the folder as the system does when a process ends: descriptors are closed, nothing else happens."""
    log = ledger.log
    assert isinstance(log, FileLog)
    for segments in [*log._partitions, *([ledger._journal] if ledger._journal else [])]:
        segments._close_file()
    for stage in ledger._stages.values():
        stage._close()  # type: ignore[attr-defined]
    for lock in (log._lock, ledger._directory_lock):
        if lock is not None:
            lock.release()


async def run_batches(ledger: Ledger, first: int, life: str) -> None:
    """Write batches as a writer does: stage and commit, and after a crash the whole batch anew under other names."""
    for batch in range(first, 3):
        for partition in range(3):
            rows = [b"%d-%d-%d" % (batch, partition, row) for row in range(2)]
            await stage(ledger, f"{life}-{batch}-{partition}", rows, partition=partition)
        await ledger.commit("sink", batch, {f"{life}-{batch}-{partition}": 2 for partition in range(3)})


@pytest.mark.parametrize("disks", [MortalDisk, UnpluggedDisk])
async def test_a_process_killed_at_any_call_to_its_disk_leaves_each_row_once(
    disks: type[MortalDisk], tmp_path: Path
) -> None:
    wanted = sorted(b"%d-%d-%d" % (batch, part, row) for batch in range(3) for part in range(3) for row in range(2))
    first, step = (1, 1) if ALL_CASES else (1 + (disks is UnpluggedDisk), 3)
    for life in range(first, 1000, step):
        disk, folder = disks(life), tmp_path / str(life)
        ledger = FileLedger(folder, partitions=2, filesystem=disk)
        async with killed_with(ledger):
            await ledger.open()
            await run_batches(ledger, 0, "first")
        async with FileLedger(folder, partitions=2, filesystem=QuickDisk()) as ledger:
            # The writer does not know whether its last commit came through: it does that batch again.
            last = ledger.last("sink")
            await run_batches(ledger, 0 if last is None else last, "second")
            found = sorted(await rows_of(ledger) + await rows_of(ledger, 1))
            assert found == wanted, f"killed at call {life}"
        if not disk.is_dead:
            break
    assert life > 80


async def test_a_process_killed_while_it_recovers_recovers_the_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    async with new_ledger("files", folder) as ledger:
        await stage(ledger, "a", [b"%d" % row for row in range(5)])
        await stage(ledger, "b", [b"%d" % row for row in range(5, 10)], partition=1)
    # Decided, and one and a half of ten rows appended.
    decided = {"sink": "sink", "batch": 1, "attempts": ["a", "b"], "begins": {"0": 0, "1": 0}, "ends": {"0": 5, "1": 5}}
    write_journal(folder, {"decided": decided})
    async with FileLog(folder / "log", 2, filesystem=QuickDisk()) as log:
        await log.append(b"0")
    for life in range(1, 30):
        ledger = FileLedger(folder, partitions=2, filesystem=MortalDisk(life))
        async with killed_with(ledger):
            await ledger.open()
    async with new_ledger("files", folder) as ledger:
        assert ledger.last("sink") == 1
        assert await rows_of(ledger) == [b"%d" % row for row in range(5)]
        assert await rows_of(ledger, 1) == [b"%d" % row for row in range(5, 10)]


@each_row(
    ("there", "begin", "complaint"),
    [
        ([b"0", b"not ours"], 0, "somebody else wrote to partition 0 from 0 on"),
        ([], 3, "ends at 0 and lost rows"),
        ([b"0"], 0, None),
    ],
)
async def test_a_log_that_is_not_as_the_journal_left_it_is_told(
    there: list[bytes], begin: int, complaint: str | None, tmp_path: Path
) -> None:
    async with new_ledger("files", tmp_path) as ledger:
        await stage(ledger, "a", [b"0", b"1", b"2"])
    decided = {"sink": "sink", "batch": 1, "attempts": ["a"], "begins": {"0": begin}, "ends": {"0": begin + 3}}
    write_journal(tmp_path, {"decided": decided})
    async with FileLog(tmp_path / "log", 2, filesystem=QuickDisk()) as log:
        for row in there:
            await log.append(row)
    ledger = new_ledger("files", tmp_path)
    if complaint is None:
        async with ledger:
            assert await rows_of(ledger) == [b"0", b"1", b"2"]
    else:
        with pytest.raises(LedgerMismatch, match=complaint):
            await ledger.open()
        with pytest.raises(trio.ClosedResourceError, match="the ledger was closed"):
            await ledger.open()


async def test_a_decision_whose_attempts_are_gone_is_told(tmp_path: Path) -> None:
    async with new_ledger("files", tmp_path):
        pass
    decided = {"sink": "sink", "batch": 1, "attempts": ["a"], "begins": {"0": 0}, "ends": {"0": 3}}
    write_journal(tmp_path, {"decided": decided})
    with pytest.raises(LedgerMismatch, match="lacks rows, and their attempts are gone"):
        await new_ledger("files", tmp_path).open()


def write_journal(folder: Path, entry: object) -> None:
    journal = Segments(folder / "journal", filesystem=QuickDisk())
    journal.append([Element(json.dumps(entry).encode())])
    journal.close()


async def test_a_ledger_that_is_not_open_says_so(tmp_path: Path) -> None:
    ledger = FileLedger(tmp_path)
    with pytest.raises(trio.ClosedResourceError, match="use it under 'async with'"):
        await ledger.begin("sink", "a", 0)
    await ledger.aclose()
