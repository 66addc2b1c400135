"""Who may write to a ledger's log: many that append, or one that promotes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

from rsocket_trio.connection.waiting import Parking


class Gate:
    """Lets many through together, or one alone."""

    def __init__(self) -> None:
        self._inside = 0
        self._turn = trio.Lock()
        self._left = Parking()

    @asynccontextmanager
    async def together(self) -> AsyncGenerator[None, None]:
        """Inside with others of this kind."""
        async with self._turn:
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._left.wake_all()

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None, None]:
        """Inside with nobody else."""
        async with self._turn:
            while self._inside:
                await self._left.park()
            yield
