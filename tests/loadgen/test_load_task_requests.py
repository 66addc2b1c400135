"""The measurements of a task, on a clock that jumps: waiting counts, from when a request was due."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing

from rsocket_trio import Payload, Responder
from rsocket_trio.loadgen import load_task
from rsocket_trio.loadgen.histogram import RELATIVE_ERROR
from rsocket_trio.loadgen.load_task import Driver, Part, arrivals, open_connections
from rsocket_trio.loadgen.measures import LoadRecorder
from rsocket_trio.loadgen.summary import Counts
from tests.each_row import each_row
from tests.loadgen.loads import URI, load, plan, rows_of, served, summary_of, usual

CLOSE = RELATIVE_ERROR * 1.01


def one_after_the_other(seconds: float) -> Responder:
    """A server that works on one request at a time, as long as given."""
    responder = Responder()
    lock = trio.Lock()

    @responder.request_response("work")
    async def work(request: Payload) -> bytes:
        async with lock:
            await trio.sleep(seconds)
        return b""

    return responder


def highest(counts: Counts, of: str = "latency") -> float:
    """The longest time."""
    found = counts.quantiles(of)["max"]
    assert found is not None
    return found


async def test_requests_arrive_when_they_are_due(autojump_clock: trio.testing.MockClock) -> None:
    responder, arrived = Responder(), list[float]()

    @responder.request_response("work")
    async def work(request: Payload) -> bytes:
        arrived.append(trio.current_time())
        await trio.sleep(5)  # longer than the whole load
        return b""

    async with served(responder):
        summary = await load(route="work")

    assert [time - arrived[0] for time in arrived] == pytest.approx([number / 10 for number in range(20)])
    assert (summary.total.due, summary.total.ok, summary.total.late) == (20, 20, 0)
    # All were answered when the time was over.
    assert (summary.offered, summary.rps) == (10.0, 0.0)
    assert [counts.due for counts in summary.seconds.values()] == [10, 10, 0, 0, 0, 0, 0][: len(summary.seconds)]


async def test_a_server_that_is_too_slow_shows_its_queue(autojump_clock: trio.testing.MockClock) -> None:
    async with served(one_after_the_other(0.15)):
        summary = await load(route="work")

    # Request number 19 is due at 1.9 s and the last of 20 to be served.
    assert highest(summary.total) == pytest.approx(20 * 0.15 - 1.9, rel=CLOSE)
    assert summary.rps == pytest.approx(13 / 2)


async def test_requests_that_wait_too_long_are_dropped(autojump_clock: trio.testing.MockClock) -> None:
    async with served(one_after_the_other(0.4)):
        total = (await load(route="work", in_flight=1, timeout=0.5)).total

    # Each 0.4 s one of four that came meanwhile gets its turn: the one that has waited longest, but not too long.
    assert (total.due, total.ok, total.failed) == (20, total.ok, 0)
    assert total.ok + total.dropped == 20
    assert 5 <= total.ok <= 7
    assert highest(total, "lag") == pytest.approx(0.4, rel=CLOSE)
    assert highest(total) == pytest.approx(0.4 + 0.4, rel=CLOSE)


async def test_more_than_can_wait_are_dropped_at_once(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_task, "WAITING", 3)
    async with served(one_after_the_other(0.4)):
        total = (await load(route="work", in_flight=1)).total

    assert (total.due, total.ok + total.dropped, total.failed) == (20, 20, 0)
    assert highest(total, "lag") <= 4 * 0.4
    assert (total.ok, total.late) == (8, 7)


async def test_waiting_for_a_place_is_latency_and_not_service(autojump_clock: trio.testing.MockClock) -> None:
    async with served(one_after_the_other(0.15)):
        summary = await load(route="work", in_flight=1)

    assert highest(summary.total) == pytest.approx(20 * 0.15 - 1.9, rel=CLOSE)
    assert highest(summary.total, "service") == pytest.approx(0.15, rel=CLOSE)
    assert highest(summary.total, "lag") == pytest.approx(19 * 0.15 - 1.9, rel=CLOSE)
    assert (summary.total.late, summary.total.dropped) == (19, 0)


async def test_a_closed_loop_omits_the_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with served(one_after_the_other(0.15)):
        summary = await load(route="work", arrivals="closed", rate=None)

    assert highest(summary.total) == pytest.approx(0.15, rel=CLOSE)
    assert summary.total.due == summary.total.ok == math.ceil(2 / 0.15)


async def test_a_closed_loop_has_so_many_clients(autojump_clock: trio.testing.MockClock) -> None:
    async with served(one_after_the_other(0.09)):
        summary = await load(route="work", arrivals="closed", rate=None, in_flight=4)

    assert highest(summary.total) == pytest.approx(0.36, rel=CLOSE)
    assert summary.rps == 22 / 2


async def test_a_closed_loop_of_so_many_requests_ends_with_the_last_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served(one_after_the_other(0.1)):
        terms: dict[str, Any] = {"arrivals": "closed", "rate": None, "in_flight": 4}
        summary = await load(route="work", requests=30, **terms)
        warm = await load(route="work", requests=30, warm_up=1, **terms)
        few = await load(route="work", requests=2, **terms)

    assert (summary.total.due, summary.total.ok) == (30, 30)
    assert summary.measured == pytest.approx(3, rel=CLOSE)
    assert summary.rps == pytest.approx(10, rel=CLOSE)
    assert (warm.total.due, warm.total.ok) == (30, 30)
    assert (few.total.due, few.total.ok) == (2, 2)


@pytest.mark.parametrize("kind", ["constant", "poisson"])
async def test_so_many_requests_are_made_at_the_rate(kind: str, autojump_clock: trio.testing.MockClock) -> None:
    async with served(usual()):
        summary = await load(route="echo", arrivals=kind, rate=20, requests=50, warm_up=0.5)

    assert (summary.total.due, summary.total.ok) == (50, 50)
    if kind == "constant":
        assert summary.measured == pytest.approx(2.5)


async def test_failed_requests_are_among_so_many(autojump_clock: trio.testing.MockClock) -> None:
    async with served(usual()):
        summary = await load(route="full", arrivals="closed", rate=None, requests=5)

    assert (summary.total.due, summary.total.failed) == (5, 5)


async def test_no_request_is_lost_from_the_counts(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    async with served(usual()):
        summary = await load(route="never", in_flight=3, timeout=0.5)
    took = trio.current_time() - began

    total = summary.total
    assert (total.due, total.ok, total.unfinished) == (20, 0, 0)
    assert total.errors.keys() == {"Timeout"}
    assert total.dropped + total.failed == 20
    assert total.dropped >= 1
    # The last one that finds a place begins at 2.0 s, half a second of it; leaving takes two tenths.
    assert took == pytest.approx(2.7)


async def test_what_is_due_in_the_warm_up_is_not_counted(autojump_clock: trio.testing.MockClock) -> None:
    async with served(one_after_the_other(0.05)):
        summary = await load(route="work", warm_up=1.0)

    assert (summary.total.due, summary.total.ok, summary.total.done) == (20, 20, 20)
    assert list(summary.seconds) == [0, 1]


@each_row(
    ("terms", "kind"),
    [
        ({"route": "full"}, "ApplicationError 0x333"),
        ({"route": "nowhere"}, "Rejected"),
        ({"route": "broken", "interaction": "stream"}, "ApplicationError"),
        ({"route": "broken", "interaction": "channel", "items": 3}, "ApplicationError"),
    ],
    ids=lambda one: one if isinstance(one, str) else one["route"],
)
async def test_errors_are_counted_by_kind(
    terms: dict[str, object], kind: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with served(usual()):
        summary = await load(**terms)

    assert summary.total.errors == {kind: 20}
    assert (summary.total.ok, summary.total.due) == (0, 20)


async def test_a_stream_counts_when_it_is_over_and_its_first_item_apart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served(usual()):
        whole = (await load(route="count", interaction="stream")).total
        part = (await load(route="count", interaction="stream", take=3)).total

    assert (whole.ok, whole.items, part.ok, part.items) == (20, 200, 20, 60)
    assert highest(whole) == pytest.approx(1.0, rel=CLOSE)
    assert highest(whole, "first_item") == highest(part, "first_item") == pytest.approx(0.1, rel=CLOSE)
    assert highest(part) == pytest.approx(0.3, rel=CLOSE)


async def test_items_beyond_those_to_take_are_not_counted(autojump_clock: trio.testing.MockClock) -> None:
    async with served(usual()):
        total = (await load(route="twenty", interaction="stream", take=9, credit=4)).total

    assert (total.ok, total.items) == (20, 180)


async def test_a_channel_sends_so_many_items(autojump_clock: trio.testing.MockClock) -> None:
    async with served(usual()):
        total = (await load(route="echo", interaction="channel", items=5)).total

    assert (total.ok, total.items) == (20, 100)


async def test_what_was_fired_has_arrived_when_the_load_is_over(autojump_clock: trio.testing.MockClock) -> None:
    responder, sizes = Responder(), list[int]()

    @responder.fire_and_forget("log")
    def log(request: Payload) -> None:
        sizes.append(len(request.data))

    async with served(responder):
        total = (await load(route="log", interaction="fnf", sizes=(5, 500))).total

    assert (total.ok, len(sizes)) == (20, 20)
    assert set(sizes) == {5, 500}


async def test_what_is_fired_last_is_followed_by_a_sign_of_life(autojump_clock: trio.testing.MockClock) -> None:
    made: list[str] = []

    class Quiet:
        connection = property(lambda self: self)
        lost = ""

        async def fire_and_forget(self, payload: Payload, *, route: str | None) -> None:
            made.append("request")

        async def ping(self) -> float:
            made.append("ping")
            return 0.0

    wanted = plan(interaction="fnf")
    lines: list[Any] = [Quiet(), Quiet()]
    await Driver(wanted, lines, "", LoadRecorder()).run(arrivals(Part(plan=wanted, task=0, seed=1)))

    assert made == ["request"] * 20 + ["ping"] * 2


@pytest.mark.parametrize(
    ("terms", "at", "due", "answered"),
    [
        # At 1.05 s the request that was begun at 0.8 s is under way, and eight wait.
        ({"in_flight": 1}, 1.05, 11, 3),
        ({"arrivals": "closed", "rate": None}, 1.05, 3, 3),
    ],
    ids=["open", "closed"],
)
async def test_a_load_that_is_stopped_begins_nothing_more(
    terms: dict[str, Any], at: float, due: int, answered: int, autojump_clock: trio.testing.MockClock
) -> None:
    wanted, recorder = plan(route="work", **terms), LoadRecorder()
    async with served(one_after_the_other(0.4)), trio.open_nursery() as nursery:
        driver = Driver(wanted, await open_connections(wanted, nursery), "", recorder)

        @nursery.start_soon
        async def stop() -> None:
            await trio.sleep(at)
            driver.stop()

        await driver.run(arrivals(Part(plan=wanted, task=0, seed=1)))
        nursery.cancel_scope.cancel()

    summary = summary_of(wanted, recorder.take())
    assert (summary.total.due, summary.total.ok, summary.total.unfinished) == (due, answered, due - answered)
    assert summary.measured == pytest.approx(at)


async def test_connections_take_turns(autojump_clock: trio.testing.MockClock) -> None:
    responder, counts = Responder(), dict[int, int]()

    @responder.request_response("work")
    def work(request: Payload) -> bytes:
        from rsocket_trio import current_connection

        counts[id(current_connection())] = counts.get(id(current_connection()), 0) + 1
        return b""

    async with served(responder):
        await load(route="work", connections=4)

    assert list(counts.values()) == [5, 5, 5, 5]


async def test_a_lost_connection_is_an_error_until_there_is_another(autojump_clock: trio.testing.MockClock) -> None:
    wanted = plan(route="echo", rate=100)

    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def serve_twice() -> None:
            with trio.move_on_after(0.5):
                async with served(usual()):
                    await trio.sleep_forever()
            await trio.sleep(0.3)
            async with served(usual()):
                await trio.sleep_forever()

        await trio.testing.wait_all_tasks_blocked()
        total = summary_of(wanted, await rows_of(wanted)).total
        nursery.cancel_scope.cancel()

    assert set(total.errors) <= {"ConnectionLost", "ConnectionClosed", "Rejected"}
    # It was away for 0.3 s; the tries are at most 0.1, 0.2 and 0.4 s apart.
    assert 30 <= total.failed <= 75
    assert total.ok == 200 - total.failed


async def test_addresses_that_nobody_listens_at_are_named(autojump_clock: trio.testing.MockClock) -> None:
    rows = await rows_of(plan(route="echo"))

    assert [(measure, URI in name) for _, measure, name, _, _ in rows] == [("failed", True)]
