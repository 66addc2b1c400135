"""Sources and sinks, served to a client of the library over memory and TCP."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from rsocket_trio import (
    ApplicationError,
    Connection,
    Incoming,
    Invalid,
    Payload,
    RemoteProtocolError,
    Responder,
)
from rsocket_trio.metadata import Entry, decode_composite, encode_composite
from rsocket_trio.replay import Ledger, Log, Record, add_sink
from rsocket_trio.replay.elements import NULL, RECORD, read_source_payload
from rsocket_trio.testing import connected_pair
from tests.each_row import each_row
from tests.replay.stored import KINDS, failing, new_ledger, new_log, rows_of, source
from tests.serving import until

PATIENCE = 60.0


@asynccontextmanager
async def sink(ledger: Ledger) -> AsyncGenerator[Connection, None]:
    responder = Responder()
    add_sink(responder, "rows", ledger)
    async with ledger, connected_pair(responder) as (client, _):
        yield client


def entry_of(**content: object) -> bytes:
    return encode_composite([Entry(RECORD, msgspec.msgpack.encode(content))])


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


# Sources


async def test_a_source_tells_the_bounds_of_its_partitions() -> None:
    log = Log(partitions=2)
    async with source(log) as client:
        for _ in range(5):
            await log.append(b"row", partition=1)
        await log.trim(1, 3)

        told = json.loads((await client.request_response(route="rows.offsets")).data)
        assert told == {"0": {"earliest": 0, "latest": 0}, "1": {"earliest": 3, "latest": 5}}


async def test_the_bounds_say_where_a_time_begins() -> None:
    log = Log(partitions=2)
    log._clock = iter([10, 20, 30]).__next__
    async with source(log) as client:
        for partition in (0, 1, 0):
            await log.append(b"x", partition=partition)
        answer = await client.request_response(b'{"timestamps": {"0": 20, "1": 20}}', route="rows.offsets")
        assert answer.text == '{"0":{"earliest":0,"latest":2,"at":1},"1":{"earliest":0,"latest":1,"at":0}}'
        answer = await client.request_response(b'{"timestamps": {"1": 21}}', route="rows.offsets")
        assert answer.text == '{"0":{"earliest":0,"latest":2},"1":{"earliest":0,"latest":1,"at":1}}'
        with pytest.raises(Invalid, match=r"at `key` in `\$\.timestamps`"):
            await client.request_response(b'{"timestamps": {"-1": 21}}', route="rows.offsets")


async def test_an_element_says_its_position_its_rows_and_its_metadata_on_the_wire() -> None:
    log = Log()
    log._clock = iter([1000, 2000, 1500]).__next__
    async with source(log) as client:
        await log.append(b"one")
        await log.append(b"three", b"meta", count=3, key=b"k", headers=[("é", b"1"), ("b", b""), ("é", None)])
        await log.append(None, b"")
        async with reading(client, 0, 5) as items:
            found = [(item.data, decode_composite(item.metadata or b"")) async for item in items]

    # As the specification of MessagePack has it: maps, texts, arrays and bytes of less than 16, numbers below 128 and
    # of 16 bits, nil.
    record = "message/x.rsocket-trio.record.v0"
    position, time = b"\xa8position", b"\xa9timestamp\xcd"
    rest = b"\xa8metadata\xc4\x04meta\xa3key\xc4\x01k\xa7headers\x93"
    headers = b"\x92\xa2\xc3\xa9\xc4\x011\x92\xa1b\xc4\x00\x92\xa2\xc3\xa9\xc0"
    assert found == [
        (b"one", [Entry(record, b"\x82%b\x00%b\x03\xe8" % (position, time))]),
        (b"three", [Entry(record, b"\x86%b\x01\xa5count\x03%b\x07\xd0%b%b" % (position, time, rest, headers))]),
        # The clock was set back.
        (
            b"",
            [
                Entry(record, b"\x83%b\x04%b\x07\xd0\xa8metadata\xc4\x00" % (position, time)),
                Entry("message/x.rsocket-trio.null.v0", b""),
            ],
        ),
    ]


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
    log = Log()
    async with source(log) as client:
        for _ in range(5):
            await log.append(b"")
        await log.trim(0, 3)
        async with client.request_stream(said(**{"partition": 0, **request_}), route="rows") as items:
            with pytest.raises(ApplicationError) as caught:
                await anext(items)

    assert (caught.value.code, caught.value.text) == (code, text)


MALFORMED = [
    b"\xff",
    b"[" * 10_000,
    b"{}",
    b'{"partition": 0, "from": -1}',
    b'{"partition": 0, "from": 0, "to": 9223372036854775808}',
    b'{"partition": 0, "from": 3, "to": 2}',
    b'{"partition": 0, "from": 0, "x": "' + bytes(2**20).replace(b"\0", b"x") + b'"}',
]


@each_row("request_", MALFORMED, ids=range(len(MALFORMED)))
async def test_a_range_that_is_malformed_is_invalid(request_: bytes) -> None:
    async with source(Log()) as client, client.request_stream(request_, route="rows") as items:
        with pytest.raises(Invalid):
            await anext(items)


async def test_damage_ends_a_reader_with_the_position_and_no_name_of_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = new_log("file", tmp_path)
    async with source(log) as client:
        for n in range(20):
            await log.append(b"%020d" % n)
        log._ask("UPDATE bodies SET data = x'00' WHERE id = 2")
        async with reading(client, 0, 20) as items:
            assert read_source_payload(await anext(items)) == Record(0, b"%020d" % 0)
            with pytest.raises(
                ApplicationError, match="the log is damaged in partition 0 at position 1: its CRC is wrong"
            ) as caught:
                await anext(items)
        assert caught.value.code == 0x313
        assert str(tmp_path) not in caught.value.text
        assert [record.position for record in await read_all(client, 15, 20)] == [15, 16, 17, 18, 19]
    assert f"{tmp_path / 'rows.log'}: the log is damaged in partition 0 at position 1" in caplog.text


async def test_acknowledged_ends_are_told_and_may_trim() -> None:
    log, told, heard = Log(partitions=2), [], trio.Event()

    async def on_ack(partition: int, end: int) -> None:
        told.append((partition, end))
        await log.trim(partition, end)
        heard.set()

    async with source(log, on_ack=on_ack) as client:
        for _ in range(5):
            await log.append(b"", partition=1)
        for wrong in (b'{"one": 1}', b'{"1": 6}', b'{"2": 0}', b'{"1": null}'):
            await client.fire_and_forget(b'{"ends": %s}' % wrong, route="rows.ack")
        await client.fire_and_forget(b'{"ends": {}}x', route="rows.ack")
        await client.fire_and_forget(b'{"ends": {"1": 3}}', route="rows.ack")
        with trio.fail_after(PATIENCE):
            await heard.wait()
        assert (told, log.bounds(1)) == ([(1, 3)], (3, 5))


@each_row("metadata", [None, entry_of(position=-1), entry_of(key=b"k"), encode_composite([Entry(NULL, b"")])])
def test_an_element_without_a_position_is_told(metadata: bytes | None) -> None:
    with pytest.raises(RemoteProtocolError, match="position"):
        read_source_payload(Payload(b"", metadata))


# Sinks


def element(data: bytes, **content: object) -> Payload:
    return Payload(data, entry_of(sink="s", query=None, batch=1, attempt="a", **content))


async def test_an_element_that_is_answered_is_in_the_log() -> None:
    ledger = Ledger(Log(partitions=2))
    async with sink(ledger) as client:
        assert await client.request_response(element(b"one"), route="rows") == Payload(b"")
        await client.request_response(element(b"five", partition=3, count=5), route="rows")
        await client.request_response(element(b"both", key=b"key", metadata=b"meta"), route="rows")
        await client.request_response(element(b"meta", metadata=b"meta"), route="rows")
        await client.request_response(b"bare", route="rows")

        assert await rows_of(ledger.log) == [
            Record(0, b"one"),
            Record(1, b"both", b"meta", key=b"key"),
            Record(2, b"meta", b"meta"),
            Record(3, b"bare"),
        ]
        assert await rows_of(ledger.log, 1) == [Record(0, b"five", None, 5)]


BAD_ENTRIES = [
    b"\x05",
    encode_composite([Entry(RECORD, b"")]),
    encode_composite([Entry(RECORD, b"\x90")]),
    encode_composite([Entry(RECORD, b"\x81\xa1x" + b"\x91" * 100_000)]),
    encode_composite([Entry(RECORD, b"\x81\xa7headers\x91\x92\xa1\xff\xc0")]),
    entry_of(count="5"),
    entry_of(count=0),
    entry_of(partition=-1),
]


@each_row("metadata", BAD_ENTRIES, ids=range(len(BAD_ENTRIES)))
async def test_an_element_that_is_malformed_is_invalid(metadata: bytes) -> None:
    async with sink(Ledger()) as client:
        with pytest.raises(Invalid):
            await client.request_response(Payload(b"", metadata), route="rows")


async def staged(
    client: Connection, attempt: str, rows: list[bytes], partition: int = 0, **plan: Any
) -> dict[str, int]:
    opening = said(sink="s", attempt=attempt, partition=partition, **plan)
    async with client.request_channel(opening, route="rows.stage") as channel:
        for seq, row in enumerate(rows):
            await channel.send(element(row, partition=partition, seq=seq))
        await channel.send_eof()
        [reply] = [item async for item in channel]
    told = json.loads(reply.data)
    assert isinstance(told, dict)
    return told


async def commit(client: Connection, batch: int, **attempts: int) -> Any:
    request = said(sink="s", batch=batch, attempts=attempts)
    return json.loads((await client.request_response(request, route="rows.commit")).data)


@each_row("how", ["cancel", "loss", "bad element"])
@each_row("kind", KINDS)
async def test_a_stage_that_does_not_complete_is_discarded(kind: str, how: str, tmp_path: Path) -> None:
    ledger = new_ledger(kind, tmp_path)
    responder = Responder()
    add_sink(responder, "rows", ledger)
    async with ledger.log:
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
        assert ledger._tables._ask("SELECT * FROM bodies") == []


@each_row("attempt", ["../outside", "/tmp/outside", "", ".", "a.b", "a\0", "a\n", "x" * 65, 7, None])
async def test_the_name_of_an_attempt_is_short_and_plain(attempt: Any) -> None:
    async with sink(Ledger()) as client:
        with pytest.raises(Invalid, match=r"at `\$\.attempt`"):
            await staged(client, attempt, [b""])


COMMANDS: list[tuple[str, Any]] = [
    ("commit", {"sink": "s", "batch": 1}),
    ("commit", {"sink": "s" * 257, "batch": 1, "attempts": {}}),
    ("commit", {"sink": "s", "batch": 1, "attempts": {"a": None}}),
    ("commit", {"sink": "s", "batch": 1, "attempts": {"a b": 1}}),
    ("commit", {"sink": "s", "batch": 1, "attempts": {}, "query": "q", "takeOver": "yes"}),
    ("epoch", {}),
    ("abort", {"sink": "s", "attempts": [1]}),
]


@each_row(("command", "request_"), COMMANDS)
async def test_commands_that_are_malformed_are_invalid(command: str, request_: Any) -> None:
    async with sink(Ledger()) as client:
        with pytest.raises(Invalid):
            await client.request_response(json.dumps(request_), route=f"rows.{command}")


async def test_a_full_disk_is_told_to_every_writer_and_to_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = new_ledger("file", tmp_path)
    async with sink(ledger) as client, ledger.log:
        await staged(client, "a", [b"1", b"2"])
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: client.request_response(element(b"row"), route="rows"),
            lambda: staged(client, "b", [b"row"]),
            lambda: commit(client, 1, a=2),
        ]
        for number, problem in (
            (errno.ENOSPC, "nothing was written: ENOSPC, No space left on device"),
            (errno.EIO, "the log can't be used: EIO, Input/output error"),
        ):
            with monkeypatch.context() as patches:
                failing(patches, number)
                for call in calls:
                    with pytest.raises(ApplicationError, match=problem) as caught:
                        await call()
                    assert (caught.value.code, caught.value.text) == (0x321, problem)
            assert (await rows_of(ledger.log), list(ledger.staged)) == ([], ["a"])
        assert (await commit(client, 1, a=2))["promoted"]
    assert "of request_response 'rows' failed" in caplog.text
    assert "No space left on device" in caplog.text


async def test_commits_and_stages_say_their_query_and_their_epoch() -> None:
    async with sink(Ledger()) as client:

        async def ask(route: str, **content: Any) -> Any:
            return json.loads((await client.request_response(said(sink="s", **content), route=f"rows.{route}")).data)

        first, second = await ask("epoch"), await ask("epoch")
        await staged(client, "killed", [b"old"], batch=4, epoch=first)
        await staged(client, "new", [b"new"], batch=4, epoch=second)
        for attempt, epoch in (("killed", second), ("new", first)):
            with pytest.raises(ApplicationError) as caught:
                await ask("commit", batch=4, attempts={attempt: 1}, epoch=epoch)
            assert caught.value.code == 0x320
        await ask("commit", batch=4, attempts={"new": 1}, epoch=second, query="one")

        other = {"batch": 0, "attempts": {}, "query": "two"}
        with pytest.raises(Invalid, match="belongs to query one, not to query two: use another sinkId"):
            await ask("commit", **other)
        assert await ask("commit", **other, takeOver=True) == {"promoted": True, "rows": 0, "last": 0}
        assert await staged(client, "loser", [b"1", b"2"]) == {"rows": 2, "elements": 2}
        assert await ask("abort", attempts=["loser", "new"]) == 1
        with pytest.raises(Invalid, match="was taken over from query one by query two"):
            await staged(client, "late", [b"old"], query="one")
