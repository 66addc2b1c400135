"""``make gate-restarts`` in a short form: callers do not notice that the process they talk to is replaced."""

from __future__ import annotations

import trio

from qa.restarts import restarted

PATIENCE = 120.0
"""Seconds that a healthy server never takes, on a machine that is busy with other things."""
CALLERS = 20


async def test_no_caller_sees_an_error_while_a_server_is_restarted() -> None:
    with trio.fail_after(PATIENCE):
        seen = await restarted("process", restarts=1, callers=CALLERS, stream_callers=4, clients=2)

    assert seen.errors == []
    # The stream that never ends by itself was ended once, by the end of the grace period, and opened again.
    assert seen.endless_ends == 1
    assert seen.answers > 2 * CALLERS
