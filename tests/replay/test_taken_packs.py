"""Packs of strangers: what could not be read again is refused, and what is too large for readers is divided."""

from __future__ import annotations

import struct
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Invalid, Payload, RemoteProtocolError, Responder
from rsocket_trio.metadata import Entry, decode_composite, encode_composite
from rsocket_trio.replay import (
    Element,
    FileLog,
    Ledger,
    MemoryLog,
    Pack,
    Record,
    ReplayableLog,
    add_sink,
    add_source,
    read_source_payload,
    source_payload,
)
from rsocket_trio.replay.arrow_packs import PACK_SCHEMA, arrow_of, decompressed_size, from_arrow, read_batch, to_arrow
from rsocket_trio.replay.packs import PACK_BYTES, PACK_ROWS, elements_of, encode_rows, pack_elements, pack_records
from rsocket_trio.replay.taken_packs import LARGEST_TAKEN, as_taken
from rsocket_trio.testing import connected_pair
from tests.each_row import each_row
from tests.replay.disks import QuickDisk

PACK, ROWS = (f"message/x.rsocket-trio.{name}.v0" for name in ("pack", "rows"))
LONG = b"l" * 2**24


def arrow(compression: str | None = None, **columns: list[Any]) -> bytes:
    batch = pa.RecordBatch.from_pydict(
        {name: pa.array(column, PACK_SCHEMA.field(name).type) for name, column in columns.items()}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def many_positions() -> bytes:
    body = struct.pack(">IB3I3I", 3, 2, *[2**31 - 1] * 3, 0, 0, 0)
    return body + struct.pack(">I", zlib.crc32(body))


def element(data: bytes, form: str) -> Payload:
    return Payload(data, encode_composite([Entry(PACK, form.encode())]))


# At a sink


@each_row(
    ("data", "form", "problem"),
    [
        (many_positions(), "plain/1", "a pack of 6442450941 rows: the limit is 2147483647"),
        (arrow(data=[b""] * 3, count=[2**31 - 1] * 3), "arrow/1", "a pack of 6442450941 rows: the limit is 2147483647"),
        (pack_elements([Element(b"", key=LONG)]).data, "plain/1", "a key of 16777216 bytes: the limit is 16777215"),
        (pack_elements([Element(b"", LONG)]).data, "plain/1", "metadata of 16777216 bytes: the limit is 16777215"),
        (arrow(data=[b"x"], key=[LONG]), "arrow/1", "a key of 16777216 bytes: the limit is 16777215"),
        (arrow(data=[b"x"], headers=[[("h", LONG)]]), "arrow/1", "headers of 16777223 bytes: the limit is 16777215"),
        (arrow(data=[b"x"], headers=[[("h", None)]]), "arrow/1", "a header 'h' that has no name or no content"),
        (arrow(data=[b"x"], headers=[[("h" * 70_000, b"")]]), "arrow/1", "name of 70000 bytes: the limit is 65535"),
        (arrow("zstd", data=[bytes(2**25)] * 3), "arrow/1", "a pack of 100663312 bytes, compressed: the limit is"),
        (arrow("lz4", data=[bytes(2**25)] * 3), "arrow/1", "a pack of 100663312 bytes, compressed: the limit is"),
        (arrow(data=[]), "arrow/1", "0 record batches that have rows"),
    ],
    ids=range(11),
)
async def test_a_pack_that_no_reader_could_be_sent_is_invalid_and_nothing_is_written(
    data: bytes, form: str, problem: str
) -> None:
    ledger = Ledger()
    responder = Responder()
    add_sink(responder, "rows", ledger)
    async with connected_pair(responder) as (client, _):
        with pytest.raises(Invalid, match=problem):
            await client.request_response(element(data, form), route="rows")
        await client.request_response(b"fine", route="rows")
        assert ledger.log.bounds(0) == (0, 1)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_pack_of_few_bytes_is_taken(compression: str) -> None:
    data = arrow(compression, data=[b"a" * 1000, b"b"], key=[None, b"k"])
    assert 1001 < decompressed_size(data) < 2000
    assert [(one.data, one.key) for one in elements_of(from_arrow(data, 2))] == [(b"a" * 1000, None), (b"b", b"k")]


def test_a_pack_that_is_not_compressed_decompresses_nothing() -> None:
    assert decompressed_size(arrow(data=[b"a" * 1000])) == 0


def test_rows_of_a_part_of_a_column_and_headers_that_come_twice_are_taken() -> None:
    part = pa.array([b"a", b"bb", b"ccc", b"dddd"])[1:3]
    assert [one.data for one in elements_of(from_arrow(arrow_of(part), 2))] == [b"bb", b"ccc"]
    [twice] = elements_of(from_arrow(arrow(data=[b"x"], headers=[[("a", b"1"), ("a", b"2"), ("", b"3")]]), 1))
    assert twice.headers == {"a": b"2", "": b"3"}


def test_a_pack_of_positions_without_a_row_is_read_in_arrow_as_well() -> None:
    empty = Pack(encode_rows((), (), with_times=False), 5, 10, 7)
    assert read_batch(to_arrow(empty).to_pybytes()).num_rows == 0


def test_a_time_that_no_column_holds_is_an_error() -> None:
    good = source_payload(Record(0, b"x", timestamp=2**63 - 1))
    assert read_source_payload(good).timestamp == 2**63 - 1
    with pytest.raises(RemoteProtocolError, match=r"a timestamp of 9223372036854775808: the limit is 2\^63 - 1"):
        read_source_payload(source_payload(Record(0, b"x", timestamp=2**63)))


# In a log

LOGS: dict[str, Callable[[Path], ReplayableLog]] = {
    "memory": lambda path: MemoryLog(clock=lambda: 1000),
    "file": lambda path: FileLog(path, filesystem=QuickDisk(), clock=lambda: 1000),
}


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> ReplayableLog:
    return LOGS[request.param](tmp_path)


async def rows_of(log: ReplayableLog) -> list[Record]:
    return [record async for record in log.read(0, *log.bounds(0))]


@pytest.mark.parametrize(
    "rows",
    [
        [Element(b"%d" % number) for number in range(3 * PACK_ROWS + 1)],
        [Element(b"d" * 30_000, key=b"k" if number % 2 else None) for number in range(50)],
        [Element(b"", b"m" * (number * 40_000), headers={"h": b"c" * number}) for number in range(30)],
        [Element(b"s"), Element(b"l" * (2 * LARGEST_TAKEN)), Element(b"s"), Element(b"s")],
        [Element(b"c" * 400_000, count=number) for number in range(1, 9)],
    ],
    ids=["rows", "data", "metadata", "one", "counts"],
)
async def test_a_reader_gets_a_large_pack_in_parts(log: ReplayableLog, rows: list[Element]) -> None:
    async with log:
        await log.append_all({0: [pack_elements(rows)]})
        assert [record.element for record in await rows_of(log)] == rows
        position, latest = log.bounds(0)
        responder = Responder()
        add_source(responder, "rows", log)
        sizes = []
        async with connected_pair(responder) as (client, _):
            request = b'{"partition":0,"from":%d,"to":%d,"pack":["plain/1"]}' % (position, latest)
            async with client.request_stream(request, route="rows") as items:
                async for item in items:
                    entries = {entry.mime: entry.content for entry in decode_composite(item.metadata or b"")}
                    sizes.append(len(item.data))
                    if PACK in entries:
                        assert int.from_bytes(item.data[:4], "big") <= PACK_ROWS
        largest = max(one.size for one in rows)
        assert max(sizes) <= max(PACK_BYTES, largest) + 8 * PACK_ROWS + 100


def test_what_is_not_large_is_taken_as_it_is() -> None:
    small, single = pack_elements([Element(b"a")] * PACK_ROWS), pack_elements([Element(b"l" * 2**20)])
    assert [one is other for one, other in zip(as_taken([small, single]), [small, single], strict=True)] == [True] * 2


async def test_times_in_a_pack_never_go_back_and_those_from_the_first_on_are_found(log: ReplayableLog) -> None:
    async with log:
        await log.append(b"", timestamp=0)
        await log.append(b"", timestamp=1)
        times = [5000, 3, None, 6000]
        await log.append_all({0: [pack_elements([Element(b"", timestamp=time) for time in times])]})
        await log.append(b"")
        assert [row.timestamp for row in await rows_of(log)] == [0, 1, 5000, 5000, 5000, 6000, 6000]
        wanted = {0: 0, 1: 1, 2: 2, 5000: 2, 5001: 5, 6000: 5, 6001: 7}
        assert {time: await log.position_at(0, time) for time in wanted} == wanted


async def test_a_pack_of_another_log_keeps_its_time_and_none_of_its_gaps(log: ReplayableLog) -> None:
    async with log:
        gaps = pack_records([Record(0, b"a", timestamp=7), Record(5, b"b", timestamp=7)], 0)
        assert gaps.count == 6
        await log.append_all({0: [gaps, Pack(pack_elements([Element(b"c")] * 2).data, 2, 90, 9)]})
        assert [(row.position, row.data, row.timestamp) for row in await rows_of(log)] == [
            *((0, b"a", 7), (1, b"b", 7), (2, b"c", 9), (3, b"c", 9))
        ]


async def test_a_pack_of_too_many_positions_is_refused_and_nothing_is_written(log: ReplayableLog) -> None:
    async with log:
        with pytest.raises(ValueError, match="a pack of 6442450941 rows: must be between 1 and 2147483647"):
            await log.append_all({0: [Element(b"a"), Pack(many_positions(), 3 * (2**31 - 1))]})
        assert log.bounds(0) == (0, 0)


class WatchedLog(FileLog):
    """Knows which of the reads that it returned still hold their block of the file."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, filesystem=QuickDisk())
        self.reads: list[weakref.ref[Any]] = []

    async def read_some(self, *args: Any, **options: Any) -> Any:
        return self.noted(await super().read_some(*args, **options))

    async def read_packs(self, *args: Any, **options: Any) -> Any:
        return self.noted(await super().read_packs(*args, **options))

    def noted(self, read: Any) -> Any:
        self.reads.append(weakref.ref(read))
        return read


@pytest.mark.parametrize("packs", ["", ',"pack":["plain/1"]'])
async def test_a_reader_that_takes_nothing_holds_no_block_of_the_file(
    packs: str, tmp_path: Path, autojump_clock: MockClock
) -> None:
    responder = Responder()
    async with WatchedLog(tmp_path) as log:
        await log.append_all({0: [Element(b"%07d" % number * 4) for number in range(20_000)]})
        add_source(responder, "rows", log)
        async with connected_pair(responder) as (client, _):
            request = f'{{"partition":0,"from":0,"to":20000{packs}}}'
            async with client.request_stream(request, route="rows", initial_request_n=1, refill=False) as items:
                await anext(items)
                await trio.testing.wait_all_tasks_blocked()
                assert [read() for read in log.reads] == [None] * len(log.reads)
                items.request_n(2**31 - 1)
                rest = [item async for item in items]
        assert sum(1 if not packs else int.from_bytes(item.data[:4], "big") for item in rest) > 10_000
