"""Plans: what can't be is refused before anything starts, and says why."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rsocket_trio.loadgen.plan import Plan
from rsocket_trio.metadata import BearerAuthentication
from tests.each_row import each_row
from tests.loadgen.loads import URI, plan


@each_row(
    ("terms", "said"),
    [
        ({"uri": "http://x"}, "http"),
        ({"rate": None}, "rate is missing"),
        ({"rate": 0}, "Plan.rate of 0: must be at least"),
        ({"rate": float("nan")}, "Plan.rate of nan: must be at least"),
        ({"rate": 2e6 + 1, "tasks": 2}, "at most 1e\\+06 requests per second for each task"),
        ({"seconds": -1}, "Plan.seconds of -1: must be at least"),
        ({"tasks": 0}, "Plan.tasks of 0: must be between 1 and"),
        ({"in_flight": 0}, "Plan.in_flight of 0: must be between 1"),
        ({"warm_up": -1}, "Plan.warm_up of -1: must be between 0"),
        ({"arrivals": "closed"}, "a closed loop has no rate"),
        ({"arrivals": "random"}, "'arrivals' must be in"),
        ({"interaction": "request"}, "'interaction' must be in"),
        ({"data": b"x", "sizes": (1,)}, "data and sizes exclude each other"),
        ({"sizes": (-1,)}, "each is 0 or more bytes"),
        ({"items": 2}, "items is for channels"),
        ({"take": 2}, "take is for streams and channels"),
        ({"requests": 0}, "Plan.requests of 0: must be between 1"),
    ],
    ids=str,
)
def test_a_term_that_cannot_be_is_named(terms: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**terms)


def test_a_number_of_requests_takes_as_long_as_the_rate_says() -> None:
    wanted = pickle.loads(pickle.dumps(plan(requests=5)))

    assert wanted._length == 0.5
    assert plan(requests=5, rate=None, arrivals="closed")._length == float("inf")


def test_requests_are_at_equal_distances_unless_something_else_is_said() -> None:
    assert Plan(uri=URI, rate=1).arrivals == "constant"


def test_an_old_peer_sets_the_credit_that_is_left_to_it_in_the_processes_of_spark_too() -> None:
    connection = {"peer": "java-0.5.2"}

    assert pickle.loads(pickle.dumps(plan(connection=connection)))._first_credit == 2
    assert pickle.loads(pickle.dumps(plan(connection=connection, credit=256)))._first_credit == 256


def test_secrets_are_not_shown() -> None:
    wanted = plan(metadata=b"secret", connection={"auth": BearerAuthentication("secret")})

    assert "secret" not in repr(wanted)
