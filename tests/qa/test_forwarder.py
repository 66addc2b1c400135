"""``python -m qa.forwarder`` in a short form: demand is handed through, and a killed client's handler is cancelled."""

from __future__ import annotations

import pytest
import trio

from qa.forwarder import CREDITS, most_ahead, seconds_to_cancel

PATIENCE = 60.0
"""Seconds that healthy processes never take, on a machine that is busy with other things."""


@pytest.mark.parametrize("credit", CREDITS)
async def test_the_server_is_granted_no_more_than_its_client_has_granted(credit: int) -> None:
    with trio.fail_after(PATIENCE):
        assert await most_ahead(credit, items=300, scheme="tcp") <= 0


async def test_a_killed_client_has_the_handler_behind_a_forwarder_cancelled() -> None:
    with trio.fail_after(PATIENCE):
        assert await seconds_to_cancel("tcp") < PATIENCE
