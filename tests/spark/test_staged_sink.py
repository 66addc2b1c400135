"""Attempts and commits: each row counts once, whatever is cut off, repeated or aborted in between."""

from __future__ import annotations

import json

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio import Channel, Payload, Responder
from rsocket_trio.replay import Element, Pack
from rsocket_trio.replay.elements import read_sink_payload
from rsocket_trio.spark import deliveries as module
from rsocket_trio.spark.deliveries import commit
from rsocket_trio.spark.errors import SinkError
from tests.spark.deliveries import ORIGIN, Flaky, deliver_rows, options, rows_in, sink_of
from tests.spark.serving import pool, served
from tests.spark.sinks import ROUTE, numbers

ONCE = options(delivery="exactlyOnce")
SINK = ORIGIN.sink


async def test_staged_rows_count_once_they_are_committed_and_in_order(autojump_clock: MockClock) -> None:
    responder, ledger, log = await sink_of(partitions=4)
    async with served(responder) as connections:
        report = await deliver_rows(connections, ONCE, 1000)
        assert await rows_in(log, ORIGIN.partition) == []
        assert await commit(connections, ONCE, SINK, 0, report.attempts)

    assert await rows_in(log, ORIGIN.partition) == numbers(1000)
    assert ledger.staged == []
    assert ledger.last(SINK) == 0


async def test_two_attempts_of_one_task_at_once_count_once(autojump_clock: MockClock) -> None:
    responder, ledger, log = await sink_of()
    reports = []
    async with served(responder) as connections:

        async def attempt() -> None:
            reports.append(await deliver_rows(connections, ONCE, 1000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt)
            nursery.start_soon(attempt)
        assert len(ledger.staged) == 2
        # As Spark does for a task that it ran twice: one of them may commit.
        assert await commit(connections, ONCE, SINK, 0, reports[1].attempts)
        assert await rows_in(log) == numbers(1000)
        # The other one finds out late.
        assert not await commit(connections, ONCE, SINK, 0, reports[0].attempts)

    assert await rows_in(log) == numbers(1000)
    assert ledger.staged == []


async def test_a_server_that_is_away_for_a_while_gets_each_row_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ATTEMPT_BYTES", 250 * 70)
    responder, ledger, log = await sink_of()
    async with pool() as connections, trio.open_nursery() as nursery:
        flaky = Flaky(responder, nursery)
        taken = 0

        def cut_sometimes(piece: object) -> None:
            nonlocal taken
            taken += 1
            if taken in {2, 50, 81}:
                flaky.cut()

        report = await deliver_rows(connections, ONCE, 10_000, hook=cut_sometimes)
        assert await commit(connections, ONCE, SINK, 0, report.attempts)
        nursery.cancel_scope.cancel()

    assert flaky.cuts == 3
    assert await rows_in(log) == numbers(10_000)
    assert ledger.staged == []


async def test_an_attempt_whose_confirmation_was_lost_is_staged_anew_and_dropped(autojump_clock: MockClock) -> None:
    # There is room for these rows once.
    responder, ledger, log = await sink_of(staged_bytes=15_000)
    lost = True

    @responder.request_channel("losing.stage")
    async def stage(channel: Channel) -> None:
        nonlocal lost
        said = json.loads(channel.request.data)
        stage = await ledger.begin(said["sink"], said["attempt"], said["partition"])
        items = [item async for item in channel]
        await stage.add(*map(staging_element, items))
        await stage.seal()
        if lost:
            lost = False
            await trio.sleep_forever()
        await channel.send(json.dumps({"rows": stage.row.latest, "elements": len(items)}).encode())

    @responder.request_response("losing.abort")
    async def abort(request: Payload) -> bytes:
        said = json.loads(request.data)
        return json.dumps({"dropped": await ledger.abort(said["sink"], said["attempts"])}).encode()

    chosen = options(route="losing", delivery="exactlyOnce", readTimeout="5s")
    async with served(responder) as connections:
        report = await deliver_rows(connections, chosen, 50)
        assert not lost
        assert [rows for _, rows in report.attempts] == [50]
        assert ledger.staged == [name for name, _ in report.attempts]
        await commit(connections, ONCE, SINK, 0, report.attempts)

    assert await rows_in(log) == numbers(50)


def staging_element(item: Payload) -> Element | Pack:
    _, [element] = read_sink_payload(item)
    return element


async def test_a_repeated_batch_promotes_nothing(autojump_clock: MockClock) -> None:
    responder, ledger, log = await sink_of()
    async with served(responder) as connections:
        for again in (False, True):
            report = await deliver_rows(connections, ONCE, 10)
            assert await commit(connections, ONCE, SINK, 5, report.attempts) is not again

    assert await rows_in(log) == numbers(10)
    assert ledger.staged == []


@pytest.mark.parametrize("attempts", [[("unknown", 10)], [(None, 11)]])
async def test_a_commit_of_what_is_not_staged_promotes_nothing(
    attempts: list[tuple[str | None, int]], autojump_clock: MockClock
) -> None:
    responder, ledger, log = await sink_of()
    async with served(responder) as connections:
        report = await deliver_rows(connections, ONCE, 10)
        [(staged, _)] = report.attempts
        named = [(name or staged, rows) for name, rows in attempts]
        with pytest.raises(SinkError, match="batch 0 of sink 'sink' was not committed: attempt"):
            await commit(connections, ONCE, SINK, 0, named)

    assert await rows_in(log) == []
    assert ledger.last(SINK) is None


async def test_what_a_cancelled_task_has_staged_is_aborted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ATTEMPT_BYTES", 100 * 60)
    responder, ledger, _ = await sink_of()
    scope = trio.CancelScope()
    async with served(responder) as connections:
        taken = 0

        def cancel(piece: object) -> None:
            nonlocal taken
            taken += 1
            if taken == 5:
                scope.cancel()

        with scope:
            await deliver_rows(connections, ONCE, 1000, hook=cancel)
        assert scope.cancelled_caught
        await trio.sleep(0.1)
        assert ledger.staged == []


async def test_a_ledger_without_room_says_so(autojump_clock: MockClock) -> None:
    responder, ledger, _ = await sink_of(staged_bytes=10_000)
    async with served(responder) as connections:
        with pytest.raises(SinkError, match=r"bytes are staged.*the limit is 10000"):
            await deliver_rows(connections, options(delivery="exactlyOnce", reconnectMaxAttempts=1), 10_000)

    assert ledger.staged == []


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([], "completed with 0 answers"),
        ([b"{}", b"{}"], "completed with 2 answers"),
        ([b"no"], "answered with no: "),
        ([b'{"rows": 9, "elements": 10}'], "staged 9 rows in 10 elements: 10 rows in 10 were sent"),
    ],
)
async def test_a_confirmation_that_does_not_fit_is_an_error(
    answers: list[bytes], problem: str, autojump_clock: MockClock
) -> None:
    responder = Responder()

    @responder.request_channel(f"{ROUTE}.stage")
    async def stage(channel: Channel) -> None:
        async for _ in channel:
            pass
        for answer in answers:
            await channel.send(answer)

    async with served(responder) as connections:
        with pytest.raises(SinkError, match=problem):
            await deliver_rows(connections, options(delivery="exactlyOnce", reconnectMaxAttempts=0), 10)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"[]", "answered with \\[\\]"),
        (b"{}", "answered with {}"),
        (b'{"promoted": true, "rows": 3, "last": 5}', "promoted 3 rows of 4"),
        (b'{"promoted": true, "rows": 4, "last": 6}', "promoted batch 5.*the last is 6: it is not known whether"),
        (b'{"promoted": false, "rows": 0, "last": 4}', "had batch 5.*the last is 4: it is not known whether"),
    ],
)
async def test_an_answer_to_a_commit_that_does_not_fit_is_an_error(
    answer: bytes, problem: str, autojump_clock: MockClock
) -> None:
    responder = Responder()
    responder.request_response(f"{ROUTE}.commit")(lambda request: answer)
    async with served(responder) as connections:
        with pytest.raises(SinkError, match=problem):
            await commit(connections, ONCE, SINK, 5, [("a", 4)])
