"""A server of all dialects outlives whatever is sent to it, and those who behave don't notice."""

from __future__ import annotations

from typing import Final

import trio

from qa.fuzz.server import is_clean, rounds
from qa.processes import MIB

CONNECTIONS: Final = 150


async def test_a_server_outlives_mutated_traffic() -> None:
    with trio.fail_after(60):
        first, second = await rounds(CONNECTIONS, "1", 2)

    for siege in (first, second):
        assert siege.connections == CONNECTIONS
        assert is_clean(siege), siege
    assert second.growth <= max(first.growth // 10, 2 * MIB)
