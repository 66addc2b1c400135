"""Requests within a lease never exceed it, an expired one grants nought; cancels have a budget. Time is a number."""

from __future__ import annotations

import random

import pytest

from rsocket_trio.errors import RemoteProtocolError
from rsocket_trio.rsocket.lease import CancelBudget, Permits


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
    budget = CancelBudget(10, 2)
    for _ in range(10):
        budget.spend(100)
    with pytest.raises(RemoteProtocolError, match="more than 10"):
        budget.spend(100)


def test_cancels_at_the_rate_go_on_for_ever() -> None:
    budget = CancelBudget(10, 2)
    for tick in range(10_000):
        budget.spend(tick / 2)


def test_a_budget_is_never_more_than_its_burst() -> None:
    budget = CancelBudget(3, 1)
    for _ in range(3):
        budget.spend(1_000_000)
    with pytest.raises(RemoteProtocolError):
        budget.spend(1_000_000)


def test_requests_that_crossed_a_renewal_use_what_was_left_of_the_former_lease() -> None:
    granted = Permits(crossing=1.0)
    granted.grant(3, 10.0, now=0.0)
    assert granted.take(0.5)
    granted.grant(2, 10.0, now=1.0)

    # Two were left, and may be on their way; then the new two.
    assert [granted.take(1.5) for _ in range(5)] == [True, True, True, True, False]


def test_a_former_lease_that_is_over_allows_nothing_beside_its_renewal() -> None:
    granted = Permits(crossing=1.0)
    granted.grant(3, 1.2, now=0.0)
    granted.grant(1, 10.0, now=1.0)

    assert [granted.take(1.2) for _ in range(2)] == [True, False]


def test_a_lease_that_was_over_before_its_renewal_leaves_nothing() -> None:
    granted = Permits(crossing=1.0)
    granted.grant(3, 1.0, now=0.0)
    granted.grant(1, 10.0, now=1.0)

    assert [granted.take(1.0) for _ in range(2)] == [True, False]


def test_requests_may_cross_a_renewal_for_a_second_and_no_longer() -> None:
    granted = Permits(crossing=1.0)
    granted.grant(3, 10.0, now=0.0)
    granted.grant(1, 10.0, now=1.0)

    assert granted.take(1.999)
    assert [granted.take(2.0) for _ in range(2)] == [True, False]


def test_a_request_that_costs_more_than_is_left_of_the_former_lease_uses_the_new_one() -> None:
    granted = Permits(crossing=1.0)
    granted.grant(2, 10.0, now=0.0)
    granted.grant(3, 10.0, now=0.5)

    assert [granted.take(0.6, cost) for cost in (3, 1, 2, 1)] == [True, True, False, True]


def test_of_leases_that_follow_each_other_only_the_last_but_one_is_honoured_beside_the_last() -> None:
    granted = Permits(crossing=1.0)
    for number, now in (5, 0.0), (2, 0.1), (1, 0.2):
        granted.grant(number, 10.0, now)

    assert [granted.take(0.3) for _ in range(4)] == [True, True, True, False]


def test_what_was_left_of_a_former_lease_is_not_honoured_for_ever() -> None:
    granted = Permits(crossing=1.0)
    granted.grant(3, 10.0, now=0.0)
    granted.grant(1, 10.0, now=1.0)

    assert [granted.take(2.5) for _ in range(2)] == [True, False]


def test_a_lease_that_stops_requests_stops_those_on_their_way_too() -> None:
    granted = Permits(crossing=1.0)
    granted.grant(3, 10.0, now=0.0)
    granted.grant(0, 10.0, now=0.5)

    assert not granted.take(0.6)


def test_a_lease_that_stops_requests_stops_those_that_crossed_the_one_before_too() -> None:
    granted = Permits(crossing=1.0)
    for number, now in (3, 0.0), (2, 0.1), (0, 0.2):
        granted.grant(number, 10.0, now)

    assert not granted.take(0.3)
