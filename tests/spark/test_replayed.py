"""Ranges of a replayable route: over lost connections and through losses, against a server that can replay."""

from __future__ import annotations

import json
import logging

import attrs
import pyarrow as pa
import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import (
    ApplicationError,
    Connection,
    ConnectionLost,
    InvalidSetup,
    Outgoing,
    Payload,
    Rejected,
    RejectedSetup,
    RemoteProtocolError,
    Responder,
    Setup,
    serve,
)
from rsocket_trio.replay import Record, add_source
from rsocket_trio.replay import log as replay_log
from rsocket_trio.replay.element_metadata import source_payload
from rsocket_trio.spark.errors import DataLossError
from rsocket_trio.spark.options import Use
from rsocket_trio.spark.ranges import Bounds, Range
from rsocket_trio.spark.replayed import Fetch, acknowledge, fetch
from rsocket_trio.spark.server_sources import ask_bounds
from tests.spark.serving import URI, Collected, filled, options, pool, served, served_log


async def test_bounds_are_those_of_the_server(autojump_clock: MockClock) -> None:
    async with served_log({0: 3, 1: 0, 2: 7}) as (connections, _):
        assert await ask_bounds(connections, options()) == {0: Bounds(0, 3), 1: Bounds(0, 0), 2: Bounds(0, 7)}


@pytest.mark.parametrize(("start", "end"), [(0, 1000), (0, 1), (999, 1000), (17, 600)])
async def test_a_range_is_read_once_and_in_order(start: int, end: int, autojump_clock: MockClock) -> None:
    found = Collected()
    async with served_log({0: 5, 1: 1000}) as (connections, _):
        await fetch(connections, options(credit=64), Range(1, start, end), found)

    assert found.positions == list(range(start, end))
    assert found.datas == [b"row %d" % number for number in range(start, end)]


async def test_two_attempts_at_one_range_at_once_each_have_every_row(autojump_clock: MockClock) -> None:
    attempts = Collected(), Collected()
    async with served_log({0: 1000}) as (connections, _), pool() as others, trio.open_nursery() as nursery:
        # Of one worker, as of two.
        for found, from_where in zip(attempts, (connections, others), strict=True):
            nursery.start_soon(fetch, from_where, options(credit=64), Range(0, 100, 900), found)
        nursery.start_soon(fetch, connections, options(credit=64), Range(0, 100, 900), also := Collected())

    for found in (*attempts, also):
        assert found.positions == list(range(100, 900))


async def test_ranges_of_a_worker_share_one_connection(autojump_clock: MockClock) -> None:
    found = Collected()
    async with served_log({0: 100}) as (connections, _):
        async with trio.open_nursery() as nursery:
            for start in range(0, 100, 10):
                nursery.start_soon(fetch, connections, options(), Range(0, start, start + 10), found)
        assert connections.connections == 1

    assert sorted(found.positions) == list(range(100))


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


async def test_an_expired_position_is_an_error(autojump_clock: MockClock) -> None:
    async with served_log({0: 10}) as (connections, log):
        await log.trim(0, 4)
        earliest, _ = log.bounds(0)
        assert earliest == 4
        with pytest.raises(DataLossError, match=r"expired: the earliest is 4.*positions 1 to 9.*failOnDataLoss=false"):
            await fetch(connections, options(), Range(0, 1, 10), Collected())


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


@pytest.mark.parametrize(
    ("partition", "start", "end", "message"),
    [(0, 5, 20, "beyond"), (0, 15, 20, "beyond"), (7, 0, 5, "no partition 7")],
)
async def test_positions_that_are_not_there_are_an_error_or_counted(
    partition: int, start: int, end: int, message: str, autojump_clock: MockClock
) -> None:
    found = Collected()
    async with served_log({0: 10}) as (connections, _):
        with pytest.raises(DataLossError, match=message):
            await fetch(connections, options(), Range(partition, start, end), Collected())

        reading = Fetch(connections, options(failOnDataLoss="false"), Range(partition, start, end), found)
        await reading.run()

    there = list(range(start, 10)) if partition == 0 else []
    assert found.positions == there
    assert reading.cursor.lost == end - start - len(there)


async def test_a_server_that_completes_early_lost_the_rest(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream("log")
    async def short(request: Payload, out: Outgoing) -> None:
        await out.send(source_payload(Record(0, b"x")))

    async with served(responder) as connections:
        with pytest.raises(DataLossError, match="completed at position 1: positions 1 to 4"):
            await fetch(connections, options(), Range(0, 0, 5), Collected())


@pytest.mark.parametrize("accepted", ["true", "false"])
async def test_a_server_that_completes_early_is_asked_again_where_it_brought_something(
    accepted: str, autojump_clock: MockClock
) -> None:
    responder = Responder()
    asked: list[int] = []

    @responder.request_stream("log")
    async def five_at_a_time(request: Payload, out: Outgoing) -> None:
        wanted = json.loads(request.data)
        asked.append(wanted["from"])
        for position in range(wanted["from"], min(wanted["from"] + 5, wanted["to"])):
            await out.send(source_payload(Record(position, b"x")))

    async with served(responder) as connections:
        reading = Fetch(connections, options(failOnDataLoss=accepted), Range(0, 0, 12), found := Collected())
        await reading.run()

    assert found.positions == list(range(12))
    assert asked == [0, 5, 10]
    assert reading.cursor.lost == 0


async def test_a_server_that_goes_on_behind_the_range_is_cancelled(autojump_clock: MockClock) -> None:
    responder = Responder()
    cancelled = trio.Event()

    @responder.request_stream("log")
    async def endless(request: Payload, out: Outgoing) -> None:
        position = 0
        try:
            while True:
                await out.send(source_payload(Record(position, b"x")))
                await trio.sleep(0.01)
                position += 1
        finally:
            cancelled.set()

    async with served(responder) as connections:
        with trio.fail_after(1):
            await fetch(connections, options(reconnectMaxAttempts=0), Range(0, 0, 10), found := Collected())
            await cancelled.wait()

    assert found.positions == list(range(10))


async def test_a_server_that_sends_all_and_does_not_complete_costs_no_time(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_stream("log")
    async def never_done(request: Payload, out: Outgoing) -> None:
        for position in range(10):
            await out.send(source_payload(Record(position, b"x")))
        await trio.sleep_forever()

    began = trio.current_time()
    async with served(responder) as connections:
        await fetch(connections, options(readTimeout="60s"), Range(0, 0, 10), found := Collected())
        assert trio.current_time() - began < 1

    assert found.positions == list(range(10))


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


async def test_a_route_that_is_not_there_is_named_at_once(autojump_clock: MockClock) -> None:
    began = trio.current_time()
    async with served_log({0: 1}) as (connections, _):
        with pytest.raises(Rejected, match=r"nowhere\.offsets"):
            await ask_bounds(connections, options(route="nowhere"))

    assert trio.current_time() == began


async def test_an_answer_that_is_none_is_refused(autojump_clock: MockClock) -> None:
    responder = Responder()

    @responder.request_response("log.offsets")
    def offsets(request: Payload) -> str:
        return "here"

    async with served(responder) as connections:
        with pytest.raises(RemoteProtocolError, match=r"log\.offsets: not an answer about partitions: b'here'"):
            await ask_bounds(connections, options())


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

    assert heard == [b'{"0": 7, "1": 5}']


async def test_a_named_reader_is_known_to_the_server(autojump_clock: MockClock) -> None:
    async with served_log({0: 10, 1: 5}) as (connections, log):
        given = options(Use.STREAM_READ, ackRoute="log.ack", reader="billing")
        await acknowledge(connections, given, {1: 5, 0: 7})

        assert log.readers()["billing"].ends == {0: 7, 1: 5}


async def test_a_reader_too_many_is_a_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_log, "READERS", 0)
    async with served_log({0: 10}) as (connections, _):
        await acknowledge(connections, options(Use.STREAM_READ, ackRoute="log.ack", reader="billing"), {0: 7})

    assert "was not told on log.ack what was committed: 0 readers have acknowledged" in caplog.text


async def test_a_named_reader_is_told_to_a_route_that_only_listens(autojump_clock: MockClock) -> None:
    heard = []
    responder = Responder()

    @responder.fire_and_forget("log.ack")
    def ack(request: Payload) -> None:
        heard.append(request.data)

    async with served(responder) as connections:
        await acknowledge(connections, options(Use.STREAM_READ, ackRoute="log.ack", reader="a.b"), {0: 7})
        await trio.sleep(0.1)

    assert heard == [b'{"0": 7, "reader": "a.b"}']


async def test_an_acknowledgement_that_fails_is_a_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with pool() as connections:
        await acknowledge(connections, options(Use.STREAM_READ, ackRoute="log.ack"), {0: 1})

    assert "was not told on log.ack" in caplog.text


async def test_an_acknowledgement_that_is_refused_is_a_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    responder = Responder()

    @responder.setup
    def refuse(setup: Setup, connection: Connection) -> None:
        raise InvalidSetup("not you")

    async with served(responder) as connections:
        await acknowledge(connections, options(Use.STREAM_READ, ackRoute="log.ack"), {0: 1})

    assert "was not told on log.ack what was committed: not you" in caplog.text


async def test_an_acknowledgement_that_can_not_be_made_is_a_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    too_long = attrs.evolve(options(Use.STREAM_READ), ack_route="x" * 300)
    async with served_log({0: 1}) as (connections, _):
        await acknowledge(connections, too_long, {0: 1})

    assert "route of 300 bytes" in caplog.text


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
