"""The measurements of a task, on a clock that jumps: waiting counts, from when a request was due."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from rsocket_trio import Payload, Responder
from rsocket_trio.loadgen.histogram import RELATIVE_ERROR
from rsocket_trio.loadgen.summary import Counts
from tests.each_row import each_row
from tests.loadgen.loads import load, served, usual

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


async def test_requests_that_wait_too_long_are_dropped(autojump_clock: trio.testing.MockClock) -> None:
    async with served(one_after_the_other(0.4)):
        total = (await load(route="work", in_flight=1, timeout=0.5)).total

    # Each 0.4 s one of four that came meanwhile gets its turn: the one that has waited longest, but not too long.
    assert (total.due, total.ok, total.failed) == (20, total.ok, 0)
    assert total.ok + total.dropped == 20
    assert 5 <= total.ok <= 7
    assert highest(total, "lag") == pytest.approx(0.4, rel=CLOSE)
    assert highest(total) == pytest.approx(0.4 + 0.4, rel=CLOSE)


async def test_waiting_for_a_place_is_latency_and_not_service(autojump_clock: trio.testing.MockClock) -> None:
    async with served(one_after_the_other(0.15)):
        summary = await load(route="work", in_flight=1)

    assert highest(summary.total) == pytest.approx(20 * 0.15 - 1.9, rel=CLOSE)
    assert highest(summary.total, "service") == pytest.approx(0.15, rel=CLOSE)
    assert highest(summary.total, "lag") == pytest.approx(19 * 0.15 - 1.9, rel=CLOSE)
    assert (summary.total.late, summary.total.dropped) == (19, 0)


@pytest.mark.parametrize("kind", ["constant", "poisson"])
async def test_so_many_requests_are_made_at_the_rate(kind: str, autojump_clock: trio.testing.MockClock) -> None:
    async with served(usual()):
        summary = await load(route="echo", arrivals=kind, rate=20, requests=50, warm_up=0.5)

    assert (summary.total.due, summary.total.ok) == (50, 50)
    if kind == "constant":
        assert summary.measured == pytest.approx(2.5)


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


async def test_what_was_fired_has_arrived_when_the_load_is_over(autojump_clock: trio.testing.MockClock) -> None:
    responder, sizes = Responder(), list[int]()

    @responder.fire_and_forget("log")
    def log(request: Payload) -> None:
        sizes.append(len(request.data))

    async with served(responder):
        total = (await load(route="log", interaction="fnf", sizes=(5, 500))).total

    assert (total.ok, len(sizes)) == (20, 20)
    assert set(sizes) == {5, 500}


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
