"""A server of all dialects outlives whatever is sent to it, and those who behave don't notice."""

from __future__ import annotations

from random import Random
from typing import Final

import trio

from qa.fuzz.server import MIB, Siege, is_clean, rounds
from qa.fuzz.traffic import SPEAKERS, traffic

CONNECTIONS: Final = 150


async def test_a_server_outlives_mutated_traffic() -> None:
    with trio.fail_after(60):
        first, second = await rounds(CONNECTIONS, "1", 2)

    for siege in (first, second):
        assert siege.connections == CONNECTIONS
        assert is_clean(siege), siege
    assert second.growth <= max(first.growth // 10, 2 * MIB)


def test_traffic_is_of_every_kind_and_differs() -> None:
    said = [traffic(speaker, 10, Random(number)) for number in range(5) for speaker in SPEAKERS]

    assert len(set(said)) == len(said)


def test_what_must_not_be_is_noticed() -> None:
    siege = Siege(connections=1, answers=[0.1])
    assert is_clean(siege)

    siege.left = ["+1 tasks"]
    assert not is_clean(siege)
    siege.left, siege.wrong = [], ["1: b''"]
    assert not is_clean(siege)
    siege.wrong, siege.answers = [], [0.1, 6.0]
    assert not is_clean(siege)
    siege.answers, siege.busy = [0.1], [0.3]
    assert not is_clean(siege)
