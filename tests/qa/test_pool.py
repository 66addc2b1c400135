"""``python -m qa.pool`` in a short form: a server that is killed costs its own calls, one that stops costs none."""

from __future__ import annotations

import pytest
import trio

from qa.pool import watched

PATIENCE = 120.0
"""Seconds that healthy servers never take, on a machine that is busy with other things."""


@pytest.mark.parametrize("kill", [True, False])
async def test_only_calls_of_a_killed_server_fail(kill: bool) -> None:
    with trio.fail_after(PATIENCE):
        seen = await watched(kill=kill, ends=1, callers=20, period=0.5)

    seen.check(kills=kill)
    assert len(seen.kills) == kill
    assert len(seen.answers) >= 4
