"""Requests within a lease never exceed it, an expired one grants nought; cancels have a budget. Time is a number."""

from __future__ import annotations

import random

import pytest

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.limits import RateBudget
from rsocket_trio.mux.stream_state import Permits


def used(permits: Permits, now: float, tries: int) -> int:
    return sum(permits.take(now) for _ in range(tries))


def test_before_the_first_lease_nothing_is_allowed() -> None:
    permits = Permits()
    assert not permits.take(0.0)
    assert permits.remaining(0.0) == 0
    assert permits.expires_in(0.0) == 0


@pytest.mark.clause("RS10-LS-01", "RS02-LS-01")
def test_a_lease_allows_so_many_requests_and_no_more() -> None:
    permits = Permits()
    permits.grant(3, 10, 5)
    assert used(permits, 6, 10) == 3
    assert permits.remaining(6) == 0


@pytest.mark.clause("RS10-LEASE-04", "RS02-LEASE-03")
def test_a_lease_ends_exactly_with_its_time() -> None:
    permits = Permits()
    permits.grant(100, 10, 5)
    assert permits.take(14.999)
    assert permits.expires_in(14) == 1
    assert not permits.take(15)
    assert permits.remaining(15) == 0
    assert permits.expires_in(99) == 0


@pytest.mark.clause("RS10-LEASE-04", "RS02-LEASE-03")
def test_the_last_lease_replaces_the_one_before() -> None:
    permits = Permits()
    permits.grant(100, 10, 0)
    permits.grant(1, 2, 5)
    assert used(permits, 6, 10) == 1
    permits.grant(5, 2, 6)
    assert permits.remaining(6) == 5


@pytest.mark.clause("RS10-LEASE-03", "RS02-LEASE-02")
@pytest.mark.parametrize(("number", "time"), [(0, 10), (10, 0), (0, 0)])
def test_nought_of_either_stops_all_requests(number: int, time: float) -> None:
    permits = Permits()
    permits.grant(100, 100, 0)
    permits.grant(number, time, 1)
    assert used(permits, 1, 5) == 0


@pytest.mark.parametrize("seed", range(5))
def test_within_any_lease_requests_never_exceed_it(seed: int) -> None:
    rng = random.Random(seed)
    permits, now, left, ends = Permits(), 0.0, 0, 0.0
    for _ in range(2000):
        now += rng.random()
        if rng.random() < 0.1:
            left, time = rng.randrange(5), rng.random() * 10
            ends = now + time
            permits.grant(left, time, now)
        allowed = left > 0 and now < ends
        assert permits.take(now) == allowed
        left -= allowed


def test_a_burst_of_cancels_is_forgiven_and_one_more_is_not() -> None:
    budget = RateBudget(10, 2)
    for _ in range(10):
        budget.spend(100)
    with pytest.raises(RemoteProtocolError, match="more than 10"):
        budget.spend(100)


def test_cancels_at_the_rate_go_on_for_ever() -> None:
    budget = RateBudget(10, 2)
    for tick in range(10_000):
        budget.spend(tick / 2)


def test_a_budget_is_never_more_than_its_burst() -> None:
    budget = RateBudget(3, 1)
    for _ in range(3):
        budget.spend(1_000_000)
    with pytest.raises(RemoteProtocolError):
        budget.spend(1_000_000)


YES, NO = True, False
CROSSING = {
    # what it is:                        number, seconds and time of each lease;   time, cost and result of each request
    "two left, then the new two": ([(3, 10, 0.0), (2, 10, 1.0)], [(0.5, 1, YES), *[(1.5, 1, YES)] * 4, (1.5, 1, NO)]),
    "the former one is over": ([(3, 1.2, 0.0), (1, 10, 1.0)], [(1.2, 1, YES), (1.2, 1, NO)]),
    "it was over before the renewal": ([(3, 1.0, 0.0), (1, 10, 1.0)], [(1.0, 1, YES), (1.0, 1, NO)]),
    "for a second and no longer": ([(3, 10, 0.0), (1, 10, 1.0)], [(1.999, 1, YES), (2.0, 1, YES), (2.0, 1, NO)]),
    "too dear for what was left": ([(2, 10, 0.0), (3, 10, 0.5)], [(0.6, 3, YES), (0.6, 1, YES), (0.6, 2, NO)]),
    "only the last but one": ([(5, 10, 0.0), (2, 10, 0.1), (1, 10, 0.2)], [*[(0.3, 1, YES)] * 3, (0.3, 1, NO)]),
    "none is left by a lease that stops requests": ([(3, 10, 0.0), (0, 10, 0.5)], [(0.6, 1, NO)]),
    "nor by one behind another": ([(3, 10, 0.0), (2, 10, 0.1), (0, 10, 0.2)], [(0.3, 1, NO)]),
}


@pytest.mark.parametrize(("leases", "requests"), CROSSING.values(), ids=CROSSING)
def test_requests_that_crossed_a_renewal_use_what_was_left_of_the_former_lease(
    leases: list[tuple[int, float, float]], requests: list[tuple[float, int, bool]]
) -> None:
    granted = Permits(crossing=1.0)
    waiting = list(leases)
    for time, cost, is_taken in requests:
        while waiting and waiting[0][2] <= time:
            granted.grant(*waiting.pop(0))
        assert granted.take(time, cost) is is_taken
