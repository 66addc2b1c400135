"""Packs: many rows in one element, in the documented layout, and refused whole where they are torn."""

from __future__ import annotations

import re
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from rsocket_trio import Invalid, Payload, RemoteProtocolError, Responder
from rsocket_trio.metadata import Entry, decode_composite, encode_composite
from rsocket_trio.replay import (
    CorruptLog,
    Element,
    FileLedger,
    FileLog,
    Ledger,
    MemoryLog,
    Pack,
    Record,
    ReplayableLog,
    add_sink,
    add_source,
    read_source_payload,
)
from rsocket_trio.replay.arrow_packs import from_arrow, to_arrow
from rsocket_trio.replay.packs import (
    PACK_ROWS,
    check_pack,
    cut,
    elements_of,
    encode_headers,
    flattened,
    pack_elements,
    pack_records,
    packed,
    records_of,
    validated,
)
from rsocket_trio.testing import connected_pair
from tests.blocks import ROOT
from tests.each_row import each_row
from tests.replay.disks import QuickDisk

POSITION, PACK, ROWS, TIME = (f"message/x.rsocket-trio.{name}.v0" for name in ("position", "pack", "rows", "timestamp"))
EXAMPLE = bytes.fromhex(re.search(r"```hex\n(.*?)```", (ROOT / "docs/replay.md").read_text(), re.DOTALL)[1])  # type: ignore[index]


def sealed(body: str | bytes) -> bytes:
    content = bytes.fromhex(body) if isinstance(body, str) else body
    return content + struct.pack(">I", zlib.crc32(content))


# The layout


def test_the_example_of_the_documentation_is_what_is_written() -> None:
    pack = pack_elements([Element(b"hello", key=b"k"), Element(b"hi")])

    assert (pack.data, pack.count) == (EXAMPLE, 2)
    assert list(elements_of(Pack(EXAMPLE, 2))) == [Element(b"hello", key=b"k"), Element(b"hi")]


def test_every_column_is_where_the_documentation_says() -> None:
    rows = [
        Record(7, b"ab", b"m", 2, None, {"n": b"c"}, 5),
        Record(12, b"", None, 1, b"", None, 6),
    ]
    pack = pack_records(rows, 5)

    assert pack == Pack(
        sealed(
            "00000002 3f"
            "00000002 00000007"
            "00000002 00000001"
            "00000002 00000000 6162"
            "00000001 ffffffff 6d"
            "ffffffff 00000000"
            "0000000000000005 0000000000000006"
            "00000008 ffffffff 0001 6e 00000001 63"
        ),
        8,
        5,
    )
    assert list(records_of(pack)) == rows
    assert [record.timestamp for record in records_of(pack)] == [5, 6]


elements = st.builds(
    Element,
    st.binary(max_size=20),
    st.none() | st.binary(max_size=5),
    st.integers(1, 5),
    st.none() | st.binary(max_size=5),
    st.none() | st.dictionaries(st.text(max_size=4), st.binary(max_size=4), max_size=3),
    st.none() | st.integers(0, 2**62),
)


@given(st.lists(elements, min_size=1, max_size=20), st.integers(0, 30), st.integers(0, 30))
def test_any_rows_come_back_whole_and_cut(rows: list[Element], start: int, length: int) -> None:
    pack = pack_elements(rows)
    found = list(elements_of(pack))

    assert found == rows
    assert [one.timestamp for one in found] == [one.timestamp for one in rows]
    start, end = min(start, pack.count - 1), min(start, pack.count - 1) + 1 + length
    part = cut(pack, start, end)
    assert list(records_of(part)) == list(records_of(pack, start, end))
    assert part.position <= start
    assert part.end >= min(end, pack.end)


@given(st.lists(elements, min_size=1, max_size=20))
def test_arrow_and_plain_packs_are_made_of_each_other(rows: list[Element]) -> None:
    timed = [Element(one.data, one.metadata, one.count, one.key, one.headers, one.timestamp) for one in rows]
    pack = pack_elements(timed)

    again = from_arrow(to_arrow(pack).to_pybytes(), pack.count)
    assert list(elements_of(again)) == rows
    # The times are the log's to give.
    assert {one.timestamp for one in elements_of(again)} == {None}


@given(st.lists(st.integers(1, 3), min_size=1, max_size=10), st.integers(0, 10))
def test_gaps_within_a_pack_and_behind_it_are_told(gaps: list[int], behind: int) -> None:
    position, rows = 100, []
    for gap in gaps:
        position += gap
        rows.append(Record(position, b"%d" % position))
        position += 1
    rows.append(Record(position + behind, b"", count=0))
    [pack] = packed(rows, 100, 10_000)

    assert (pack.position, pack.end) == (100, position + behind)
    found = list(flattened([pack], 100, 10_000))
    assert [one for one in found if one.count] == rows[:-1]
    assert found[-1].end == position + behind


@each_row(
    ("data", "count", "problem"),
    [
        (b"", 1, "a pack of 0 bytes: it has at least 9"),
        (EXAMPLE[:-1], 2, "the CRC of a pack of 32 bytes is wrong"),
        (EXAMPLE[:9] + b"\x01" + EXAMPLE[10:], 2, "the CRC of a pack of 33 bytes is wrong"),
        (EXAMPLE, 3, "a pack of 2 rows, its metadata says 3"),
        (sealed("00000001 40 00000000"), 1, "a pack with columns 0x40: known are those below 0x40"),
        (sealed("00000001 00 00000005 61"), 1, "a pack of 14 bytes and 1 rows ends within its data"),
        (sealed("ffffffff 00"), 2**32 - 1, "a pack of 9 bytes and 4294967295 rows ends within its data"),
        (sealed("00000001 04 00000001 61 00000002 62"), 1, "ends within its metadata"),
        (sealed("00000001 10 00000001 61 00"), 1, "ends within its timestamps"),
        (sealed("00000001 00 00000001 61 62"), 1, "a pack of 15 bytes has 1 behind its 1 rows"),
        (sealed("00000002 02 00000000 00000001 00000000 00000000"), 1, "a row of 0 to 1 positions"),
        (sealed("00000002 01 00000001 00000001 00000000 00000000"), 5, "rows overlap at offset 1"),
        (sealed("00000001 01 00000005 00000000"), 5, "a pack whose rows end at offset 6, its metadata says 5"),
    ],
)
def test_a_pack_that_is_torn_or_has_other_rows_is_refused(data: bytes, count: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_pack(data, count)


def test_headers_that_are_torn_are_refused_with_their_pack() -> None:
    said = encode_headers({"name": b"content"})
    for broken in (said[:1], said[:-1], b"\0\1\xff\0\0\0\0"):
        body = struct.pack(">IBIBI", 1, 0x20, 1, 0x61, len(broken)) + broken
        with pytest.raises(ValueError, match="header"):
            validated(sealed(body), 1)


@each_row(
    ("columns", "problem"),
    [
        ({"text": ["a"]}, "the column 'text'"),
        ({"data": ["a"]}, "column 'data' of a pack in arrow/1 is string"),
        ({"count": pa.array([1], pa.int32())}, "without the column 'data'"),
        ({"data": pa.array([None], pa.binary())}, "1 rows without data"),
        ({"data": pa.array([], pa.binary())}, "with 0 record batches"),
        ({"data": pa.array([b"a"]), "count": pa.array([0], pa.int32())}, "a row that has no number of positions"),
        ({"data": pa.array([b"a"]), "count": pa.array([2], pa.int32())}, "a pack of 2 rows, its metadata says 1"),
    ],
)
def test_an_arrow_pack_of_other_columns_is_refused(columns: dict[str, list[str]], problem: str) -> None:
    batch = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    with pytest.raises(ValueError, match=problem):
        from_arrow(sink.getvalue().to_pybytes(), 1)


def test_bytes_that_are_no_arrow_stream_are_refused() -> None:
    with pytest.raises(ValueError, match="a pack of 5 bytes is not in arrow/1"):
        from_arrow(b"hello", 1)


# Logs


LOGS: dict[str, Callable[[Path], ReplayableLog]] = {
    "memory": lambda path: MemoryLog(2),
    "file": lambda path: FileLog(path, 2, filesystem=QuickDisk()),
}


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> ReplayableLog:
    return LOGS[request.param](tmp_path)


async def rows_of(log: ReplayableLog, partition: int = 0) -> list[Record]:
    return [record async for record in log.read(partition, *log.bounds(partition))]


async def test_a_log_takes_packs_beside_single_rows_and_gives_both(log: ReplayableLog) -> None:
    async with log:
        pack = pack_elements([Element(b"%d" % n, key=b"k%d" % n) for n in range(3)])
        assert await log.append_all({0: [Element(b"first"), pack, Element(b"last")], 1: [pack]}) == {0: 0, 1: 0}

        wanted = [
            Record(0, b"first"),
            *(Record(n + 1, b"%d" % n, key=b"k%d" % n) for n in range(3)),
            Record(4, b"last"),
        ]
        assert await rows_of(log) == wanted
        packs = [one for position in (0,) for one in await log.read_packs(0, position)]
        assert [record for one in packs for record in records_of(one)] == wanted
        assert await rows_of(log, 1) == [Record(n, b"%d" % n, key=b"k%d" % n) for n in range(3)]


async def test_rows_that_were_appended_together_are_read_from_any_place(log: ReplayableLog) -> None:
    async with log:
        count = 2 * PACK_ROWS + 10
        await log.append_all({0: [Element(b"%d" % n) for n in range(count)]})
        for start in (0, 1, PACK_ROWS - 1, PACK_ROWS, PACK_ROWS + 1, count - 1):
            record = next(iter(await log.read_some(0, start, start + 1)))
            assert (record.position, record.data) == (start, b"%d" % start)
            pack = next(iter(await log.read_packs(0, start, start + 1)))
            assert [one.data for one in records_of(pack)] == [b"%d" % start]


async def test_a_time_finds_its_position_and_never_goes_back(tmp_path: Path) -> None:
    times = [100, 300, 200, 400]
    for log in (
        MemoryLog(clock=iter(times).__next__),
        FileLog(tmp_path, segment_bytes=120, filesystem=QuickDisk(), clock=iter(times).__next__),
    ):
        async with log:
            for _ in times:
                await log.append(b"x" * 30)
            assert [record.timestamp for record in await rows_of(log)] == [100, 300, 300, 400]
            found = [await log.position_at(0, time) for time in (0, 100, 101, 300, 301, 400, 401)]
            assert found == [0, 0, 1, 1, 3, 3, 4]


async def test_times_of_their_own_are_kept_in_order_and_survive_the_process(tmp_path: Path) -> None:
    async with FileLog(tmp_path, filesystem=QuickDisk(), clock=lambda: 50) as log:
        await log.append_all({0: [Element(b"a", timestamp=10), Element(b"b"), Element(b"c", timestamp=20)]})
    async with FileLog(tmp_path, filesystem=QuickDisk(), clock=lambda: 30) as log:
        await log.append(b"d")
        assert [record.timestamp for record in await rows_of(log)] == [10, 50, 50, 50]
        assert await log.position_at(0, 11) == 1


async def test_a_range_of_packs_from_files_is_a_copy_of_the_file(tmp_path: Path) -> None:
    async with FileLog(tmp_path, filesystem=QuickDisk()) as log:
        await log.append_all({0: [Element(bytes(100))] * 5000})
        [path] = (tmp_path / "partition-0").glob("*.segment")
        content = path.read_bytes()
        for pack in await log.read_packs(0, 0, 5000):
            assert pack.data in content


# Routes


async def asked(log: ReplayableLog, request: str) -> list[Payload]:
    responder = Responder()
    add_source(responder, "rows", log)
    async with (
        connected_pair(responder) as (client, _),
        client.request_stream(request.encode(), route="rows", initial_request_n=100) as items,
    ):
        return [item async for item in items]


async def test_a_reader_gets_packs_in_the_first_format_that_is_known(log: ReplayableLog) -> None:
    async with log:
        await log.append_all({0: [Element(b"%d" % n) for n in range(10)]})
        for form in ("plain/1", "arrow/1"):
            [item] = await asked(log, f'{{"partition":0,"from":0,"to":10,"pack":["zstd/9","{form}","plain/1"]}}')
            entries = {entry.mime: entry.content for entry in decode_composite(item.metadata or b"")}
            assert (entries[POSITION], entries[PACK]) == (struct.pack(">QI", 0, 10), form.encode())
            assert len(entries[TIME]) == 8
            if form == "arrow/1":
                [batch] = pa.ipc.open_stream(item.data)
                assert batch.column("data").to_pylist() == [b"%d" % n for n in range(10)]
                assert batch.column("position").to_pylist() == list(range(10))
                assert batch.column("timestamp").null_count == 0
            with pytest.raises(RemoteProtocolError, match="the element at position 0 is a pack"):
                read_source_payload(item)


@each_row("asking", ["", ',"pack":[]', ',"pack":["zstd/9"]'])
async def test_a_reader_that_asks_for_no_known_format_gets_rows(asking: str) -> None:
    async with MemoryLog() as log:
        await log.append_all({0: [Element(b"%d" % n) for n in range(3)]})
        found = await asked(log, f'{{"partition":0,"from":1,"to":3{asking}}}')
        assert [read_source_payload(item) for item in found] == [Record(1, b"1"), Record(2, b"2")]


async def test_a_request_whose_formats_are_no_names_is_invalid() -> None:
    async with MemoryLog() as log:
        await log.append(b"x")
        with pytest.raises(Invalid, match="'pack' is a list of names"):
            await asked(log, '{"partition":0,"from":0,"to":1,"pack":"plain/1"}')


async def test_the_bounds_say_where_a_time_begins() -> None:
    log = MemoryLog(2, clock=iter([10, 20, 30]).__next__)
    responder = Responder()
    add_source(responder, "rows", log)
    for partition in (0, 1, 0):
        await log.append(b"x", partition=partition)
    async with connected_pair(responder) as (client, _):
        answer = await client.request_response(b'{"timestamp": 20}', route="rows.offsets")
        assert answer.text == '{"0":{"earliest":0,"latest":2,"at":1},"1":{"earliest":0,"latest":1,"at":0}}'
        answer = await client.request_response(b'{"timestamps": {"1": 21}}', route="rows.offsets")
        assert answer.text == '{"0":{"earliest":0,"latest":2},"1":{"earliest":0,"latest":1,"at":1}}'
        with pytest.raises(Invalid, match="'timestamps' is an object of partitions"):
            await client.request_response(b'{"timestamps": {"-1": 21}}', route="rows.offsets")


def packed_element(data: bytes, form: str, rows: int | None) -> Payload:
    entries = [Entry(PACK, form.encode())]
    if rows is not None:
        entries.append(Entry(ROWS, struct.pack(">I", rows)))
    return Payload(data, encode_composite(entries))


async def test_a_stage_takes_packs_of_both_formats_and_rows_between_them(tmp_path: Path) -> None:
    for ledger in (Ledger(), FileLedger(tmp_path, filesystem=QuickDisk())):
        responder = Responder()
        add_sink(responder, "rows", ledger)
        async with ledger, connected_pair(responder) as (client, _):
            assert (await client.request_response(route="rows.pack")).text == '{"pack":["plain/1","arrow/1"]}'
            opening = b'{"sink":"s","attempt":"a","partition":0}'
            async with client.request_channel(opening, route="rows.stage") as channel:
                await channel.send(packed_element(EXAMPLE, "plain/1", 2))
                await channel.send(b"single")
                await channel.send(packed_element(to_arrow(Pack(EXAMPLE, 2)).to_pybytes(), "arrow/1", 2))
                await channel.send_eof()
                assert [item.text async for item in channel] == ['{"rows":5,"elements":3}']
            await ledger.commit("s", 0, {"a": 5})
            pair = [Element(b"hello", key=b"k"), Element(b"hi")]
            assert [record.element for record in await rows_of(ledger.log)] == [*pair, Element(b"single"), *pair]


@each_row(
    ("payload", "problem"),
    [
        (packed_element(EXAMPLE[:-1], "plain/1", 2), "the CRC of a pack of 32 bytes is wrong"),
        (packed_element(EXAMPLE, "plain/1", 3), "a pack of 2 rows, its metadata says 3"),
        (packed_element(EXAMPLE, "plain/2", 2), "a pack in the format 'plain/2': known are plain/1, arrow/1"),
        (packed_element(EXAMPLE, "arrow/1", 2), "is not in arrow/1"),
        (packed_element(sealed("00000000 00"), "plain/1", 1), "a pack of 0 rows, its metadata says 1"),
    ],
)
async def test_a_bad_pack_at_a_sink_is_invalid_and_nothing_is_written(payload: Payload, problem: str) -> None:
    ledger = Ledger()
    responder = Responder()
    add_sink(responder, "rows", ledger)
    async with connected_pair(responder) as (client, _):
        with pytest.raises(Invalid, match=problem):
            await client.request_response(payload, route="rows")
        await client.request_response(b"fine", route="rows")
        assert await rows_of(ledger.log) == [Record(0, b"fine")]


async def test_rows_at_the_end_of_a_log_share_a_pack(autojump_clock: trio.testing.MockClock) -> None:
    log = MemoryLog()
    responder = Responder()
    add_source(responder, "rows", log)
    async with connected_pair(responder) as (client, _):
        request = b'{"partition":0,"from":0,"pack":["plain/1"]}'
        async with client.request_stream(request, route="rows", initial_request_n=100) as items:
            await trio.testing.wait_all_tasks_blocked()
            for number in range(5):
                await log.append(b"%d" % number)
                await trio.sleep(0.0001)
            item = await anext(items)
            entries = {entry.mime: entry.content for entry in decode_composite(item.metadata or b"")}
            assert entries[POSITION] == struct.pack(">QI", 0, 5)


# The former layout


@pytest.fixture
def former(tmp_path: Path) -> Path:
    """Return a copy of the folders that the released form of the library wrote."""
    shutil.copytree(Path(__file__).parent / "former", tmp_path / "former")
    return tmp_path / "former"


WRITTEN = [
    [Record(0, b"row 0", b"meta"), Record(1, b"row 2"), Record(2, b"row 4", None, 2), Record(4, b"row 6", b"meta")],
    [Record(0, b"row 1"), Record(1, b"row 3", b"meta"), Record(2, b"row 5"), Record(3, b"row 7")],
]


async def test_a_log_of_the_released_form_is_read_goes_on_and_is_not_rewritten(former: Path) -> None:
    old = {path: path.read_bytes() for path in (former / "log").rglob("*.segment")}
    for appended in range(2):
        async with FileLog(former / "log", 2, filesystem=QuickDisk(), clock=lambda: 7) as log:
            for partition, records in enumerate(WRITTEN):
                found = await rows_of(log, partition)
                assert found[:4] == records
                assert {record.timestamp for record in found[:6]} == {None}
                assert len(found) == 6 + appended
            assert await log.position_at(0, 0) == 7
            position = await log.append(b"new", key=b"k")
            assert (await rows_of(log))[-1] == Record(position, b"new", key=b"k")
            packs = await log.read_packs(0, 0)
            assert [one for pack in packs for one in records_of(pack)][:4] == WRITTEN[0]
            await log.append(b"new", partition=1)
    assert {path: path.read_bytes() for path in old} == old
    new = [path for path in (former / "log").rglob("*.segment") if path not in old]
    assert {path.read_bytes()[:8] for path in new} == {b"RSTRIO-2"}


async def test_a_ledger_of_the_released_form_knows_its_batches_and_its_staged_attempts(former: Path) -> None:
    async with (
        FileLog(former / "rows", filesystem=QuickDisk()) as log,
        FileLedger(former / "ledger", log, staged_seconds=1e9) as ledger,
    ):
        assert (ledger.last("sink"), list(ledger.staged)) == (4, ["staged"])
        await ledger.commit("sink", 5, {"staged": 3})
        assert await rows_of(log) == [
            *(Record(n, b"c%d" % n) for n in range(3)),
            *(Record(n + 3, b"s%d" % n, b"m") for n in range(3)),
        ]


@pytest.mark.parametrize("kept", [20, 21, 61])
async def test_a_torn_file_of_the_released_form_is_cut_and_what_follows_is_of_the_new_one(
    former: Path, kept: int
) -> None:
    [path] = (former / "log" / "partition-0").glob("*.segment")
    path.write_bytes(path.read_bytes()[:kept])
    for _ in range(2):
        async with FileLog(former / "log", 2, filesystem=QuickDisk()) as log:
            whole = [WRITTEN[0][0]] if kept == 61 else []
            assert (await rows_of(log))[: len(whole)] == whole
            await log.append(b"new")
            assert (await rows_of(log))[-1].data == b"new"


async def test_a_file_of_a_later_layout_is_named_and_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "partition-0"
    folder.mkdir()
    path = folder / f"{0:020}.segment"
    path.write_bytes(b"RSTRIO-3" + bytes(60))
    with pytest.raises(CorruptLog, match="a segment of the layout RSTRIO-3: known are RSTRIO-1 and RSTRIO-2"):
        await FileLog(tmp_path).open()
    assert path.read_bytes() == b"RSTRIO-3" + bytes(60)
