"""Tasks report what they counted to the reader on the driver, and are never held up by it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from rsocket_trio import Responder
from rsocket_trio.replay import add_source
from rsocket_trio.spark import tallies
from rsocket_trio.spark.options import Use
from rsocket_trio.spark.ranges import Range, RangePartition
from rsocket_trio.spark.streaming import ServerStreamReader, fetch_counted
from rsocket_trio.spark.tallies import REPORT_HOST, Collector, Tally, report
from tests.spark.serving import Collected, filled, options, served


@pytest.fixture(autouse=True)
def all_are_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "_unreachable", {})
    monkeypatch.delenv(REPORT_HOST, raising=False)


@asynccontextmanager
async def listening() -> AsyncIterator[Collector]:
    """A collector that listens for the block."""
    async with trio.open_nursery() as nursery:
        collector = Collector()
        await collector.listen(nursery.start_soon)
        yield collector
        collector.close()


async def test_reports_are_added_up_by_route() -> None:
    async with listening() as collector:
        orders, ticks = collector.address("orders"), collector.address("ticks")
        assert orders is not None
        assert ticks is not None
        assert orders == collector.address("orders")
        for _ in range(3):
            await report(orders, Tally(2, 30, 1))
        await report(ticks, Tally(5, 6, 0))

        assert collector.totals == {"orders": Tally(6, 90, 3), "ticks": Tally(5, 6, 0)}


async def test_a_report_with_another_token_or_half_a_report_counts_for_nothing() -> None:
    async with listening() as collector:
        address = collector.address("orders")
        assert address is not None
        host, port, token = address
        await report((host, port, bytes(16)), Tally(1, 1, 1))
        async with await trio.open_tcp_stream(host, port) as stream:
            await stream.send_all(token)
        await report(address, Tally(2, 2, 2))

        assert collector.totals == {"orders": Tally(2, 2, 2)}


async def test_connections_beyond_the_limit_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "MAX_CONNECTIONS", 1)
    async with listening() as collector:
        address = collector.address("orders")
        assert address is not None
        async with await trio.open_tcp_stream(*address[:2]) as first:
            await first.send_all(b"x")
            async with await trio.open_tcp_stream(*address[:2]) as second:
                with trio.fail_after(5):
                    assert await second.receive_some() == b""


async def test_a_collector_that_cant_be_reached_is_left_alone_for_a_while(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening() as collector:
        address = collector.address("orders")
        assert address is not None
    with caplog.at_level(logging.WARNING, "rsocket_trio.spark"):
        await report(address, Tally(1, 1, 1))
        await report(address, Tally(1, 1, 1))

        [message] = caplog.messages
        monkeypatch.setattr(tallies, "_unreachable", {address[:2]: 0.0})
        await report(address, Tally(1, 1, 1))

    assert len(caplog.messages) == 2
    assert f"127.0.0.1:{address[1]} can't be reached" in message
    assert REPORT_HOST in message


async def test_a_host_that_cant_be_listened_on_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(REPORT_HOST, "192.0.2.77")
    async with listening() as collector:
        assert collector.address("orders") is None

    assert "RSOCKET_TRIO_REPORT_HOST of 192.0.2.77 can't be listened on" in caplog.text


async def test_a_task_counts_what_it_read_and_how_often_it_connected_anew() -> None:
    log = await filled({0: 10})
    responder = Responder()
    add_source(responder, "log", log)
    chosen = options(Use.STREAM_READ)
    async with listening() as collector, served(responder) as connections:
        partition = RangePartition(Range(0, 2, 10), collector.address("log"))
        await fetch_counted(connections, chosen, partition, into := Collected())

    assert into.positions == list(range(2, 10))
    found = collector.totals["log"]
    assert (found.rows, found.reconnects) == (8, 0)
    assert found.bytes >= 8 * len(b"row 2")


def test_the_offset_for_progress_names_server_route_and_counts(serving: Callable[[Responder], None]) -> None:
    responder = Responder()
    log = trio.run(filled, {0: 10, 1: 5})
    add_source(responder, "log", log)
    serving(responder)
    reader = ServerStreamReader(options(Use.STREAM_READ, startingPosition="earliest"), None)
    start = reader.initialOffset()
    before = reader.reportLatestOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    rows = sum(batch.num_rows for one in reader.partitions(start, end) for batch in reader.read(one))

    assert before is not None
    assert before["routes"] == {"log": {}}
    after = reader.reportLatestOffset()
    assert after is not None
    assert after["server"] == "memory://spark"
    counts = after["routes"]["log"]
    assert counts.pop("bytes") >= 5 * rows
    assert counts == {"received": rows, "reconnects": 0}
    assert after["p"] == {"0": 10, "1": 5}
    assert "server" not in end
    reader.stop()
