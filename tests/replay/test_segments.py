"""Segment files: what was safe stays, what is torn goes, and damage is never passed over."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rsocket_trio.replay import CorruptLog, Element, PositionAhead, PositionExpired, Record
from rsocket_trio.replay.segment_records import PACKED
from rsocket_trio.replay.segments import Segments
from tests.each_row import each_row
from tests.replay.disks import BadDisk, Died, FullDisk, MortalDisk, QuickDisk, UnpluggedDisk

THREE = [Element(b"one"), Element(b"two", b"meta"), Element(b"", b"", 5)]
READ = [Record(0, b"one"), Record(1, b"two", b"meta"), Record(2, b"", b"", 5)]


@contextmanager
def opened(directory: Path, **options: Any) -> Iterator[Segments]:
    segments = Segments(directory, **{"filesystem": QuickDisk(), **options})
    try:
        yield segments
    finally:
        segments.close()


def all_of(segments: Segments, start: int | None = None, **limits: int) -> list[Record]:
    position = segments.earliest if start is None else start
    found: list[Record] = []
    while some := list(segments.read(position, **limits)):
        found += some
        position = some[-1].end
    return found


def only_file(directory: Path) -> Path:
    [path] = directory.glob("*.segment")
    return path


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    with opened(tmp_path) as segments:
        assert segments.append(THREE) == 0
        assert segments.append([Element(b"four")]) == 7

        assert all_of(segments) == [*READ, Record(7, b"four")]
        assert (segments.earliest, segments.latest) == (0, 8)


def test_records_are_there_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    with opened(tmp_path) as segments:
        segments.append(THREE)
    with opened(tmp_path) as segments:
        assert (segments.truncated, segments.latest) == (0, 7)
        segments.append([Element(b"four")])

        assert all_of(segments) == [*READ, Record(7, b"four")]


@each_row("start", range(8))
def test_reading_begins_with_the_record_that_holds_the_row(tmp_path: Path, start: int) -> None:
    with opened(tmp_path) as segments:
        segments.append(THREE)

        assert all_of(segments, start) == [record for record in READ if record.end > start]


def test_reading_ends_before_the_end_that_was_asked_for(tmp_path: Path) -> None:
    with opened(tmp_path) as segments:
        segments.append(THREE)

        assert [list(segments.read(0, end)) for end in (1, 2, 3, 7)] == [READ[:1], READ[:2], READ, READ]


@each_row("max_bytes", [1, 40, 10_000])
def test_blocks_of_any_size_hold_whole_records(tmp_path: Path, max_bytes: int) -> None:
    elements = [Element(bytes([n]) * n * 7) for n in range(60)]
    with opened(tmp_path, segment_bytes=3000) as segments:
        segments.append(elements)

        assert [record.data for record in all_of(segments, max_bytes=max_bytes)] == [one.data for one in elements]
        assert len(list(tmp_path.glob("*.segment"))) > 3


def test_a_position_deep_in_files_that_were_just_opened_is_found(tmp_path: Path) -> None:
    count = 5000
    with opened(tmp_path, segment_bytes=100_000) as segments:
        segments.append(Element(b"%050d" % n) for n in range(count))
    with opened(tmp_path, segment_bytes=100_000) as segments:
        for start in (4999, 0, 1234, 3210, 1235, 2):
            assert next(segments.read(start)) == Record(start, b"%050d" % start)


@each_row(("rows", "size"), [(60, 300), (10, 10_000), (100, 8000)])
def test_a_read_of_any_size_brings_the_record_that_it_begins_with(tmp_path: Path, rows: int, size: int) -> None:
    with opened(tmp_path) as segments:
        for number in range(rows):
            segments.append([Element(b"%02d" % number * size)])
    for start in range(rows):
        with opened(tmp_path) as segments:
            for max_bytes in (1, 1000, 16 * 2**10):
                assert next(segments.read(start, max_bytes=max_bytes)).position == start


def test_positions_outside_of_the_log_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1, partition=4) as segments:
        segments.append(THREE)
        segments.trim(2)

        with pytest.raises(PositionExpired, match="position 1 of partition 4 has expired: the earliest is 2"):
            segments.read(1)
        with pytest.raises(PositionAhead, match="position 8 is beyond partition 4: the latest is 7"):
            segments.read(8)
        assert list(segments.read(7)) == []


# A torn tail


def test_a_file_that_ends_anywhere_within_the_last_record_loses_that_record_only(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    with opened(whole) as segments:
        segments.append(THREE[:2])
        kept = segments.size
        segments.append([Element(b"the last", b"torn")])
    content = only_file(whole).read_bytes()
    for size in range(kept, len(content)):
        torn = tmp_path / f"torn-{size}"
        torn.mkdir()
        (torn / only_file(whole).name).write_bytes(content[:size])
        with opened(torn) as segments:
            assert (segments.truncated, segments.latest) == (size - kept, 2)
            segments.append([Element(b"again")])
        with opened(torn) as segments:
            assert segments.truncated == 0
            assert all_of(segments) == [*READ[:2], Record(2, b"again")]


@each_row("content", [*(bytes(size) for size in range(PACKED.header + 1)), b"RSTRIO-1\0\0"])
def test_a_file_whose_writer_died_in_its_header_is_made_anew(tmp_path: Path, content: bytes) -> None:
    with opened(tmp_path, segment_bytes=1) as segments:
        segments.append(THREE[:2])
    (tmp_path / f"{2:020}.segment").write_bytes(content)
    with opened(tmp_path, segment_bytes=1) as segments:
        assert segments.truncated == len(content)
        segments.append(THREE[2:])
        assert all_of(segments) == READ


@pytest.mark.parametrize("tail", [b"\0" * 100, b"garbage" * 20])
def test_a_tail_that_is_no_record_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    with opened(tmp_path) as segments:
        segments.append(THREE)
    with only_file(tmp_path).open("ab") as file:
        file.write(tail)
    with opened(tmp_path) as segments:
        assert segments.truncated == len(tail)
        assert all_of(segments) == READ


def test_a_hole_within_what_was_never_safe_is_a_torn_tail(tmp_path: Path) -> None:
    with opened(tmp_path) as segments:
        segments.append(THREE[:1])
        kept = segments.size
        segments.append(THREE[1:])
    # Both were written together: after a loss of power the second may be on the disk and the first not.
    flip(only_file(tmp_path), kept + PACKED.record.size)
    with opened(tmp_path) as segments:
        assert all_of(segments) == READ[:1]


def test_a_loss_of_power_at_any_call_leaves_a_log_that_opens(tmp_path: Path) -> None:
    elements = [Element(b"%010d" % n) for n in range(12)]
    found: list[bytes] = []
    for life in range(1, 200):
        disk, folder = UnpluggedDisk(life), tmp_path / str(life)
        with suppress(Died), opened(folder, segment_bytes=100, filesystem=disk) as segments:
            segments.append(elements[:6])
            segments.append(elements[6:])
        with opened(folder, segment_bytes=100) as segments:
            found = [record.data for record in all_of(segments)]
            assert found == [element.data for element in elements[: len(found)]]
        if not disk.is_dead:
            break
    assert len(found) == 12


BAD = Element(b"", count=0)
"""No record can hold it: what is written with it is rolled back."""


def test_a_process_that_dies_while_it_rolls_back_leaves_no_gap(tmp_path: Path) -> None:
    elements = [Element(b"%010d" % n) for n in range(20)]
    found: list[bytes] = []
    for life in range(1, 200):
        disk, folder = MortalDisk(life), tmp_path / str(life)
        with suppress(Died), opened(folder, segment_bytes=100, filesystem=disk) as segments:
            segments.append(elements[:3])
            with pytest.raises(ValueError, match="a record of 0 rows"):
                segments.append([*elements[3:], BAD])
        with opened(folder, segment_bytes=100) as segments:
            found = [record.data for record in all_of(segments)]
            assert found == [element.data for element in elements[: len(found)]]
            assert segments.latest == len(found)
        if not disk.is_dead:
            break
    assert len(found) == 3


@pytest.mark.parametrize("more", [1, 5], ids=["in one file", "over several"])
def test_what_was_safe_is_known_to_be_after_something_was_rolled_back(tmp_path: Path, more: int) -> None:
    with opened(tmp_path, segment_bytes=150) as segments:
        segments.append([Element(b"safe")])
        segments.begin()
        segments.write([Element(b"%050d" % n) for n in range(more)])
        segments.sync()  # as where another partition fails then
        segments.roll_back()
        segments.append([Element(b"behind")])
    # What says that the first was safe is the record behind it.
    flip(only_file(tmp_path), PACKED.header + PACKED.record.size)
    with pytest.raises(CorruptLog, match=f"damaged at offset {PACKED.header}, position 0"), opened(tmp_path):
        pass


# Damage


def test_damage_to_what_was_safe_is_told_with_file_offset_and_position(tmp_path: Path) -> None:
    with opened(tmp_path) as segments:
        for element in THREE:
            segments.append([element])
    path = only_file(tmp_path)
    content = path.read_bytes()
    # A record of one row has a pack of 13 bytes around its data; one with metadata has 8 more, and so has its length.
    second = PACKED.header + PACKED.record.size + 13 + len(b"one")
    for offset in range(second, second + PACKED.record.size + 17 + len(b"metatwo")):
        flip(path, offset)
        with pytest.raises(CorruptLog) as caught, opened(tmp_path):
            pass
        assert (caught.value.file, caught.value.offset, caught.value.position) == (path, second, 1)
        assert str(caught.value).startswith(f"{path} is damaged at offset {second}, position 1: ")
        path.write_bytes(content)


def test_damage_in_an_older_file_is_told_by_reading_and_never_skipped(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=100) as segments:
        for n in range(20):
            segments.append([Element(b"%010d" % n)])
    first = min(tmp_path.glob("*.segment"))
    flip(first, PACKED.header + 2 * PACKED.record.size + 13 + 15)
    with opened(tmp_path, segment_bytes=100) as segments:
        found = segments.read(0)
        assert next(found) == Record(0, b"%010d" % 0)
        with pytest.raises(CorruptLog, match=r"position 1: its CRC is wrong"):
            next(found)
        assert next(segments.read(19)) == Record(19, b"%010d" % 19)


def test_an_older_file_that_is_too_short_or_gone_is_told(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=100) as segments:
        for n in range(20):
            segments.append([Element(b"%010d" % n)])
    first = min(tmp_path.glob("*.segment"))
    record = PACKED.record.size + 13 + 10
    content = first.read_bytes()
    first.write_bytes(content[:-record])
    with opened(tmp_path, segment_bytes=100) as segments, pytest.raises(CorruptLog, match="but its records go on"):
        all_of(segments)
    first.write_bytes(content[:-1])
    with opened(tmp_path, segment_bytes=100) as segments, pytest.raises(CorruptLog, match="ends within it"):
        all_of(segments)
    first.write_bytes(content)
    with opened(tmp_path, segment_bytes=100) as segments:
        first.unlink()
        with pytest.raises(CorruptLog, match="the file is missing"):
            all_of(segments)


def test_a_file_under_another_name_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as segments:
        segments.append(THREE)
    only_file(tmp_path).rename(tmp_path / f"{3:020}.segment")

    with pytest.raises(CorruptLog, match="begins at position 0, not where its name says"):
        Segments(tmp_path)


# A disk that is full, or fails


@each_row("segment_bytes", [1, 200, 2**20])
def test_a_full_disk_leaves_nothing_of_what_did_not_fit(tmp_path: Path, segment_bytes: int) -> None:
    for room in range(250):
        folder, disk = tmp_path / str(room), FullDisk()
        with opened(folder, segment_bytes=segment_bytes, filesystem=disk) as segments:
            segments.append(THREE[:1])
            before = segments.size
            disk.room = room
            try:
                segments.append([*THREE[1:], Element(b"and more")])
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                assert (segments.latest, segments.size) == (1, before)
                assert all_of(segments) == READ[:1]
                disk.room = 2**40
                segments.append([*THREE[1:], Element(b"and more")])
            assert all_of(segments) == [*READ, Record(7, b"and more")]
        with opened(folder, segment_bytes=segment_bytes) as segments:
            assert segments.truncated == 0
            assert all_of(segments) == [*READ, Record(7, b"and more")]


def test_a_sync_that_fails_takes_back_what_was_written_and_no_more_is_taken(tmp_path: Path) -> None:
    disk = BadDisk()
    with opened(tmp_path, filesystem=disk) as segments:
        segments.append(THREE[:2])
        disk.failing = {"sync": errno.EIO}
        with pytest.raises(OSError, match="Input/output error"):
            segments.append(THREE[2:])
        disk.failing = {}
        with pytest.raises(OSError, match="can't be written since a failure, open it anew") as caught:
            segments.append(THREE[2:])
        assert caught.value.errno == errno.EIO
        assert all_of(segments) == READ[:2]
    with opened(tmp_path) as segments:
        segments.append(THREE[2:])
        assert all_of(segments) == READ


def test_a_disk_that_does_not_even_let_go_of_bytes_ends_the_writing(tmp_path: Path) -> None:
    disk = BadDisk()
    with opened(tmp_path, filesystem=disk) as segments:
        segments.append(THREE[:2])
        disk.failing = {"sync": errno.ENOSPC, "truncate": errno.EIO}
        with pytest.raises(OSError, match="No space left"):
            segments.append(THREE[2:])
        disk.failing = {}
        with pytest.raises(OSError, match="open it anew"):
            segments.append(THREE[2:])


@each_row("element", [Element(bytes(64 * 2**20 + 1)), Element(b"", count=0), Element(b"", count=2**31)])
def test_what_can_not_be_a_record_is_refused_and_leaves_nothing(tmp_path: Path, element: Element) -> None:
    with opened(tmp_path) as segments:
        with pytest.raises(ValueError, match="a record of"):
            segments.append([Element(b"fine"), element])
        assert segments.append(THREE) == 0
        assert all_of(segments) == READ


# Trimming


def test_trim_deletes_whole_files_below_a_position(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=100) as segments:
        segments.append(Element(b"%010d" % n) for n in range(20))
        firsts = sorted(int(path.stem) for path in tmp_path.glob("*.segment"))
        segments.trim(firsts[3] + 1)
        assert segments.earliest == firsts[3]
        assert sorted(int(path.stem) for path in tmp_path.glob("*.segment")) == firsts[3:]
        assert [record.position for record in all_of(segments)] == list(range(firsts[3], 20))
    with opened(tmp_path) as segments:
        assert (segments.earliest, segments.latest) == (firsts[3], 20)


def test_trim_of_everything_leaves_an_empty_log_that_goes_on_where_it_was(tmp_path: Path) -> None:
    with opened(tmp_path) as segments:
        segments.append(THREE)
        assert segments.trim(7) > 0
        assert (segments.earliest, segments.latest, segments.size) == (7, 7, PACKED.header)
    with opened(tmp_path) as segments:
        assert segments.append([Element(b"next")]) == 7
        assert all_of(segments) == [Record(7, b"next")]


def test_trim_on_a_full_disk_frees_what_it_can(tmp_path: Path) -> None:
    disk = FullDisk()
    with opened(tmp_path, segment_bytes=1, filesystem=disk) as segments:
        segments.append(THREE)
        disk.room = 0
        segments.trim(7)
        assert (segments.earliest, segments.latest) == (2, 7)
        assert all_of(segments) == READ[2:]


def test_what_is_read_and_trimmed_meanwhile_is_still_read_to_the_end_of_its_block(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=1) as segments:
        segments.append(THREE)
        found = segments.read(0)
        segments.trim(7)
        assert list(found) == READ[:1]
        with pytest.raises(PositionExpired):
            segments.read(1)
