"""A gate for writes to a ledger's log: many appends pass together, a promotion passes alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType

import trio

from rsocket_trio.connection.waiting import Parking


class Gate:
    """Lets many tasks in together, or one alone. While one is alone or waits to be, others wait for its end."""

    def __init__(self) -> None:
        self._inside = 0
        self._turn = trio.Lock()
        self._left = Parking()

    def together(self) -> Together:
        """Return a context inside together with others. Entering is no checkpoint if it need not wait."""
        return Together(self)

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None, None]:
        """Be inside alone for the block."""
        async with self._turn:
            while self._inside:
                await self._left.park()
            yield

    async def enter(self) -> None:
        """Go in together with others. This never waits while no task is alone: each written row passes here."""
        if self._turn.locked():
            async with self._turn:
                self._inside += 1
        else:
            self._inside += 1

    def leave(self) -> None:
        """Go out. The last one out wakes the task that waits to be alone."""
        self._inside -= 1
        if not self._inside:
            self._left.wake_all()


class Together:
    """One passage together with others; use it under ``async with``, once."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __aenter__(self) -> None:
        await self._gate.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave()
