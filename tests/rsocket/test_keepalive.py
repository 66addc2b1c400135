"""One beat an interval, death exactly at the lifetime; time is a number."""

from __future__ import annotations

import math
from typing import Final

import pytest

from rsocket_trio.rsocket.leases_and_keepalive import Beat, KeepaliveTimer

SEND, DEAD = "send", "dead"
clause = pytest.mark.clause


@clause("RS10-KA-02", "RS02-KA-02")
def test_one_beat_an_interval() -> None:
    timer = KeepaliveTimer(interval=2, max_lifetime=100, now=10)
    beats = []
    for tenth in range(100, 250):
        now = tenth / 10
        timer.last_heard = now
        if timer.expire(now) is SEND:
            beats.append(now)

    assert beats == [12, 14, 16, 18, 20, 22, 24]


@clause("RS10-KA-07", "RS02-KA-06")
def test_death_comes_exactly_at_the_lifetime() -> None:
    timer = KeepaliveTimer(interval=math.inf, max_lifetime=5, now=0)
    assert timer.deadline == 5
    timer.last_heard = 3
    assert timer.deadline == 8
    assert timer.expire(7.999) is None
    assert timer.expire(8) is DEAD


# fmt: off
LIVES: Final = {
    # interval and lifetime of a silent peer; times at which the clock is looked at, what is due, and the next deadline
    "the deadline is whatever is due first":    (2, 5, [(2, SEND, 4), (4, SEND, 5), (5, DEAD, 5)]),
    "missed beats are not made up for":         (2, math.inf, [(9, SEND, 10), (9, None, 10), (10, SEND, 12)]),
    "a server never beats":                     (math.inf, math.inf, [(1e12, None, math.inf)]),
    "who is asked late has as long as ever":    (2, 5, [(30, SEND, 32), (32, SEND, 33), (33, DEAD, 33)]),
    "a late beat counts from when it left":     (2, 5, [(4.5, SEND, 6), (7.4, SEND, 7.5), (7.5, DEAD, 7.5)]),
    "who was asked and kept silent is dead":    (2, 5, [(2, SEND, 4), (30, DEAD, 4)]),
    "a server excuses nobody":                  (math.inf, 5, [(30, DEAD, 5)]),
}
# fmt: on


@pytest.mark.parametrize(("interval", "lifetime", "looks"), LIVES.values(), ids=LIVES)
def test_what_is_due_when_the_clock_is_looked_at(
    interval: float, lifetime: float, looks: list[tuple[float, Beat | None, float]]
) -> None:
    timer = KeepaliveTimer(interval, lifetime, now=0)
    for now, due, deadline in looks:
        timer.excuse(now)

        assert timer.expire(now) is due
        assert timer.deadline == deadline
