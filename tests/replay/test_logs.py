"""Logs in memory and on files behave alike: as a list of rows with positions."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import subprocess
import sys
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rsocket_trio.replay import (
    CorruptLog,
    Element,
    FileLog,
    LogLocked,
    MemoryLog,
    PositionAhead,
    PositionExpired,
    Record,
    ReplayableLog,
    UnknownPartition,
)
from rsocket_trio.replay.filesystem import FileSystem
from rsocket_trio.replay.memory_log import OVERHEAD
from tests.each_row import each_row
from tests.replay.disks import BadDisk, FullDisk, QuickDisk

KINDS = ["memory", "files"]
_numbers = itertools.count()


def new_log(kind: str, directory: Path, partitions: int = 1, **options: Any) -> ReplayableLog:
    if kind == "memory":
        return MemoryLog(partitions)
    return FileLog(directory, partitions, **{"segment_bytes": 150, "filesystem": QuickDisk(), **options})


async def some_of(log: ReplayableLog, start: int, end: int | None, partition: int = 0) -> list[Record]:
    async with aclosing(log.read(partition, start, end)) as records:
        return [record async for record in records]


def only_segment(directory: Path) -> Path:
    [path] = directory.glob("partition-0/*.segment")
    return path


# What holds for every log


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_appended_is_read_again_from_any_position(kind: str, tmp_path: Path) -> None:
    async with new_log(kind, tmp_path, 2) as log:
        assert await log.append("one") == 0
        assert await log.append(b"two", "meta", count=3) == 1
        assert await log.append(b"other", partition=1) == 0
        assert await log.append(b"three") == 4

        assert [log.bounds(partition) for partition in log.partitions()] == [(0, 5), (0, 1)]
        assert await some_of(log, 0, 5) == [Record(0, b"one"), Record(1, b"two", b"meta", 3), Record(4, b"three")]
        assert await some_of(log, 2, 3) == [Record(1, b"two", b"meta", 3)]
        assert await some_of(log, 0, 1, partition=1) == [Record(0, b"other")]
        assert await some_of(log, 5, 5) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reader_at_the_end_waits_and_is_woken_by_an_append(
    kind: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    read: list[bytes] = []

    async def follow(log: ReplayableLog) -> None:
        async with aclosing(log.read(0, 0)) as records:
            async for record in records:
                read.append(record.data)

    async with new_log(kind, tmp_path) as log, trio.open_nursery() as nursery:
        nursery.start_soon(follow, log)
        nursery.start_soon(follow, log)
        for data in (b"one", b"two"):
            await trio.testing.wait_all_tasks_blocked()
            read.clear()
            await log.append(data)
            with trio.fail_after(60):
                while len(read) < 2:  # noqa: ASYNC110  # threads read, and the clock jumps meanwhile
                    await trio.sleep(0.01)
            assert read == [data, data]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reader_that_waits_hears_that_the_log_was_closed(kind: str, tmp_path: Path) -> None:
    log = new_log(kind, tmp_path)
    await log.open()
    async with trio.open_nursery() as nursery:

        async def follow() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await some_of(log, 0, None)

        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        await log.aclose()
    await log.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_positions_and_partitions_that_are_not_there_are_refused(kind: str, tmp_path: Path) -> None:
    async with new_log(kind, tmp_path, 2) as log:
        for number in range(10):
            await log.append(b"x" * 100 + bytes([number]))
        await log.trim(0, 5)
        earliest, latest = log.bounds(0)
        assert 0 < earliest <= 5

        with pytest.raises(PositionExpired, match=f"position 0 of partition 0 has expired: the earliest is {earliest}"):
            await some_of(log, 0, 5)
        with pytest.raises(PositionExpired):
            await log.read_some(0, earliest - 1)
        for start, end in ((latest + 1, None), (latest, latest + 1)):
            with pytest.raises(PositionAhead, match=f"is beyond partition 0: the latest is {latest}"):
                await some_of(log, start, end)
        with pytest.raises(PositionAhead):
            await log.read_some(0, latest + 1)
        for partition in (-1, 2):
            with pytest.raises(UnknownPartition, match=f"there is no partition {partition}: they are 0 to 1"):
                log.bounds(partition)
            with pytest.raises(UnknownPartition):
                await log.append(b"", partition=partition)


@each_row("kind", KINDS)
@each_row("count", [0, -1, 2**31])
async def test_a_record_has_at_least_one_row(kind: str, count: int, tmp_path: Path) -> None:
    async with new_log(kind, tmp_path) as log:
        with pytest.raises(ValueError, match=f"a record of {count} rows"):
            await log.append(b"", count=count)
        assert log.bounds(0) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_several_partitions_get_all_or_nothing(kind: str, tmp_path: Path) -> None:
    async with new_log(kind, tmp_path, 2) as log:
        await log.append(b"first", partition=1)
        with pytest.raises(ValueError, match="a record of 0 rows"):
            await log.append_all({0: iter([Element(b"fine")]), 1: [Element(b"no", count=0)]})
        with pytest.raises(ValueError, match="partition 1 ends at 1, not at 0: somebody else wrote to it"):
            await log.append_all({0: [Element(b"fine")], 1: [Element(b"late")]}, at={0: 0, 1: 0})
        assert [log.bounds(0), log.bounds(1)] == [(0, 0), (0, 1)]

        assert await log.append_all({0: [Element(b"a")], 1: [Element(b"b"), Element(b"c")]}, at={1: 1}) == {0: 0, 1: 1}
        assert [log.bounds(0), log.bounds(1)] == [(0, 1), (0, 3)]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_append_that_is_cancelled_has_appended_nothing(kind: str, tmp_path: Path) -> None:
    async with new_log(kind, tmp_path) as log:
        with trio.CancelScope() as scope:
            scope.cancel()
            await log.append(b"never")
        assert scope.cancelled_caught
        assert log.bounds(0) == (0, 0)


# Against a model


@attrs.define
class Model:
    """A log as a list of rows: for each row, the record that holds it."""

    rows: list[Record] = attrs.field(factory=list)

    def append(self, element: Element) -> int:
        position = len(self.rows)
        self.rows += [Record(position, element.data, element.metadata, element.count)] * element.count
        return position

    def read(self, start: int, end: int) -> list[Record]:
        return list({record.position: record for record in self.rows[start:end]}.values())


elements = st.builds(Element, st.binary(max_size=80), st.none() | st.binary(max_size=20), st.integers(1, 4))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(elements, max_size=6)),
        st.tuples(st.just("read"), st.tuples(st.floats(0, 1), st.floats(0, 1))),
        st.tuples(st.just("trim"), st.floats(0, 1)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=steps)
def test_a_log_is_a_list_of_rows(kind: str, steps: list[tuple[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / str(next(_numbers))
    trio.run(play, kind, folder, steps)


async def play(kind: str, folder: Path, steps: list[tuple[str, Any]]) -> None:
    model, floor = Model(), 0
    log = new_log(kind, folder)
    await log.open()
    for step, detail in steps:
        earliest, latest = log.bounds(0)
        assert earliest <= floor
        assert latest == len(model.rows)
        if step == "append":
            begin = len(model.rows)
            for element in detail:
                model.append(element)
            assert await log.append_all({0: detail}) == {0: begin}
        elif step == "read":
            start, end = sorted(earliest + round(part * (latest - earliest)) for part in detail)
            assert await some_of(log, start, end) == model.read(start, end)
        elif step == "trim":
            floor = max(floor, round(detail * latest))
            await log.trim(0, floor)
        elif kind == "files":
            await log.aclose()
            log = new_log(kind, folder)
            await log.open()
    earliest, latest = log.bounds(0)
    assert await some_of(log, earliest, latest) == model.read(earliest, latest)
    await log.aclose()


# A log in memory


async def test_a_log_in_memory_lets_go_of_its_oldest_records() -> None:
    room = 10 * (OVERHEAD + 100)
    log = MemoryLog(limit_bytes=room)
    for number in range(5000):
        await log.append(b"%0100d" % number)

    assert log.bounds(0) == (4990, 5000)
    assert [int(record.data) for record in await some_of(log, 4990, 5000)] == list(range(4990, 5000))
    with pytest.raises(PositionExpired):
        await some_of(log, 4989, 5000)
    with pytest.raises(ValueError, match=f"bytes for a partition in memory: the limit is {room}"):
        await log.append(bytes(room))


@pytest.mark.parametrize("cls", [MemoryLog, partial(FileLog, "unused")])
def test_a_log_has_a_partition(cls: Any) -> None:
    with pytest.raises(ValueError, match="0 partitions: there must be at least 1"):
        cls(0)


# A log on files


async def test_a_log_on_files_is_there_again(tmp_path: Path) -> None:
    async with FileLog(tmp_path, 2) as log:
        await log.append(b"one", partition=1)
    async with FileLog(tmp_path, 3) as log:
        assert await some_of(log, 0, 1, partition=1) == [Record(0, b"one")]
        assert log.bounds(2) == (0, 0)
    log = FileLog(tmp_path, 1)
    with pytest.raises(ValueError, match="more than 1 partitions: partition-1, partition-2"):
        await log.open()
    async with FileLog(tmp_path, 3):
        pass


async def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    async with FileLog(tmp_path):
        with pytest.raises(LogLocked, match=rf"{tmp_path} has a writer already: process {os.getpid()}"):
            await FileLog(tmp_path).open()
    async with FileLog(tmp_path):
        pass


async def test_a_log_that_is_not_open_says_so(tmp_path: Path) -> None:
    log = FileLog(tmp_path)
    with pytest.raises(trio.ClosedResourceError, match="use it under 'async with'"):
        await log.append(b"")
    async with log:
        pass
    for attempt in (partial(log.append, b""), log.open, partial(log.read_some, 0, 0), partial(log.trim, 0, 0)):
        with pytest.raises(trio.ClosedResourceError, match="the log was closed"):
            await attempt()


@each_row("options", [{"sync": "often"}, {"segment_bytes": 0}, {"segment_bytes": 2**31}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be"):
        FileLog(tmp_path, **options)


async def test_a_torn_tail_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with FileLog(tmp_path) as log:
        await log.append(b"one")
        assert log.truncated == 0
        size = log.size
    file = only_segment(tmp_path)
    assert file.stat().st_size == size
    with file.open("ab") as tail:
        tail.write(b"torn")
    async with FileLog(tmp_path) as log:
        assert log.truncated == 4
        assert await some_of(log, 0, 1) == [Record(0, b"one")]
    assert caplog.messages == [f"{tmp_path}: cut off a torn tail of 4 bytes"]


async def test_a_damaged_log_is_not_opened_and_leaves_no_lock(tmp_path: Path) -> None:
    async with FileLog(tmp_path, filesystem=QuickDisk()) as log:
        await log.append(b"one")
        await log.append(b"two")
    file = only_segment(tmp_path)
    content = file.read_bytes()
    file.write_bytes(content.replace(b"one", b"eno"))
    with pytest.raises(CorruptLog, match="offset 28, position 0: its CRC is wrong"):
        await FileLog(tmp_path).open()
    file.write_bytes(content)
    async with FileLog(tmp_path) as log:
        assert log.bounds(0) == (0, 2)


async def test_appends_that_come_meanwhile_share_a_sync(tmp_path: Path) -> None:
    counts = {}
    for sync in ("batch", "always", "never"):
        disk = BadDisk()
        async with FileLog(tmp_path / sync, sync=sync, filesystem=disk) as log:
            disk.syncs = 0
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(log.append, b"%d" % number)
            counts[sync] = disk.syncs
            assert sorted(int(record.data) for record in await some_of(log, 0, 50)) == list(range(50))
    assert counts["always"] == 50
    assert counts["batch"] <= 10
    assert counts["never"] == 0


@attrs.define
class SlowDisk(QuickDisk):
    """A disk whose syncs wait until the test lets them go on."""

    entered: trio.Event = attrs.field(factory=trio.Event)
    go_on: trio.Event = attrs.field(factory=trio.Event)
    is_slow: bool = False

    def sync(self, fd: int) -> None:
        if self.is_slow:
            # The test may put another event in its place as soon as it sees that this one is waited for.
            go_on = self.go_on
            trio.from_thread.run_sync(self.entered.set)
            trio.from_thread.run(wait_a_while, go_on)


async def wait_a_while(event: trio.Event) -> None:
    """Nobody can cancel a thread, so it must not last when a test fails."""
    with trio.move_on_after(5):
        await event.wait()


async def test_an_append_that_is_being_written_is_not_cancelled_and_one_that_waits_is(tmp_path: Path) -> None:
    disk = SlowDisk()
    positions: dict[str, int] = {}

    async def append(log: ReplayableLog, name: str) -> None:
        positions[name] = await log.append(name)

    async with FileLog(tmp_path, filesystem=disk) as log:
        disk.is_slow = True
        async with trio.open_nursery() as nursery, trio.open_nursery() as cancelled:
            nursery.start_soon(append, log, "first")
            await disk.entered.wait()
            async with trio.open_nursery() as waiting:
                waiting.start_soon(append, log, "never")
                await trio.testing.wait_all_tasks_blocked()
                waiting.cancel_scope.cancel()
            # These two are written together, by the one that came first.
            cancelled.start_soon(append, log, "second")
            await trio.testing.wait_all_tasks_blocked()
            cancelled.start_soon(append, log, "third")
            await trio.testing.wait_all_tasks_blocked()
            assert log.bounds(0) == (0, 0)
            done, disk.entered, disk.go_on = disk.go_on, trio.Event(), trio.Event()
            done.set()
            await disk.entered.wait()
            assert positions == {"first": 0}
            cancelled.cancel_scope.cancel()
            disk.go_on.set()
        assert positions == {"first": 0, "second": 1, "third": 2}
        assert [record.data for record in await some_of(log, 0, 3)] == [b"first", b"second", b"third"]
        disk.is_slow = False


async def test_a_full_disk_fails_the_appends_that_do_not_fit_and_no_other(tmp_path: Path) -> None:
    disk = FullDisk()
    failed: list[int] = []

    async def append(log: ReplayableLog, size: int) -> None:
        try:
            await log.append(bytes(size))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            failed.append(size)

    async with FileLog(tmp_path, filesystem=disk) as log:
        disk.room = 2000
        async with trio.open_nursery() as nursery:
            for size in (10, 20, 5000, 30):
                nursery.start_soon(append, log, size)
        assert 5000 in failed
        assert sorted(len(record.data) for record in await some_of(log, 0, log.bounds(0)[1])) == sorted(
            {10, 20, 30} - set(failed)
        )
        disk.room = 2**40
        await log.append(b"room again")
    async with FileLog(tmp_path) as log:
        assert log.truncated == 0


async def test_a_reader_that_is_overtaken_by_trim_hears_of_it(tmp_path: Path) -> None:
    async with FileLog(tmp_path, segment_bytes=1, filesystem=QuickDisk()) as log:
        await log.append_all({0: [Element(b"x")] * 5})
        async with aclosing(log.read(0, 0, 5)) as records:
            assert (await anext(records)).position == 0
            await log.trim(0, 4)
            with pytest.raises(PositionExpired, match="position 1 of partition 0 has expired: the earliest is 4"):
                await anext(records)


def test_the_layer_of_the_system_is_what_is_used(tmp_path: Path) -> None:
    path = tmp_path / "file"
    filesystem = FileSystem()
    fd = filesystem.create(path)
    filesystem.write_all(fd, b"content", 2)
    filesystem.sync(fd)
    filesystem.truncate(fd, 5)
    filesystem.sync_directory(tmp_path)
    assert (filesystem.size(fd), filesystem.read(fd, 10, 1)) == (5, b"\0con")
    filesystem.close(fd)
    filesystem.rename(path, tmp_path / "other")
    filesystem.remove(path)
    assert [found.name for found in tmp_path.iterdir()] == ["other"]


async def test_the_largest_size_that_a_file_may_have_is_a_full_disk(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with FileLog(tmp_path) as log:
        await log.append(b"one")
        size = log.size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1000, hard))
        try:
            with pytest.raises(OSError, match="File too large"):
                await log.append(bytes(2000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (log.size, only_segment(tmp_path).stat().st_size) == (size, size)
        await log.append(b"two")
        assert [record.data for record in await some_of(log, 0, 2)] == [b"one", b"two"]


def test_to_import_it_imports_nothing_that_only_spark_needs() -> None:
    code = "import sys, rsocket_trio.replay; print(sorted({'pyarrow', 'pyspark', 'py4j'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
