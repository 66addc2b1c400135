"""The search for the highest rate that a server holds: right for a known server, and plain about what the limit was."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from rsocket_trio import Payload, Responder
from rsocket_trio.loadgen import Bound, Limit, LoadError, Plan, Stage, Summary, Trial, find_limit
from rsocket_trio.loadgen.find_limit import first_plan, search
from rsocket_trio.loadgen.measures import NS, Recorder
from tests.each_row import ALL_CASES, each_row, whole
from tests.loadgen.loads import plan, rows_of, served, summary_of

PATIENCE = 60.0
MS = 1_000_000


def summary(wanted: Plan, seconds: float, *, failed: int = 0) -> Summary:
    """Return the summary of a load whose requests all took so many seconds, but for those that failed."""
    assert wanted.rate is not None
    recorder = Recorder()
    due = round(wanted.rate * wanted.seconds)
    recorder.count(0, "due", number=due)
    recorder.count(0, "ok", number=due - failed)
    recorder.count(0, "done", number=due - failed)
    if failed:
        recorder.count(0, "error", "Rejected", failed)
    for _ in range(due - failed):
        recorder.took(0, "latency", seconds)
    recorder.fact("measured", round(wanted.seconds * NS))
    return summary_of(wanted, recorder.take())


def one_at_a_time(seconds: float) -> Responder:
    """Return a handler that takes so long for each request, one after the other."""
    responder, limiter = Responder(), trio.CapacityLimiter(1)

    @responder.request_response("work")
    async def work(request: Payload) -> bytes:
        async with limiter:
            await trio.sleep(seconds)
        return b""

    return responder


async def found(first: Plan, bound: Bound, **terms: Any) -> Limit:
    """Search with loads in this process."""

    async def make(wanted: Plan, **_: object) -> Summary:
        return summary_of(wanted, await rows_of(wanted))

    return await search(make, first, bound, trio.Event(), **terms)


@pytest.mark.parametrize("first", [12.0, 80.0] if ALL_CASES else [12.0])
async def test_the_limit_of_a_known_server_is_found(first: float, autojump_clock: trio.testing.MockClock) -> None:
    """It serves 50 requests a second. A trial of 5 s finds an overload of 2 % with a bound of 0.1 s."""
    async with served(one_at_a_time(0.02)):
        wanted = plan(route="work", rate=first, seconds=5.0, in_flight=100_000)
        limit = await found(wanted, Bound(latency=0.1), precision=0.04)

    assert limit.rate == pytest.approx(50, rel=0.06)
    assert limit.of == "server"
    assert limit.broken is not None
    assert "p99 was" in limit.broken.reason
    assert limit.broken.rate == pytest.approx(50, rel=0.07)


async def test_random_arrivals_need_room_so_the_limit_is_lower(autojump_clock: trio.testing.MockClock) -> None:
    async with served(one_at_a_time(0.02)):
        wanted = plan(route="work", rate=40.0, seconds=5.0, arrivals="poisson", in_flight=100_000)
        limit = await found(wanted, Bound(latency=0.1))

    assert limit.rate is not None
    assert 20 < limit.rate < 48


def searched(outcome: Callable[[Plan], Summary], **terms: Any) -> Limit:
    """Search with loads that end at once, each with its outcome."""

    async def make(wanted: Plan, *, stop: trio.Event, watch: object) -> Summary:
        await trio.lowlevel.checkpoint()
        summary = outcome(wanted)
        if summary.interrupted:
            stop.set()
        return summary

    return trio.run(partial(search, make, plan(seconds=1.0), Bound(), trio.Event(), **terms))


def test_errors_break_the_bound_as_latency_does() -> None:
    limit = searched(lambda wanted: summary(wanted, 0.001, failed=5 if (wanted.rate or 0) > 100 else 0))

    assert limit.rate == pytest.approx(100, rel=0.06)
    assert limit.broken is not None
    assert "failed or were dropped: 5 x Rejected" in limit.broken.reason


def test_a_rate_that_fails_once_by_chance_is_tried_again() -> None:
    seen: list[float] = []

    def outcome(wanted: Plan) -> Summary:
        assert wanted.rate is not None
        seen.append(wanted.rate)
        by_chance = seen.count(wanted.rate) == 1
        return summary(wanted, 0.5 if by_chance or wanted.rate > 80 else 0.001)

    limit = searched(outcome)

    assert limit.rate == pytest.approx(80, rel=0.06)
    assert all(seen.count(rate) == 2 for rate in seen)


def test_a_generator_that_can_do_no_more_is_named_as_the_limit() -> None:
    def outcome(wanted: Plan) -> Summary:
        held = (wanted.rate or 0) <= 80
        done = summary(wanted, 0.001 if held else 0.5)
        if not held:
            done.total.times["behind"].record(500 * MS, 100)
        return done

    limit = searched(outcome)

    assert limit.rate == pytest.approx(80, rel=0.06)
    assert limit.of == "generator"
    assert "the generator was the limit, the server may hold more: at " in str(limit)
    assert str(limit.trials[-1]).endswith(("held", ", by the generator"))


def test_the_highest_rate_to_try_is_said_to_be_it() -> None:
    limit = searched(lambda wanted: summary(wanted, 0.001), max_rate=70.0)

    assert [trial.rate for trial in limit.trials] == [10.0, 20.0, 40.0, 70.0]
    assert (limit.rate, limit.of, limit.broken) == (70.0, "max_rate", None)
    assert str(limit).endswith("it was the highest rate to try")


def test_a_server_that_holds_nothing_is_given_up() -> None:
    limit = searched(lambda wanted: summary(wanted, 0.5))

    assert limit.rate is None
    assert min(trial.rate for trial in limit.trials) == 1.25
    assert str(limit).startswith("no rate was held: p99 at most 100 ms, errors at most 0.10%\nat 1.25 requests/s")
    assert limit.to_dict()["best"] is None


def test_a_server_that_is_gone_ends_the_search_with_what_there_is() -> None:
    def outcome(wanted: Plan) -> Summary:
        if (wanted.rate or 0) > 20:
            raise LoadError("ConnectionLost: refused")
        return summary(wanted, 0.001)

    limit = searched(outcome)

    assert (limit.rate, limit.of, limit.problem) == (20.0, None, "ConnectionLost: refused")


def test_a_first_trial_that_cannot_begin_is_an_error() -> None:
    def outcome(wanted: Plan) -> Summary:
        raise LoadError("ConnectionLost: refused")

    with pytest.raises(LoadError, match="refused"):
        searched(outcome)


def test_a_trial_that_is_interrupted_is_no_trial() -> None:
    trials: list[Trial] = []
    interrupted = attrs.evolve(summary(plan(), 0.5), interrupted=True)

    limit = searched(lambda wanted: interrupted if len(trials) == 2 else summary(wanted, 0.001), on_trial=trials.append)

    assert (limit.rate, limit.interrupted, limit.trials, limit.of) == (20.0, True, tuple(trials), None)
    assert "interrupted" in str(limit)


def test_a_load_that_cannot_be_held_any_more_is_hopeless() -> None:
    wanted, bound = plan(rate=100, seconds=10), Bound(latency=0.1, quantile=0.9, errors=0.01)

    def after(over: int, failed: int) -> Summary:
        recorder = Recorder()
        recorder.count(0, "due", number=300)
        recorder.count(0, "dropped", number=failed)
        for _ in range(over):
            recorder.took(0, "latency", 0.2)
        return summary_of(wanted, recorder.take())

    assert not bound.hopeless(wanted, after(100, 10))
    assert bound.hopeless(wanted, after(120, 0))
    assert bound.hopeless(wanted, after(0, 20))


def test_a_limit_is_json() -> None:
    limit = searched(lambda wanted: summary(wanted, 0.5 if (wanted.rate or 0) > 10 else 0.001), precision=1.0)
    said = json.loads(json.dumps(limit.to_dict()))

    assert (said["limit"], said["of"]) == (10.0, "server")
    assert said["bound"] == {"latency": 0.1, "quantile": 0.99, "errors": 0.001}
    assert [trial["held"] for trial in said["trials"]] == [True, False, False]
    assert said["best"]["rate"] == 10.0
    assert str(limit.trials[-1]).endswith("not held: p99 was 501.2 ms")


@each_row(
    ("terms", "said"),
    [
        ({"max_rate": 0.0}, "max_rate of 0.0: more than 0"),
        ({"precision": 0.001}, "precision of 0.001: between 0.01 and 1"),
        ({"precision": float("nan")}, "precision of nan"),
    ],
    ids=str,
)
def test_terms_of_a_search_that_cannot_be_are_refused(terms: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        searched(lambda wanted: summary(wanted, 0.001), **terms)


def test_a_search_has_no_schedule_of_its_own() -> None:
    with pytest.raises(ValueError, match="it has no stages"):
        first_plan("tcp://h:1", stages=(Stage(1, 1),))
    with pytest.raises(ValueError, match="a closed loop has none"):
        first_plan("tcp://h:1", arrivals="closed")

    assert (first_plan("tcp://h:1").rate, first_plan("tcp://h:1").seconds) == (100, 5)


@each_row("terms", [{"latency": 0}, {"quantile": 1.5}, {"errors": -1}], ids=str)
def test_a_bound_that_cannot_be_is_refused(terms: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be between"):
        Bound(**terms)


@whole
async def test_workers_search_until_the_highest_rate(uri: str) -> None:
    trials: list[Trial] = []
    with trio.fail_after(PATIENCE):
        limit = await find_limit(
            uri, route="echo", rate=20, seconds=0.3, max_rate=40, bound=Bound(latency=10.0), on_trial=trials.append
        )

    assert (limit.rate, limit.of) == (40.0, "max_rate")
    assert limit.trials == tuple(trials)
    assert [trial.rate for trial in trials] == [20.0, 40.0]


async def test_a_trial_of_workers_that_is_hopeless_is_broken_off(uri: str) -> None:
    stop = trio.Event()
    terms: dict[str, Any] = {"route": "full", "rate": 50, "seconds": 1000, "probe": False, "stop": stop}
    with trio.fail_after(PATIENCE):
        limit = await find_limit(uri, on_trial=lambda trial: stop.set(), **terms)

    [trial] = limit.trials
    assert limit.interrupted
    assert "failed or were dropped: " in trial.reason
    assert trial.summary.measured < PATIENCE
