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
        timer.last_heard = now
        if timer.expire(now) is Beat.SEND:
            beats.append(now)

    assert beats == [12, 14, 16, 18, 20, 22, 24]


@pytest.mark.clause("RS10-KA-07", "RS02-KA-06")
def test_death_comes_exactly_at_the_lifetime() -> None:
    timer = KeepaliveTimer(interval=math.inf, max_lifetime=5, now=0)
    assert timer.deadline == 5
    timer.last_heard = 3
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


# A clock that was looked at late


def test_a_server_that_was_asked_late_has_as_long_to_answer_as_ever() -> None:
    timer = KeepaliveTimer(interval=2, max_lifetime=5, now=0)
    timer.excuse(30)
    assert timer.expire(30) is Beat.SEND
    assert timer.death == 33
    assert timer.deadline == 32
    timer.excuse(32)
    assert timer.expire(32) is Beat.SEND
    timer.excuse(33)
    assert timer.expire(33) is Beat.DEAD


def test_a_beat_that_was_late_but_before_the_end_counts_from_when_it_left() -> None:
    timer = KeepaliveTimer(interval=2, max_lifetime=5, now=0)
    timer.excuse(4.5)
    assert timer.expire(4.5) is Beat.SEND
    assert timer.death == 7.5


def test_who_was_asked_before_and_kept_silent_is_not_excused() -> None:
    timer = KeepaliveTimer(interval=2, max_lifetime=5, now=0)
    timer.excuse(2)
    assert timer.expire(2) is Beat.SEND
    timer.excuse(30)
    assert timer.death == 5
    assert timer.expire(30) is Beat.DEAD


def test_a_server_excuses_nobody_for_it_asks_nobody() -> None:
    timer = KeepaliveTimer(interval=math.inf, max_lifetime=5, now=0)
    timer.excuse(30)
    assert timer.expire(30) is Beat.DEAD
