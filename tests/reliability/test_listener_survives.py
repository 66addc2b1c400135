"""A listener survives any client: the next one is served meanwhile, and no descriptor stays open."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.each_row import ALL_CASES, some
from tests.reliability.timed import ATTACKS, HANDSHAKES, SETUP_TIMEOUT, attack_a_listener

CLIENTS = 5 if ALL_CASES else 3
"""Of each kind."""
LEFT_OPEN = HANDSHAKES if ALL_CASES else 60


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("scheme", some(["tcp", "tls", "ws", "wss", "h2", "h2s"], 1))
async def test_a_listener_survives_any_client(scheme: str) -> None:
    lasted, asked, left = await attack_a_listener(scheme, list(ATTACKS), CLIENTS, descriptors)

    assert len(lasted) == CLIENTS * len(ATTACKS)
    assert asked
    assert left <= 0


@pytest.mark.parametrize("scheme", some(["h2", "tls", "ws"], 1))
async def test_hundreds_of_handshakes_that_never_end_block_nobody(scheme: str) -> None:
    attack = {"tls": "half a handshake", "ws": "half a request", "h2": "half a preface"}[scheme]
    lasted, asked, left = await attack_a_listener(scheme, [attack], LEFT_OPEN, descriptors)

    assert len(lasted) == LEFT_OPEN
    # The attacker's clock may begin a little after the server's.
    assert min(lasted) >= SETUP_TIMEOUT * 0.5
    assert asked
    assert left <= 0
