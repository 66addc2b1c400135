"""Sources and sinks, served to a client of the library over memory and TCP."""

from __future__ import annotations

import errno
import json
import os
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio import (
    ApplicationError,
    Channel,
    Connection,
    Incoming,
    Invalid,
    Payload,
    Rejected,
    RemoteProtocolError,
    Responder,
    open_connection,
    serve,
)
from rsocket_trio.metadata import Entry, decode_composite, encode_composite
from rsocket_trio.replay import (
    Element,
    FileLedger,
    FileLog,
    Ledger,
    MemoryLog,
    Record,
    ReplayableLog,
    add_sink,
    add_source,
    sink_routes,
)
from rsocket_trio.replay.element_metadata import KEY, POSITION, RECORD_METADATA, ROWS, WRITE, read_source_payload
from rsocket_trio.testing import connected_pair
from tests.each_row import each_row
from tests.replay.disks import BadDisk, FullDisk, QuickDisk

PATIENCE = 60.0


@asynccontextmanager
async def source(log: ReplayableLog, **options: Any) -> AsyncGenerator[Connection, None]:
    responder = Responder()
    add_source(responder, "rows", log, **options)
    async with log, connected_pair(responder) as (client, _):
        yield client


@asynccontextmanager
async def sink(ledger: Ledger) -> AsyncGenerator[Connection, None]:
    responder = Responder()
    add_sink(responder, "rows", ledger)
    async with ledger, connected_pair(responder) as (client, _):
        yield client


def said(**content: Any) -> bytes:
    if "start" in content:
        content["from"] = content.pop("start")
    return json.dumps(content).encode()


def reading(client: Connection, start: int, end: int | None = None, partition: int = 0, credit: int = 256) -> Incoming:
    request = said(partition=partition, start=start, to=end)
    return client.request_stream(request, route="rows", initial_request_n=credit)


async def read_all(client: Connection, start: int, end: int | None = None, partition: int = 0) -> list[Record]:
    async with reading(client, start, end, partition) as items:
        return [read_source_payload(item) async for item in items]


async def rows_of(log: ReplayableLog, partition: int = 0) -> list[Record]:
    return [record async for record in log.read(partition, *log.bounds(partition))]


# Sources


@pytest.mark.parametrize("route", ["rows.partitions", "rows.offsets"])
async def test_a_source_tells_the_bounds_of_its_partitions(route: str) -> None:
    log = MemoryLog(2)
    async with source(log) as client:
        for _ in range(5):
            await log.append(b"row", partition=1)
        await log.trim(1, 3)

        told = json.loads((await client.request_response(route=route)).data)
        assert told == {"0": {"earliest": 0, "latest": 0}, "1": {"earliest": 3, "latest": 5}}


async def test_a_range_comes_in_order_with_positions_and_completes() -> None:
    log = MemoryLog()
    async with source(log) as client:
        await log.append_all({0: [Element(b"%d" % n) for n in range(2000)]})

        assert await read_all(client, 5, 1998) == [Record(n, b"%d" % n) for n in range(5, 1998)]
        assert await read_all(client, 7, 7) == []
        assert await read_all(client, 2000, 2000) == []


async def test_an_element_says_its_position_its_rows_and_its_metadata_on_the_wire() -> None:
    log = MemoryLog(clock=iter([1000, 2000, 1500]).__next__)
    async with source(log) as client:
        await log.append(b"one")
        await log.append(b"three", b"meta", count=3, key=b"k", headers={"é": b"1", "b": b""})
        await log.append(b"empty", b"")
        async with reading(client, 0, 5) as items:
            found = [(item.data, decode_composite(item.metadata or b"")) async for item in items]

    time = "message/x.rsocket-trio.timestamp.v0"
    headers = bytes.fromhex("0002 c3a9 00000001 31 0001 62 00000000")
    assert found == [
        (
            b"one",
            [Entry("message/x.rsocket-trio.position.v0", struct.pack(">Q", 0)), Entry(time, struct.pack(">Q", 1000))],
        ),
        (
            b"three",
            [
                Entry(POSITION, struct.pack(">QI", 1, 3)),
                Entry(time, struct.pack(">Q", 2000)),
                Entry(RECORD_METADATA, b"meta"),
                Entry("message/x.rsocket-trio.key.v0", b"k"),
                Entry("message/x.rsocket-trio.headers.v0", headers),
            ],
        ),
        # The clock was set back.
        (
            b"empty",
            [Entry(POSITION, struct.pack(">Q", 4)), Entry(time, struct.pack(">Q", 2000)), Entry(RECORD_METADATA, b"")],
        ),
    ]


@each_row(("start", "end", "positions"), [(1, 2, [0]), (2, 4, [0, 3]), (3, 5, [3]), (0, 6, [0, 3])])
async def test_a_range_within_an_element_of_several_rows_gets_the_whole_element(
    start: int, end: int, positions: list[int]
) -> None:
    log = MemoryLog()
    async with source(log) as client:
        await log.append(b"a", count=3)
        await log.append(b"b", count=3)

        assert [record.position for record in await read_all(client, start, end)] == positions


async def test_a_live_tail_goes_on_where_the_past_ends(autojump_clock: trio.testing.MockClock) -> None:
    log = MemoryLog()
    async with source(log) as client:
        await log.append(b"past")
        async with reading(client, 0) as items:
            assert read_source_payload(await anext(items)) == Record(0, b"past")
            before = trio.current_time()
            for number in range(1, 10):
                await log.append(b"%d" % number)
                assert read_source_payload(await anext(items)) == Record(number, b"%d" % number)
            # Nobody slept: readers are woken, and do not look from time to time.
            assert trio.current_time() == before


async def test_a_range_with_an_end_is_served_while_others_append(tmp_path: Path) -> None:
    log = FileLog(tmp_path, segment_bytes=5000, filesystem=QuickDisk())
    async with source(log) as client, trio.open_nursery() as nursery:
        await log.append(b"first")

        async def produce() -> None:
            for number in range(300):
                await log.append(b"%d" % number)

        nursery.start_soon(produce)
        async with reading(client, 0) as items:
            for number in range(301):
                record = read_source_payload(await anext(items))
                assert record == Record(number, b"%d" % (number - 1) if number else b"first")


@each_row(
    ("request_", "code", "text"),
    [
        ({"start": 2, "to": 9}, 0x310, "position 2 of partition 0 has expired: the earliest is 3"),
        ({"start": 6}, 0x311, "position 6 is beyond partition 0: the latest is 5"),
        ({"start": 4, "to": 6}, 0x311, "position 6 is beyond partition 0: the latest is 5"),
        ({"start": 0, "partition": 1}, 0x312, "there is no partition 1: only 0"),
    ],
)
async def test_ranges_that_are_not_there_have_codes_of_their_own(
    request_: dict[str, Any], code: int, text: str
) -> None:
    log = MemoryLog()
    async with source(log) as client:
        await log.append_all({0: [Element(b"")] * 5})
        await log.trim(0, 3)
        async with client.request_stream(said(**{"partition": 0, **request_}), route="rows") as items:
            with pytest.raises(ApplicationError) as caught:
                await anext(items)

    assert (caught.value.code, caught.value.text) == (code, text)


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b"[" * 10_000,
    b"{}",
    *(
        json.dumps({"partition": 0, "from": 0, **change}).encode()
        for change in (
            {"from": -1},
            {"from": True},
            {"from": "0"},
            {"from": 0.0},
            {"from": None},
            {"from": 2**63},
            {"partition": None},
            {"partition": -1},
            {"to": -1},
            {"to": "latest"},
            {"from": 3, "to": 2},
        )
    ),
    b'{"partition": 0, "from": 0, "x": "' + bytes(2**20).replace(b"\0", b"x") + b'"}',
]


@each_row("request_", MALFORMED, ids=range(len(MALFORMED)))
async def test_a_range_that_is_malformed_is_invalid(request_: bytes) -> None:
    async with source(MemoryLog()) as client, client.request_stream(request_, route="rows") as items:
        with pytest.raises(Invalid):
            await anext(items)


async def test_a_reader_that_is_trimmed_under_hears_that_its_position_expired() -> None:
    log = MemoryLog()
    async with source(log, read_bytes=1) as client:
        await log.append_all({0: [Element(b"%d" % n) for n in range(10)]})
        async with reading(client, 0, credit=2) as items:
            assert read_source_payload(await anext(items)).position == 0
            await trio.testing.wait_all_tasks_blocked()
            await log.trim(0, 10)
            with pytest.raises(ApplicationError, match="has expired: the earliest is 10") as caught:
                async for _ in items:
                    pass
    assert caught.value.code == 0x310


def damage_first_file(directory: Path) -> Path:
    first = min(directory.glob("partition-0/*.segment"))
    content = bytearray(first.read_bytes())
    content[150] ^= 1
    first.write_bytes(content)
    return first


async def test_damage_ends_a_reader_with_the_position_and_no_name_of_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with FileLog(tmp_path, segment_bytes=200, filesystem=QuickDisk()) as log:
        for n in range(20):
            await log.append(b"%020d" % n)
    first = damage_first_file(tmp_path)
    async with source(FileLog(tmp_path, segment_bytes=200, filesystem=QuickDisk())) as client:
        async with reading(client, 0, 20) as items:
            assert read_source_payload(await anext(items)) == Record(0, b"%020d" % 0)
            with pytest.raises(
                ApplicationError, match="partition 0 is damaged at position 1: its CRC is wrong"
            ) as caught:
                await anext(items)
        assert caught.value.code == 0x313
        assert str(tmp_path) not in caught.value.text
        assert [record.position for record in await read_all(client, 15, 20)] == [15, 16, 17, 18, 19]
    assert str(first) in caplog.text


class Counting(MemoryLog):
    """A log that notes how much its readers ask for at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    async def read_some(
        self, partition: int, start: int, end: int | None = None, *, max_bytes: int = 2**20
    ) -> Iterator[Record]:
        self.asked.append(max_bytes)
        return await super().read_some(partition, start, end, max_bytes=max_bytes)


async def test_a_reader_that_is_fast_is_read_for_in_large_blocks_and_a_slow_one_in_small_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    log = Counting()
    async with source(log, read_bytes=100_000) as client:
        await log.append_all({0: [Element(bytes(1000))] * 1000})
        await read_all(client, 0, 1000)
        assert log.asked[:4] == [16_384, 32_768, 65_536, 100_000]
        assert set(log.asked[4:]) == {100_000}

        log.asked.clear()
        async with reading(client, 0, credit=1) as items:
            for number in range(500):
                if number > 300:
                    await trio.sleep(0.05)
                await anext(items)
        assert max(log.asked) == 100_000
        assert log.asked[-1] < 50_000


async def test_a_reader_without_credit_holds_few_records() -> None:
    log = Counting()
    async with source(log) as client:
        await log.append_all({0: [Element(bytes(1000))] * 1000})
        async with reading(client, 0, credit=1) as items:
            await anext(items)
            await trio.testing.wait_all_tasks_blocked()
            assert log.asked == [16_384]


async def test_acknowledged_ends_are_told_and_may_trim() -> None:
    log, told, heard = MemoryLog(2), [], trio.Event()

    async def on_ack(partition: int, end: int) -> None:
        told.append((partition, end))
        await log.trim(partition, end)
        heard.set()

    async with source(log, on_ack=on_ack) as client:
        await log.append_all({1: [Element(b"")] * 5})
        for wrong in (b"{}x", b'{"one": 1}', b'{"1": 6}', b'{"2": 0}', b'{"1": null}'):
            await client.fire_and_forget(wrong, route="rows.ack")
        await client.fire_and_forget(b'{"1": 3}', route="rows.ack")
        with trio.fail_after(PATIENCE):
            await heard.wait()

    assert (told, log.bounds(1)) == ([(1, 3)], (3, 5))


async def test_acknowledgements_may_be_heard_by_a_plain_function_or_by_nobody() -> None:
    told: list[tuple[int, int]] = []
    log = MemoryLog()
    for on_ack in (None, lambda partition, end: told.append((partition, end))):
        async with source(log, on_ack=on_ack) as client:
            await client.fire_and_forget(b'{"0": 0}', route="rows.ack")
            await client.ping()
            await trio.testing.wait_all_tasks_blocked()
        log = MemoryLog()
    assert told == [(0, 0)]


@each_row(
    "metadata", [None, encode_composite([Entry(POSITION, bytes(7))]), encode_composite([Entry(RECORD_METADATA, b"")])]
)
def test_an_element_without_a_position_is_told(metadata: bytes | None) -> None:
    with pytest.raises(RemoteProtocolError, match="position"):
        read_source_payload(Payload(b"", metadata))


async def test_a_log_that_was_not_opened_is_opened_by_the_first_request(tmp_path: Path) -> None:
    responder, log = Responder(), FileLog(tmp_path, filesystem=QuickDisk())
    add_source(responder, "rows", log)
    async with connected_pair(responder) as (client, _):
        assert (await client.request_response(route="rows.offsets")).text == '{"0":{"earliest":0,"latest":0}}'
    await log.aclose()


# Sinks


def element(data: bytes, *, partition: int = 0, seq: int = 0, entries: list[Entry] | None = None) -> Payload:
    write = {"sink": "s", "query": None, "batch": 1, "partition": partition, "attempt": "a", "seq": seq}
    return Payload(data, encode_composite([Entry(WRITE, json.dumps(write).encode()), *(entries or [])]))


async def test_an_element_that_is_answered_is_in_the_log() -> None:
    ledger = Ledger(MemoryLog(2))
    async with sink(ledger) as client:
        assert await client.request_response(element(b"one"), route="rows") == Payload(b"")
        rows = Entry(ROWS, struct.pack(">I", 5))
        await client.request_response(element(b"five", partition=3, entries=[rows]), route="rows")
        entries = [Entry(KEY, b"key"), Entry(RECORD_METADATA, b"meta")]
        await client.request_response(element(b"both", entries=entries), route="rows")
        await client.request_response(element(b"meta", entries=entries[1:]), route="rows")
        await client.request_response(b"bare", route="rows")

        assert await rows_of(ledger.log) == [
            Record(0, b"one"),
            Record(1, b"both", b"meta", key=b"key"),
            Record(2, b"meta", b"meta"),
            Record(3, b"bare"),
        ]
        assert await rows_of(ledger.log, 1) == [Record(0, b"five", None, 5)]


async def test_what_is_fired_and_forgotten_is_in_the_log_soon() -> None:
    ledger = Ledger()
    async with sink(ledger) as client:
        await client.fire_and_forget(element(b"one"), route="rows")
        with trio.fail_after(PATIENCE):
            await ledger.log.wait_beyond(0, 0)
        assert await rows_of(ledger.log) == [Record(0, b"one")]


async def test_a_channel_gets_one_answer_for_each_element_in_order() -> None:
    ledger, count = Ledger(), 500
    async with sink(ledger) as client:
        async with client.request_channel(element(b"0"), route="rows") as channel:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send_numbers, channel, 1, count)
                for number in range(count):
                    assert await anext(channel) == Payload(b"")
                    assert ledger.log.bounds(0)[1] > number
            with pytest.raises(StopAsyncIteration):
                await anext(channel)
        assert [int(record.data) for record in await rows_of(ledger.log)] == list(range(count))


async def send_numbers(channel: Channel, first: int, end: int) -> None:
    for number in range(first, end):
        await channel.send(element(b"%d" % number))
    await channel.send_eof()


async def test_an_element_that_can_not_be_written_takes_none_of_those_before_it_along() -> None:
    ledger = Ledger(MemoryLog(limit_bytes=8000))
    answers: list[Payload] = []
    async with sink(ledger) as client:
        async with client.request_channel(element(b"0"), route="rows") as channel:
            await channel.send_many([element(row) for row in (b"1", b"2", bytes(9000), b"3", b"4")])
            with pytest.raises(Invalid, match="bytes for a partition in memory: the limit is 8000"):
                await collect(channel, answers)
        assert [record.data for record in await rows_of(ledger.log)] == [b"0", b"1", b"2"]
    assert len(answers) == 3


async def collect(channel: Channel, answers: list[Payload]) -> None:
    async for answer in channel:
        answers.append(answer)


@pytest.mark.parametrize("row", [b"", b"x"])
async def test_rows_of_no_size_wait_as_well_while_their_answers_get_no_credit(
    row: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_routes, "WAITING_BYTES", 1000 * 256)
    ledger = Ledger()
    async with (
        sink(ledger) as client,
        client.request_channel(row, route="rows", initial_request_n=1, refill=False) as channel,
    ):
        sent = 1
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def send() -> None:
                    nonlocal sent
                    while sent < 20_000:
                        await channel.send(row)
                        sent += 1

                nursery.start_soon(send)
                await trio.testing.wait_all_tasks_blocked(0.01)
                scope.cancel()
        # What was written and waits to be told, what waits to be written, and the credit of the channel.
        assert sent < 2 * 1000 + 3 * 256
        await channel.send_eof()

        channel.request_n(20_000)
        answers = [item.data async for item in channel]
        assert answers == [b""] * sent
    assert ledger.log.bounds(0) == (0, sent)


async def test_a_channel_that_is_not_read_is_not_read_from_either() -> None:
    ledger = Ledger()
    async with sink(ledger) as client:
        async with client.request_channel(element(b"0"), route="rows", initial_request_n=1, refill=False) as channel:
            sent = 0
            with trio.move_on_after(1):
                while sent < 2000:
                    await channel.send(element(bytes(2**15)))
                    sent += 1
        # Two queues of 4 MiB, and the credit.
        assert 256 <= sent < 1000


BAD_ENTRIES = [
    b"\x05",
    encode_composite([Entry(ROWS, b"123")]),
    encode_composite([Entry(ROWS, bytes(4))]),
    encode_composite([Entry(WRITE, b"{")]),
    encode_composite([Entry(WRITE, b"[]")]),
    encode_composite([Entry(WRITE, b'{"partition": -1}')]),
    encode_composite([Entry(WRITE, b'{"partition": true}')]),
]


@each_row("metadata", BAD_ENTRIES, ids=range(len(BAD_ENTRIES)))
async def test_an_element_that_is_malformed_is_invalid(metadata: bytes) -> None:
    async with sink(Ledger()) as client:
        with pytest.raises(Invalid):
            await client.request_response(Payload(b"", metadata), route="rows")
        async with client.request_channel(element(b"fine"), route="rows") as channel:
            await channel.send(Payload(b"", metadata))
            with pytest.raises(Invalid):
                [item async for item in channel]


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for what threads and tasks of the server do meanwhile, and that nobody tells."""
    with trio.fail_after(PATIENCE):
        while not is_so():  # noqa: ASYNC110
            await trio.sleep(0.001)


async def staged(client: Connection, attempt: str, rows: list[bytes], partition: int = 0) -> dict[str, int]:
    opening = said(sink="s", attempt=attempt, partition=partition)
    async with client.request_channel(opening, route="rows.stage") as channel:
        for seq, row in enumerate(rows):
            await channel.send(element(row, partition=partition, seq=seq))
        await channel.send_eof()
        [reply] = [item async for item in channel]
    told = json.loads(reply.data)
    assert isinstance(told, dict)
    return told


async def commit(client: Connection, batch: int, **attempts: int) -> Any:
    named = [{"attempt": attempt, "rows": rows} for attempt, rows in attempts.items()]
    return json.loads(
        (await client.request_response(said(sink="s", batch=batch, attempts=named), route="rows.commit")).data
    )


async def test_staged_rows_count_once_they_are_committed() -> None:
    ledger = Ledger()
    async with sink(ledger) as client:
        assert await staged(client, "a", [b"1", b"2"]) == {"rows": 2, "elements": 2}
        assert await staged(client, "loser", [b"1"]) == {"rows": 1, "elements": 1}
        assert await rows_of(ledger.log) == []
        assert await commit(client, 0, a=2) == {"promoted": True, "rows": 2, "last": 0}
        assert await commit(client, 0, a=2) == {"promoted": False, "rows": 0, "last": 0}
        assert await commit(client, 1) == {"promoted": True, "rows": 0, "last": 1}
        with pytest.raises(ApplicationError, match="attempt a is not staged for sink s") as caught:
            await commit(client, 2, a=2)
        assert caught.value.code == 0x320
        reply = await client.request_response(said(sink="s", attempts=["loser", "a"]), route="rows.abort")
        assert json.loads(reply.data) == {"dropped": 1}
        assert [record.data for record in await rows_of(ledger.log)] == [b"1", b"2"]


@each_row("how", ["cancel", "loss", "bad element"])
@each_row("kind", ["memory", "files"])
async def test_a_stage_that_does_not_complete_is_discarded(kind: str, how: str, tmp_path: Path) -> None:
    ledger = Ledger() if kind == "memory" else FileLedger(tmp_path, filesystem=QuickDisk())
    responder = Responder()
    add_sink(responder, "rows", ledger)
    async with ledger:
        async with connected_pair(responder) as (client, server):
            async with client.request_channel(said(sink="s", attempt="a", partition=0), route="rows.stage") as channel:
                await channel.send(element(bytes(2 * 2**20)))
                await until(lambda: ledger.staged_bytes > 0)
                if how == "bad element":
                    await channel.send(Payload(b"", b"\x05"))
                    with pytest.raises(Invalid):
                        await anext(channel)
            if how == "loss":
                await server.drain(grace=0)
            await until(lambda: not ledger.staged)
        assert ledger.staged_bytes == 0
        assert kind == "memory" or not any((tmp_path / "staged").iterdir())


async def test_more_than_may_be_staged_is_rejected_so_that_it_may_be_tried_again() -> None:
    ledger = Ledger(staged_bytes=1000)
    async with sink(ledger) as client:
        with pytest.raises(Rejected, match="bytes are staged and"):
            await staged(client, "a", [bytes(300)] * 3)
        assert await staged(client, "a", [bytes(300)]) == {"rows": 1, "elements": 1}


async def test_an_attempt_is_no_path(tmp_path: Path) -> None:
    async with sink(FileLedger(tmp_path / "ledger", filesystem=QuickDisk())) as client:
        for attempt in ("../outside", "/tmp/outside", "", ".", "a.b", "a\0", "x" * 65, 7, None):
            with pytest.raises(Invalid, match="an attempt is a UUID"):
                await staged(client, attempt, [b""])  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["ledger"]


COMMANDS: list[tuple[str, Any]] = [
    ("commit", {"sink": "s", "batch": 1}),
    ("commit", {"sink": "s", "batch": -1, "attempts": []}),
    ("commit", {"sink": "", "batch": 1, "attempts": []}),
    ("commit", {"sink": "s" * 257, "batch": 1, "attempts": []}),
    ("commit", {"sink": 1, "batch": 1, "attempts": []}),
    ("commit", {"sink": "s", "batch": 1, "attempts": {}}),
    ("commit", {"sink": "s", "batch": 1, "attempts": ["a"]}),
    ("commit", {"sink": "s", "batch": 1, "attempts": [{"attempt": "a"}]}),
    ("commit", {"sink": "s", "batch": 1, "attempts": [{"attempt": "a", "rows": 1}] * 2}),
    ("commit", {"sink": "s", "batch": 1, "attempts": [], "once": 1}),
    ("abort", {"sink": "s"}),
    ("abort", {"sink": "s", "attempts": [1]}),
]


@each_row(("command", "request_"), COMMANDS)
async def test_commands_that_are_malformed_are_invalid(command: str, request_: Any) -> None:
    async with sink(Ledger()) as client:
        with pytest.raises(Invalid):
            await client.request_response(json.dumps(request_), route=f"rows.{command}")


async def test_a_full_disk_is_told_to_every_writer_and_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    ledger = FileLedger(tmp_path, filesystem=disk)
    async with sink(ledger) as client:
        await staged(client, "a", [b"1", b"2"])
        disk.room = 10
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: client.request_response(element(b"row"), route="rows"),
            lambda: staged(client, "b", [b"row"]),
            lambda: commit(client, 1, a=2),
        ]
        for call in calls:
            with pytest.raises(
                ApplicationError, match="nothing was written: ENOSPC, No space left on device"
            ) as caught:
                await call()
            assert caught.value.code == 0x321
        assert (await rows_of(ledger.log), list(ledger.staged)) == ([], ["a"])
        disk.room = 2**40
        assert (await commit(client, 1, a=2))["promoted"]
    assert errno.ENOSPC == 28
    tracebacks = [record.getMessage() for record in caplog.records if record.exc_info]
    assert ["of request_response 'rows' failed" in text for text in tracebacks] == [True, False, False]
    assert "No space left on device" in caplog.text


async def test_of_a_disk_that_fails_nobody_says_that_nothing_was_written(tmp_path: Path) -> None:
    disk = BadDisk()
    async with sink(FileLedger(tmp_path, filesystem=disk)) as client:
        await staged(client, "a", [b"1"])
        disk.failing = {"sync": errno.EIO}
        with pytest.raises(ApplicationError, match="nobody knows what was written: EIO") as caught:
            await commit(client, 1, a=1)
        assert caught.value.code == 0x321


async def test_a_sink_that_writes_but_once_says_so_with_its_commit() -> None:
    ledger = Ledger()
    async with sink(ledger) as client:
        said = {"sink": "job", "batch": 0, "attempts": [], "once": True}
        for promoted in (True, False):
            told = await client.request_response(json.dumps(said), route="rows.commit")
            assert json.loads(told.data) == {"promoted": promoted, "rows": 0, "last": 0}
    assert (ledger.last("job"), ledger.sinks) == (0, {})


async def test_what_a_log_can_not_hold_is_invalid() -> None:
    async with sink(Ledger(MemoryLog(limit_bytes=1000))) as client:
        with pytest.raises(Invalid, match="bytes for a partition in memory: the limit is 1000"):
            await client.request_response(bytes(2000), route="rows")


# Over TCP


async def test_a_log_is_filled_by_a_sink_and_read_by_a_source_over_tcp(tmp_path: Path) -> None:
    responder = Responder()
    async with FileLog(tmp_path / "log", 2) as log, FileLedger(tmp_path / "ledger", log) as ledger:
        add_source(responder, "out", log)
        add_sink(responder, "rows", ledger)
        async with trio.open_nursery() as nursery:
            [uri] = await nursery.start(serve, responder, "tcp://127.0.0.1:0")
            with trio.fail_after(PATIENCE):
                async with open_connection(uri) as client:
                    for partition in range(2):
                        rows = [b"%d-%d" % (partition, n) for n in range(3000)]
                        await staged(client, f"a{partition}", rows, partition)
                    await commit(client, 1, a0=3000, a1=3000)
                    for partition in range(2):
                        request = said(partition=partition, start=0, to=3000)
                        async with client.request_stream(request, route="out", initial_request_n=4096) as items:
                            found = [read_source_payload(item) async for item in items]
                        assert found == [Record(n, b"%d-%d" % (partition, n)) for n in range(3000)]
            nursery.cancel_scope.cancel()
