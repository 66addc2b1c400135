"""Named readers of a log, and the retention that drops what none of them needs."""

from __future__ import annotations

import errno
import json
import logging
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rsocket_trio import ApplicationError, Connection, Invalid, Rejected, Responder
from rsocket_trio.replay import Log, PositionAhead, PositionExpired, Reader, ReplayableLog, Retention, add_source
from rsocket_trio.replay.tables import OVERHEAD
from tests.each_row import each_row
from tests.replay.stored import new_log, source

ROW = b"x" * 100
SECOND = 1_000_000


file_log = partial(new_log, "file")


async def fill(log: ReplayableLog, rows: int, partition: int = 0) -> None:
    for _ in range(rows):
        await log.append(ROW, partition=partition)


async def ack(client: Connection, ends: Mapping[str, int] | None = None, **said: Any) -> None:
    request = json.dumps({"ends": ends or {}, **said})
    assert (await client.request_response(request, route="rows.ack")).data == b""


async def readers(client: Connection, **said: Any) -> Any:
    return json.loads((await client.request_response(json.dumps(said) if said else b"", route="rows.readers")).data)


async def test_a_named_reader_is_known_and_shown_with_the_rows_that_it_is_behind() -> None:
    log = Log(partitions=2)
    async with source(log) as client:
        await fill(log, 10)
        await fill(log, 4, partition=1)

        await ack(client, {"0": 7}, reader="billing")

        told = (await readers(client))["billing"]
        assert (told["ends"], told["behind"]) == ({"0": 7}, {"0": 3, "1": 4})
        for ends in ({"0": 3}, {}):
            await ack(client, ends, reader="billing")
            told = (await readers(client))["billing"]
            assert told["ends"] == {"0": 7}  # it never goes back
        assert log.readers() == {"billing": Reader("billing", {0: 7}, told["seen"])}


@each_row("name", ["", "a/b", "x" * 65, "ä", "a b", "a\n", 7])
async def test_an_invalid_name_or_end_is_refused_and_nothing_is_noted(name: object) -> None:
    log = Log()
    async with source(log) as client:
        await fill(log, 1)

        with pytest.raises(Invalid, match=r"1 to 64 letters, digits|got `int`"):
            await ack(client, {"0": 1}, reader=name)
        assert log.readers() == {}
        for named in ({}, {"reader": "a"}):
            with pytest.raises(ApplicationError, match="position 2 is beyond partition 0: the latest is 1") as caught:
                await ack(client, {"0": 2}, **named)
            assert caught.value.code == 0x311
        with pytest.raises(PositionAhead, match="the latest is 1"):
            await log.acknowledge("a", {0: 2})
        assert log.readers() == {}
        with pytest.raises(ValueError, match="1 to 64 letters"):
            await log.acknowledge(name, {0: 1})  # type: ignore[arg-type]  # as a caller without types would


async def test_one_reader_too_many_is_rejected_until_another_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsocket_trio.replay.log.READERS", 2)
    async with source(Log()) as client:
        await ack(client, reader="a")
        await ack(client, reader="b")

        with pytest.raises(Rejected, match="2 readers have acknowledged: that is the limit"):
            await ack(client, reader="c")
        assert list(await readers(client, forget="a")) == ["b"]
        await ack(client, reader="c")

        with pytest.raises(Invalid, match="there is no reader 'a'"):
            await readers(client, forget="a")


async def test_readers_survive_a_restart(tmp_path: Path) -> None:
    async with file_log(tmp_path, 2) as log:
        await fill(log, 5)
        await log.acknowledge("a", {0: 4})
        await log.acknowledge("b", {0: 2, 1: 0})
        await log.acknowledge("c", {})
        assert await log.forget_reader("c")
        before = log.readers()

    async with file_log(tmp_path, 2) as log:
        assert log.readers() == before
        assert not await log.forget_reader("c")
        assert (log.lowest(0), log.lowest(1)) == (2, 0)


# What is called, and what is dropped


async def test_on_ack_hears_of_the_lowest_position_of_all_named_readers() -> None:
    heard: list[tuple[int, int]] = []
    log = Log()
    async with source(log, on_ack=lambda *place: heard.append(place)) as client:
        await fill(log, 9)
        await ack(client, {"0": 9})
        await ack(client, {"0": 5}, reader="a")
        await ack(client, {"0": 3}, reader="b")
        await ack(client, {"0": 9}, reader="b")
        await ack(client, {"0": 8})

    assert heard == [(0, 9), (0, 5), (0, 3), (0, 5), (0, 5)]


async def test_a_log_drops_what_all_named_readers_have_acknowledged(tmp_path: Path) -> None:
    log = file_log(tmp_path, 2)
    async with source(log, retention=Retention()) as client:
        await fill(log, 40)
        await fill(log, 40, partition=1)
        await ack(client, reader="b")
        await ack(client, {"0": 40, "1": 40}, reader="a")
        assert log.bounds(0) == (0, 40)

        await ack(client, {"0": 30}, reader="b")
        assert (log.bounds(0), log.bounds(1)) == ((30, 40), (0, 40))

        assert await readers(client, forget="b")
        assert log.bounds(0) == (40, 40)
        assert log.bounds(1) == (40, 40)


async def test_records_above_the_bytes_are_dropped_although_a_reader_lags(tmp_path: Path) -> None:
    log = file_log(tmp_path, 2)
    async with source(log, retention=Retention(bytes=40_000)) as client:
        await ack(client, reader="slow")
        await fill(log, 300)
        await fill(log, 20, partition=1)
        await log.retain()

        kept = sum(latest - earliest for earliest, latest in map(log.bounds, log.partitions()))
        assert 0.9 * 40_000 < kept * (OVERHEAD + len(ROW)) <= 1.2 * 40_000
        assert log.bounds(1) == (0, 20)
        with pytest.raises(PositionExpired):
            await log.read_some(0, 0)


async def test_records_that_are_too_old_are_dropped_when_somebody_asks_for_the_bounds(tmp_path: Path) -> None:
    log = file_log(tmp_path)
    log._clock = lambda: 10**15
    async with source(log, retention=Retention(seconds=60)) as client:
        await fill(log, 20)
        log._clock = lambda: 10**15 + 61 * SECOND

        told = json.loads((await client.request_response(route="rows.offsets")).data)
        assert told == {"0": {"earliest": 20, "latest": 20}}
        assert await log.append(ROW) == 20


async def test_a_retention_that_fails_is_logged_and_stops_no_append(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = file_log(tmp_path)
    async with source(log, retention=Retention(seconds=60)):
        await fill(log, 20)

        def refuse(*_: object) -> bool:
            raise OSError(errno.EROFS, "read-only")

        with monkeypatch.context() as patches:
            patches.setattr(log, "_drop", refuse)
            log._clock = lambda: 10**17
            assert await log.append(ROW) == 20
            assert await log.append(ROW) == 21
            with pytest.raises(OSError, match="read-only"):
                await log.retain()
        await log.retain()
        assert log.bounds(0) == (20, 22)
    record = next(one for one in caplog.records if one.levelno == logging.ERROR)
    assert "the retention failed, and is tried again" in record.getMessage()


def test_a_retention_that_can_not_be_kept_is_refused(tmp_path: Path) -> None:
    responder = Responder()
    with pytest.raises(ValueError, match="a log in memory has no retention: it has limit_bytes"):
        add_source(responder, "a", Log(), retention=Retention())
    with pytest.raises(ValueError, match="'retention' and 'on_ack'"):
        add_source(responder, "b", file_log(tmp_path), retention=Retention(), on_ack=print)
    with pytest.raises(ValueError, match=r"Retention\.seconds of 0"):
        Retention(seconds=0)
    for seconds in (math.inf, math.nan, 10**400):
        with pytest.raises(ValueError, match=r"Retention\.seconds of .* must be between 0\.001 and 1e\+12"):
            Retention(seconds=seconds)
    with pytest.raises(ValueError, match=r"Retention\.bytes of 0"):
        Retention(bytes=0)
