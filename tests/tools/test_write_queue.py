"""Writes of many tasks: each learns what became of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from rsocket_trio.tools import write_queue
from tests.connection.pairs import settle


async def test_a_write_that_is_taken_at_the_moment_at_which_it_is_cancelled_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    taken: list[str] = []
    taking: list[Callable[[], list[str]]] = []
    may_end = trio.Event()
    outcomes: list[str] = []

    class Pending(deque[Any]):
        """Writes that wait, of which a thread takes all just before one is removed."""

        def remove(self, item: object) -> None:
            taken.extend(taking[0]())
            super().remove(item)

    async def write(take: Callable[[], list[str]]) -> list[str]:
        taking.append(take)
        await may_end.wait()
        return [f"{item} is written" for item in taken]

    async def second() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            outcomes.append(await queue.write("second"))
        assert not scope.cancelled_caught

    monkeypatch.setattr(write_queue, "deque", Pending)
    queue = write_queue.WriteQueue[str, str](write)
    scopes: list[trio.CancelScope] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(queue.write, "first")
        await settle()
        nursery.start_soon(second)
        await settle()
        scopes[0].cancel()
        await settle()
        assert taken == ["first", "second"]
        assert outcomes == []
        may_end.set()
    assert outcomes == ["second is written"]
