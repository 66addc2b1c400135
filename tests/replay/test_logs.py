"""Logs in memory and in files behave alike: as a list of rows with positions."""

from __future__ import annotations

import itertools
import subprocess
import sys
from contextlib import nullcontext
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
    Element,
    Ledger,
    Log,
    Pack,
    PositionAhead,
    PositionExpired,
    Record,
    ReplayableLog,
    UnknownPartition,
)
from rsocket_trio.replay.tables import OVERHEAD
from tests.each_row import each_row
from tests.replay.stored import KINDS, data_of, new_log, rows_of, some_of

_numbers = itertools.count()


# What holds for every log


@pytest.fixture(params=KINDS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    """Return a log of two partitions of each kind, which the test opens and closes."""
    return new_log(request.param, tmp_path, 2)


async def test_what_is_appended_is_read_again_from_any_position(log: Log) -> None:
    async with log:
        assert await log.append("one") == 0
        assert await log.append(b"two", "meta", count=3) == 1
        assert await log.append(b"other", partition=1) == 0
        headers = [("b", b"1"), ("a", None), ("b", b"")]
        assert await log.append(None, key=b"k", headers=headers) == 4

        assert [log.bounds(partition) for partition in log.partitions()] == [(0, 5), (0, 1)]
        assert await some_of(log, 0, 5) == [
            *(Record(0, b"one"), Record(1, b"two", b"meta", 3), Record(4, None, key=b"k", headers=headers))
        ]
        assert await some_of(log, 2, 3) == [Record(1, b"two", b"meta", 3)]
        assert await some_of(log, 0, 1, partition=1) == [Record(0, b"other")]
        assert await some_of(log, 5, 5) == []


async def test_a_reader_at_the_end_waits_and_is_woken_by_an_append(
    log: Log, autojump_clock: trio.testing.MockClock
) -> None:
    send, receive = trio.open_memory_channel[bytes | None](0)

    async def follow(log: ReplayableLog) -> None:
        async for record in log.read(0, 0):
            await send.send(record.data)

    async with log, trio.open_nursery() as nursery:
        nursery.start_soon(follow, log)
        nursery.start_soon(follow, log)
        for data in (b"one", b"two"):
            await trio.testing.wait_all_tasks_blocked()
            await log.append(data)
            assert [await receive.receive(), await receive.receive()] == [data, data]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reader_that_waits_hears_that_the_log_was_closed(kind: str, tmp_path: Path) -> None:
    log = new_log(kind, tmp_path)
    await log.open()
    async with trio.open_nursery() as nursery:

        async def follow() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await log.wait_beyond(0, 0)

        nursery.start_soon(follow)
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        await log.aclose()
    await log.aclose()


async def test_positions_and_partitions_that_are_not_there_are_refused(log: Log) -> None:
    async with log:
        for number in range(10):
            await log.append(b"%d" % number)
        await log.trim(0, 5)
        assert log.bounds(0) == (5, 10)

        with pytest.raises(PositionExpired, match="position 0 of partition 0 has expired: the earliest is 5"):
            await some_of(log, 0, 5)
        with pytest.raises(PositionExpired):
            await log.read_some(0, 4)
        for start, end in ((11, None), (10, 11)):
            with pytest.raises(PositionAhead, match="is beyond partition 0: the latest is 10"):
                await some_of(log, start, end)
        with pytest.raises(PositionAhead):
            await log.read_some(0, 11)
        for partition in (-1, 2):
            with pytest.raises(UnknownPartition, match=f"there is no partition {partition}: they are 0 to 1"):
                log.bounds(partition)
            for attempt in (partial(log.append, b""), partial(log.read_some, start=0), partial(log.trim, before=0)):
                with pytest.raises(UnknownPartition):
                    await attempt(partition=partition)


@each_row("kind", KINDS)
@each_row(
    ("element", "problem"),
    [
        *((Element(b"", count=count), f"a record of {count} rows") for count in (0, -1, 2**31)),
        (Element(bytes(64 * 2**20 + 1)), "a record of 67108865 bytes"),
        (Pack(bytes(64 * 2**20 + 1), 1), "a pack of 67108865 bytes"),
        (Pack(b"", 2**31), "a pack of 2147483648 rows"),
        (Pack(b"no stream", 1), "a pack of 9 bytes is not in arrow/1"),
        (Element(b"", timestamp=-1), "a timestamp of -1"),
        (Element(b"", key=bytes(2**24)), "metadata, key and headers of 16777216 bytes: the limit is"),
        (Element(b"", bytes(2**23), key=bytes(2**23)), "metadata, key and headers of 16777216 bytes"),
        (Element(b"", headers=[("a", bytes(2**24))]), "metadata, key and headers of 16777225 bytes"),
        (Element(b"", headers=[(1, b"")]), "Expected `str`, got `int`"),  # type: ignore[list-item]
    ],
)
async def test_what_can_be_no_record_is_refused(
    kind: str, element: Element | Pack, problem: str, tmp_path: Path
) -> None:
    async with new_log(kind, tmp_path) as log:
        fine: Element | Pack = Element(b"fine")
        for elements in ([fine, element], {1: fine, 2: element}.values()):
            with pytest.raises(ValueError, match=problem):
                await log.append_all({0: elements})
        assert log.bounds(0) == (0, 0)


@each_row(
    ("arguments", "problem"),
    [
        ({"data": 5}, "bytes or str expected, not int"),
        ({"metadata": ["x"]}, "bytes or str expected, not list"),
        ({"key": 5}, "bytes or str expected"),
        ({"headers": 5}, "'int' object is not iterable"),
        ({"headers": {"name": b""}}, "a header is a pair of a name, a text, and its content, not 'name'"),
        ({"headers": [("name", 5)]}, "bytes or str expected"),
        ({"partition": "0"}, "partition is a whole number, not '0'"),
    ],
)
async def test_an_argument_of_another_type_is_named(arguments: dict[str, Any], problem: str) -> None:
    async with Log() as log:
        with pytest.raises(TypeError, match=problem):
            await log.append(**{"data": b"", **arguments})
        for elements in ({0: [b"x"]}, {"0": [Element(b"x")]}):
            with pytest.raises(
                TypeError, match=r"elements are Element or Pack, not bytes|a partition is a whole number"
            ):
                await log.append_all(elements)  # type: ignore[arg-type]  # as a caller without types would
        assert log.bounds(0) == (0, 0)


async def test_several_partitions_get_all_or_nothing(log: Log) -> None:
    async with log:
        await log.append(b"first", partition=1)
        with pytest.raises(ValueError, match="a record of 0 rows"):
            await log.append_all({0: [Element(b"fine")], 1: {1: Element(b"no", count=0)}.values()})
        with pytest.raises(ValueError, match="partition 1 ends at 1, not at 0: somebody else wrote to it"):
            await log.append_all({0: [Element(b"fine")], 1: [Element(b"late")]}, at={0: 0, 1: 0})
        assert [log.bounds(0), log.bounds(1)] == [(0, 0), (0, 1)]

        assert await log.append_all({0: [Element(b"a")], 1: [Element(b"b"), Element(b"c")]}, at={1: 1}) == {0: 0, 1: 1}
        assert [log.bounds(0), log.bounds(1)] == [(0, 1), (0, 3)]


async def test_of_appends_that_come_together_only_those_fail_that_must(log: Log) -> None:
    failed: list[int] = []

    async def append(log: Log, number: int) -> None:
        try:
            # What is no sequence is looked at only when it is written, with those of the others.
            one = Element(b"%d" % number, count=number)
            await log.append_all({0: {"first": one}.values(), 1: iter([Element(b"%d" % number)])})
        except ValueError:
            failed.append(number)

    async with log:
        async with trio.open_nursery() as nursery:
            for number in (1, 0, 2, 0, 3):
                nursery.start_soon(append, log, number)
        assert failed == [0, 0]
        assert await data_of(log) == await data_of(log, 1)
        assert set(await data_of(log)) == {b"1", b"2", b"3"}


async def test_elements_of_most_positions_may_come_together(log: Log) -> None:
    most = 2**31 - 1
    async with log:
        await log.append_all({0: [Element(b"first"), *[Element(b"large", count=most)] * 3, Element(b"last")]})
        assert [record.end for record in await rows_of(log)] == [1, 1 + most, 1 + 2 * most, 1 + 3 * most, 2 + 3 * most]


async def test_packs_of_another_log_get_the_places_and_times_of_this_one(tmp_path: Path) -> None:
    async with Log() as other, new_log("file", tmp_path) as log:
        await other.append_all({0: [Element(b"%d" % time, timestamp=time) for time in range(5)]})
        await log.append(b"before", timestamp=2_000_000)
        packs = list(await other.read_packs(0, 0))
        assert await log.append_all({0: packs}) == {0: 1}
        assert [record.timestamp for record in await rows_of(log)] == [2_000_000] * 6
        with pytest.raises(ValueError, match="a pack of 7 bytes is not in arrow/1"):
            await log.append_all({0: [Pack(b"garbage", 3)]})


@each_row("kind", KINDS)
@each_row("with_arrow", [True, False])
async def test_a_time_finds_its_position_and_never_goes_back(
    kind: str, with_arrow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_arrow:
        monkeypatch.setattr("rsocket_trio.replay.elements.has_arrow", lambda: False)
    log = new_log(kind, tmp_path)
    log._clock = iter([100, 300, 200, 400]).__next__
    async with log:
        for number in range(4):
            await log.append(b"%d" % number)
        log._clock = lambda: 50
        await log.append_all({0: [Element(b"a", timestamp=410), Element(b"b"), Element(b"c", timestamp=420)]})
        await log.append_all({0: [Element(b"d"), Element(b"e")]})
        times = [record.timestamp for record in await rows_of(log)]
        assert times == [100, 300, 300, 400, 410, 410, 420, 420, 420]
        found = [await log.position_at(0, time) for time in (0, 100, 101, 300, 301, 400, 401, 411, 421)]
        assert found == [0, 0, 1, 1, 3, 3, 4, 6, 9]
        await log.trim(0, 2)
        assert [await log.position_at(0, time) for time in (0, 301)] == [2, 3]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_log_that_is_not_open_says_so(kind: str, tmp_path: Path) -> None:
    log = new_log(kind, tmp_path)
    with pytest.raises(trio.ClosedResourceError, match="use it under 'async with'"):
        await log.append(b"")
    async with log:
        pass
    for attempt in (partial(log.append, b""), log.open, partial(log.read_some, 0, 0), partial(log.trim, 0, 0)):
        with pytest.raises(trio.ClosedResourceError, match="the log was closed"):
            await attempt()


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


elements = st.builds(Element, st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=20), st.integers(1, 4))
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
    folder.mkdir()
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
        elif kind == "file":
            await log.aclose()
            log = new_log(kind, folder)
            await log.open()
    earliest, latest = log.bounds(0)
    assert await some_of(log, earliest, latest) == model.read(earliest, latest)
    await log.aclose()


# A log in memory


async def test_a_log_in_memory_lets_go_of_its_oldest_records() -> None:
    room = 10 * (OVERHEAD + 100)
    async with Log(limit_bytes=room) as log:
        for number in range(1000):
            await log.append(b"%0100d" % number)

        assert log.bounds(0) == (990, 1000)
        assert [int(record.data or b"") for record in await some_of(log, 990, 1000)] == list(range(990, 1000))
        with pytest.raises(PositionExpired):
            await some_of(log, 989, 1000)
        with pytest.raises(ValueError, match=f"bytes for a partition in memory: the limit is {room}"):
            await log.append(bytes(room))
        assert log.bounds(0) == (990, 1000)


# What it is made with, and what it needs


@each_row(
    ("arguments", "problem"),
    [
        ({"partitions": 0}, "0 partitions: there must be at least 1"),
        ({"path": "unused", "sync": "often"}, "sync 'often': must be one of full, never"),
        ({"path": "unused", "sync": "always"}, "sync 'always'"),
        ({"path": "unused", "limit_bytes": 1}, "limit_bytes is for a log in memory"),
        ({"limit_bytes": 0}, "a limit of 0 bytes"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Log(**arguments)


def test_without_apsw_a_log_and_a_ledger_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apsw", None)
    for kind in (Log, Ledger):
        with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[log\]'"):
            kind()


@each_row(
    ("version", "is_whole"),
    [
        *(("3.7.0", False), ("3.40.1", False), ("3.44.5", False), ("3.50.6", False), ("3.51.2", False)),
        *(("3.51.3", True), ("3.54.1", True), ("4.0.0", True)),
    ],
)
def test_a_sqlite_that_can_lose_rows_is_refused(version: str, is_whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apsw.sqlite_lib_version", lambda: version)
    refusal = pytest.raises(RuntimeError, match=f"SQLite {version} can lose rows .*: a log needs 3.51.3 or later")
    with nullcontext() if is_whole else refusal:
        Log()


def test_to_import_it_imports_neither_sqlite_nor_arrow() -> None:
    code = (
        "import sys, rsocket_trio.replay\n"
        "print(sorted({'apsw', 'sqlite3', 'pyarrow', 'confluent_kafka', 'pyspark', 'py4j'} & set(sys.modules)))\n"
        "rsocket_trio.replay.Log()\n"
        "print(sorted({'apsw', 'sqlite3', 'pyarrow'} & set(sys.modules)))"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "[]\n['apsw']\n"
