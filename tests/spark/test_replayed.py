"""Ranges of a replayable route: over lost connections and through losses, against a server that can replay."""

from __future__ import annotations

import json
import logging

import pyarrow as pa
import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Connection,
    ConnectionLost,
    Outgoing,
    Payload,
    Rejected,
    RejectedSetup,
    Responder,
    Setup,
    serve,
)
from rsocket_trio.replay import Record, add_source
from rsocket_trio.replay.elements import Bounds, source_payload
from rsocket_trio.spark.errors import DataLossError
from rsocket_trio.spark.options import Use
from rsocket_trio.spark.ranges import Range
from rsocket_trio.spark.replayed import Fetch, acknowledge, fetch
from rsocket_trio.spark.server_sources import ask_bounds
from tests.spark.serving import URI, Collected, filled, options, pool, served, served_log


@pytest.mark.parametrize(("start", "end"), [(0, 1000), (0, 1), (999, 1000), (17, 600)])
async def test_a_range_is_read_once_and_in_order(start: int, end: int, autojump_clock: MockClock) -> None:
    found = Collected()
    async with served_log({0: 5, 1: 1000}) as (connections, _):
        await fetch(connections, options(credit=64), Range(1, start, end), found)

    assert found.positions == list(range(start, end))
    assert found.datas == [b"row %d" % number for number in range(start, end)]


async def test_a_server_that_is_away_costs_pauses_and_no_row(autojump_clock: MockClock) -> None:
    log = await filled({0: 100_000})
    responder = Responder()
    add_source(responder, "log", log)
    killing, killed = trio.CancelScope(), trio.Event()

    def kill(batch: pa.RecordBatch) -> None:
        if batch["position"][0].as_py() > 300:
            killing.cancel()
            killed.set()

    async def serve_until_killed() -> None:
        with killing:
            await serve(responder, [URI], grace=0)

    found = Collected(hook=kill, pause=0.01)  # the server takes what waits to be accepted before it ends
    began = trio.current_time()
    async with pool() as connections, trio.open_nursery() as nursery:
        nursery.start_soon(serve_until_killed)
        await trio.testing.wait_all_tasks_blocked()

        async def come_back() -> None:
            await killed.wait()
            await trio.sleep(4)
            nursery.start_soon(serve, responder, [URI])

        nursery.start_soon(come_back)
        await fetch(connections, options(credit=2), Range(0, 0, 100_000), found)
        nursery.cancel_scope.cancel()

    assert found.positions == list(range(100_000))
    assert 4 <= trio.current_time() - began < 40


async def test_a_server_that_stays_away_is_given_up(autojump_clock: MockClock) -> None:
    async with pool() as connections:
        with pytest.raises(ConnectionLost, match=r"reading log, partition 0: given up after 3 tries.*memory://spark"):
            await fetch(connections, options(reconnectMaxAttempts=2), Range(0, 0, 10), Collected())


async def test_progress_begins_the_tries_anew(autojump_clock: MockClock) -> None:
    responder = Responder()
    asked: list[bytes] = []

    @responder.request_stream("log")
    async def one_at_a_time(request: Payload, out: Outgoing) -> None:
        asked.append(request.data)
        await out.send(source_payload(Record(len(asked) - 1, b"x")))
        raise Rejected("closing")

    found = Collected()
    async with served(responder) as connections:
        await fetch(connections, options(reconnectMaxAttempts=1), Range(0, 0, 8), found)

    assert [json.loads(one) for one in asked] == [
        {"partition": 0, "from": position, "to": 8, "pack": ["arrow/1"]} for position in range(8)
    ]
    assert found.positions == list(range(8))


async def test_a_server_that_says_nothing_is_taken_for_lost(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream("log")
    async def silent(request: Payload, out: Outgoing) -> None:
        await out.send(source_payload(Record(0, b"x")))
        await trio.sleep_forever()

    found = Collected()
    async with served(responder) as connections:
        with pytest.raises(ConnectionLost, match="nothing came for 3 s"):
            await fetch(connections, options(readTimeout="3s", reconnectMaxAttempts=0), Range(0, 0, 5), found)

    assert found.positions == [0]


async def test_a_slow_reader_is_no_silence_of_the_server(autojump_clock: MockClock) -> None:
    class Slow(Collected):
        async def put(self, item: object, weight: int) -> None:
            await trio.sleep(100)
            await super().put(item, weight)

    found = Slow()
    async with served_log({0: 50}) as (connections, _):
        await fetch(connections, options(readTimeout="3s", credit=8, reconnectMaxAttempts=0), Range(0, 0, 50), found)

    assert found.positions == list(range(50))


# Losses


async def test_an_expired_position_is_counted_where_that_is_accepted(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    found = Collected()
    async with served_log({0: 10}) as (connections, log):
        await log.trim(0, 4)
        with caplog.at_level(logging.WARNING):
            reading = Fetch(connections, options(failOnDataLoss="false"), Range(0, 1, 10), found)
            await reading.run()

    assert found.positions == [4, 5, 6, 7, 8, 9]
    assert reading.cursor.lost == 3
    assert "3 rows were lost" in caplog.text


async def test_a_server_that_completes_early_lost_the_rest(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream("log")
    async def short(request: Payload, out: Outgoing) -> None:
        await out.send(source_payload(Record(0, b"x")))

    async with served(responder) as connections:
        with pytest.raises(DataLossError, match="completed at position 1: positions 1 to 4"):
            await fetch(connections, options(), Range(0, 0, 5), Collected())


async def test_a_server_that_repeats_itself_is_given_up(autojump_clock: MockClock) -> None:
    responder = Responder()
    asked = 0

    @responder.request_stream("log")
    async def repeating(request: Payload, out: Outgoing) -> None:
        nonlocal asked
        asked += 1
        while True:
            await out.send(source_payload(Record(0, b"x")))
            await trio.sleep(0.1)

    async with served(responder) as connections:
        with trio.fail_after(100), pytest.raises(ConnectionLost, match="given up after 3 tries: nothing came for 3 s"):
            await fetch(
                connections, options(readTimeout="3s", reconnectMaxAttempts=2), Range(0, 0, 5), found := Collected()
            )

    assert found.positions == [0]
    assert asked == 3


async def test_an_error_of_the_application_is_no_outage(autojump_clock: MockClock) -> None:
    responder = Responder()
    tries = []

    @responder.request_stream("log")
    async def broken(request: Payload, out: Outgoing) -> None:
        tries.append(request)
        raise ApplicationError("no such tenant", code=0x400)

    async with served(responder) as connections:
        with pytest.raises(ApplicationError, match="no such tenant"):
            await fetch(connections, options(), Range(0, 0, 5), Collected())

    assert len(tries) == 1


# Acknowledgements


async def test_the_server_hears_what_was_committed(autojump_clock: MockClock) -> None:
    heard = []
    responder = Responder()

    @responder.fire_and_forget("log.ack")
    def ack(request: Payload) -> None:
        heard.append(request.data)

    async with served(responder) as connections:
        await acknowledge(connections, options(Use.STREAM_READ, ackRoute="log.ack"), {1: 5, 0: 7})
        await trio.sleep(0.1)

    assert heard == [b'{"ends": {"0": 7, "1": 5}, "reader": null}']


async def test_a_named_reader_is_known_to_the_server(autojump_clock: MockClock) -> None:
    async with served_log({0: 10, 1: 5}) as (connections, log):
        given = options(Use.STREAM_READ, ackRoute="log.ack", reader="billing")
        await acknowledge(connections, given, {1: 5, 0: 7})

        assert log.readers()["billing"].ends == {0: 7, 1: 5}


async def test_an_acknowledgement_that_fails_is_a_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool() as connections:
        await acknowledge(connections, options(Use.STREAM_READ, ackRoute="log.ack"), {0: 1})

    assert "was not told on log.ack" in caplog.text


async def test_a_server_that_refuses_connections_for_a_while_is_asked_again(autojump_clock: MockClock) -> None:
    log = await filled({0: 3})
    responder = Responder()
    add_source(responder, "log", log)
    refused = 0

    @responder.setup
    def refuse(setup: Setup, connection: Connection) -> None:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise RejectedSetup("full, come back later")

    async with served(responder) as connections:
        assert await ask_bounds(connections, options()) == {0: Bounds(0, 3)}
        refused = -100
        with pytest.raises(RejectedSetup, match="come back later"):
            await fetch(connections, options(reconnectMaxAttempts=2, setupData="new"), Range(0, 0, 3), Collected())

    assert refused == -97
