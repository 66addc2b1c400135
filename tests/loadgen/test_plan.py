"""Plans: what can't be is refused before anything starts, and says why."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rsocket_trio.metadata import BearerAuthentication
from tests.each_row import each_row
from tests.loadgen.loads import plan


@each_row(
    ("terms", "said"),
    [
        ({"rate": float("nan")}, "Plan.rate of nan: must be at least"),
        ({"rate": 2e6 + 1, "tasks": 2}, "at most 1e\\+06 requests per second for each task"),
        ({"in_flight": 0}, "Plan.in_flight of 0: must be between 1"),
        ({"arrivals": "random"}, "'arrivals' must be in"),
        ({"data": b"x", "sizes": (1,)}, "data and sizes exclude each other"),
        ({"items": 2}, "items is for channels"),
    ],
    ids=str,
)
def test_a_term_that_cannot_be_is_named(terms: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**terms)


def test_a_number_of_requests_takes_as_long_as_the_rate_says() -> None:
    wanted = pickle.loads(pickle.dumps(plan(requests=5)))

    assert wanted._length == 0.5


def test_an_old_peer_sets_the_credit_that_is_left_to_it_in_the_processes_of_spark_too() -> None:
    connection = {"peer": "java-0.5.2"}

    assert pickle.loads(pickle.dumps(plan(connection=connection)))._first_credit == 2
    assert pickle.loads(pickle.dumps(plan(connection=connection, credit=256)))._first_credit == 256


def test_secrets_are_not_shown() -> None:
    wanted = plan(metadata=b"secret", connection={"auth": BearerAuthentication("secret")})

    assert "secret" not in repr(wanted)
