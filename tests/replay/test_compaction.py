"""Compaction: the last record of each key stays at its position, whatever happens meanwhile."""

from __future__ import annotations

import errno
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from rsocket_trio.replay import CorruptLog, Element, FileLog, PositionExpired, Record, Retention, compaction
from rsocket_trio.replay.packs import records_of
from rsocket_trio.replay.segment_reader import ReplacedSegment
from rsocket_trio.replay.segments import Segments
from tests.each_row import each_row
from tests.replay.disks import BadDisk, Died, MortalDisk, QuickDisk, UnpluggedDisk
from tests.replay.test_readers import Clock, read_whole
from tests.replay.test_segments import flip

DAY = 86_400_000_000


def plain_log(directory: Path, **options: Any) -> FileLog:
    return FileLog(directory, **{"segment_bytes": 1000, "filesystem": QuickDisk(), **options})


def file_log(directory: Path, partitions: int = 1, **options: Any) -> FileLog:
    log = plain_log(directory, partitions=partitions, **options)
    log.set_retention(Retention(compact=True))
    return log


async def write(log: FileLog, seed: int, count: int = 300, keys: int = 10) -> list[Record]:
    """Append records, one, or some, at a time: of some keys, without a key, of several rows."""
    rng = random.Random(seed)
    elements: list[Element] = []
    for number in range(count):
        key = None if rng.random() < 0.1 else b"key %d" % rng.randrange(keys)
        headers = {"n": b"%d" % number} if rng.random() < 0.2 else None
        elements.append(Element(b"row %d " % number * 3, None, rng.choice((1, 1, 1, 3)), key, headers))
    records: list[Record] = []
    while elements:
        some, elements = elements[: (size := rng.randint(1, 20))], elements[size:]
        position = (await log.append_all({0: some}))[0]
        for one in some:
            records.append(Record(position, one.data, one.metadata, one.count, one.key, one.headers))
            position += one.count
    return records


def is_compacted(found: list[Record], records: list[Record]) -> bool:
    """Return whether each record was written, and the last one of each key is there."""
    last = {record.key: record.position for record in records}
    needed = [one for one in records if one.key is None or last[one.key] == one.position]
    return [one for one in found if one in needed] == needed and [one for one in records if one in found] == found


@each_row("seed", range(6))
async def test_the_last_record_of_each_key_stays_at_its_position(tmp_path: Path, seed: int) -> None:
    async with file_log(tmp_path, segment_bytes=(500, 2000, 8000)[seed % 3]) as log:
        records = await write(log, seed)
        bounds, times = log.bounds(0), {one.position: one.timestamp for one in await read_whole(log)}
        await log.retain()
        found = await read_whole(log)
        closed = [one.first for one in log._partitions[0]._view.segments][-1]

        assert is_compacted(found, records)
        last = {record.key: record.position for record in records if record.position < closed}
        assert all(one.key is None or one.position >= closed or last[one.key] == one.position for one in found)
        assert len(found) < len(records) * 2 / 3
        assert (log.bounds(0), log.has_gaps) == (bounds, True)
        assert all(one.timestamp == times[one.position] for one in found)
    async with file_log(tmp_path) as log:
        assert await read_whole(log) == found
        assert log.bounds(0) == bounds
        await log.retain()
        assert is_compacted(await read_whole(log), records)


async def test_any_position_can_be_read_from_and_packs_span_all_of_them(tmp_path: Path) -> None:
    async with file_log(tmp_path) as log:
        await write(log, 7)
        await log.retain()
        found, latest = await read_whole(log), log.bounds(0)[1]

        for start in range(0, latest, 7):
            some = [one for one in await log.read_some(0, start, max_bytes=2000) if one.count]
            assert some == [one for one in found if one.end > start][: len(some)]
            position, rows = start, list[Record]()
            while position < latest:
                for pack in await log.read_packs(0, position, max_bytes=3000):
                    assert pack.position <= position if not rows else pack.position == position
                    position = pack.end
                    rows += list(records_of(pack))
            assert rows == [one for one in found if one.end > start]


async def test_times_are_found_in_compacted_files(tmp_path: Path) -> None:
    clock = Clock()
    async with file_log(tmp_path, clock=clock) as log:
        for number in range(200):
            clock.now += 10
            await log.append(b"x" * 50, key=b"%d" % (number % 7))
        begin = 10**15
        await log.retain()
        found = await read_whole(log)

        for number in range(0, 200, 3):
            position = await log.position_at(0, begin + 10 * number)
            after = [one.position for one in found if one.position >= position]
            right = [one.position for one in found if (one.timestamp or 0) >= begin + 10 * number]
            assert after == right
        assert await log.position_at(0, 2**62) == 200


async def test_files_are_compacted_as_others_are_appended(tmp_path: Path) -> None:
    async with file_log(tmp_path, segment_bytes=4000) as log:
        for number in range(3000):
            await log.append(b"x" * 50, key=b"%d" % (number % 5))

        assert log.size < 20_000
        assert len(list((tmp_path / "partition-0").iterdir())) < 8
        assert log.bounds(0) == (0, 3000)
        assert log.retention_failure is None


async def test_a_record_without_data_is_kept_for_a_day_and_its_key_is_gone_then(tmp_path: Path) -> None:
    clock = Clock()
    async with file_log(tmp_path, segment_bytes=300, clock=clock) as log:
        await log.append(b"value" * 20, key=b"a")
        await log.append(b"value" * 20, key=b"b")
        await log.append(b"", key=b"a")
        for _ in range(8):
            await log.append(b"filler" * 10)
        await log.retain()
        kept = [(one.key, one.data) for one in await read_whole(log) if one.key]
        assert kept == [(b"b", b"value" * 20), (b"a", b"")]

        clock.now += DAY + 1
        for _ in range(8):
            await log.append(b"filler" * 10)
        await log.retain()
        assert [one.key for one in await read_whole(log) if one.key] == [b"b"]


async def test_more_keys_than_fit_into_memory_are_compacted_in_several_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "KEYS", 40)
    async with file_log(tmp_path) as log:
        records = await write(log, 3, 1500, keys=100)
        await log.retain()
        found = await read_whole(log)

    assert is_compacted(found, records)
    assert len(found) < 450


async def test_rows_of_the_former_layout_stay_as_they_are(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).with_name("former") / "log", tmp_path, dirs_exist_ok=True)
    async with file_log(tmp_path, 2) as log:
        before = await read_whole(log)
        await write(log, 1)
        await log.retain()

        assert (await read_whole(log))[: len(before)] == before


async def test_a_reader_that_reads_while_files_are_replaced_goes_on(tmp_path: Path) -> None:
    async with plain_log(tmp_path) as log:
        records = await write(log, 5)
        [segments] = log._partitions
        view, some = segments._view, await log.read_some(0, 0, max_bytes=100)
        log.set_retention(Retention(compact=True))
        await log.retain()

        # Its block was read before, and the next one is found in a new file.
        assert next(some) == records[0]
        found = await read_whole(log)
        with pytest.raises(ReplacedSegment):
            segments._reader.read(view, 0, None, 100)
        assert await read_whole(log) == found


async def test_a_large_gap_takes_several_empty_packs(tmp_path: Path) -> None:
    async with file_log(tmp_path) as log:
        for key in (b"a", b"a", b"a", b"a", b"b"):
            await log.append(b"row" * 200, key=key, count=2**31 - 1)
        for _ in range(3):
            await log.append(b"row" * 200)
        await log.retain()

        found = await read_whole(log)
        assert [one.position // (2**31 - 1) for one in found[:3]] == [3, 4, 5]


async def test_a_log_that_is_trimmed_meanwhile_loses_nothing_else(tmp_path: Path) -> None:
    async with plain_log(tmp_path) as log:
        records = await write(log, 2)
        [segments] = log._partitions
        found = segments.compaction(0, lambda: False, in_full=True)
        assert found is not None
        found.learn()
        groups = found.groups(1000)
        end = segments.end_of(groups[0].segments)
        assert end is not None
        made = found.write_anew(groups[0], end)
        await log.trim(0, end)
        segments.replace(groups[0].segments, made)

        assert segments.end_of(groups[0].segments) is None
        assert not list((tmp_path / "partition-0").glob("*.new"))
        assert await read_whole(log) == [one for one in records if one.position >= log.bounds(0)[0]]
        with pytest.raises(compaction.Interrupted):
            found.write_anew(groups[0], end)
        with pytest.raises(PositionExpired):
            await log.read_some(0, 0)


async def test_damage_ends_a_pass_and_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with plain_log(tmp_path) as log:
        records = await write(log, 2, 60)
        flip(min((tmp_path / "partition-0").glob("*.segment")), 200)
        log.set_retention(Retention(compact=True))
        await write(log, 3)

        assert isinstance(log.retention_failure, CorruptLog)
        assert caplog.text.count("the retention failed, and is tried again") == 1
        with pytest.raises(CorruptLog, match="CRC"):
            await log.retain()
        assert log.bounds(0)[1] > len(records)


@each_row("call", ["create", "write", "sync"])
async def test_a_disk_that_refuses_leaves_all_as_it_was(tmp_path: Path, call: str) -> None:
    disk = BadDisk()
    async with file_log(tmp_path, filesystem=disk) as log:
        records = await write(log, 2)
        found = await read_whole(log)
        disk.failing[call] = errno.ENOSPC
        log._partitions[0]._compacted = 0
        with suppress(OSError):
            await log.retain()
        assert await read_whole(log) == found
        disk.failing.clear()
        assert not list((tmp_path / "partition-0").glob("*.new"))
        await log.retain()
        assert is_compacted(await read_whole(log), records)


@pytest.mark.parametrize("kind", [MortalDisk, UnpluggedDisk])
def test_a_process_that_dies_anywhere_in_a_pass_loses_no_key(tmp_path: Path, kind: type[MortalDisk]) -> None:
    rng = random.Random(1)
    elements = [Element(b"row %d " % n * 3, key=b"%d" % rng.randrange(9)) for n in range(200)]
    last = {one.key: one for one in elements}
    for life in range(1, 60):
        folder = tmp_path / str(life)
        segments = Segments(folder, segment_bytes=700, filesystem=QuickDisk())
        for at in range(0, 200, 5):
            segments.append(elements[at : at + 5])
        segments.close()

        disk = kind(life)
        died = False
        try:
            segments = Segments(folder, segment_bytes=700, filesystem=disk)
            compact(segments)
        except Died:
            died = True
        finally:
            segments.close()

        again = Segments(folder, segment_bytes=700, filesystem=QuickDisk())
        position, found = again.earliest, []
        while position < again.latest:
            for record in again.read(position):
                found += [record] if record.count else []
                position = record.end
        assert [(one.data, one.key) for one in found if last[one.key].data == one.data] == [
            (one.data, one.key) for one in elements if last[one.key] is one
        ]
        assert all(elements[one.position].data == one.data for one in found)
        names = [compaction.FileName.of(path) for path in sorted(folder.iterdir())]
        assert None not in names
        compact(again)
        assert again.latest == 200
        again.close()
        if not died:
            return
    raise AssertionError("it dies each time")


def compact(segments: Segments) -> None:
    found = segments.compaction(0, lambda: False, in_full=True)
    assert found is not None
    found.learn()
    for group in found.groups(segments.segment_bytes):
        end = segments.end_of(group.segments)
        assert end is not None
        segments.replace(group.segments, found.write_anew(group, end))
    segments.compacted(found.covered)


async def test_a_log_that_is_closed_in_a_pass_leaves_no_file_behind(tmp_path: Path) -> None:
    log = file_log(tmp_path)
    await log.open()
    await write(log, 2)
    log._partitions[0]._compacted = 0
    async with trio.open_nursery() as nursery:

        async def retain() -> None:
            with suppress(trio.ClosedResourceError):
                await log.retain()

        nursery.start_soon(retain)
        await trio.lowlevel.checkpoint()
        await log.aclose()
    assert not list((tmp_path / "partition-0").glob("*.new"))
