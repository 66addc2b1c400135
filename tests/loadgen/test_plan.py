"""Plans: what can't be is refused before anything starts, and says why."""

from __future__ import annotations

import pickle
from typing import Any

import attrs
import pytest

from rsocket_trio.loadgen import Stage
from rsocket_trio.loadgen.plan import SECONDS, Plan, Terms
from rsocket_trio.metadata import AUTHENTICATION, TEXT_PLAIN, BearerAuthentication, decode_composite
from rsocket_trio.values import Unsaid
from tests.each_row import each_row
from tests.loadgen.loads import URI, plan


@each_row(
    ("terms", "said"),
    [
        ({"uri": "http://x"}, "http"),
        ({"rate": None}, "rate is missing"),
        ({"rate": 0}, "rate of 0: more than 0"),
        ({"rate": float("nan")}, "rate of nan: more than 0"),
        ({"rate": 2e6 + 1, "tasks": 2}, "at most 1e\\+06 requests per second for each task"),
        ({"seconds": -1}, "seconds of -1: more than 0"),
        ({"tasks": 0}, "tasks of 0: a whole number from 1 on"),
        ({"in_flight": 0}, "in_flight of 0"),
        ({"warm_up": -1}, "warm_up of -1: 0 or more seconds"),
        ({"arrivals": "closed"}, "a closed loop has no rate"),
        ({"arrivals": "random"}, "arrivals 'random': one of constant, poisson, closed"),
        ({"interaction": "request"}, "interaction 'request': one of response, stream, fnf, channel"),
        ({"dialect": "rsocket/9"}, "dialect 'rsocket/9': one of"),
        ({"peer": "java-9"}, "peer 'java-9': the known ones are java-0.2.2"),
        ({"peer": "js-3", "dialect": "1.0"}, "peer 'js-3' speaks reactivesocket/0.1, not rsocket/1.0"),
        ({"peer": "js-3", "auth": BearerAuthentication("t")}, "auth needs composite metadata, not utf-8"),
        ({"data": b"x", "sizes": (1,)}, "data and sizes exclude each other"),
        ({"sizes": (-1,)}, "each is 0 or more bytes"),
        ({"items": 2}, "items is for channels"),
        ({"take": 2}, "take is for streams and channels"),
        ({"auth": BearerAuthentication("t"), "metadata_mime": TEXT_PLAIN}, "auth needs composite metadata"),
        ({"route": "x" * 256}, "255"),
        ({"stages": (Stage(1, 2),)}, "rate and stages exclude each other"),
        ({"rate": None, "stages": (Stage(1, 1),)}, "seconds of 2: the stages have 1"),
        ({"rate": None, "seconds": 1, "stages": (Stage(0, 1),)}, "stages of rate 0 only"),
        ({"rate": None, "seconds": 1, "arrivals": "closed", "stages": (Stage(1, 1),)}, "a closed loop has no rate"),
        ({"requests": 0}, "requests of 0: a whole number from 1 on"),
        ({"requests": 10}, "requests and seconds exclude each other"),
        (
            {"requests": 10, "rate": None, "seconds": 1, "stages": (Stage(1, 1),)},
            "requests and stages exclude each other",
        ),
    ],
    ids=str,
)
def test_a_term_that_cannot_be_is_named(terms: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**terms)


def test_a_number_of_requests_takes_as_long_as_the_rate_says() -> None:
    wanted = pickle.loads(pickle.dumps(plan(requests=5, seconds=SECONDS)))

    assert wanted.seconds == 0.5
    assert attrs.evolve(wanted, timeout=1) == attrs.evolve(plan(requests=5, seconds=SECONDS), timeout=1)
    assert plan(requests=5, seconds=SECONDS, rate=None, arrivals="closed").seconds == float("inf")


def test_requests_are_at_equal_distances_unless_something_else_is_said() -> None:
    assert Plan(uri=URI, rate=1).arrivals == "constant"


def test_run_takes_every_field_of_a_plan() -> None:
    assert Terms.__annotations__.keys() == {field.name for field in attrs.fields(Plan)} - {"uri"}


def test_names_are_short_and_headers_a_mapping_as_elsewhere() -> None:
    wanted = plan(dialect="0.1", headers={"X-One": "1"})

    assert wanted._connection_options()["dialect"] == "reactivesocket/0.1"
    assert wanted._connection_options()["headers"] == (("X-One", "1"),)


def test_an_old_peer_sets_what_nobody_said_in_the_processes_of_spark_too() -> None:
    wanted = pickle.loads(pickle.dumps(plan(peer="java-0.5.2")))
    terms = wanted._connection_options()

    assert wanted._first_credit == 2
    assert pickle.loads(pickle.dumps(plan(peer="java-0.5.2", credit=256)))._first_credit == 256
    assert terms["peer"] == "java-0.5.2"
    assert all(isinstance(terms[name], Unsaid) for name in ("dialect", "data_mime", "metadata_mime", "keepalive"))


def test_credentials_go_with_each_request_and_are_not_shown() -> None:
    wanted = plan(auth=BearerAuthentication("secret"))

    assert wanted._request_metadata is not None
    [entry] = decode_composite(wanted._request_metadata)
    assert entry.mime == AUTHENTICATION
    assert entry.content.endswith(b"secret")
    assert "secret" not in repr(wanted)
