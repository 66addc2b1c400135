"""One beat an interval, death exactly at the lifetime; time is a number."""

from __future__ import annotations

import math

import pytest

from rsocket_trio.rsocket.keepalive import Beat, KeepaliveTimer


@pytest.mark.clause("RS10-KA-02", "RS02-KA-02")
def test_one_beat_an_interval() -> None:
    timer = KeepaliveTimer(interval=2, max_lifetime=100, now=10)
    beats = []
    for tenth in range(100, 250):
        now = tenth / 10
        timer.heard(now)
        if timer.expire(now) is Beat.SEND:
            beats.append(now)

    assert beats == [12, 14, 16, 18, 20, 22, 24]


@pytest.mark.clause("RS10-KA-07", "RS02-KA-06")
def test_death_comes_exactly_at_the_lifetime() -> None:
    timer = KeepaliveTimer(interval=math.inf, max_lifetime=5, now=0)
    assert timer.deadline == 5
    timer.heard(3)
    assert timer.deadline == 8
    assert timer.expire(7.999) is None
    assert timer.expire(8) is Beat.DEAD


def test_the_deadline_is_whatever_is_due_first() -> None:
    timer = KeepaliveTimer(interval=2, max_lifetime=5, now=0)
    assert timer.deadline == 2
    assert timer.expire(2) is Beat.SEND
    assert timer.deadline == 4
    assert timer.expire(4) is Beat.SEND
    assert timer.deadline == 5
    assert timer.expire(5) is Beat.DEAD


def test_nothing_is_due_before_the_deadline_and_something_is_at_it() -> None:
    timer = KeepaliveTimer(interval=3, max_lifetime=10, now=0.5)
    while timer.expire(timer.deadline - 0.001) is None and (beat := timer.expire(timer.deadline)) is Beat.SEND:
        pass
    assert beat is Beat.DEAD


def test_beats_that_a_pause_of_the_clock_missed_are_not_made_up_for() -> None:
    timer = KeepaliveTimer(interval=2, max_lifetime=math.inf, now=0)
    assert timer.expire(9) is Beat.SEND
    assert timer.expire(9) is None
    assert timer.deadline == 10
    assert timer.expire(10) is Beat.SEND


def test_a_server_never_beats() -> None:
    timer = KeepaliveTimer(interval=math.inf, max_lifetime=math.inf, now=0)
    assert timer.deadline == math.inf
    assert timer.expire(1e12) is None
