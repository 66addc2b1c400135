"""Bulk both ways through the smallest of buffers comes to its end."""

from __future__ import annotations

import pytest

from qa.simulation.small_buffers import play
from rsocket_trio import ConnectionLost
from rsocket_trio.connection.engine import Engine


@pytest.mark.parametrize("seed", range(8))
def test_bulk_both_ways_through_small_buffers_comes_to_its_end(seed: int) -> None:
    assert play(seed) > 0


def test_two_sides_that_read_only_while_they_have_nothing_to_write_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    after_read = Engine.after_read
    monkeypatch.setattr(Engine, "after_read", lambda engine, frames: [after_read(engine, frames), True][1])
    monkeypatch.setattr(Engine, "is_congested", property(lambda engine: bool(engine.session.outbox)))

    with pytest.raises(BaseExceptionGroup) as caught:
        play(0)

    assert caught.group_contains(ConnectionLost, match="silent|paused|stalled|transport")
