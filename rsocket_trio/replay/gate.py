"""Who may write to a ledger's log: many that append, or one that promotes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType

import trio

from rsocket_trio.connection.waiting import Parking


class Gate:
    """Lets many through together, or one alone. Who comes while one is alone, or waits to be, waits for its end."""

    def __init__(self) -> None:
        self._inside = 0
        self._turn = trio.Lock()
        self._left = Parking()

    def together(self) -> Together:
        """Inside with others of this kind. Entering is no checkpoint where nothing has to be waited for."""
        return Together(self)

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None, None]:
        """Inside with nobody else."""
        async with self._turn:
            while self._inside:
                await self._left.park()
            yield

    async def enter(self) -> None:
        """Go in with others. Never waits while nobody is alone: each row that is written passes here."""
        if self._turn.locked():
            async with self._turn:
                self._inside += 1
        else:
            self._inside += 1

    def leave(self) -> None:
        """Go out."""
        self._inside -= 1
        if not self._inside:
            self._left.wake_all()


class Together:
    """One of those inside; ``async with`` it, once."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def __aenter__(self) -> None:
        await self._gate.enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave()
