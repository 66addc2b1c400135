"""When is a worker that died replaced? At once after a good life, later and later after short ones, then never."""

from __future__ import annotations

from rsocket_trio.server.processes.supervisor import GOOD_LIFE, RestartBackoff


def test_pauses_grow_until_there_is_no_use() -> None:
    backoff = RestartBackoff()

    assert [backoff.record_death(1.0) for _ in range(5)] == [0.1, 0.2, 0.4, 0.8, None]


def test_a_good_life_makes_up_for_the_short_ones_before_it() -> None:
    backoff = RestartBackoff()
    for _ in range(4):
        backoff.record_death(0.0)

    assert backoff.record_death(GOOD_LIFE) == 0.0
    assert backoff.record_death(0.0) == 0.1
