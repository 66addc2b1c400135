"""A peer that is killed in mid-stream: every call that waits raises, and none hangs."""

from __future__ import annotations

import os

import pytest

from tests.reliability.timed import CALLS, kill_a_server

ROUNDS = int(os.environ.get("RSOCKET_TRIO_KILLS", "3"))


@pytest.mark.parametrize("turn", range(ROUNDS))
async def test_every_waiting_call_raises_after_the_kill(turn: int) -> None:
    assert len(await kill_a_server(0.02 + 0.01 * (turn % 10))) == CALLS
